//! Programs with memory that is short or on the wrong node, and the cases of will-it-scale, under
//! every design. The model of contents checks all reads.

use std::rc::Rc;

use crate::memory_model::model::checked;
use shootdown_designs::{Arm64, Engine, Linux70, Linux412, Naive, Riscv};
use shootdown_program::Workload;
use shootdown_run::programs::{PageMigration, Tasks};
use shootdown_run::{Limits, Memory, Outcome, Settings, Supply, run};
use shootdown_sim::{Machine, Sim, Time};
use shootdown_vm::ErasedCoherence;

use crate::programs::{Case, CopyOnWrite, WillItScale};

const SETTINGS: Settings = Settings {
    memory: Memory { frames: 2048, nodes: 2, supply: Supply::Reclaimed },
    limits: Limits { threads: 256, time: Time::from_ms(60_000) },
    contents: Some(checked),
    ..Settings::DEFAULT
};

/// The children and the file together need more memory than there is.
const COPIES: CopyOnWrite = CopyOnWrite { children: 4, rounds: 6, pages: 128, file_pages: 3000 };
const COPIES_SETTINGS: Settings =
    Settings { memory: Memory { frames: 1000, ..SETTINGS.memory }, ..SETTINGS };

/// The threads write for about the time that the moves take.
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
    settings: Settings,
    workload: impl Workload + 'static,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Outcome {
    let name = workload.name();
    let round = include_str!("../../../sim/tests/round.toml");
    let machine = Machine::from_toml(round).unwrap().with_cpus(8).unwrap();
    let outcome = run(machine, settings, Rc::new(workload), design);
    let outcome = outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
    let first = outcome.first_violations.first();
    assert_eq!((outcome.violations, outcome.hazards), (0, 0), "{name}: {first:?}");
    let first = outcome.first_wrong_contents.first();
    assert_eq!(outcome.wrong_contents, 0, "{name}: {first:?}");
    outcome
}

/// Runs a workload under designs that may behave differently.
macro_rules! under_every_design {
    ($settings:expr, $workload:expr) => {{
        let (settings, workload) = ($settings, $workload);
        [
            ("shootdown", outcome(settings, workload, Engine::<1>::new)),
            ("linux-7.0", outcome(settings, workload, Linux70::uncounted)),
            ("unmap-batched", outcome(settings, workload, Linux412::batched)),
            ("unmap-4.2", outcome(settings, workload, Linux412::new)),
            ("arm64-skip", outcome(settings, workload, Arm64::skip)),
            ("riscv", outcome(settings, workload, Riscv::new)),
            ("naive", outcome(settings, workload, Naive::new)),
        ]
    }};
}

#[test]
fn will_it_scale_cases_read_correct_words() {
    for case in Case::ALL {
        for tasks in [Tasks::Threads, Tasks::Processes] {
            let workload = WillItScale { case, tasks, count: 4, pages: 24, rounds: 3 };
            for (design, found) in under_every_design!(SETTINGS, workload) {
                assert_eq!(found.iterations, 4 * 24 * 3, "{case:?} under {design}");
                // A task that is alone in its process shares no translation with another CPU.
                let is_quiet = tasks == Tasks::Processes && design == "shootdown";
                assert!(!is_quiet || found.counts.interrupts_sent == 0, "{case:?}");
            }
        }
    }
}

#[test]
fn copies_on_write_during_reclaim_reach_all_cpus() {
    for (design, found) in under_every_design!(COPIES_SETTINGS, COPIES) {
        assert_eq!(found.iterations, 6, "{design}");
        // Each child copies all pages, except those of which it is the last user.
        assert!(found.traffic.copied > 6 * 3 * 128, "{design}: {:?}", found.traffic);
    }
}

#[test]
fn moved_pages_keep_concurrent_writes() {
    let found = under_every_design!(SETTINGS, MIGRATION);
    let [(_, ours), (_, latest), ..] = &found;
    // All threads compute, and each must be notified of each batch, under both designs. The lab's
    // `comparisons` compare the times, where many seeds are summed.
    let [ours, latest] = [ours, latest].map(|outcome| outcome.counts.interrupts_sent);
    assert!(ours <= latest, "{ours} and {latest}");
}

/// Threads that sleep while their memory is moved do not have to be notified.
#[test]
fn sleeping_owner_of_moved_pages_is_not_interrupted() {
    // Sleeps of several lengths: with one, a thread may be awake at each flush, or at none.
    let (mut ours, mut latest) = (0, 0);
    for sleep_ns in (180_000..=220_000).step_by(10_000) {
        let sleepers = PageMigration { sleep_ns, ..MIGRATION };
        ours += outcome(SETTINGS, sleepers, Engine::<1>::new).counts.interrupts_sent;
        latest += outcome(SETTINGS, sleepers, Linux70::uncounted).counts.interrupts_sent;
    }
    println!("{ours} and {latest}, of {} if they did not sleep", 5 * 720);
    assert!(4 * ours <= 3 * latest, "{ours} and {latest}");
}
