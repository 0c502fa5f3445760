//! The flushes of policies that ask for the extra flushes of Linux. The expected counts are those
//! that `tlb:tlb_flush` showed under Linux 6.18 on x86 for the same calls; for ARC they follow from
//! its source.

use crate::platform::*;
use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, Change, Freed, PAGE_BYTES, Place, Protection, Sharing,
};

type OurSpace = Space<SHARED, AT_WAIT>;

/// Creates a space with eight pages, of which the first four were written, and with a neighbour
/// that keeps the table in use.
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
fn permission_gain_on_usable_page_is_flushed() {
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
fn inaccessible_pages_are_flushed_at_unmap() {
    let host = Host::new(64, 1);
    let space: OurSpace = space(&host);
    space.protect(pages(0, 8), Protection::empty()).unwrap();
    assert_eq!(flushes(&host, || space.unmap(pages(0, 8)).unwrap()).len(), 1);
}

#[test]
fn fork_flushes_whole_space_on_idle_cpus() {
    let host = Host::new(64, 1);
    let space: OurSpace = space(&host);
    for _ in 0..2 {
        let changes = flushes(&host, || space.fork().unwrap().exit());
        assert_eq!(changes.len(), 1);
        assert_eq!((&changes[0].range, changes[0].freed), (&None, Freed::Tables));
    }
}

#[test]
fn move_flushes_each_table_pair_separately() {
    // The number of the first page of a table.
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
    // First two tables move to two others with the same alignment, then to three others without it.
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
fn written_shared_pages_are_flushed_table_by_table() {
    // The number of the first page of a table.
    let first = (1 << 30) / PAGE_BYTES;
    let at =
        |page: u64, count: u64| (first + page) * PAGE_BYTES..(first + page + count) * PAGE_BYTES;
    let host = Host::with_addresses(4096, 1, at(0, 4096));
    let space: OurSpace = AddressSpace::new(&system(&host)).unwrap();
    space.map(Place::Fixed(at(0, 1)), READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    let discarded = |sharing, kind| {
        let area = at(512, 3 * 512);
        space.map(Place::Fixed(area.clone()), READ_WRITE, sharing, Backing::Anonymous).unwrap();
        for page in [512, 513, 1030, 1600] {
            let kind = if page == 1030 { Access::Read } else { kind };
            access(&space, 0, at(page, 1).start, kind, 1).unwrap();
        }
        flushes(&host, || space.advise(area, Advice::DontNeed).unwrap())
    };
    let ranges = |changes: Vec<Change>| Vec::from_iter(changes.into_iter().map(|it| it.range));
    // The page that was read is flushed with the next one that was written.
    let shared = ranges(discarded(Sharing::Shared, Access::Write));
    assert_eq!(shared, [Some(at(512, 2)), Some(at(1030, 1).start..at(1600, 1).end)]);
    assert_eq!(ranges(discarded(Sharing::Shared, Access::Read)).len(), 1);
    assert_eq!(ranges(discarded(Sharing::Private, Access::Write)).len(), 1);
}

#[test]
fn discard_of_whole_table_reaches_idle_cpus() {
    let table = (1 << 21) / PAGE_BYTES;
    let first = (1 << 30) / PAGE_BYTES;
    let at = |page: u64, count| (first + page) * PAGE_BYTES..(first + page + count) * PAGE_BYTES;
    let host = Host::with_addresses(4096, 1, at(0, 4 * table));
    let space: OurSpace = AddressSpace::new(&system(&host)).unwrap();
    let place = Place::Fixed(at(0, 4 * table));
    space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    let freed = |page, range: std::ops::Range<u64>| {
        for address in [at(page, 1).start, range.end - PAGE_BYTES] {
            access(&space, 0, address, Access::Write, 1).unwrap();
        }
        flushes(&host, || space.advise(range, Advice::DontNeed).unwrap())[0].freed
    };
    assert_eq!(freed(table, at(table, table)), Freed::Tables);
    assert_eq!(freed(table, at(table, table - 1)), Freed::Pages);
    assert_eq!(freed(table + 1, at(table + 1, table)), Freed::Pages, "parts of two tables");
    assert_eq!(freed(3 * table - 1, at(table + 1, 2 * table - 1)), Freed::Tables);
    assert_eq!(freed(1, at(1, 2 * table)), Freed::Tables);
}

#[test]
fn freed_table_is_flushed_from_its_first_address() {
    let host = Host::new(64, 1);
    let space: OurSpace = space(&host);
    space.unmap(pages(16, 1)).unwrap();
    let unmapped = flushes(&host, || space.unmap(pages(0, 8)).unwrap());
    // All addresses of these tests are in one table of 2 MiB, and the space has no other.
    let first = pages(0, 1).start & !((1 << 39) - 1);
    assert_eq!(unmapped[0].range, Some(first..pages(0, 4).end));
    assert_eq!(unmapped[0].freed, Freed::Tables);
}

#[test]
fn arc_3_9_flushes_space_if_page_existed() {
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
fn arc_3_10_flushes_whole_area_always() {
    let host = Host::new(64, 1);
    let space: Space<PER_AREA, AT_WAIT> = space(&host);
    let ranges = |changes: Vec<Change>| Vec::from_iter(changes.into_iter().map(|it| it.range));
    let discarded = || space.advise(pages(1, 1), Advice::DontNeed).unwrap();
    assert_eq!(ranges(flushes(&host, discarded)), [Some(pages(0, 8))], "the area is not cut");
    let unmapped = flushes(&host, || space.unmap(pages(5, 2)).unwrap());
    assert_eq!(ranges(unmapped), [Some(pages(5, 2))], "the area is cut before the flush");
    let nothing = flushes(&host, || space.unmap(pages(9, 2)).unwrap());
    assert_eq!(ranges(nothing), []);
}
