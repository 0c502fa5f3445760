//! Runs of the workloads of the study of POWER's lazy address spaces, and checks of their
//! operations.

use std::rc::Rc;

use crate::memory_model::model::checked;
use shootdown_designs::{Engine, Linux70, Naive};
use shootdown_program::Workload;
use shootdown_program::operation::{Operation, ProgramId};
use shootdown_run::programs::{ContextSwitches, ExitStorm};
use shootdown_run::{Limits, Memory, Outcome, Settings, run};
use shootdown_sim::{Machine, Sim, Time};
use shootdown_vm::ErasedCoherence;

const SETTINGS: Settings = Settings {
    memory: Memory::of_frames(1 << 18),
    limits: Limits { threads: 1024, time: Time::from_ms(60_000) },
    contents: Some(checked),
    ..Settings::DEFAULT
};

/// Runs a workload on the machine of the study, with this number of CPUs.
fn outcome<C: Into<ErasedCoherence>>(
    cpus: u32,
    workload: impl Workload + 'static,
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Outcome {
    let power8 = include_str!("../../../../machines/power8-16s.toml");
    let machine = Machine::from_toml(power8).unwrap().with_cpus(cpus as usize).unwrap();
    let outcome = run(machine, SETTINGS, Rc::new(workload), design).unwrap();
    let first = outcome.first_violations.first();
    assert_eq!((outcome.violations, outcome.hazards), (0, 0), "{first:?}");
    let first = outcome.first_wrong_contents.first();
    assert_eq!(outcome.wrong_contents, 0, "{first:?}");
    outcome
}

const STORM: ExitStorm = ExitStorm { cpus: 13, processes: 6, threads: 3, seed: 1 };

/// If both threads of a pair ran on one CPU, each pair of switches would be one switch.
#[test]
fn switches_enter_and_leave_idle() {
    for cpus in [2, 6, 16, 64] {
        let workload = ContextSwitches { cpus, rounds: 20, seed: 1 };
        let outcome = outcome(cpus, workload, Engine::<1>::new);
        assert_eq!(outcome.iterations, 40);
        let switches = ContextSwitches::switches(outcome.counts.switches);
        let all = outcome.iterations * u64::from(cpus) / 2;
        // Pairs are not synchronised: each may have done one switch more or less.
        assert!(switches.abs_diff(all) <= u64::from(cpus), "{switches} and not {all}");
        assert_eq!(outcome.counts.migrations, 0);
        let idle = outcome.counts.idle.ps() as f64;
        let part = idle / (outcome.time.ps() as f64 * f64::from(cpus));
        assert!((0.1..0.9).contains(&part), "idle for {part} of the time");
    }
}

/// The first pairs must not end before the measurement does. Otherwise the machine would become
/// idle during the time of the last pair.
#[test]
fn all_pairs_run_until_the_measurement_ends() {
    let rate = |rounds| {
        let outcome =
            outcome(128, ContextSwitches { cpus: 128, rounds, seed: 1 }, Linux70::uncounted);
        ContextSwitches::switches(outcome.counts.switches) as f64 / outcome.time.us()
    };
    let (short, long) = (rate(5), rate(100));
    assert!((short / long - 1.0).abs() < 0.05, "{short} and {long}");
}

#[test]
fn partners_are_neighbours_on_separate_cpus() {
    let workload = ContextSwitches { cpus: 8, rounds: 1, seed: 1 };
    let cpu_of = |thread| {
        workload.steps(ProgramId(thread)).find_map(|step| match step {
            Operation::Migrate(cpu) => Some(cpu),
            _ => None,
        })
    };
    let cpus: Vec<_> = (1..=8).map(cpu_of).collect();
    assert_eq!(cpus, (0..8).map(Some).collect::<Vec<_>>());
    for thread in (1..=8).step_by(2) {
        let wakes = |step| step == Operation::Wake(ProgramId(thread + 1));
        assert!(workload.steps(ProgramId(thread)).any(wakes), "{thread}");
    }
}

#[test]
fn every_process_of_the_storm_exits() {
    let outcomes = [
        outcome(13, STORM, Engine::<1>::new),
        outcome(13, STORM, Linux70::uncounted),
        outcome(13, STORM, Naive::new),
    ];
    for outcome in outcomes {
        assert_eq!(outcome.iterations, u64::from(STORM.groups() * STORM.processes));
    }
}

/// Otherwise the storm would not measure the cost of lazy address spaces.
#[test]
fn cpus_idle_lazily_on_exiting_processes() {
    let outcome = outcome(13, STORM, Linux70::uncounted);
    let exits = outcome.iterations;
    assert!(outcome.counts.interrupts_to_lazy >= exits, "{:?}", outcome.counts);
}

#[test]
fn seed_decides_the_storm() {
    let run = |seed| {
        let outcome = outcome(13, ExitStorm { seed, ..STORM }, Engine::<1>::new);
        (outcome.time, outcome.counts)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
