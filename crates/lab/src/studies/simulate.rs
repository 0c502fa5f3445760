//! The simulation of an experiment under a design.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use shootdown_designs::Design;
use shootdown_program::Workload;
use shootdown_run::{Limits, Outcome};
use shootdown_sim::machine::Machine;

use super::experiment::{Experiment, Measure, Scale, Setup};
use crate::error::SimulationError;

/// What was measured in a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Measurement {
    /// The metric, in the experiment's unit.
    pub(crate) value: f64,
    /// Flush interrupts.
    pub(crate) interrupts_sent: u64,
    /// Of those, to CPUs that were lazy: the space loaded, no user memory touched.
    pub(crate) interrupts_to_lazy: u64,
    /// Flushes of a whole tag or of the whole TLB, on any CPU.
    pub(crate) flushes_full: u64,
    /// Flushes of single pages, on any CPU.
    pub(crate) flushes_ranged: u64,
    /// Uses of a translation after the flush that covered it was waited for.
    pub(crate) violations: u64,
    /// Freed page tables that a CPU's speculation could still have walked.
    pub(crate) hazards: u64,
    /// Flush interrupts to CPUs that did not have the space at all.
    pub(crate) interrupts_to_absent: u64,
    /// The largest number of unused page tables that were not freed at any one time, because a CPU
    /// could still walk them.
    pub(crate) held_tables_peak: u64,
    /// How often there were too many of them, so that CPUs were interrupted.
    pub(crate) held_tables_overflows: u64,
    /// Operations by which hardware notified all CPUs of a flush.
    pub(crate) broadcasts: u64,
    /// The sum of all CPUs' times of waiting for the completion of broadcasts.
    pub(crate) broadcast_wait_ns: u64,
    /// Tags that spaces were given.
    pub(crate) tags_taken: u64,
    /// How often no tag was left, and all were taken back.
    pub(crate) rollovers: u64,
}

/// What a simulation depends on, apart from the experiment and the design.
#[derive(Clone, Debug)]
pub(crate) struct Conditions {
    /// The experiment's machine, or the user's.
    pub(crate) machine: Machine,
    /// The seed of random numbers.
    pub(crate) seed: u64,
    pub(crate) scale: Scale,
    pub(crate) runs: Runs,
}

/// The earlier runs of a seed and a scale, so that a run from which several figures are read runs
/// once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Arc<Mutex<HashMap<RunKey, Outcome>>>);

/// The workload and the part of it, the design, and the machine and its number of CPUs.
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
        // Without the lock, so that other threads run others.
        let outcome = run()?;
        locked().insert(key, outcome.clone());
        Ok(outcome)
    }
}

/// Simulates an experiment under a design.
///
/// The same arguments give the same measurement, to the bit. If the scale is less than the
/// published one, the value is scaled up.
pub(crate) fn simulate(
    experiment: &Experiment,
    design: Design,
    conditions: &Conditions,
) -> Result<Measurement, SimulationError> {
    measure(experiment, design, conditions)
        .map_err(|cause| SimulationError::new(experiment.workload, design, cause))
}

