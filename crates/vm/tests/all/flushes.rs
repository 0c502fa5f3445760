//! The flushes of each operation, and operations that need none.

use std::sync::Arc;

use crate::platform::*;
use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, FaultError, File, Freed, PAGE_BYTES, Place, Protection,
    RangeError, Sharing,
};

type OurSpace = Space<RELEASED, AT_WAIT>;

fn new_space(host: &Host) -> OurSpace {
    AddressSpace::new(&system(host)).unwrap()
}

fn map(space: &OurSpace, first: u64, count: u64) {
    let place = Place::Fixed(pages(first, count));
    space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
}

fn write(space: &OurSpace, page: u64, value: u64) {
    assert_eq!(access(space, 0, pages(page, 1).start, Access::Write, value), Ok(value));
}

fn read(space: &OurSpace, cpu: usize, page: u64) -> u64 {
    access(space, cpu, pages(page, 1).start, Access::Read, 0).unwrap()
}

#[test]
fn unmap_of_untouched_pages_flushes_nothing() {
    let host = Host::new(64, 1);
    let space = new_space(&host);
    map(&space, 0, 8);
    space.unmap(pages(0, 8)).unwrap();
    assert_eq!(host.take_flushes(), []);
    assert_eq!(space.stats().flushes_avoided, 1);
}

#[test]
fn flush_covers_only_touched_pages() {
    let host = Host::new(64, 1);
    let space = new_space(&host);
    map(&space, 0, 20);
    write(&space, 3, 1);
    write(&space, 5, 2);
    space.unmap(pages(1, 10)).unwrap();
    let flushes = host.take_flushes();
    assert_eq!(flushes.len(), 1);
    assert_eq!(flushes[0].range, Some(pages(3, 3)));
    assert_eq!(flushes[0].freed, Freed::Pages);
}

#[test]
fn unmap_of_last_area_frees_table() {
    let host = Host::new(64, 1);
    let space = new_space(&host);
    map(&space, 0, 4);
    map(&space, 8, 4);
    write(&space, 0, 1);
    write(&space, 8, 1);
    let tables = host.tables_in_use();
    space.unmap(pages(0, 4)).unwrap();
    assert_eq!(host.tables_in_use(), tables);
    space.unmap(pages(8, 4)).unwrap();
    assert_eq!(host.tables_in_use(), 1);
    let freed: Vec<_> = host.take_flushes().iter().map(|change| change.freed).collect();
    assert_eq!(freed, [Freed::Pages, Freed::Tables]);
}

#[test]
fn freed_empty_table_is_flushed() {
    let host = Host::new(64, 1);
    let space = new_space(&host);
    map(&space, 0, 4);
    write(&space, 0, 1);
    space.advise(pages(0, 4), Advice::DontNeed).unwrap();
    host.take_flushes();
    space.unmap(pages(0, 4)).unwrap();
    let flushes = host.take_flushes();
    assert_eq!(flushes.len(), 1);
    // The first page of each table, of which the highest covers 512 GiB, and the lowest 2 MiB.
    let [highest, lowest] = [39, 21].map(|shift| pages(0, 1).start >> shift << shift);
    let range = Some(highest..lowest + PAGE_BYTES);
    assert_eq!((flushes[0].range.clone(), flushes[0].freed), (range, Freed::Tables));
    host.check_caches();
}

#[test]
fn lost_permission_is_flushed_gained_is_not() {
    let host = Host::new(64, 2);
    let space = new_space(&host);
    map(&space, 0, 4);
    write(&space, 0, 7);
    write(&space, 1, 7);
    space.protect(pages(0, 1), READ).unwrap();
    assert_eq!(host.take_flushes()[0].range, Some(pages(0, 1)));
    assert_eq!(read(&space, 1, 0), 7);
    space.protect(pages(0, 1), READ_WRITE).unwrap();
    assert_eq!(host.take_flushes(), []);
    // The page is not shared, so protect makes the entry writable without a fault.
    write(&space, 0, 8);
    assert_eq!(access(&space, 1, pages(0, 1).start, Access::Write, 9), Ok(9));
    assert_eq!(host.take_flushes(), []);
}

