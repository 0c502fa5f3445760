//! Moves: the pages that move, the flushes, and concurrent accesses.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::platform::*;
use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, FaultError, File, Freed, Moves, PAGE_BYTES, Place,
    RemapError, Sharing,
};

type OurSpace = Space<RELEASED, AT_WAIT>;

/// A page far from the first pages, in another page table.
const FAR: u64 = 60;

/// Creates a space with `count` pages, of which those in `written` hold their number plus 100.
fn space_with_pages(host: &Host, count: u64, written: impl IntoIterator<Item = u64>) -> OurSpace {
    let space = AddressSpace::new(&system(host)).unwrap();
    map(&space, 0, count);
    written.into_iter().for_each(|page| write(&space, page, page + 100));
    space
}

fn map(space: &OurSpace, first: u64, count: u64) {
    let place = Place::Fixed(pages(first, count));
    space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
}

fn write(space: &OurSpace, page: u64, value: u64) {
    assert_eq!(access(space, 0, pages(page, 1).start, Access::Write, value), Ok(value));
}

fn read(space: &OurSpace, page: u64) -> Result<u64, FaultError> {
    access(space, 1, pages(page, 1).start, Access::Read, 0)
}

fn areas_of(space: &OurSpace) -> Vec<std::ops::Range<u64>> {
    space.areas().into_iter().map(|area| area.range).collect()
}

fn end(host: &Host, space: &OurSpace) {
    host.check_caches();
    space.exit();
    assert_eq!(host.frames_in_use(), 1);
}

#[test]
fn move_keeps_contents_with_one_flush() {
    let host = Host::new(64, 2);
    let space = space_with_pages(&host, 6, [1, 3, 5]);
    let pages_before = host.frames_in_use() - host.tables_in_use();
    space.remap(pages(0, 4), pages(FAR, 4)).unwrap();
    let flushes = host.take_flushes();
    assert_eq!(flushes.len(), 1);
    assert_eq!((flushes[0].range.clone(), flushes[0].freed), (Some(pages(1, 3)), Freed::Pages));
    assert_eq!(host.frames_in_use() - host.tables_in_use(), pages_before, "pages were copied");
    assert_eq!(areas_of(&space), [pages(4, 2), pages(FAR, 4)]);
    let words: Vec<_> = (FAR..FAR + 4).map(|page| read(&space, page)).collect();
    assert_eq!(words, [Ok(0), Ok(101), Ok(0), Ok(103)]);
    assert_eq!(read(&space, 1), Err(FaultError::NoArea));
    assert_eq!(read(&space, 5), Ok(105));
    end(&host, &space);
}

#[test]
fn move_frees_empty_tables_with_same_flush() {
    let host = Host::new(64, 2);
    let space = space_with_pages(&host, 4, [1]);
    let tables = host.tables_in_use();
    space.remap(pages(0, 4), pages(FAR, 4)).unwrap();
    let flushes = host.take_flushes();
    assert_eq!(flushes.len(), 1);
    // From the first address of the highest table that was freed to the page that was mapped.
    let range = Some(0..pages(0, 2).end);
    assert_eq!((flushes[0].range.clone(), flushes[0].freed), (range, Freed::Tables));
    assert_eq!(host.tables_in_use(), tables);
    end(&host, &space);
}

#[test]
fn move_of_untouched_pages_flushes_nothing() {
    let host = Host::new(64, 2);
    let space = space_with_pages(&host, 4, []);
    space.remap(pages(0, 4), pages(FAR, 8)).unwrap();
    assert_eq!((host.take_flushes(), host.tables_in_use()), (vec![], 1));
    assert_eq!(areas_of(&space), [pages(FAR, 8)]);
    end(&host, &space);
}

