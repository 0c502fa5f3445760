//! Programs for which memory is short or in the wrong place, and those of will-it-scale: under
//! every design, with all that they read compared with the model of contents.

use std::rc::Rc;

use shootdown_designs::{Arm64, Engine, Linux70, Linux412, Naive, Riscv};
use shootdown_program::Workload;
use shootdown_run::programs::{Case, CopyOnWrite, PageMigration, Tasks, WillItScale};
use shootdown_run::{Contents, Limits, Memory, Outcome, run};
use shootdown_sim::{Machine, Sim, Time};
use shootdown_vm::ErasedCoherence;

const LIMITS: Limits = Limits {
    frames: 2048,
    threads: 256,
    time: Time::from_ms(60_000),
    memory: Memory::Reclaimed,
    nodes: 2,
    contents: Contents::Checked,
    ..Limits::DEFAULT
};

/// What the children and the file need together is more than there is.
const COPIES: CopyOnWrite = CopyOnWrite { children: 4, rounds: 6, pages: 128, file_pages: 3000 };
const COPIES_LIMITS: Limits = Limits { frames: 1000, ..LIMITS };

/// The threads write for about as long as it takes to move the pages.
const MIGRATION: PageMigration = PageMigration {
    threads: 6,
    pages: 64,
    rounds: 20,
    nodes: 2,
    laps: 120,
    compute_ns: 500,
    sleep_ns: 0,
    seed: 1,
};

fn outcome<C: Into<ErasedCoherence>>(
    limits: Limits,
    workload: impl Workload + 'static,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Outcome {
    let name = workload.name();
    let round = include_str!("../../../sim/tests/round.toml");
    let machine = Machine::from_toml(round).unwrap().with_cpus(8).unwrap();
    let outcome = run(machine, limits, Rc::new(workload), design);
    let outcome = outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
    let first = outcome.first_violations.first();
    assert_eq!((outcome.violations, outcome.hazards), (0, 0), "{name}: {first:?}");
    let first = outcome.first_wrong_contents.first();
    assert_eq!(outcome.wrong_contents, 0, "{name}: {first:?}");
    outcome
}

/// Runs a workload under every design that may differ.
macro_rules! under_every_design {
    ($limits:expr, $workload:expr) => {{
        let (limits, workload) = ($limits, $workload);
        [
            ("shootdown", outcome(limits, workload, Engine::<1>::new)),
            ("linux-7.0", outcome(limits, workload, Linux70::new)),
            ("unmap-batched", outcome(limits, workload, Linux412::batched)),
            ("unmap-4.2", outcome(limits, workload, Linux412::new)),
            ("arm64-skip", outcome(limits, workload, Arm64::skip)),
            ("riscv", outcome(limits, workload, Riscv::new)),
            ("naive", outcome(limits, workload, Naive::new)),
        ]
    }};
}

#[test]
fn will_it_scale_finds_what_it_asserts() {
    for case in Case::ALL {
        for tasks in [Tasks::Threads, Tasks::Processes] {
            let workload = WillItScale { case, tasks, count: 4, pages: 24, rounds: 3 };
            for (design, found) in under_every_design!(LIMITS, workload) {
                assert_eq!(found.iterations, 4 * 24 * 3, "{case:?} under {design}");
                // A task that is alone in its process has nobody to tell.
                let is_quiet = tasks == Tasks::Processes && design == "shootdown";
                assert!(!is_quiet || found.counts.interrupts_sent == 0, "{case:?}");
            }
        }
    }
}

#[test]
fn copies_on_write_for_which_others_give_up_pages_are_learnt_of_by_all() {
    for (design, found) in under_every_design!(COPIES_LIMITS, COPIES) {
        assert_eq!(found.iterations, 6, "{design}");
        // Each child copies all pages, but what the last of them finds to be its own.
        assert!(found.traffic.copied > 6 * 3 * 128, "{design}: {:?}", found.traffic);
    }
}

#[test]
fn pages_that_move_between_nodes_take_what_is_written_with_them() {
    let found = under_every_design!(LIMITS, MIGRATION);
    let [(_, ours), (_, latest), ..] = &found;
    // All threads compute, and each has to be notified of each batch: as often under both. That it
    // takes no longer is tested where many seeds are summed, in the lab's `comparisons`.
    assert!(ours.counts.interrupts_sent <= latest.counts.interrupts_sent);
}

/// Where threads have nothing to do any more while their memory is moved, they need not be told.
#[test]
fn whose_pages_move_while_he_sleeps_is_not_interrupted() {
    let sleepers = PageMigration { laps: 20, ..MIGRATION };
    let ours = outcome(LIMITS, sleepers, Engine::<1>::new);
    let latest = outcome(LIMITS, sleepers, Linux70::new);
    // 258, and 446.
    assert!(3 * ours.counts.interrupts_sent <= 2 * latest.counts.interrupts_sent);
}