#[test]
fn protect_grants_no_write_to_shared_page() {
    let host = Host::new(64, 2);
    let space = new_space(&host);
    map(&space, 0, 1);
    write(&space, 0, 7);
    let child = space.fork().unwrap();
    for protection in [READ, READ_WRITE] {
        space.protect(pages(0, 1), protection).unwrap();
    }
    write(&space, 0, 8);
    assert_eq!((read(&space, 1, 0), read(&child, 1, 0)), (8, 7));
    child.exit();
}

#[test]
fn only_page_of_one_space_is_cooled() {
    let host = Host::new(64, 2);
    let space = new_space(&host);
    map(&space, 0, 2);
    write(&space, 0, 7);
    let child = space.fork().unwrap();
    // The second page is the page of zeros.
    assert_eq!((read(&space, 1, 0), read(&space, 1, 1)), (7, 0));
    host.take_flushes();
    space.advise(pages(0, 2), Advice::Cold).unwrap();
    assert_eq!(host.take_flushes(), []);
    child.exit();
    space.advise(pages(0, 2), Advice::Cold).unwrap();
    assert_eq!(host.take_flushes()[0].range, Some(pages(0, 1)));
}

#[test]
fn protect_existing_ignores_holes() {
    let host = Host::new(64, 2);
    let space = new_space(&host);
    map(&space, 2, 2);
    map(&space, 6, 2);
    write(&space, 3, 7);
    write(&space, 6, 8);
    assert_eq!(space.protect(pages(0, 10), READ), Err(RangeError::NoArea));
    write(&space, 3, 9);
    assert_eq!(host.take_flushes(), []);
    assert_eq!(space.protect_existing(pages(0, 10), READ), Ok(()));
    assert_eq!(host.take_flushes()[0].range, Some(pages(3, 4)));
    assert!(space.areas().iter().all(|area| area.protection == READ));
    assert_eq!(space.protect_existing(pages(0, 2), READ_WRITE), Ok(()), "the range has no area");
    assert_eq!(host.take_flushes(), []);
    assert_eq!(space.areas().len(), 2);
}

#[test]
fn freed_page_is_marked_by_next_write() {
    let host = Host::new(64, 2);
    let space = new_space(&host);
    map(&space, 0, 4);
    write(&space, 0, 7);
    write(&space, 1, 8);
    let is_dirty = |page| host.is_dirty(space.root(), pages(page, 1).start);
    space.advise(pages(0, 4), Advice::Free).unwrap();
    assert_eq!(host.take_flushes()[0].range, Some(pages(0, 2)));
    assert!(!is_dirty(0) && !is_dirty(1));
    host.check_caches();
    space.advise(pages(0, 4), Advice::Free).unwrap();
    assert_eq!(host.take_flushes(), [], "no mark is left");
    assert_eq!((read(&space, 1, 0), read(&space, 1, 1)), (7, 8));
    write(&space, 1, 9);
    assert!(!is_dirty(0) && is_dirty(1));
}

#[test]
fn free_advice_affects_private_anonymous_pages_only() {
    let host = Host::new(64, 2);
    let space = new_space(&host);
    let file = Arc::new(File::new(host.clone()));
    let backing = || Backing::File { file: Arc::clone(&file), first_page: 0 };
    space.map(Place::Fixed(pages(0, 1)), READ_WRITE, Sharing::Shared, backing()).unwrap();
    space.map(Place::Fixed(pages(1, 1)), READ_WRITE, Sharing::Private, backing()).unwrap();
    map(&space, 2, 6);
    (0..6).for_each(|page| write(&space, page, 7));
    read(&space, 0, 6);
    space.protect(pages(4, 1), READ).unwrap();
    space.protect(pages(5, 1), Protection::empty()).unwrap();
    host.take_flushes();
    assert_eq!(space.advise(pages(0, 9), Advice::Free), Err(RangeError::NoArea));
    let flushes = host.take_flushes();
    assert_eq!(flushes.len(), 1);
    assert_eq!(flushes[0].range, Some(pages(2, 3)), "no CPU can have cached the last page");
    let dirty = (0..5).filter(|&page| host.is_dirty(space.root(), pages(page, 1).start));
    assert_eq!(Vec::from_iter(dirty), [0, 1]);
}

