//! What is done with all of a large page, or with a part, and what is flushed for it.

use std::ops::Range;
use std::sync::Arc;

use shootdown::{Extent, PageSize};
use shootdown_vm::{Access, Advice, Cause, Change, FaultError, Freed, Protection};

use crate::large::world::*;
use crate::platform::*;

/// In the middle of block 1.
fn part() -> Range<u64> {
    at(BLOCK + 100, 50)
}

fn is_in_part(page: u64) -> bool {
    part().contains(&at(page, 1).start)
}

/// A flush of the large page in block 1, as one page.
fn of_large(cause: Cause) -> Change {
    let page = Extent::pages(block(1).start, 1, PageSize::SIZE_2M);
    let mut change = Change::range(block(1), Freed::Pages);
    change.extents = Default::default();
    change.extents.add(page);
    // A large page whose permissions change stays.
    let resizes = cause != Cause::Protect;
    Change { page_size: PageSize::SIZE_2M, resizes, cause, ..change }
}

fn of_part(cause: Cause) -> Change {
    Change { cause, ..Change::range(part(), Freed::Pages) }
}

/// Does something to a part. Returns the world, for what is to be seen of it there.
fn do_to_part(
    operation: impl FnOnce(&OurSpace<RELEASED>),
    flushes: impl IntoIterator<Item = Change>,
) -> World<RELEASED> {
    let world = World::<RELEASED>::new().with_large_page();
    operation(&world.space);
    assert!(!world.is_large(1));
    assert_eq!(world.space.stats().split, 1);
    assert_eq!(world.host.take_flushes(), Vec::from_iter(flushes));
    world.check(BLOCK..BLOCK + 100);
    world.check(BLOCK + 150..2 * BLOCK);
    world
}

#[test]
fn a_part_is_unmapped() {
    let unmap = |space: &OurSpace<_>| space.unmap(part()).unwrap();
    let world = do_to_part(unmap, [of_large(Cause::Split), of_part(Cause::Unmap)]);
    let read = try_access(&world.space, 1, BLOCK + 100, Access::Read, 0);
    assert_eq!(read, Err(FaultError::NoArea));
    world.end();
}

#[test]
fn a_part_is_mapped_anew() {
    let world = do_to_part(
        |space| map(space, part(), READ),
        [of_large(Cause::Split), of_part(Cause::Unmap)],
    );
    assert_eq!(read(&world.space, 1, BLOCK + 100), 0);
    world.end();
}

#[test]
fn a_part_is_protected() {
    let protect = |space: &OurSpace<_>| space.protect(part(), READ).unwrap();
    let world = do_to_part(protect, [of_large(Cause::Split), of_part(Cause::Protect)]);
    let write = try_access(&world.space, 1, BLOCK + 100, Access::Write, 1);
    assert_eq!(write, Err(FaultError::NotPermitted));
    world.check(BLOCK..2 * BLOCK);
    world.end();
}

#[test]
fn a_part_is_discarded() {
    let discard = |space: &OurSpace<_>| space.advise(part(), Advice::DontNeed).unwrap();
    let world = do_to_part(discard, [of_large(Cause::Split), of_part(Cause::Advise)]);
    assert_eq!(read(&world.space, 1, BLOCK + 100), 0);
    world.end();
}

#[test]
fn a_part_is_moved() {
    let remap = |space: &OurSpace<_>| space.remap(part(), at(20, 50)).unwrap();
    let world = do_to_part(remap, [of_large(Cause::Split), of_part(Cause::Move)]);
    for page in 20..70 {
        assert_eq!(read(&world.space, 1, page), page + BLOCK + 80);
    }
    world.end();
}

#[test]
fn between_large_and_small_nobody_finds_anything() {
    let world = World::<RELEASED>::new().with_large_page();
    let other = Arc::clone(&world.space);
    world.host.when_waiting(move || {
        assert_eq!(touch(&other, 0, BLOCK + 7, Access::Read, 0), Err(Refused));
        let write = touch(&other, 1, BLOCK + 7, Access::Write, BLOCK + 7);
        assert_eq!(write, Ok(BLOCK + 7), "it has not been told");
    });
    world.space.protect(part(), READ).unwrap();
    assert!(!world.host.hook_is_set());
    world.check(BLOCK..2 * BLOCK);
    world.end();
}

#[test]
fn a_large_page_is_moved_upon() {
    let world = World::<RELEASED>::new().with_large_page();
    write(&world.space, 0, 3, 33);
    world.space.remap(at(3, 1), part().start..part().start + 4096).unwrap();
    assert_eq!(read(&world.space, 1, BLOCK + 100), 33);
    world.check(BLOCK..BLOCK + 100);
    world.check(BLOCK + 101..2 * BLOCK);
    world.end();
}

/// The marks go from all of them: what is given up is what was said, and no neighbour.
#[test]
fn a_part_is_given_up() {
    let free = |space: &OurSpace<_>| space.advise(part(), Advice::Free).unwrap();
    let world = do_to_part(free, [of_large(Cause::Split), of_part(Cause::Advise)]);
    for page in BLOCK..2 * BLOCK {
        let is_dirty = world.host.is_dirty(world.space.root(), at(page, 1).start);
        assert_eq!(is_dirty, !is_in_part(page), "page {page}");
    }
    world.check(BLOCK..2 * BLOCK);
    world.end();
}

