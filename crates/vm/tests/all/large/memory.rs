//! Running out of memory: at each allocation of each operation.

use shootdown_vm::{Advice, OutOfMemory, RangeError, RemapError};

use crate::large::world::*;
use crate::platform::*;

type Operation = fn(&OurSpace<RELEASED>) -> Result<(), OutOfMemory>;

fn of_range(result: Result<(), RangeError>) -> Result<(), OutOfMemory> {
    result.map_err(|error| {
        assert_eq!(error, RangeError::OutOfMemory);
        OutOfMemory
    })
}

/// What needs a page table for a part of the large page in block 1.
const OPERATIONS: [Operation; 7] = [
    |space| of_range(space.unmap(at(BLOCK - 3, 10))),
    |space| of_range(space.protect(at(BLOCK + 3, 10), READ)),
    |space| of_range(space.protect_existing(at(2 * BLOCK - 3, 10), READ)),
    |space| of_range(space.advise(at(BLOCK + 3, 10), Advice::DontNeed)),
    |space| of_range(space.advise(block(1), Advice::Free)),
    |space| {
        space.remap(at(BLOCK + 3, 10), at(3 * BLOCK, 10)).map_err(|error| {
            assert_eq!(error, RemapError::OutOfMemory);
            OutOfMemory
        })
    },
    |space| space.fork().map(|child| child.exit()),
];

#[test]
fn nothing_has_changed_when_there_is_no_memory_to_split() {
    for (number, operation) in OPERATIONS.into_iter().enumerate() {
        let mut failures = 0;
        loop {
            let world = World::<RELEASED>::new().with_large_page();
            // The table above that of block 3 is there.
            write(&world.space, 0, 2 * BLOCK, 0);
            let (frames, areas) = (world.host.frames_in_use(), world.space.areas().len());
            world.host.limit_allocations(failures);
            let result = operation(&world.space);
            world.host.limit_allocations(u64::MAX);
            world.host.check_caches();
            if result.is_ok() {
                world.end();
                break;
            }
            world.check(BLOCK..2 * BLOCK);
            assert_eq!(world.space.areas().len(), areas, "operation {number}");
            // It may have split the page before it failed for want of more.
            let tables = usize::from(!world.is_large(1));
            assert!(tables == 0 || failures > 0);
            assert_eq!(world.host.frames_in_use(), frames + tables, "operation {number}");
            assert_eq!(operation(&world.space), Ok(()));
            world.end();
            failures += 1;
        }
        assert_ne!(failures, 0, "operation {number} takes no memory");
    }
}

#[test]
fn memory_for_one_of_two_splits_is_given_back() {
    let world = World::<RELEASED>::new().with_large_page();
    write(&world.space, 0, 0, 0);
    assert_eq!(world.space.collapse(block(0)), Ok(1));
    let frames = world.host.frames_in_use();
    world.host.take_flushes();
    world.host.limit_allocations(1);
    let both = at(BLOCK - 4, 8);
    assert_eq!(world.space.protect(both.clone(), READ), Err(RangeError::OutOfMemory));
    world.host.limit_allocations(u64::MAX);
    assert_eq!((world.host.take_flushes(), world.host.frames_in_use()), (vec![], frames));
    assert!(world.is_large(0) && world.is_large(1));
    assert_eq!(world.space.protect(both, READ), Ok(()));
    world.check(BLOCK..2 * BLOCK);
    world.end();
}

#[test]
fn what_takes_all_of_a_large_page_takes_no_memory() {
    let operations: [Operation; 4] = [
        |space| of_range(space.unmap(block(1))),
        |space| of_range(space.protect(block(1), READ)),
        |space| of_range(space.advise(block(1), Advice::DontNeed)),
        |space| {
            space.exit();
            Ok(())
        },
    ];
    for operation in operations {
        let world = World::<RELEASED>::new().with_large_page();
        world.host.limit_allocations(0);
        assert_eq!(operation(&world.space), Ok(()));
        world.end();
    }
}

#[test]
fn without_memory_pages_stay_small_and_where_they_are() {
    let world = World::<BATCHING>::with_reclaim().with_small_pages();
    let frames = world.host.frames_in_use();
    world.host.limit_allocations(0);
    assert_eq!(world.space.collapse(everything()), Ok(0));
    world.host.limit_allocations(u64::MAX);
    assert_eq!((world.host.take_flushes(), world.host.frames_in_use()), (vec![], frames));
    assert_eq!(world.space.collapse(everything()), Ok(1));
    world.host.take_flushes();
    world.host.limit_allocations(0);
    assert_eq!(world.space.migrate(block(1), 0), Ok(0));
    world.host.limit_allocations(u64::MAX);
    assert!(world.is_large(1));
    world.check(BLOCK..2 * BLOCK);
    world.end();
}
