//! The workload of seed 004, as it runs on machines whose memory is too small for it.

use std::rc::Rc;

use shootdown_designs::{Arm64, Engine, Linux70, Linux412, Naive};
use shootdown_program::operation::ProgramId;
use shootdown_program::{StepError, Workload};
use shootdown_run::programs::MappedReaders;
use shootdown_run::{Contents, Limits, Memory, Outcome, RunError, run};
use shootdown_sim::{Counts, Machine, Sim, Time};
use shootdown_vm::{ErasedCoherence, OutOfMemory};

const CPUS: usize = 8;
/// On two nodes of four CPUs each, with memory for a fifth of what is read.
const LIMITS: Limits = Limits {
    frames: 2048,
    threads: 64,
    time: Time::from_ms(60_000),
    memory: Memory::Reclaimed,
    nodes: 2,
    contents: Contents::Checked,
    ..Limits::DEFAULT
};
const READERS: MappedReaders = MappedReaders { readers: 8, pages: 1200, compute_ns: 500 };

fn machine() -> Machine {
    let round = include_str!("../../../sim/tests/round.toml");
    Machine::from_toml(round).unwrap().with_cpus(CPUS).unwrap()
}

fn outcome<C: Into<ErasedCoherence>>(design: impl FnOnce(Rc<Sim>) -> C) -> Outcome {
    let outcome = run(machine(), LIMITS, Rc::new(READERS), design).unwrap();
    let first = outcome.first_violations.first();
    assert_eq!((outcome.violations, outcome.hazards), (0, 0), "{first:?}");
    let first = outcome.first_wrong_contents.first();
    assert_eq!(outcome.wrong_contents, 0, "{first:?}");
    assert_eq!(outcome.iterations, 8 * 1200);
    outcome
}

#[test]
fn all_is_read_under_every_design_and_nobody_uses_what_was_taken() {
    outcome(Engine::<1>::new);
    outcome(Linux70::new);
    outcome(Linux412::batched);
    outcome(Linux412::new);
    outcome(Arm64::skip);
    outcome(Naive::new);
}

#[test]
fn without_reclaim_memory_runs_out() {
    let limits = Limits { memory: Memory::Enough, ..LIMITS };
    let error = run(machine(), limits, Rc::new(READERS), Linux70::new).unwrap_err();
    assert!(matches!(
        error,
        RunError::Step { error: StepError::OutOfMemory | StepError::Fault(_), .. }
    ));
    assert!(error.to_string().contains(&OutOfMemory.to_string()));
}

#[test]
fn batches_save_most_interrupts_and_ours_most_of_the_rest() {
    let [at_once, batched, latest, ours] = [
        outcome(Linux412::new).counts,
        outcome(Linux412::batched).counts,
        outcome(Linux70::new).counts,
        outcome(Engine::<1>::new).counts,
    ];
    let interrupts = |counts: &Counts| counts.interrupts_sent;
    // 4663 page by page, 1168 in batches, 1167 in those of Linux 7.0, and 116 in ours: a reader
    // that waits for a page is in the kernel, and need not be told.
    assert!(interrupts(&batched) * 3 < interrupts(&at_once));
    assert!(interrupts(&ours) * 8 < interrupts(&latest));
    // 1634, and 132: some wait for so long that they miss more than is worth dropping page by page.
    assert!(ours.flushes_full * 10 <= latest.flushes_full);
}

#[test]
fn the_same_run_twice_is_the_same() {
    let [one, other] = [(); 2].map(|()| outcome(Engine::<1>::new));
    assert_eq!((one.time, one.counts), (other.time, other.counts));
}

#[test]
fn each_reader_reads_each_page_of_its_file_once() {
    use shootdown_program::operation::Operation;
    let pages = READERS.steps(ProgramId(1)).filter_map(|step| match step {
        Operation::Touch { pages, .. } => Some(pages),
        _ => None,
    });
    assert!(pages.flatten().eq(0..READERS.pages));
}
