//! A batch: a page is mapped by more spaces than a batch of reclaim has room for.

use std::cell::Cell;
use std::rc::Rc;

use shootdown::BATCH_SPACES;
use shootdown_designs::Engine;
use shootdown_program::operation::{FileId, Mapping, Operation, ProgramId};
use shootdown_run::Limits;

use crate::exhausted::noting::Noting;
use crate::exhausted::tags::{GLOBAL, ROUND, machine};
use crate::exhausted::{LIMITS, map, must_be_right, read, run_under, write};

/// As a library that all programs map.
const SHARERS: u32 = BATCH_SPACES as u32 + 8;
const PAGES: u64 = 3;
const HUNGRY: ProgramId = ProgramId(SHARERS);

/// Reads the pages, and once more when they have been taken and written; on a CPU where nobody
/// needs the TLB for anything else.
fn sharer(number: u32) -> Vec<Operation> {
    vec![
        Operation::Migrate(1 + number as usize % 3),
        map(0, PAGES, Mapping::SharedFile(FileId(0))),
        read(0, 0..PAGES),
        Operation::Wake(HUNGRY),
        Operation::Block,
        read(0, 0..PAGES),
    ]
}

/// Takes the memory, and then writes to the pages. Uses each page of its own twice, so that reclaim
/// takes none of them for less needed than those of many.
fn hungry() -> Vec<Operation> {
    let wait = [Operation::Migrate(0)].into_iter().chain((0..SHARERS).map(|_| Operation::Block));
    let large = [1, 2].map(|area| map(area, 1200, Mapping::SharedFile(FileId(1))));
    let twice = |page| [1, 2].map(|area| read(area, page..page + 8));
    let laps = (0..2).flat_map(|_| (0..1200).step_by(8)).flat_map(twice);
    let write = [map(0, PAGES, Mapping::SharedFile(FileId(0))), write(0, 0..PAGES)];
    // Who ran last, and is remembered, comes first.
    let wake = (0..SHARERS).rev().map(|sharer| Operation::Wake(ProgramId(sharer)));
    wait.chain(large).chain(laps).chain(write).chain(wake).collect()
}

#[test]
fn pages_of_more_spaces_than_a_batch_has_room_for_are_taken_from_all() {
    let full = Rc::new(Cell::new(0));
    let design = |sim| Noting::boxed(Engine::<1>::new(sim), &full);
    let programs = (0..SHARERS).map(sharer).chain([hungry()]);
    let limits = Limits { frames: 600, ..LIMITS };
    // CPUs remember the pages of all spaces, if they are not told.
    let machine = machine(ROUND, GLOBAL, 64).with_cpus(4).unwrap();
    must_be_right(&run_under(machine, limits, programs, design).unwrap());
    assert!(full.get() >= PAGES, "batches were full {} times", full.get());
}
