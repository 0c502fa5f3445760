//! Runs of the workload of the study of batched unmapping, on machines without enough memory.

use std::rc::Rc;

use crate::memory_model::model::checked;
use shootdown_designs::{Arm64, Engine, Linux70, Linux412, Naive};
use shootdown_program::operation::ProgramId;
use shootdown_program::{StepError, Workload};
use shootdown_run::programs::MappedReaders;
use shootdown_run::{Limits, Memory, Outcome, RunError, Settings, Supply, run};
use shootdown_sim::{Counts, Machine, Sim, Time};
use shootdown_vm::{ErasedCoherence, OutOfMemory};

const CPUS: usize = 8;
/// Two nodes of four CPUs each, with memory for a fifth of the files.
const SETTINGS: Settings = Settings {
    memory: Memory { frames: 2048, nodes: 2, supply: Supply::Reclaimed },
    limits: Limits { threads: 64, time: Time::from_ms(60_000) },
    contents: Some(checked),
    ..Settings::DEFAULT
};
const READERS: MappedReaders = MappedReaders { readers: 8, pages: 1200, compute_ns: 500 };

fn machine() -> Machine {
    let round = include_str!("../../../sim/tests/round.toml");
    Machine::from_toml(round).unwrap().with_cpus(CPUS).unwrap()
}

fn outcome<C: Into<ErasedCoherence>>(design: impl FnOnce(Rc<Sim>) -> C) -> Outcome {
    let outcome = run(machine(), SETTINGS, Rc::new(READERS), design).unwrap();
    let first = outcome.first_violations.first();
    assert_eq!((outcome.violations, outcome.hazards), (0, 0), "{first:?}");
    let first = outcome.first_wrong_contents.first();
    assert_eq!(outcome.wrong_contents, 0, "{first:?}");
    assert_eq!(outcome.iterations, 8 * 1200);
    outcome
}

#[test]
fn readers_finish_under_every_design() {
    outcome(Engine::<1>::new);
    outcome(Linux70::uncounted);
    outcome(Linux412::batched);
    outcome(Linux412::new);
    outcome(Arm64::skip);
    outcome(Naive::new);
}

#[test]
fn without_reclaim_memory_runs_out() {
    let settings =
        Settings { memory: Memory { supply: Supply::Enough, ..SETTINGS.memory }, ..SETTINGS };
    let error = run(machine(), settings, Rc::new(READERS), Linux70::uncounted).unwrap_err();
    assert!(matches!(
        error,
        RunError::Step { error: StepError::OutOfMemory | StepError::Fault(_), .. }
    ));
    assert!(error.to_string().contains(&OutOfMemory.to_string()));
}

#[test]
fn batches_save_interrupts_and_the_engine_more() {
    let [page_by_page, batched, latest, ours] = [
        outcome(Linux412::new).counts,
        outcome(Linux412::batched).counts,
        outcome(Linux70::uncounted).counts,
        outcome(Engine::<1>::new).counts,
    ];
    let interrupts = |counts: &Counts| counts.interrupts_sent;
    // 6296 page by page, 1195 in batches, 1071 in those of Linux 7.0, and 134 in the engine's: a
    // reader that waits for a page is in the kernel, and is not notified.
    assert!(interrupts(&batched) * 3 < interrupts(&page_by_page));
    let found = [&page_by_page, &batched, &latest, &ours].map(interrupts);
    assert!(interrupts(&ours) * 7 < interrupts(&latest), "{found:?}");
    // 118 instead of 1472. After a long wait, a full flush is cheaper than a flush of every page.
    let full = [&page_by_page, &batched, &latest, &ours].map(|counts| counts.flushes_full);
    assert!(ours.flushes_full * 10 <= latest.flushes_full, "{full:?}");
}

#[test]
fn same_arguments_give_same_outcome() {
    let [one, other] = [(); 2].map(|()| outcome(Engine::<1>::new));
    assert_eq!((one.time, one.counts), (other.time, other.counts));
}

#[test]
fn reader_reads_each_page_of_its_file_once() {
    use shootdown_program::operation::Operation;
    let pages = READERS.steps(ProgramId(1)).filter_map(|step| match step {
        Operation::Touch { pages, .. } => Some(pages),
        _ => None,
    });
    assert!(pages.flatten().eq(0..READERS.pages));
}
