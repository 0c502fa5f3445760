//! The seam to the simulator: the one place where an experiment becomes CPUs, threads and time.

mod seed002;
mod seed003;
pub(crate) mod seed004;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use shootdown_designs::Design;
use shootdown_program::Workload;
use shootdown_run::programs::{ContextSwitches, ExitStorm, MadviseMigrate, PthreadMmap};
use shootdown_run::{Limits, Outcome as Found};
use shootdown_sim::Machine;

use crate::experiment::{Conditions, Experiment, Outcome, Scale};

/// Runs `experiment.workload` under `design` on `conditions.machine`, with random numbers from
/// `conditions.seed`.
///
/// The same arguments give the same outcome, to the bit; `Outcome::value` is in `experiment.unit`,
/// scaled up to the published amount of work if `conditions.scale` is less.
///
/// # Errors
///
/// If the workload or the design is unknown, or cannot run on this machine: one line, without a
/// full stop, that says why.
pub(crate) fn simulate(
    experiment: &Experiment,
    design: &str,
    conditions: &Conditions,
) -> Result<Outcome, String> {
    let Conditions { machine, seed, scale, runs } = conditions;
    let design: Design = design.parse().map_err(|error| format!("{error}"))?;
    let Measured { workload, limits, value, times, add, less } =
        measured(experiment, machine, *scale, *seed)?;
    // A thread for each CPU, and those that start them.
    let limits = Limits { threads: limits.threads + machine.cpu_count(), ..limits };
    let run = |workload: Rc<dyn Workload>, part| {
        let of = [experiment.workload, part, design.name()];
        let key = (of, machine.name.clone(), machine.cpu_count());
        runs.find_or_run(key, || {
            shootdown_run::run(machine.clone(), limits, workload, |sim| design.on(sim))
                .map_err(|error| error.to_string())
        })
    };
    let found = run(workload, "")?;
    let counts = &found.counts;
    let mut metric = value(&found) * times + add;
    if let Some(less) = less {
        metric -= value(&run(less, "less")?) * times;
    }
    Ok(Outcome {
        value: metric,
        interrupts_sent: counts.interrupts_sent,
        interrupts_to_lazy: counts.interrupts_to_lazy,
        interrupts_to_absent: counts.interrupts_to_absent,
        flushes_full: counts.flushes_full,
        flushes_ranged: counts.flushes_ranged,
        broadcasts: counts.broadcasts,
        broadcast_wait_ns: counts.broadcast_wait.ns(),
        tags_taken: counts.tags_taken,
        rollovers: counts.rollovers,
        violations: found.violations,
        hazards: found.hazards,
        held_tables_peak: found.held_tables.peak,
        held_tables_overflows: found.held_tables.overflows,
    })
}

/// What was found so far, so that what several figures are read from runs once. Of one seed and
/// scale.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Arc<Mutex<BTreeMap<RunKey, Found>>>);

