//! The simulation of an experiment under a design.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use shootdown_designs::Design;
use shootdown_program::Workload;
use shootdown_run::{Classes, Limits, MemoryCosts, Outcome, Settings};
use shootdown_sim::TimeByCause;
use shootdown_sim::machine::Machine;

use super::experiment::{Experiment, Measure, Scale, Setup};
use crate::error::CannotRun;

/// The measurement of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Measurement {
    /// The metric, in the experiment's unit.
    pub(crate) value: f64,
    /// Number of flush interrupts.
    pub(crate) interrupts_sent: u64,
    /// Number of flush interrupts to lazy CPUs, which had the address space loaded and did not
    /// access user memory.
    pub(crate) interrupts_to_lazy: u64,
    /// Number of flushes of a whole tag or of the whole TLB, on any CPU.
    pub(crate) flushes_full: u64,
    /// Number of flushes of single pages, on any CPU.
    pub(crate) flushes_ranged: u64,
    /// Number of uses of a translation after the flush that covered it was complete.
    pub(crate) violations: u64,
    /// Number of page tables that were freed while a CPU could still walk them speculatively.
    pub(crate) hazards: u64,
    /// Number of flush interrupts to CPUs that did not use the address space.
    pub(crate) interrupts_to_non_users: u64,
    /// The largest number of unlinked page tables that waited to be freed at one time, because a
    /// CPU could still walk them.
    pub(crate) deferred_tables_peak: u64,
    /// Number of times that too many page tables waited, so that CPUs were interrupted.
    pub(crate) deferred_tables_overflows: u64,
    /// Number of operations with which hardware broadcast an invalidation.
    pub(crate) broadcasts: u64,
    /// Time that all CPUs together waited for the completion of broadcasts.
    pub(crate) broadcast_wait_ns: u64,
    /// Number of tags that were allocated to address spaces.
    pub(crate) tags_allocated: u64,
    /// Number of times that no tag was left, so that all tags were reclaimed.
    pub(crate) rollovers: u64,
    /// Number of requests to flush a CPU, with or without an interrupt of their own.
    pub(crate) requests: u64,
    /// The time of all CPUs together by its cause.
    pub(crate) time_by_cause: TimeByCause,
    /// Number of requests for a lock that another thread had.
    pub(crate) lock_waits: u64,
    /// Time that threads slept for locks. Their CPUs may have run other threads.
    pub(crate) lock_sleep_ns: u64,
    /// The pages that were discarded in place.
    #[serde(flatten)]
    pub(crate) memory_costs: MemoryCosts,
    /// The classes of the flush interrupts.
    #[serde(flatten)]
    pub(crate) classes: Classes,
}

/// The conditions of a simulation besides the experiment and the design.
#[derive(Clone, Debug)]
pub(crate) struct Conditions {
    /// The experiment's machine, or the user's.
    pub(crate) machine: Machine,
    /// The seed of random numbers.
    pub(crate) seed: u64,
    pub(crate) scale: Scale,
    pub(crate) runs: Runs,
}

/// A cache of runs with one seed and one scale. Several figures can be read from one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Arc<Mutex<HashMap<RunKey, Outcome>>>);