#[test]
fn move_replaces_existing_mapping() {
    let host = Host::new(64, 2);
    let space = space_with_pages(&host, 4, [1]);
    map(&space, FAR, 6);
    (FAR..FAR + 6).for_each(|page| write(&space, page, 7));
    space.remap(pages(0, 4), pages(FAR + 1, 4)).unwrap();
    let words: Vec<_> = (FAR..FAR + 6).map(|page| read(&space, page)).collect();
    assert_eq!(words, [Ok(7), Ok(0), Ok(101), Ok(0), Ok(0), Ok(7)]);
    let ranges: Vec<_> = host.take_flushes().into_iter().map(|change| change.range).collect();
    assert_eq!(ranges, [Some(pages(FAR + 1, 4)), Some(0..pages(0, 2).end)]);
    assert_eq!(areas_of(&space), [pages(FAR, 6)], "equal neighbours merge");
    end(&host, &space);
}

#[test]
fn remap_anywhere_moves_only_if_necessary() {
    let host = Host::new(64, 2);
    let space = space_with_pages(&host, 4, [1]);
    map(&space, 6, 1);
    let start = pages(0, 1).start;
    let remap = |first, count, to_count, moves| {
        let mut chosen = None;
        let set = |to: &std::ops::Range<u64>| chosen = Some(to.clone());
        let length = to_count * PAGE_BYTES;
        let result = space.remap_anywhere(pages(first, count), length, moves, set);
        assert_eq!(result.is_ok(), chosen.is_some(), "the place is known before the change");
        result
    };
    assert_eq!(remap(0, 4, 6, Moves::IfNecessary), Ok(start), "there is room for two pages");
    assert_eq!(host.take_flushes(), []);
    assert_eq!(remap(0, 6, 8, Moves::IfNecessary), Ok(pages(7, 1).start), "a page is in the way");
    assert_eq!(host.take_flushes().len(), 1, "the old pages");
    assert_eq!((read(&space, 8), read(&space, 1)), (Ok(101), Err(FaultError::NoArea)));
    assert_eq!(remap(7, 8, 2, Moves::Always), Ok(start), "the first gap");
    assert_eq!(host.take_flushes().len(), 1);
    assert_eq!((read(&space, 1), read(&space, 8)), (Ok(101), Err(FaultError::NoArea)));
    assert_eq!(areas_of(&space), [pages(0, 2), pages(6, 1)]);
    assert_eq!(remap(0, 4, 4, Moves::Always), Err(RemapError::NoArea));
    assert_eq!(remap(0, 2, PAGES, Moves::IfNecessary), Err(RemapError::NoRoom));
    assert_eq!(remap(0, 2, 0, Moves::Always), Err(RemapError::BadRange));
    end(&host, &space);
}

#[test]
fn shrinking_move_unmaps_with_same_flush() {
    let host = Host::new(64, 2);
    let space = space_with_pages(&host, 8, 0..8);
    space.remap(pages(0, 6), pages(FAR, 2)).unwrap();
    assert_eq!(host.take_flushes().len(), 1);
    assert_eq!(areas_of(&space), [pages(6, 2), pages(FAR, 2)]);
    assert_eq!([0, 1].map(|n| read(&space, FAR + n)), [Ok(100), Ok(101)]);
    assert_eq!(read(&space, 3), Err(FaultError::NoArea));
    space.remap(pages(6, 2), pages(6, 1)).unwrap();
    assert_eq!(host.take_flushes()[0].range, Some(pages(7, 1)));
    assert_eq!(areas_of(&space), [pages(6, 1), pages(FAR, 2)]);
    end(&host, &space);
}

#[test]
fn growth_in_place_flushes_nothing() {
    let host = Host::new(64, 2);
    let space = space_with_pages(&host, 4, 0..4);
    map(&space, 8, 2);
    space.remap(pages(2, 2), pages(2, 6)).unwrap();
    assert_eq!(areas_of(&space), [pages(0, 10)], "equal neighbours merge");
    assert_eq!((read(&space, 3), read(&space, 7)), (Ok(103), Ok(0)));
    assert_eq!(space.remap(pages(2, 2), pages(2, 3)), Err(RemapError::NoRoom));
    assert_eq!(space.remap(pages(0, 10), pages(0, 10)), Ok(()));
    assert_eq!(host.take_flushes(), []);
    end(&host, &space);
}

