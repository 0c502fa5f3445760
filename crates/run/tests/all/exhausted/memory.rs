//! Memory: more is asked for than there is, and nobody has anything that could be taken.

use std::ops::Range;
use std::slice::from_ref;

use shootdown_program::operation::{
    Access, Entry, FileId, Filling, Mapping, Operation, Permission, ProgramId, RawAddress,
};
use shootdown_program::{OnFault, StepError};
use shootdown_run::{Limits, Memory, Outcome, RunError};
use shootdown_vm::FaultError;

use crate::exhausted::{LIMITS, machine, map, read, run_ours, write};

/// More than there is, in any test here.
const MUCH: u64 = 1 << 12;
/// What memory is short of is written here.
const AREA: u32 = 7;
/// Where a large page can be.
const BLOCK: Range<u64> = 0x4000..0x4200;
/// Memory for a large page, and for others.
const LARGE_LIMITS: Limits = Limits { frames: 1200, ..LIMITS };

fn run_one(limits: Limits, steps: Vec<Operation>) -> Result<Outcome, RunError> {
    run_ours(machine(""), limits, [steps])
}

/// Takes so many pages, with `before` and `after`.
fn filled(before: &[Operation], pages: u64, after: &[Operation]) -> Vec<Operation> {
    let fill = [map(AREA, MUCH, Mapping::Anonymous), write(AREA, 0..pages)];
    [before, &fill, after].concat()
}

/// How many pages of its own a process can have after `before`, until there is no frame left.
fn pages_left(limits: Limits, before: &[Operation]) -> u64 {
    let (mut fits, mut is_too_much) = (0, MUCH);
    while fits + 1 < is_too_much {
        let pages = fits.midpoint(is_too_much);
        match run_one(limits, filled(before, pages, &[])) {
            Ok(_) => fits = pages,
            Err(error) => {
                assert_eq!(error, no_frame_for(StepError::Fault(FaultError::OutOfMemory)));
                is_too_much = pages;
            }
        }
    }
    fits
}

fn no_frame_for(error: StepError) -> RunError {
    RunError::Step { program: ProgramId(0), error }
}

#[test]
fn out_of_memory_ends_a_run_with_one_message_whether_or_not_on_fault_are_survived() {
    for memory in [Memory::Enough, Memory::Reclaimed, Memory::ReclaimedReadAhead] {
        for on_fault in [OnFault::Fatal, OnFault::Survived] {
            let limits = Limits { memory, on_fault, ..LIMITS };
            let error = run_one(limits, filled(&[], MUCH, &[])).unwrap_err();
            assert_eq!(error, no_frame_for(StepError::Fault(FaultError::OutOfMemory)));
            assert_eq!(error.to_string(), "thread 0: no frame left");
        }
    }
}

#[test]
fn memory_is_out_only_when_all_pages_of_files_are_taken() {
    let nothing = pages_left(LIMITS, &[]);
    let file = [map(0, MUCH, Mapping::SharedFile(FileId(0))), write(0, 0..MUCH)];
    let file_first = pages_left(LIMITS, &file);
    // The file's page tables are not taken.
    assert!((nothing - 16..nothing).contains(&file_first), "{file_first} of {nothing}");
    let found = run_one(LIMITS, filled(&file, file_first, &[read(AREA, 0..file_first)])).unwrap();
    assert!(found.traffic.written_out >= MUCH);
}

/// What needs memory at once ends the run with the same message.
#[test]
fn out_of_memory_in_a_fork_a_move_or_a_page_table_is_said_as_in_a_fault() {
    let by_address = Operation::RawAddress;
    let (to, elsewhere) = (1 << 30, by_address(fault(1 << 31, Access::Read)));
    let area = map_at(0x4000..0x4010);
    let before = [by_address(area), by_address(fault(0x4001, Access::Write))];
    let pages = pages_left(LIMITS, &before);
    let go = by_address(RawAddress::Move { from: 0x4000..0x4010, to: to..to + 16 });
    for (step, expected) in [
        (Operation::Fork(ProgramId(5)), StepError::OutOfMemory),
        (go, StepError::OutOfMemory),
        (elsewhere, StepError::Fault(FaultError::OutOfMemory)),
    ] {
        let enough = filled(&before, pages - 20, from_ref(&step));
        assert!(run_one(LIMITS, enough).is_ok());
        let error = run_one(LIMITS, filled(&before, pages, &[step])).unwrap_err();
        assert_eq!(error, no_frame_for(expected));
        assert_eq!(error.to_string(), "thread 0: no frame left");
    }
}

/// What only makes things better, or may fail, is left undone, and everything stays as it was.
#[test]
fn without_memory_pages_stay_small_or_large_where_they_are_and_as_they_are() {
    let by_address = Operation::RawAddress;
    let small = [by_address(map_at(BLOCK)), by_address(fault(BLOCK.start + 7, Access::Write))];
    let collapse = by_address(RawAddress::Collapse(BLOCK));
    let large = [&small[..], from_ref(&collapse)].concat();
    let part = BLOCK.start + 3..BLOCK.start + 9;
    let permission = Permission::Read;
    let changes = [
        (&small[..], collapse),
        (&small[..], by_address(RawAddress::MovePages { pages: BLOCK, node: 0 })),
        (&small[..], by_address(RawAddress::MovePages { pages: BLOCK, node: 1 })),
        (&large[..], by_address(RawAddress::MovePages { pages: BLOCK, node: 0 })),
        (&large[..], by_address(RawAddress::Protect { pages: part.clone(), permission })),
        (&large[..], by_address(RawAddress::Unmap(part.clone()))),
        (&large[..], by_address(RawAddress::Discard(part.clone()))),
        (&large[..], by_address(RawAddress::Offer(part))),
    ];
    for (before, change) in changes {
        let pages = pages_left(LARGE_LIMITS, before);
        // It is there, and can be written, as before.
        let look = [Access::Read, Access::Write, Access::Read];
        let look = look.map(|access| by_address(fault(BLOCK.start + 7, access)));
        let after = [from_ref(&change), &look[..], &[read(AREA, 0..pages)]].concat();
        let found = run_one(LARGE_LIMITS, filled(before, pages, &after)).unwrap().memory;
        let is_large = before.len() == large.len();
        let made = (found.collapsed, found.split, found.migrated);
        assert_eq!(made, (u64::from(is_large), 0, 0), "{change:?}");
    }
}

fn map_at(pages: Range<u64>) -> RawAddress {
    let (permission, mapping) = (Permission::ReadWrite, Mapping::Anonymous);
    RawAddress::Map { pages, permission, mapping, filling: Filling::OnDemand }
}

fn fault(page: u64, access: Access) -> RawAddress {
    RawAddress::Fault { page, access, entry: Entry::Absent }
}