#[test]
fn inaccessible_page_keeps_contents() {
    let host = Host::new(64, 1);
    let space = new_space(&host);
    map(&space, 0, 1);
    write(&space, 0, 7);
    space.protect(pages(0, 1), Protection::empty()).unwrap();
    host.check_caches();
    host.take_flushes();
    space.protect(pages(0, 1), READ_WRITE).unwrap();
    assert_eq!(host.take_flushes(), []);
    assert_eq!(read(&space, 0, 0), 7);
    space.protect(pages(0, 1), Protection::empty()).unwrap();
    host.take_flushes();
    let in_use = host.frames_in_use();
    space.advise(pages(0, 1), Advice::DontNeed).unwrap();
    assert_eq!(host.take_flushes(), [], "no CPU can have cached the page");
    assert_eq!(host.frames_in_use(), in_use - 1);
}

#[test]
fn write_after_read_flushes_zero_page() {
    let host = Host::new(64, 2);
    let space = new_space(&host);
    map(&space, 0, 1);
    assert_eq!(read(&space, 1, 0), 0);
    assert_eq!(host.take_flushes(), []);
    write(&space, 0, 7);
    assert_eq!(host.take_flushes().len(), 1);
    assert_eq!(read(&space, 1, 0), 7);
}

#[test]
fn fork_flushes_writable_pages_once() {
    let host = Host::new(64, 2);
    let space = new_space(&host);
    map(&space, 0, 8);
    write(&space, 2, 1);
    read(&space, 0, 4);
    let child = space.fork().unwrap();
    assert_eq!(host.take_flushes()[0].range, Some(pages(2, 1)));
    let other = space.fork().unwrap();
    assert_eq!(host.take_flushes(), []);
    other.exit();
    child.exit();
    // No other space shares the page any more.
    write(&space, 2, 2);
    assert_eq!(host.take_flushes(), []);
}

#[test]
fn exit_retires_once_and_flushes_nothing() {
    let host = Host::new(64, 2);
    let space = new_space(&host);
    map(&space, 0, 8);
    map(&space, 80, 8);
    write(&space, 2, 1);
    write(&space, 81, 1);
    space.exit();
    space.exit();
    assert_eq!((host.retired(), host.take_flushes().len(), host.frames_in_use()), (1, 0, 1));
    let place = Place::Anywhere { length: PAGE_BYTES };
    assert!(space.map(place, READ, Sharing::Private, Backing::Anonymous).is_err());
    assert!(space.fault(BASE, Access::Read).is_err());
    assert!(space.unmap(pages(0, 1)).is_err());
}

/// The host asserts that a table which the space has emptied is empty when it is freed.
#[test]
fn ended_space_empties_tables_if_kept() {
    fn emptied<const LOCK: u8>() -> usize {
        let host = Host::with_addresses(64, 2, pages(0, 1024));
        let space: Space<LOCK, AT_WAIT> = AddressSpace::new(&system(&host)).unwrap();
        let place = Place::Fixed(pages(0, 1024));
        space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
        for page in [1, 5, 700] {
            space.fault(BASE + page * PAGE_BYTES, Access::Write).unwrap();
        }
        space.exit();
        assert_eq!(host.frames_in_use(), 1);
        host.emptied()
    }
    assert_eq!((emptied::<KEEPING>(), emptied::<RELEASED>()), (2, 0));
}

/// Faults find areas in the index first.
#[test]
fn ended_space_has_no_areas_in_its_index() {
    let host = Host::new(64, 2);
    let space: Space<SHARED, AT_WAIT> = AddressSpace::new(&system(&host)).unwrap();
    let place = Place::Fixed(pages(0, 8));
    space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    space.fault(BASE, Access::Write).unwrap();
    space.exit();
    assert_eq!(space.fault(BASE, Access::Write), Err(FaultError::NoArea));
    assert_eq!(host.frames_in_use(), 1);
}

/// Linux gathers the same number of pages: 8 + 19 * 510.
#[test]
fn full_gather_is_flushed_early() {
    let count = 2 * 9698 + 1;
    let host = Host::with_addresses(20_000, 1, pages(0, count));
    let space = new_space(&host);
    map(&space, 0, count);
    (0..count).for_each(|page| write(&space, page, page + 1));
    let (machine, root) = (host.clone(), space.root());
    host.when_waiting(move || {
        let before_flush = machine.touch(0, root, BASE, Access::Read, 0);
        assert_eq!(before_flush, Ok(1), "the page must not be free yet");
    });
    space.unmap(pages(0, count)).unwrap();
    let flushes = host.take_flushes();
    assert_eq!(flushes.len(), 3);
    assert_eq!(flushes[0].range, Some(pages(0, 9698)));
    host.check_caches();
    space.exit();
    assert_eq!(host.frames_in_use(), 1);
}