#[test]
fn file_area_grows_by_next_pages() {
    let host = Host::new(64, 2);
    let space: OurSpace = AddressSpace::new(&system(&host)).unwrap();
    let file = Arc::new(File::new(host.clone()));
    let map = |first, count, first_page| {
        let backing = Backing::File { file: Arc::clone(&file), first_page };
        space.map(Place::Fixed(pages(first, count)), READ_WRITE, Sharing::Shared, backing).unwrap();
    };
    map(0, 8, 20);
    (0..8).for_each(|page| write(&space, page, page + 100));
    map(10, 3, 20);
    space.remap(pages(11, 2), pages(FAR, 4)).unwrap();
    let words = [10, FAR, FAR + 1, FAR + 2, FAR + 3].map(|page| read(&space, page));
    assert_eq!(words, [Ok(100), Ok(101), Ok(102), Ok(103), Ok(104)]);
    space.remap(pages(10, 1), pages(10, 2)).unwrap();
    assert_eq!(read(&space, 11), Ok(101));
    drop(file);
    end(&host, &space);
}

#[test]
fn moved_page_stays_private() {
    let host = Host::new(64, 2);
    let space = space_with_pages(&host, 4, [1, 2]);
    let child = space.fork().unwrap();
    space.remap(pages(0, 4), pages(FAR, 4)).unwrap();
    assert_eq!(space.translation(pages(FAR + 1, 1).start), Some(READ));
    write(&space, FAR + 1, 7);
    assert_eq!((read(&child, 1), read(&child, FAR + 1)), (Ok(101), Err(FaultError::NoArea)));
    write(&child, 2, 8);
    assert_eq!(read(&space, FAR + 2), Ok(102));
    child.exit();
    end(&host, &space);
}

#[test]
fn invalid_move_changes_nothing() {
    let host = Host::new(64, 2);
    let space = space_with_pages(&host, 4, 0..4);
    map(&space, 6, 4);
    let before = areas_of(&space);
    for (from, to, error) in [
        (pages(0, 0), pages(20, 1), RemapError::BadRange),
        (pages(0, 1), pages(20, 0), RemapError::BadRange),
        (BASE..BASE + 5, pages(20, 1), RemapError::BadRange),
        (pages(0, 1), pages(PAGES - 1, 2), RemapError::BadRange),
        (pages(0, 4), pages(3, 4), RemapError::BadRange),
        (pages(1, 3), pages(0, 2), RemapError::BadRange),
        (pages(0, 4), pages(1, 1), RemapError::BadRange),
        (pages(0, 5), pages(20, 5), RemapError::NoArea),
        (pages(3, 4), pages(20, 4), RemapError::NoArea),
        (pages(5, 1), pages(5, 2), RemapError::NoArea),
        (pages(0, 4), pages(0, 7), RemapError::NoRoom),
        (pages(0, 2), pages(0, 3), RemapError::NoRoom),
    ] {
        assert_eq!(space.remap(from.clone(), to.clone()), Err(error), "{from:x?} {to:x?}");
    }
    assert_eq!((areas_of(&space), host.take_flushes()), (before, vec![]));
    end(&host, &space);
}

#[test]
fn move_without_memory_changes_nothing() {
    let two_regions = (2 << 30) - (4 << 20)..(3 << 30) + (2 << 20);
    let start = two_regions.start;
    let at = |page: u64| start + page * PAGE_BYTES;
    // The pages move from two tables to two others, below a table that does not exist either.
    // Another area is where the moved area would grow.
    let (from, to) = (at(0)..at(600), (3 << 30) - (3 << 20)..(3 << 30) + (1 << 20));
    let mut failures = 0;
    loop {
        let host = Host::with_addresses(64, 2, two_regions.clone());
        let space: OurSpace = AddressSpace::new(&system(&host)).unwrap();
        for range in [from.clone(), to.end - 8192..to.end + 8192] {
            let place = Place::Fixed(range);
            space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
        }
        for page in [0, 300, 599] {
            access(&space, 0, at(page), Access::Write, page + 1).unwrap();
        }
        let before = (areas_of(&space), host.tables_in_use());
        host.limit_allocations(failures);
        let result = space.remap(from.clone(), to.clone());
        host.limit_allocations(u64::MAX);
        host.check_caches();
        if result.is_ok() {
            let moved = [0, 300, 599].map(|page| {
                access(&space, 1, to.start + at(page) - start, Access::Read, 0).unwrap()
            });
            assert_eq!(moved, [1, 301, 600]);
            end(&host, &space);
            break;
        }
        assert_eq!(result, Err(RemapError::OutOfMemory));
        assert_eq!((areas_of(&space), host.tables_in_use()), before);
        for page in [0, 300, 599] {
            assert_eq!(access(&space, 1, at(page), Access::Read, 0), Ok(page + 1));
        }
        end(&host, &space);
        failures += 1;
    }
    assert_eq!(failures, 3, "the number of tables that the move makes");
}

