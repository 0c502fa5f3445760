//! Operations on all of a large page, or on a part, and their flushes.

use std::ops::Range;
use std::sync::Arc;

use shootdown::{Extent, PageSize};
use shootdown_vm::{Access, Advice, Cause, Change, FaultError, Freed, Protection};

use crate::large::fixture::*;
use crate::platform::*;

/// Returns a range in the middle of block 1.
fn part() -> Range<u64> {
    at(BLOCK + 100, 50)
}

fn is_in_part(page: u64) -> bool {
    part().contains(&at(page, 1).start)
}

/// Returns the flush of the large page in block 1, as one page.
fn flush_of_large(cause: Cause) -> Change {
    let page = Extent::pages(block(1).start, 1, PageSize::SIZE_2M);
    let mut change = Change::range(block(1), Freed::Pages);
    change.extents = Default::default();
    change.extents.add(page);
    // A large page whose permissions change is not removed.
    let resizes = cause != Cause::Protect;
    Change { page_size: PageSize::SIZE_2M, resizes, cause, ..change }
}

fn flush_of_part(cause: Cause) -> Change {
    Change { cause, ..Change::range(part(), Freed::Pages) }
}

/// Performs an operation on a part. Returns the fixture, for further checks.
fn do_to_part(
    operation: impl FnOnce(&OurSpace<RELEASED>),
    flushes: impl IntoIterator<Item = Change>,
) -> Fixture<RELEASED> {
    let fixture = Fixture::<RELEASED>::new().with_large_page();
    operation(&fixture.space);
    assert!(!fixture.is_large(1));
    assert_eq!(fixture.space.stats().split, 1);
    assert_eq!(fixture.host.take_flushes(), Vec::from_iter(flushes));
    fixture.check(BLOCK..BLOCK + 100);
    fixture.check(BLOCK + 150..2 * BLOCK);
    fixture
}

#[test]
fn part_of_large_page_is_unmapped() {
    let unmap = |space: &OurSpace<_>| space.unmap(part()).unwrap();
    let fixture = do_to_part(unmap, [flush_of_large(Cause::Split), flush_of_part(Cause::Unmap)]);
    let read = try_access(&fixture.space, 1, BLOCK + 100, Access::Read, 0);
    assert_eq!(read, Err(FaultError::NoArea));
    fixture.end();
}

#[test]
fn part_of_large_page_is_replaced() {
    let fixture = do_to_part(
        |space| map(space, part(), READ),
        [flush_of_large(Cause::Split), flush_of_part(Cause::Unmap)],
    );
    assert_eq!(read(&fixture.space, 1, BLOCK + 100), 0);
    fixture.end();
}

#[test]
fn part_of_large_page_is_protected() {
    let protect = |space: &OurSpace<_>| space.protect(part(), READ).unwrap();
    let fixture =
        do_to_part(protect, [flush_of_large(Cause::Split), flush_of_part(Cause::Protect)]);
    let write = try_access(&fixture.space, 1, BLOCK + 100, Access::Write, 1);
    assert_eq!(write, Err(FaultError::NotPermitted));
    fixture.check(BLOCK..2 * BLOCK);
    fixture.end();
}

#[test]
fn part_of_large_page_is_discarded() {
    let discard = |space: &OurSpace<_>| space.advise(part(), Advice::DontNeed).unwrap();
    let fixture = do_to_part(discard, [flush_of_large(Cause::Split), flush_of_part(Cause::Advise)]);
    assert_eq!(read(&fixture.space, 1, BLOCK + 100), 0);
    fixture.end();
}

#[test]
fn part_of_large_page_is_moved() {
    let remap = |space: &OurSpace<_>| space.remap(part(), at(20, 50)).unwrap();
    let fixture = do_to_part(remap, [flush_of_large(Cause::Split), flush_of_part(Cause::Move)]);
    for page in 20..70 {
        assert_eq!(read(&fixture.space, 1, page), page + BLOCK + 80);
    }
    fixture.end();
}

#[test]
fn split_entry_is_empty_during_flush() {
    let fixture = Fixture::<RELEASED>::new().with_large_page();
    let other = Arc::clone(&fixture.space);
    fixture.host.when_waiting(move || {
        assert_eq!(touch(&other, 0, BLOCK + 7, Access::Read, 0), Err(PageFault));
        let write = touch(&other, 1, BLOCK + 7, Access::Write, BLOCK + 7);
        assert_eq!(write, Ok(BLOCK + 7), "the CPU was not notified yet");
    });
    fixture.space.protect(part(), READ).unwrap();
    assert!(!fixture.host.hook_is_set());
    fixture.check(BLOCK..2 * BLOCK);
    fixture.end();
}

#[test]
fn page_moves_into_large_page() {
    let fixture = Fixture::<RELEASED>::new().with_large_page();
    write(&fixture.space, 0, 3, 33);
    fixture.space.remap(at(3, 1), part().start..part().start + 4096).unwrap();
    assert_eq!(read(&fixture.space, 1, BLOCK + 100), 33);
    fixture.check(BLOCK..BLOCK + 100);
    fixture.check(BLOCK + 101..2 * BLOCK);
    fixture.end();
}

/// All pages lose their marks during the split, but only the pages of the part are discardable.
#[test]
fn part_of_large_page_is_freed() {
    let free = |space: &OurSpace<_>| space.advise(part(), Advice::Free).unwrap();
    let fixture = do_to_part(free, [flush_of_large(Cause::Split), flush_of_part(Cause::Advise)]);
    for page in BLOCK..2 * BLOCK {
        let is_dirty = fixture.host.is_dirty(fixture.space.root(), at(page, 1).start);
        assert_eq!(is_dirty, !is_in_part(page), "page {page}");
    }
    fixture.check(BLOCK..2 * BLOCK);
    fixture.end();
}