/// The key of a run: the workload and its part, the design, the machine and its number of CPUs.
type RunKey = ([&'static str; 2], Design, String, usize);

impl Runs {
    fn find_or_run(
        &self,
        key: RunKey,
        run: impl FnOnce() -> Result<Outcome, String>,
    ) -> Result<Outcome, String> {
        let locked = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outcome) = locked().get(&key) {
            return Ok(outcome.clone());
        }
        // The lock is not held during the run, so that other threads can run other workloads.
        let outcome = run()?;
        locked().insert(key, outcome.clone());
        Ok(outcome)
    }
}

/// Simulates an experiment under a design.
///
/// The same arguments give the same measurement, to the bit. If less work than published is
/// simulated, the value is scaled up.
pub(crate) fn simulate(
    experiment: &Experiment,
    design: Design,
    conditions: &Conditions,
) -> Result<Measurement, CannotRun> {
    measure(experiment, design, conditions)
        .map_err(|cause| CannotRun::simulation(experiment.workload, design, cause))
}

fn measure(
    experiment: &Experiment,
    design: Design,
    conditions: &Conditions,
) -> Result<Measurement, String> {
    let Conditions { machine, seed, scale, runs } = conditions;
    let cpus = machine.cpu_count();
    let Measure { workload, settings, read, scale, offset, subtract } =
        (experiment.measure)(&Setup { cpus, scale: *scale, seed: *seed })?;
    // One thread for each CPU, in addition to the threads that start them.
    let settings = Settings {
        limits: Limits { threads: settings.limits.threads + cpus, ..settings.limits },
        ..settings
    };
    let run = |workload: Rc<dyn Workload>, part| {
        let key = ([experiment.workload, part], design, machine.name.clone(), cpus);
        runs.find_or_run(key, || {
            let run = shootdown_run::run(machine.clone(), settings, workload, |sim| design.on(sim));
            run.map_err(|error| error.to_string())
        })
    };
    let outcome = run(workload, "")?;
    let counts = &outcome.counts;
    let mut value = read(&outcome) * scale + offset;
    if let Some(subtract) = subtract {
        value -= read(&run(subtract, "subtracted")?) * scale;
    }
    Ok(Measurement {
        value,
        interrupts_sent: counts.interrupts_sent,
        interrupts_to_lazy: counts.interrupts_to_lazy,
        flushes_full: counts.flushes_full,
        flushes_ranged: counts.flushes_ranged,
        violations: outcome.violations,
        hazards: outcome.hazards,
        interrupts_to_non_users: counts.interrupts_to_absent,
        deferred_tables_peak: outcome.quarantined_tables.peak,
        deferred_tables_overflows: outcome.quarantined_tables.overflows,
        broadcasts: counts.broadcasts,
        broadcast_wait_ns: counts.broadcast_wait.ns(),
        tags_allocated: counts.tags_taken,
        rollovers: counts.rollovers,
        requests: counts.requests(),
        time_by_cause: outcome.causes.iter().sum(),
        lock_waits: counts.lock_waits,
        lock_sleep_ns: counts.lock_sleep.ns(),
        memory_costs: MemoryCosts::from(&outcome),
        classes: Classes::from(counts),
    })
}

#[cfg(test)]
mod tests {
    use shootdown_designs::{Purpose, designs_for};
    use shootdown_run::programs::MprotectThreaded;

    use super::*;
    use crate::machines::Embedded;
    use crate::studies::{Study, experiments};

    /// Measures an experiment under a design on a machine with `cpus` CPUs.
    fn measurement(workload: &str, design: Design, cpus: usize) -> Measurement {
        let is_wanted = |experiment: &&Experiment| experiment.workload == workload;
        let experiment = experiments().find(is_wanted).expect("an experiment");
        let machine = experiment.machine.machine().expect("an embedded machine");
        let machine = machine.with_cpus(cpus).expect("a machine of that many CPUs");
        let conditions =
            Conditions { machine, seed: 1, scale: Scale::Quick, runs: Runs::default() };
        simulate(experiment, design, &conditions).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn general_designs_have_no_violations() {
        for design in designs_for(Purpose::General) {
            for (workload, cpus) in [("context-switches", 16), ("exit-storm", 16)] {
                let outcome = measurement(workload, design, cpus);
                assert_eq!(outcome.violations, 0, "{workload} under {design}");
                // The bug of Linux 4.14: lazy CPUs can walk freed page tables.
                let is_sound = outcome.hazards == 0 || design == Design::LINUX_4_14;
                assert!(is_sound, "{} hazards in {workload} under {design}", outcome.hazards);
            }
        }
    }

    #[test]
    fn reference_count_limits_scaling_of_context_switches() {
        let gain = |design| {
            let [few, many] =
                [2, 64].map(|cpus| measurement("context-switches", design, cpus).value);
            many / few
        };
        assert!(gain(Design::POWERPC_COUNTED) < 2.0);
        for design in [Design::POWERPC_SHOOT, Design::LINUX_HAZARD, Design::SHOOTDOWN] {
            assert!(gain(design) > 0.95 * 32.0, "{design}");
        }
    }

    #[test]
    fn exit_sends_no_interrupts_and_defers_tables() {
        let ours = measurement("exit-storm", Design::SHOOTDOWN, 64);
        assert_eq!((ours.interrupts_sent, ours.deferred_tables_overflows), (0, 0));
        assert!(ours.deferred_tables_peak > 0, "CPUs are lazy on spaces that have exited");
        assert!(measurement("exit-storm", Design::POWERPC_SHOOT, 64).value > 1.0);
    }

    #[test]
    fn threads_never_active_together_need_no_broadcasts() {
        for design in [Design::ARM64_SKIP, Design::SHOOTDOWN] {
            let broadcasts = |copies, iterations| {
                let machine = Embedded::AMPERE_EMAG_32.machine().expect("an embedded machine");
                let workload = MprotectThreaded::new(copies, iterations);
                let found =
                    shootdown_run::run(machine, Settings::DEFAULT, Rc::new(workload), |sim| {
                        design.on(sim)
                    });
                let Outcome { counts, violations, .. } = found.expect("it runs");
                assert_eq!(violations, 0, "{design}");
                counts.broadcasts
            };
            assert_eq!(broadcasts(1, 500), 0, "{design}");
            // A broadcast is needed if the other thread has not gone to sleep yet.
            assert!(broadcasts(32, 500) < 32, "{design}");
        }
        assert_eq!(measurement("mprotect-threaded", Design::SHOOTDOWN, 32).broadcasts, 0);
        assert!(measurement("mprotect-threaded", Design::ARM64, 32).broadcasts > 2 * 32 * 500);
    }

    #[test]
    fn commands_allocate_published_number_of_tags() {
        for (workload, before) in [("ls-1-library", 5.0), ("ls-3-libraries", 7.0)] {
            let tags = |design| measurement(workload, design, 1).value;
            let (found, after) = (tags(Design::ARC_3_9), tags(Design::ARC_RANGED));
            assert!((found - before).abs() < 0.01 && (after - 4.0).abs() < 0.01, "{workload}");
            assert!(tags(Design::SHOOTDOWN) <= 4.0, "{workload}");
        }
    }

    #[test]
    fn figures_fitted_to_lmbench_are_within_one_percent() {
        let is_wanted = |experiment: &&Experiment| experiment.study == Study::ArcAsidRange;
        for experiment in experiments().filter(is_wanted) {
            let published = experiment.published.expect("published figures").before;
            let found = measurement(experiment.workload, Design::ARC_3_9, 1).value;
            let error = (found - published).abs() / published;
            assert!(error < 0.01, "{}: {found} for {published}", experiment.workload);
        }
    }
}