/// One CPU caches a page, as read or as written, and writes to it. Another CPU accesses the page at
/// its new address. Both do so at every interruption point of the move. An accepted write is found
/// at the end, and the page is never accessible at both addresses.
#[test]
fn moving_page_is_never_at_both_addresses() {
    for remembered in [Access::Read, Access::Write] {
        let mut point = 0;
        while move_during_write(remembered, point) {
            point += 1;
        }
        assert!(point > 10, "only {point} points");
    }
}

/// Returns `true` if the two accesses came before the move was complete.
fn move_during_write(remembered: Access, point: u64) -> bool {
    let host = Host::new(64, 3);
    let space = Arc::new(space_with_pages(&host, 4, [1]));
    let (old, new) = (pages(1, 1).start, pages(FAR + 1, 1).start);
    // The next write marks the page.
    space.advise(pages(0, 4), Advice::Free).unwrap();
    access(&*space, 1, old, remembered, 101).unwrap();
    let written = Arc::new(AtomicU64::new(101));
    let (machine, root, word) = (host.clone(), space.root(), Arc::clone(&written));
    host.interrupt_after(point, move || {
        let at_old = machine.touch(1, root, old, Access::Write, 7);
        if let Ok(value) = at_old {
            word.store(value, Relaxed);
        }
        let at_new = machine.touch(2, root, new, Access::Read, 0);
        assert!(at_old.is_err() || at_new.is_err(), "the page is accessible at both addresses");
    });
    space.remap(pages(0, 4), pages(FAR, 4)).unwrap();
    let was_interrupted = !host.cancel_interruption();
    let written = written.load(Relaxed);
    assert_eq!(read(&space, FAR + 1), Ok(written));
    assert_eq!(host.is_dirty(root, new), written == 7 || remembered == Access::Write);
    assert_eq!(host.touch(1, space.root(), old, Access::Read, 0), Err(PageFault));
    end(&host, &space);
    was_interrupted
}

/// Another call has cleared the entries and not yet flushed them. No CPU can use the old
/// translations after the move.
#[test]
fn move_during_discard_revokes_access() {
    let host = Host::new(64, 2);
    let space = Arc::new(space_with_pages(&host, 4, 0..4));
    assert_eq!(read(&space, 2), Ok(102));
    let other = Arc::clone(&space);
    host.when_waiting(move || {
        other.remap(pages(0, 4), pages(FAR, 4)).unwrap();
        assert_eq!(read(&other, 2), Err(FaultError::NoArea));
        assert_eq!(read(&other, FAR + 2), Ok(0));
    });
    space.advise(pages(0, 4), Advice::DontNeed).unwrap();
    assert!(!host.hook_is_set());
    end(&host, &space);
}

/// An address whose flush is not complete is flushed before a page is mapped there.
#[test]
fn growth_over_unflushed_range_is_clean() {
    let host = Host::new(64, 2);
    let space = Arc::new(space_with_pages(&host, 8, 0..8));
    assert_eq!(read(&space, 5), Ok(105));
    let other = Arc::clone(&space);
    host.when_waiting(move || {
        other.remap(pages(0, 4), pages(0, 8)).unwrap();
        assert_eq!(read(&other, 5), Ok(0));
    });
    space.unmap(pages(4, 4)).unwrap();
    assert!(!host.hook_is_set());
    end(&host, &space);
}