#[test]
fn range_across_large_pages_splits_both() {
    let fixture = Fixture::<RELEASED>::new().with_large_page();
    write(&fixture.space, 1, 2 * BLOCK, 1);
    write(&fixture.space, 1, 0, 1);
    assert_eq!(fixture.space.collapse(everything()), Ok(2));
    for number in 0..3 {
        let expected = if number == 1 { BLOCK + 9 } else { 0 };
        assert_eq!(read(&fixture.space, 0, number * BLOCK + 9), expected);
    }
    fixture.host.take_flushes();
    fixture.space.protect(at(BLOCK - 4, BLOCK + 8), READ).unwrap();
    assert_eq!([0, 1, 2].map(|number| fixture.is_large(number)), [false, true, false]);
    let flushes = fixture.host.take_flushes();
    assert_eq!(flushes.len(), 2);
    let large = |number| Extent::pages(block(number).start, 1, PageSize::SIZE_2M);
    assert_eq!(flushes[0].extents.as_slice(), [large(0), large(2)]);
    // Small pages on both sides of the large page, which is still flushed as one page.
    assert_eq!(flushes[1].page_size, PageSize::SIZE_4K);
    let small = |first, count| Extent::pages(at(first, 1).start, count, PageSize::SIZE_4K);
    let pieces = [small(BLOCK - 4, 4), large(1), small(2 * BLOCK, 4)];
    assert_eq!(flushes[1].extents.as_slice(), pieces);
    fixture.check(BLOCK..2 * BLOCK);
    fixture.end();
}

#[test]
fn operation_on_whole_large_page_flushes_once() {
    type Operation = fn(&OurSpace<RELEASED>);
    let operations: [(Operation, Cause); 4] = [
        (|space| space.unmap(block(1)).unwrap(), Cause::Unmap),
        (|space| map(space, block(1), READ), Cause::Unmap),
        (|space| space.protect(block(1), READ).unwrap(), Cause::Protect),
        (|space| space.advise(block(1), Advice::DontNeed).unwrap(), Cause::Advise),
    ];
    for (operation, cause) in operations {
        let fixture = Fixture::<RELEASED>::new().with_large_page();
        // A neighbour keeps the table of level 1 in use.
        let tables = fixture.host.tables_in_use();
        operation(&fixture.space);
        assert_eq!(fixture.host.take_flushes(), [flush_of_large(cause)]);
        assert_eq!(fixture.host.tables_in_use(), tables);
        fixture.host.check_caches();
        if cause == Cause::Protect {
            assert!(fixture.is_large(1));
            fixture.check(BLOCK..2 * BLOCK);
        } else {
            assert!(fixture.host.frames_in_use() < 10, "pages are still in use");
        }
        fixture.end();
    }
}

#[test]
fn permission_gain_on_large_page_flushes_nothing() {
    let fixture = Fixture::<RELEASED>::new().with_large_page();
    fixture.space.protect(block(1), READ).unwrap();
    fixture.check(BLOCK..2 * BLOCK);
    fixture.host.take_flushes();
    fixture.space.protect(block(1), READ_WRITE).unwrap();
    write(&fixture.space, 2, BLOCK + 7, BLOCK + 7);
    assert_eq!(fixture.host.take_flushes(), []);
    assert!(fixture.is_large(1));
    // A split of an inaccessible page has nothing to flush.
    fixture.space.protect(block(1), Protection::empty()).unwrap();
    fixture.host.take_flushes();
    fixture.space.protect(part(), READ_WRITE).unwrap();
    assert_eq!(fixture.host.take_flushes(), []);
    fixture.check(BLOCK + 100..BLOCK + 150);
    fixture.end();
}

/// The CPU had no translation, so there is nothing to change.
#[test]
fn fault_in_large_page_changes_nothing() {
    let fixture = Fixture::<RELEASED>::new().with_large_page();
    let frames = fixture.host.frames_in_use();
    for (page, access) in [(0, Access::Read), (7, Access::Write), (511, Access::Read)] {
        assert_eq!(fixture.space.fault(at(BLOCK + page, 1).start + 8, access), Ok(()));
    }
    let execute = fixture.space.fault(block(1).start, Access::Execute);
    assert_eq!(execute, Err(FaultError::NotPermitted));
    assert!(fixture.is_large(1));
    assert_eq!((fixture.host.take_flushes(), fixture.host.frames_in_use()), (vec![], frames));
    fixture.end();
}

#[test]
fn fork_splits_large_page() {
    let fixture = Fixture::<RELEASED>::new().with_large_page();
    let child = fixture.space.fork().unwrap();
    assert_eq!(fixture.host.take_flushes().len(), 2);
    assert!(!fixture.is_large(1));
    write(&fixture.space, 1, BLOCK + 3, 9);
    write(&child, 2, BLOCK + 4, 8);
    assert_eq!((read(&child, 0, BLOCK + 3), read(&child, 0, BLOCK + 4)), (BLOCK + 3, 8));
    assert_eq!(
        (read(&fixture.space, 2, BLOCK + 3), read(&fixture.space, 2, BLOCK + 4)),
        (9, BLOCK + 4)
    );
    fixture.check(BLOCK + 5..2 * BLOCK);
    child.exit();
    // The block collapses again, whatever was written since.
    assert_eq!(fixture.space.collapse(everything()), Ok(1));
    assert_eq!(read(&fixture.space, 2, BLOCK + 3), 9);
    fixture.check(BLOCK + 4..2 * BLOCK);
    fixture.end();
}
