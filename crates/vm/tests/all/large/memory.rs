//! Lack of memory at each allocation of each operation.

use shootdown_vm::{Advice, OutOfMemory, RangeError, RemapError};

use crate::large::fixture::*;
use crate::platform::*;

type Operation = fn(&OurSpace<RELEASED>) -> Result<(), OutOfMemory>;

fn of_range(result: Result<(), RangeError>) -> Result<(), OutOfMemory> {
    result.map_err(|error| {
        assert_eq!(error, RangeError::OutOfMemory);
        OutOfMemory
    })
}

/// Operations that need a page table for a part of the large page in block 1.
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
fn failed_split_changes_nothing() {
    for (number, operation) in OPERATIONS.into_iter().enumerate() {
        let mut failures = 0;
        loop {
            let fixture = Fixture::<RELEASED>::new().with_large_page();
            // This makes the table of level 1 that block 3 also needs.
            write(&fixture.space, 0, 2 * BLOCK, 0);
            let (frames, areas) = (fixture.host.frames_in_use(), fixture.space.areas().len());
            fixture.host.limit_allocations(failures);
            let result = operation(&fixture.space);
            fixture.host.limit_allocations(u64::MAX);
            fixture.host.check_caches();
            if result.is_ok() {
                fixture.end();
                break;
            }
            fixture.check(BLOCK..2 * BLOCK);
            assert_eq!(fixture.space.areas().len(), areas, "operation {number}");
            // The operation may have split the page before a later allocation failed.
            let tables = usize::from(!fixture.is_large(1));
            assert!(tables == 0 || failures > 0);
            assert_eq!(fixture.host.frames_in_use(), frames + tables, "operation {number}");
            assert_eq!(operation(&fixture.space), Ok(()));
            fixture.end();
            failures += 1;
        }
        assert_ne!(failures, 0, "operation {number} allocates nothing");
    }
}

#[test]
fn partial_split_frees_its_memory() {
    let fixture = Fixture::<RELEASED>::new().with_large_page();
    write(&fixture.space, 0, 0, 0);
    assert_eq!(fixture.space.collapse(block(0)), Ok(1));
    let frames = fixture.host.frames_in_use();
    fixture.host.take_flushes();
    fixture.host.limit_allocations(1);
    let both = at(BLOCK - 4, 8);
    assert_eq!(fixture.space.protect(both.clone(), READ), Err(RangeError::OutOfMemory));
    fixture.host.limit_allocations(u64::MAX);
    assert_eq!((fixture.host.take_flushes(), fixture.host.frames_in_use()), (vec![], frames));
    assert!(fixture.is_large(0) && fixture.is_large(1));
    assert_eq!(fixture.space.protect(both, READ), Ok(()));
    fixture.check(BLOCK..2 * BLOCK);
    fixture.end();
}

#[test]
fn operation_on_whole_large_page_allocates_nothing() {
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
        let fixture = Fixture::<RELEASED>::new().with_large_page();
        fixture.host.limit_allocations(0);
        assert_eq!(operation(&fixture.space), Ok(()));
        fixture.end();
    }
}

#[test]
fn collapse_and_migrate_without_memory_change_nothing() {
    let fixture = Fixture::<BATCHING>::with_reclaim().with_small_pages();
    let frames = fixture.host.frames_in_use();
    fixture.host.limit_allocations(0);
    assert_eq!(fixture.space.collapse(everything()), Ok(0));
    fixture.host.limit_allocations(u64::MAX);
    assert_eq!((fixture.host.take_flushes(), fixture.host.frames_in_use()), (vec![], frames));
    assert_eq!(fixture.space.collapse(everything()), Ok(1));
    fixture.host.take_flushes();
    fixture.host.limit_allocations(0);
    assert_eq!(fixture.space.migrate(block(1), 0), Ok(0));
    fixture.host.limit_allocations(u64::MAX);
    assert!(fixture.is_large(1));
    fixture.check(BLOCK..2 * BLOCK);
    fixture.end();
}