#[test]
fn a_range_that_begins_in_one_large_page_and_ends_in_another_splits_both_at_once() {
    let world = World::<RELEASED>::new().with_large_page();
    write(&world.space, 1, 2 * BLOCK, 1);
    write(&world.space, 1, 0, 1);
    assert_eq!(world.space.collapse(everything()), Ok(2));
    for number in 0..3 {
        let expected = if number == 1 { BLOCK + 9 } else { 0 };
        assert_eq!(read(&world.space, 0, number * BLOCK + 9), expected);
    }
    world.host.take_flushes();
    world.space.protect(at(BLOCK - 4, BLOCK + 8), READ).unwrap();
    assert_eq!([0, 1, 2].map(|number| world.is_large(number)), [false, true, false]);
    let flushes = world.host.take_flushes();
    assert_eq!(flushes.len(), 2);
    let large = |number| Extent::pages(block(number).start, 1, PageSize::SIZE_2M);
    assert_eq!(flushes[0].extents.as_slice(), [large(0), large(2)]);
    // Small pages on both sides of the large one, which is one page still.
    assert_eq!(flushes[1].page_size, PageSize::SIZE_4K);
    let small = |first, count| Extent::pages(at(first, 1).start, count, PageSize::SIZE_4K);
    let pieces = [small(BLOCK - 4, 4), large(1), small(2 * BLOCK, 4)];
    assert_eq!(flushes[1].extents.as_slice(), pieces);
    world.check(BLOCK..2 * BLOCK);
    world.end();
}

#[test]
fn all_of_it_is_one_page() {
    type Operation = fn(&OurSpace<RELEASED>);
    let operations: [(Operation, Cause); 4] = [
        (|space| space.unmap(block(1)).unwrap(), Cause::Unmap),
        (|space| map(space, block(1), READ), Cause::Unmap),
        (|space| space.protect(block(1), READ).unwrap(), Cause::Protect),
        (|space| space.advise(block(1), Advice::DontNeed).unwrap(), Cause::Advise),
    ];
    for (operation, cause) in operations {
        let world = World::<RELEASED>::new().with_large_page();
        // The table above is needed by a neighbour.
        let tables = world.host.tables_in_use();
        operation(&world.space);
        assert_eq!(world.host.take_flushes(), [of_large(cause)]);
        assert_eq!(world.host.tables_in_use(), tables);
        world.host.check_caches();
        if cause == Cause::Protect {
            assert!(world.is_large(1));
            world.check(BLOCK..2 * BLOCK);
        } else {
            assert!(world.host.frames_in_use() < 10, "the pages are free");
        }
        world.end();
    }
}

#[test]
fn permissions_are_gained_without_a_flush() {
    let world = World::<RELEASED>::new().with_large_page();
    world.space.protect(block(1), READ).unwrap();
    world.check(BLOCK..2 * BLOCK);
    world.host.take_flushes();
    world.space.protect(block(1), READ_WRITE).unwrap();
    write(&world.space, 2, BLOCK + 7, BLOCK + 7);
    assert_eq!(world.host.take_flushes(), []);
    assert!(world.is_large(1));
    // Without any, there is nothing to flush at a split.
    world.space.protect(block(1), Protection::empty()).unwrap();
    world.host.take_flushes();
    world.space.protect(part(), READ_WRITE).unwrap();
    assert_eq!(world.host.take_flushes(), []);
    world.check(BLOCK + 100..BLOCK + 150);
    world.end();
}

/// The CPU did not know of it: nothing is wrong.
#[test]
fn a_fault_in_a_large_page_changes_nothing() {
    let world = World::<RELEASED>::new().with_large_page();
    let frames = world.host.frames_in_use();
    for (page, access) in [(0, Access::Read), (7, Access::Write), (511, Access::Read)] {
        assert_eq!(world.space.fault(at(BLOCK + page, 1).start + 8, access), Ok(()));
    }
    let execute = world.space.fault(block(1).start, Access::Execute);
    assert_eq!(execute, Err(FaultError::NotPermitted));
    assert!(world.is_large(1));
    assert_eq!((world.host.take_flushes(), world.host.frames_in_use()), (vec![], frames));
    world.end();
}

#[test]
fn a_fork_splits_and_shares_page_by_page() {
    let world = World::<RELEASED>::new().with_large_page();
    let child = world.space.fork().unwrap();
    assert_eq!(world.host.take_flushes().len(), 2);
    assert!(!world.is_large(1));
    write(&world.space, 1, BLOCK + 3, 9);
    write(&child, 2, BLOCK + 4, 8);
    assert_eq!((read(&child, 0, BLOCK + 3), read(&child, 0, BLOCK + 4)), (BLOCK + 3, 8));
    assert_eq!(
        (read(&world.space, 2, BLOCK + 3), read(&world.space, 2, BLOCK + 4)),
        (9, BLOCK + 4)
    );
    world.check(BLOCK + 5..2 * BLOCK);
    child.exit();
    // And becomes one again, whatever was written since.
    assert_eq!(world.space.collapse(everything()), Ok(1));
    assert_eq!(read(&world.space, 2, BLOCK + 3), 9);
    world.check(BLOCK + 4..2 * BLOCK);
    world.end();
}