/// Workload, which part of it, and design; the machine, and how many CPUs it has.
type RunKey = ([&'static str; 3], String, usize);

impl Runs {
    fn find_or_run(
        &self,
        key: RunKey,
        run: impl FnOnce() -> Result<Found, String>,
    ) -> Result<Found, String> {
        let locked = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = locked().get(&key) {
            return Ok(found.clone());
        }
        // Not under the lock: others run meanwhile.
        let found = run()?;
        locked().insert(key, found.clone());
        Ok(found)
    }
}

/// What is run, and what is read from it.
struct Measured {
    workload: Rc<dyn Workload>,
    limits: Limits,
    value: Box<dyn Fn(&Found) -> f64>,
    /// How many times as much was published.
    times: f64,
    /// What is no part of the run.
    add: f64,
    /// What is run besides, and subtracted.
    less: Option<Rc<dyn Workload>>,
}

impl Measured {
    fn of(workload: Rc<dyn Workload>, value: impl Fn(&Found) -> f64 + 'static) -> Self {
        let (limits, value) = (Limits::DEFAULT, Box::new(value));
        Self { workload, limits, value, times: 1.0, add: 0.0, less: None }
    }

    /// An iteration's time, in microseconds.
    fn us(workload: Rc<dyn Workload>) -> Self {
        Self::of(workload, |found| found.time.us() / found.iterations as f64)
    }

    /// All of the run's time, in seconds, if this is but a part of it.
    fn run(workload: Rc<dyn Workload>, part: u64) -> Self {
        Self { times: part as f64, ..Self::of(workload, |found| found.time.seconds()) }
    }
}

fn measured(
    experiment: &Experiment,
    machine: &Machine,
    scale: Scale,
    seed: u64,
) -> Result<Measured, String> {
    let part = if scale == Scale::Quick { 20 } else { 1 };
    let cpus = machine.cpu_count();
    Ok(match experiment.workload {
        "madvise-touch-migrate" => {
            Measured::us(Rc::new(MadviseMigrate { cpus, iterations: 4000 / part }))
        }
        "pthread-mmap" => {
            let published = PthreadMmap::published();
            let rounds = published.rounds / part;
            Measured::run(Rc::new(PthreadMmap { rounds, seed, ..published }), part)
        }
        "context-switches" => {
            let switches = context_switches(machine, scale, seed)?;
            Measured::of(Rc::new(switches), |found| {
                ContextSwitches::switches(found.counts.switches) as f64 / found.time.us()
            })
        }
        "exit-storm" => Measured::of(Rc::new(exit_storm(machine, scale, seed)?), |found| {
            found.counts.interrupts_sent as f64 / found.iterations as f64
        }),
        other => seed002::measured(other, scale, seed)
            .or_else(|| seed003::measured(other, cpus, scale))
            .or_else(|| seed004::measured(experiment, machine, scale))
            .ok_or_else(|| format!("there is no workload `{other}`"))?,
    })
}

/// All CPUs in pairs. It is measured while nothing changes, so that it need not be long: the fewer
/// rounds the more CPUs.
fn context_switches(machine: &Machine, scale: Scale, seed: u64) -> Result<ContextSwitches, String> {
    let pairs = machine.cpu_count() as u32 / 2;
    if pairs == 0 {
        return Err("it takes a pair of CPUs".to_owned());
    }
    let rounds_max = if scale == Scale::Quick { 10 } else { 100 };
    let rounds = (20_000 / u64::from(pairs)).clamp(10, rounds_max);
    Ok(ContextSwitches { cpus: 2 * pairs, rounds, seed })
}

/// Processes of four threads.
fn exit_storm(machine: &Machine, scale: Scale, seed: u64) -> Result<ExitStorm, String> {
    let processes = if scale == Scale::Quick { 2 } else { 20 };
    let storm = ExitStorm { cpus: machine.cpu_count() as u32, processes, threads: 3, seed };
    if storm.groups() == 0 {
        return Err("it takes four CPUs".to_owned());
    }
    Ok(storm)
}

#[cfg(test)]
mod tests {
    use shootdown_designs::{Purpose, designs_for};
    use shootdown_run::programs::MprotectThreaded;

    use super::*;
    use crate::experiment::EXPERIMENTS;
    use crate::machines;

    /// An experiment under a design, with so many CPUs.
    fn outcome(workload: &str, design: Design, cpus: usize) -> Outcome {
        let of_that_name = |experiment: &&Experiment| experiment.workload == workload;
        let experiment = EXPERIMENTS.iter().find(of_that_name).expect("an experiment");
        let machine = machines::find(experiment.machine).expect("an embedded machine");
        let machine = machine.with_cpus(cpus).expect("so many CPUs can be had");
        let conditions =
            Conditions { machine, seed: 1, scale: Scale::Quick, runs: Runs::default() };
        let outcome = simulate(experiment, design.name(), &conditions);
        outcome.unwrap_or_else(|error| panic!("{workload} under {design}: {error}"))
    }

    #[test]
    fn no_design_uses_what_is_dead() {
        for design in designs_for(Purpose::General) {
            for (workload, cpus) in [("context-switches", 16), ("exit-storm", 16)] {
                let outcome = outcome(workload, design, cpus);
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
            let [few, many] = [2, 64].map(|cpus| outcome("context-switches", design, cpus).value);
            many / few
        };
        assert!(gain(Design::LINUX_COUNTED) < 2.0);
        for design in [Design::POWERPC_SHOOT, Design::LINUX_HAZARD, Design::SHOOTDOWN] {
            assert!(gain(design) > 0.95 * 32.0, "{design}");
        }
    }

    #[test]
    fn an_exit_interrupts_nobody_and_what_it_holds_back_is_bounded() {
        let ours = outcome("exit-storm", Design::SHOOTDOWN, 64);
        assert_eq!((ours.interrupts_sent, ours.held_tables_overflows), (0, 0));
        assert!(ours.held_tables_peak > 0, "CPUs are lazy on what has exited");
        assert!(outcome("exit-storm", Design::POWERPC_SHOOT, 64).value > 1.0);
    }

    #[test]
    fn of_two_threads_that_are_never_active_together_nobody_is_told() {
        for design in [Design::ARM64_SKIP, Design::SHOOTDOWN] {
            let broadcasts = |copies, iterations| {
                let machine = machines::find("ampere-emag-32").expect("an embedded machine");
                let workload = MprotectThreaded { copies, iterations };
                let found =
                    shootdown_run::run(machine, Limits::default(), Rc::new(workload), |sim| {
                        design.on(sim)
                    });
                let Found { counts, violations, .. } = found.expect("it runs");
                assert_eq!(violations, 0, "{design}");
                counts.broadcasts
            };
            assert_eq!(broadcasts(1, 500), 0, "{design}");
            // A thread that has not gone to sleep yet has to be told.
            assert!(broadcasts(32, 500) < 32, "{design}");
        }
        assert_eq!(outcome("mprotect-threaded", Design::SHOOTDOWN, 32).broadcasts, 0);
        assert!(outcome("mprotect-threaded", Design::ARM64, 32).broadcasts > 2 * 32 * 500);
    }

    #[test]
    fn a_command_takes_as_many_tags_as_published_and_fewer_here() {
        for (workload, before) in [("ls-1-library", 5.0), ("ls-3-libraries", 7.0)] {
            let tags = |design| outcome(workload, design, 1).value;
            let (found, after) = (tags(Design::ARC_3_9), tags(Design::ARC_RANGED));
            assert!((found - before).abs() < 0.01 && (after - 4.0).abs() < 0.01, "{workload}");
            assert!(tags(Design::SHOOTDOWN) <= 4.0, "{workload}");
        }
    }

    #[test]
    fn what_was_fitted_to_lmbench_fits_and_no_more_than_that_was() {
        let of_seed = EXPERIMENTS.iter().filter(|experiment| experiment.seed == "002");
        for experiment in of_seed {
            let published = experiment.published.expect("all of them are").before;
            let found = outcome(experiment.workload, Design::ARC_3_9, 1).value;
            let error = (found - published).abs() / published;
            assert!(error < 0.01, "{}: {found} for {published}", experiment.workload);
        }
    }

    #[test]
    fn a_machine_that_is_too_small_is_refused() {
        let machine = machines::find("power8-16s").expect("an embedded machine");
        let one = machine.with_cpus(1).expect("one CPU");
        assert!(context_switches(&one, Scale::Full, 1).is_err());
        assert!(exit_storm(&one, Scale::Full, 1).is_err());
    }
}