fn measure(
    experiment: &Experiment,
    design: Design,
    conditions: &Conditions,
) -> Result<Measurement, String> {
    let Conditions { machine, seed, scale, runs } = conditions;
    let cpus = machine.cpu_count();
    let Measure { workload, limits, read, scale, offset, subtract } =
        (experiment.measure)(&Setup { cpus, scale: *scale, seed: *seed })?;
    // A thread for each CPU, and those that start them.
    let limits = Limits { threads: limits.threads + cpus, ..limits };
    let run = |workload: Rc<dyn Workload>, part| {
        let key = ([experiment.workload, part], design, machine.name.clone(), cpus);
        runs.find_or_run(key, || {
            shootdown_run::run(machine.clone(), limits, workload, |sim| design.on(sim))
                .map_err(|error| error.to_string())
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
        interrupts_to_absent: counts.interrupts_to_absent,
        held_tables_peak: outcome.quarantined_tables.peak,
        held_tables_overflows: outcome.quarantined_tables.overflows,
        broadcasts: counts.broadcasts,
        broadcast_wait_ns: counts.broadcast_wait.ns(),
        tags_taken: counts.tags_taken,
        rollovers: counts.rollovers,
    })
}

#[cfg(test)]
mod tests {
    use shootdown_designs::{Purpose, designs_for};
    use shootdown_run::programs::MprotectThreaded;

    use super::*;
    use crate::machines::Embedded;
    use crate::studies::{Study, experiments};

    /// An experiment under a design, with that many CPUs.
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
    fn no_design_uses_what_is_dead() {
        for design in designs_for(Purpose::General) {
            for (workload, cpus) in [("context-switches", 16), ("exit-storm", 16)] {
                let outcome = measurement(workload, design, cpus);
                assert_eq!(outcome.violations, 0, "{workload} under {design}");
                // That lazy CPUs may walk freed tables is what was wrong with Linux 4.14.
                let is_sound = outcome.hazards == 0 || design == Design::LINUX_4_14;
                assert!(is_sound, "{} hazards in {workload} under {design}", outcome.hazards);
            }
        }
    }

    #[test]
    fn a_count_does_not_grow_with_the_machine_and_all_else_does() {
        let gain = |design| {
            let [few, many] =
                [2, 64].map(|cpus| measurement("context-switches", design, cpus).value);
            many / few
        };
        assert!(gain(Design::LINUX_COUNTED) < 2.0);
        for design in [Design::POWERPC_SHOOT, Design::LINUX_HAZARD, Design::SHOOTDOWN] {
            assert!(gain(design) > 0.95 * 32.0, "{design}");
        }
    }

    #[test]
    fn an_exit_interrupts_nobody_and_what_it_holds_back_is_bounded() {
        let ours = measurement("exit-storm", Design::SHOOTDOWN, 64);
        assert_eq!((ours.interrupts_sent, ours.held_tables_overflows), (0, 0));
        assert!(ours.held_tables_peak > 0, "CPUs are lazy on what has exited");
        assert!(measurement("exit-storm", Design::POWERPC_SHOOT, 64).value > 1.0);
    }

    #[test]
    fn of_two_threads_that_are_never_active_together_nobody_is_told() {
        for design in [Design::ARM64_SKIP, Design::SHOOTDOWN] {
            let broadcasts = |copies, iterations| {
                let machine = Embedded::AMPERE_EMAG_32.machine().expect("an embedded machine");
                let workload = MprotectThreaded { copies, iterations };
                let found =
                    shootdown_run::run(machine, Limits::default(), Rc::new(workload), |sim| {
                        design.on(sim)
                    });
                let Outcome { counts, violations, .. } = found.expect("it runs");
                assert_eq!(violations, 0, "{design}");
                counts.broadcasts
            };
            assert_eq!(broadcasts(1, 500), 0, "{design}");
            // A thread that has not gone to sleep yet has to be told.
            assert!(broadcasts(32, 500) < 32, "{design}");
        }
        assert_eq!(measurement("mprotect-threaded", Design::SHOOTDOWN, 32).broadcasts, 0);
        assert!(measurement("mprotect-threaded", Design::ARM64, 32).broadcasts > 2 * 32 * 500);
    }

    #[test]
    fn a_command_takes_as_many_tags_as_published_and_fewer_here() {
        for (workload, before) in [("ls-1-library", 5.0), ("ls-3-libraries", 7.0)] {
            let tags = |design| measurement(workload, design, 1).value;
            let (found, after) = (tags(Design::ARC_3_9), tags(Design::ARC_RANGED));
            assert!((found - before).abs() < 0.01 && (after - 4.0).abs() < 0.01, "{workload}");
            assert!(tags(Design::SHOOTDOWN) <= 4.0, "{workload}");
        }
    }

    #[test]
    fn what_was_fitted_to_lmbench_fits_and_no_more_than_that_was() {
        let is_wanted = |experiment: &&Experiment| experiment.study == Study::ArcAsidRange;
        for experiment in experiments().filter(is_wanted) {
            let published = experiment.published.expect("all of them are").before;
            let found = measurement(experiment.workload, Design::ARC_3_9, 1).value;
            let error = (found - published).abs() / published;
            assert!(error < 0.01, "{}: {found} for {published}", experiment.workload);
        }
    }
}