/// One page in each of `count` tables of the last level, unmapped together.
fn unmap_tables<const EMPTY: u8>(count: u64) -> (Host, Space<EMPTY, AT_WAIT>) {
    let host = Host::with_addresses(2500, 1, pages(0, 512 * count));
    let space: Space<EMPTY, AT_WAIT> = AddressSpace::new(&system(&host)).unwrap();
    let place = Place::Fixed(pages(0, 512 * count));
    space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    for table in 0..count {
        access(&space, 0, pages(512 * table, 1).start, Access::Write, 1).unwrap();
    }
    host.take_flushes();
    space.unmap(pages(0, 512 * count)).unwrap();
    (host, space)
}

/// Two or three tables of the next level are gathered with those of the last level.
#[test]
fn gather_of_too_many_tables_is_flushed_early() {
    for (count, flushes) in [(506, 1), (507, 2), (1014, 2), (1015, 3)] {
        let (host, space) = unmap_tables::<RELEASED>(count);
        assert_eq!(host.take_flushes().len(), flushes, "{count} tables of the last level");
        space.exit();
    }
}

/// Besides the root, there are three tables of the higher levels.
#[test]
fn more_than_512_empty_tables_are_freed() {
    for (count, left) in [(509, 512), (510, 0)] {
        let (host, space) = unmap_tables::<KEEPING>(count);
        assert_eq!(host.tables_in_use(), 1 + left, "{count} tables of the last level");
        space.exit();
    }
}

#[test]
fn equal_neighbours_merge() {
    let host = Host::new(64, 1);
    let space = new_space(&host);
    map(&space, 0, 4);
    map(&space, 8, 4);
    map(&space, 4, 4);
    assert_eq!(space.areas().len(), 1);
    space.protect(pages(5, 2), READ).unwrap();
    assert_eq!(space.areas().len(), 3);
    space.protect(pages(5, 2), READ_WRITE).unwrap();
    assert_eq!(space.areas().len(), 1);
}

#[test]
fn cut_file_area_keeps_page_numbers() {
    let host = Host::new(64, 1);
    let space = new_space(&host);
    let file = Arc::new(File::new(host.clone()));
    let backing = || Backing::File { file: Arc::clone(&file), first_page: 10 };
    let map = |first| {
        let place = Place::Fixed(pages(first, 4));
        space.map(place, READ_WRITE, Sharing::Shared, backing()).unwrap();
    };
    map(0);
    map(20);
    write(&space, 3, 7);
    space.unmap(pages(1, 1)).unwrap();
    assert_eq!(read(&space, 0, 3), 7);
    assert_eq!(read(&space, 0, 23), 7);
    assert_eq!(file.resident_pages(), 1);
    space.exit();
    drop(file);
    assert_eq!(host.frames_in_use(), 1);
}

#[test]
fn invalid_ranges_are_rejected() {
    let host = Host::new(64, 1);
    let space = new_space(&host);
    let outside = BASE - PAGE_BYTES..BASE + PAGE_BYTES;
    for range in [pages(0, 0), BASE..BASE + 1, BASE + 1..BASE + PAGE_BYTES, outside] {
        let fixed = Place::Fixed(range.clone());
        assert!(space.map(fixed, READ, Sharing::Private, Backing::Anonymous).is_err());
        assert!(space.unmap(range.clone()).is_err());
        assert!(space.protect(range.clone(), READ).is_err());
        assert!(space.protect_existing(range.clone(), READ).is_err());
        assert!(space.advise(range, Advice::DontNeed).is_err());
    }
    let nothing = Place::Anywhere { length: 0 };
    assert!(space.map(nothing, READ, Sharing::Private, Backing::Anonymous).is_err());
}

/// The test machine must detect a coherence that does nothing. Otherwise the other tests would
/// prove nothing.
#[test]
#[should_panic(expected = "is used as another kind")]
fn machine_detects_missing_flush() {
    let host = Host::new(64, 2);
    let space = new_space(&host);
    map(&space, 0, 1);
    write(&space, 0, 1);
    read(&space, 1, 0);
    host.drop_flushes();
    space.unmap(pages(0, 1)).unwrap();
    read(&space, 1, 0);
}
