//! Batches: more address spaces map a page than a batch of reclaim has room for.

use std::cell::Cell;
use std::rc::Rc;

use shootdown::BATCH_SPACES;
use shootdown_designs::Engine;
use shootdown_program::operation::{FileId, Mapping, Operation, ProgramId};
use shootdown_run::{Memory, Settings};

use crate::exhausted::counting::Counting;
use crate::exhausted::tags::{GLOBAL, ROUND, machine};
use crate::exhausted::{SETTINGS, map, must_be_right, read, run_under, write};

/// Number of processes that map the file, as they map a common library.
const SHARERS: u32 = BATCH_SPACES as u32 + 8;
const PAGES: u64 = 3;
const HUNGRY: ProgramId = ProgramId(SHARERS);

/// Reads the pages, and again after they were reclaimed and written, on a CPU where no other thread
/// evicts them from the TLB.
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

/// Uses up the memory, and then writes to the pages. Uses each page of its own twice, so that
/// reclaim does not prefer them to the pages of many processes.
fn hungry() -> Vec<Operation> {
    let wait = [Operation::Migrate(0)].into_iter().chain((0..SHARERS).map(|_| Operation::Block));
    let large = [1, 2].map(|area| map(area, 1200, Mapping::SharedFile(FileId(1))));
    let twice = |page| [1, 2].map(|area| read(area, page..page + 8));
    let laps = (0..2).flat_map(|_| (0..1200).step_by(8)).flat_map(twice);
    let write = [map(0, PAGES, Mapping::SharedFile(FileId(0))), write(0, 0..PAGES)];
    // The sharer that ran last, and whose space a CPU still remembers, comes first.
    let wake = (0..SHARERS).rev().map(|sharer| Operation::Wake(ProgramId(sharer)));
    wait.chain(large).chain(laps).chain(write).chain(wake).collect()
}

#[test]
fn page_of_too_many_spaces_is_unmapped_everywhere() {
    let full = Rc::new(Cell::new(0));
    let design = |sim| Counting::boxed(Engine::<1>::new(sim), &full);
    let programs = (0..SHARERS).map(sharer).chain([hungry()]);
    let settings = Settings { memory: Memory { frames: 600, ..SETTINGS.memory }, ..SETTINGS };
    // CPUs remember the translations of all spaces until they are flushed.
    let machine = machine(ROUND, GLOBAL, 64).with_cpus(4).unwrap();
    must_be_right(&run_under(machine, settings, programs, design).unwrap());
    assert!(full.get() >= PAGES, "batches were full {} times", full.get());
}
