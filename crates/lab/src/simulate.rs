//! The seam to the simulator: the one place where an experiment becomes CPUs, threads and time.

use std::rc::Rc;

use shootdown_lab::Design;
use shootdown_workload::programs::{MadviseMigrate, PthreadMmap};
use shootdown_workload::{Limits, Workload};

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
    let Conditions { machine, seed, scale } = conditions;
    let design: Design = design.parse().map_err(|error| format!("{error}"))?;
    let part = if *scale == Scale::Quick { 20 } else { 1 };
    let workload: Rc<dyn Workload> = match experiment.workload {
        "madvise-touch-migrate" => {
            Rc::new(MadviseMigrate { cpus: machine.cpu_count(), iterations: 4000 / part })
        }
        "pthread-mmap" => {
            let published = PthreadMmap::published();
            let rounds = published.rounds / part;
            Rc::new(PthreadMmap { rounds, seed: *seed, ..published })
        }
        other => return Err(format!("there is no workload `{other}`")),
    };
    let found = design
        .run(machine.clone(), Limits::default(), workload)
        .map_err(|error| error.to_string())?;
    let value = match experiment.workload {
        "madvise-touch-migrate" => found.time.us() / found.iterations as f64,
        _ => found.time.seconds() * part as f64,
    };
    let counts = &found.counts;
    Ok(Outcome {
        value,
        interrupts_sent: counts.interrupts_sent,
        interrupts_to_lazy: counts.interrupts_to_lazy,
        interrupts_to_absent: counts.interrupts_to_absent,
        flushes_full: counts.flushes_full,
        flushes_ranged: counts.flushes_ranged,
        violations: found.violations,
        hazards: found.hazards,
    })
}
