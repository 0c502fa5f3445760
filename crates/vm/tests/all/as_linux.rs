//! What is flushed where a design is to flush all that Linux does: the counts are those that
//! `tlb:tlb_flush` showed under Linux 6.18 on x86, for the same calls; and on ARC, what its code
//! says.

use crate::platform::*;
use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, Change, Freed, PAGE_BYTES, Place, Protection, Sharing,
};

type OurSpace = Space<SHARED, AT_WAIT>;

/// Eight pages, of which the first four were written, with a neighbour that keeps the table.
fn space<const LOCK: u8>(host: &Host) -> Space<LOCK, AT_WAIT> {
    let space: Space<LOCK, AT_WAIT> = AddressSpace::new(&system(host)).unwrap();
    for range in [pages(0, 8), pages(16, 1)] {
        let private = (Sharing::Private, Backing::Anonymous);
        space.map(Place::Fixed(range), READ_WRITE, private.0, private.1).unwrap();
    }
    for page in (0..4).chain([16]) {
        let address = page * PAGE_BYTES + pages(0, 1).start;
        assert_eq!(access(&space, 0, address, Access::Write, 7), Ok(7));
    }
    space
}

fn flushes(host: &Host, act: impl FnOnce()) -> Vec<Change> {
    host.take_flushes();
    act();
    host.take_flushes()
}

#[test]
fn gaining_a_permission_is_flushed_if_the_page_was_usable() {
    let host = Host::new(64, 1);
    let space: OurSpace = space(&host);
    let protect =
        |protection| flushes(&host, || space.protect(pages(0, 8), protection).unwrap()).len();
    assert_eq!(protect(Protection::READ), 1);
    assert_eq!(protect(READ_WRITE), 1);
    assert_eq!(protect(READ_WRITE | Protection::EXECUTE), 1);
    assert_eq!(protect(READ_WRITE | Protection::EXECUTE), 0);
    assert_eq!(protect(Protection::empty()), 1);
    assert_eq!(protect(READ_WRITE), 0);
}

#[test]
fn pages_that_nobody_may_touch_are_flushed_when_they_go() {
    let host = Host::new(64, 1);
    let space: OurSpace = space(&host);
    space.protect(pages(0, 8), Protection::empty()).unwrap();
    assert_eq!(flushes(&host, || space.unmap(pages(0, 8)).unwrap()).len(), 1);
}

#[test]
fn every_fork_flushes_everything_and_tells_idle_cpus() {
    let host = Host::new(64, 1);
    let space: OurSpace = space(&host);
    for _ in 0..2 {
        let changes = flushes(&host, || space.fork().unwrap().exit());
        assert_eq!(changes.len(), 1);
        assert_eq!((&changes[0].range, changes[0].freed), (&None, Freed::Tables));
    }
}

#[test]
fn a_move_flushes_each_pair_of_tables_by_itself() {
    // The first page of a table is this one.
    let first = (1 << 30) / PAGE_BYTES;
    let at =
        |page: u64, count: u64| (first + page) * PAGE_BYTES..(first + page + count) * PAGE_BYTES;
    let host = Host::with_addresses(4096, 1, at(0, 8192));
    let space: OurSpace = AddressSpace::new(&system(&host)).unwrap();
    let place = Place::Fixed(at(0, 1024));
    space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    for page in 0..1024 {
        assert_eq!(access(&space, 0, at(page, 1).start, Access::Write, page), Ok(page));
    }
    // Two tables to two others that lie as they do, and to three that do not.
    let aligned = flushes(&host, || space.remap(at(0, 1024), at(2048, 1024)).unwrap());
    assert_eq!(aligned.len(), 2 + 1);
    let shifted = flushes(&host, || space.remap(at(2048, 1024), at(5000, 1024)).unwrap());
    assert_eq!(shifted.len(), 4 + 1);
    assert!(aligned.iter().all(|change| change.freed == Freed::Tables));
    for page in 0..1024 {
        assert_eq!(access(&space, 0, at(5000 + page, 1).start, Access::Read, 0), Ok(page));
    }
}

#[test]
fn arc_3_9_flushes_the_space_for_what_it_unmaps_and_not_for_what_was_never_there() {
    let host = Host::new(64, 1);
    let space: Space<PER_SPACE, AT_WAIT> = space(&host);
    let ranges = |changes: Vec<Change>| Vec::from_iter(changes.into_iter().map(|it| it.range));
    assert_eq!(flushes(&host, || space.unmap(pages(4, 2)).unwrap()), []);
    let unmapped = flushes(&host, || space.unmap(pages(0, 1)).unwrap());
    assert_eq!(ranges(unmapped), [None]);
    let discarded = || space.advise(pages(1, 1), Advice::DontNeed).unwrap();
    assert_eq!(ranges(flushes(&host, discarded)), [None]);
    let protected = flushes(&host, || space.protect(pages(2, 1), READ).unwrap());
    assert_eq!(ranges(protected), [Some(pages(2, 1))]);
}

#[test]
fn arc_3_10_flushes_all_of_each_area_even_if_nothing_was_there() {
    let host = Host::new(64, 1);
    let space: Space<PER_AREA, AT_WAIT> = space(&host);
    let ranges = |changes: Vec<Change>| Vec::from_iter(changes.into_iter().map(|it| it.range));
    let discarded = || space.advise(pages(1, 1), Advice::DontNeed).unwrap();
    assert_eq!(ranges(flushes(&host, discarded)), [Some(pages(0, 8))], "the area was not cut");
    let unmapped = flushes(&host, || space.unmap(pages(5, 2)).unwrap());
    assert_eq!(ranges(unmapped), [Some(pages(5, 2))], "the area was cut first");
    let nothing = flushes(&host, || space.unmap(pages(9, 2)).unwrap());
    assert_eq!(ranges(nothing), []);
}
