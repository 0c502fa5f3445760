//! Memory: a program needs more than there is, and no page can be reclaimed.

use std::ops::Range;
use std::slice::from_ref;

use shootdown_program::operation::{
    Access, Entry, FileId, Filling, Mapping, Operation, Permission, ProgramId, RawAddress,
};
use shootdown_program::{OnFault, StepError};
use shootdown_run::{Memory, Outcome, RunError, Settings, Supply};
use shootdown_vm::FaultError;

use crate::exhausted::{SETTINGS, machine, map, read, run_ours, write};

/// More pages than there are in any test here.
const MUCH: u64 = 1 << 12;
/// The area that is filled until no frame is left.
const AREA: u32 = 7;
/// The pages of a large page.
const BLOCK: Range<u64> = 0x4000..0x4200;
/// Memory for a large page, and for others.
const LARGE_SETTINGS: Settings =
    Settings { memory: Memory { frames: 1200, ..SETTINGS.memory }, ..SETTINGS };

fn run_one(settings: Settings, steps: Vec<Operation>) -> Result<Outcome, RunError> {
    run_ours(machine(""), settings, [steps])
}

/// Returns steps that write this number of pages, between `before` and `after`.
fn filled(before: &[Operation], pages: u64, after: &[Operation]) -> Vec<Operation> {
    let fill = [map(AREA, MUCH, Mapping::Anonymous), write(AREA, 0..pages)];
    [before, &fill, after].concat()
}

/// Returns the number of pages that a process can write after `before`, until no frame is left.
fn pages_left(settings: Settings, before: &[Operation]) -> u64 {
    let (mut fits, mut is_too_much) = (0, MUCH);
    while fits + 1 < is_too_much {
        let pages = fits.midpoint(is_too_much);
        match run_one(settings, filled(before, pages, &[])) {
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
fn out_of_memory_ends_a_run_with_one_message() {
    for supply in [Supply::Enough, Supply::Reclaimed, Supply::ReclaimedReadAhead] {
        for on_fault in [OnFault::Fatal, OnFault::Survived] {
            let settings =
                Settings { memory: Memory { supply, ..SETTINGS.memory }, on_fault, ..SETTINGS };
            let error = run_one(settings, filled(&[], MUCH, &[])).unwrap_err();
            assert_eq!(error, no_frame_for(StepError::Fault(FaultError::OutOfMemory)));
            assert_eq!(error.to_string(), "thread 0: no frame left");
        }
    }
}

#[test]
fn all_file_pages_are_reclaimed_before_memory_is_out() {
    let nothing = pages_left(SETTINGS, &[]);
    let file = [map(0, MUCH, Mapping::SharedFile(FileId(0))), write(0, 0..MUCH)];
    let file_first = pages_left(SETTINGS, &file);
    // The file's page tables are not reclaimed.
    assert!((nothing - 16..nothing).contains(&file_first), "{file_first} of {nothing}");
    let found = run_one(SETTINGS, filled(&file, file_first, &[read(AREA, 0..file_first)])).unwrap();
    assert!(found.traffic.written_out >= MUCH);
}

/// Operations that need memory immediately end the run with the same message.
#[test]
fn fork_move_and_page_table_report_out_of_memory() {
    let raw = Operation::RawAddress;
    let (to, elsewhere) = (1 << 30, raw(fault(1 << 31, Access::Read)));
    let area = map_at(0x4000..0x4010);
    let before = [raw(area), raw(fault(0x4001, Access::Write))];
    let pages = pages_left(SETTINGS, &before);
    let go = raw(RawAddress::Move { from: 0x4000..0x4010, to: to..to + 16 });
    for (step, expected) in [
        (Operation::Fork(ProgramId(5)), StepError::OutOfMemory),
        (go, StepError::OutOfMemory),
        (elsewhere, StepError::Fault(FaultError::OutOfMemory)),
    ] {
        let enough = filled(&before, pages - 20, from_ref(&step));
        assert!(run_one(SETTINGS, enough).is_ok());
        let error = run_one(SETTINGS, filled(&before, pages, &[step])).unwrap_err();
        assert_eq!(error, no_frame_for(expected));
        assert_eq!(error.to_string(), "thread 0: no frame left");
    }
}

/// Optional operations, and operations that may fail, have no effect, and all pages stay unchanged.
#[test]
fn optional_changes_without_memory_have_no_effect() {
    let raw = Operation::RawAddress;
    let small = [raw(map_at(BLOCK)), raw(fault(BLOCK.start + 7, Access::Write))];
    let collapse = raw(RawAddress::Collapse(BLOCK));
    let large = [&small[..], from_ref(&collapse)].concat();
    let part = BLOCK.start + 3..BLOCK.start + 9;
    let permission = Permission::Read;
    let changes = [
        (&small[..], collapse),
        (&small[..], raw(RawAddress::MovePages { pages: BLOCK, node: 0 })),
        (&small[..], raw(RawAddress::MovePages { pages: BLOCK, node: 1 })),
        (&large[..], raw(RawAddress::MovePages { pages: BLOCK, node: 0 })),
        (&large[..], raw(RawAddress::Protect { pages: part.clone(), permission })),
        (&large[..], raw(RawAddress::Unmap(part.clone()))),
        (&large[..], raw(RawAddress::Discard(part.clone()))),
        (&large[..], raw(RawAddress::Offer(part))),
    ];
    for (before, change) in changes {
        let pages = pages_left(LARGE_SETTINGS, before);
        // The page is still mapped, and can be written.
        let look = [Access::Read, Access::Write, Access::Read];
        let look = look.map(|access| raw(fault(BLOCK.start + 7, access)));
        let after = [from_ref(&change), &look[..], &[read(AREA, 0..pages)]].concat();
        let found = run_one(LARGE_SETTINGS, filled(before, pages, &after)).unwrap().memory;
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
