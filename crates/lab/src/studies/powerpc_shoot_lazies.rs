//! `powerpc-shoot-lazies`: lazy address spaces without a contended reference count.

use shootdown_designs::Design;
use shootdown_run::programs::{ContextSwitches, ExitStorm};

use super::experiment::{Better, Experiment, Measure, Pair, Scale, Setup, Study};
use crate::machines::Embedded;

const ROUNDED: &str = "The figure before the change is published as about 1 M/s, so the published \
    gain is known to one digit. The error of the figure after it is below 15 %.";

/// The context-switch experiment, which is also simulated with more and with fewer CPUs.
pub(crate) const CONTEXT_SWITCHES: Experiment = Experiment {
    study: Study::PowerpcShootLazies,
    workload: "context-switches",
    machine: Embedded::POWER8_16S,
    metric: "context switches in and out of idle",
    unit: "M/s",
    better: Better::Higher,
    published: Some(Pair { before: 1.0, after: 118.0 }),
    designs: Pair { before: Design::POWERPC_COUNTED, after: Design::POWERPC_SHOOT },
    peers: &[Design::LINUX_HAZARD, Design::LINUX_4_14, Design::LINUX_UNCOUNTED],
    calibrated_on: Some("powerpc-shoot-lazies before: about 1 M context switches/s"),
    note: Some(ROUNDED),
    measure: context_switches,
};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    CONTEXT_SWITCHES,
    Experiment {
        workload: "exit-storm",
        metric: "interrupts per exit of a process",
        unit: "per exit",
        better: Better::Lower,
        published: None,
        designs: Pair { before: Design::POWERPC_SHOOT, after: Design::LINUX_HAZARD },
        peers: &[Design::POWERPC_COUNTED, Design::LINUX_7_0],
        calibrated_on: None,
        note: None,
        measure: exit_storm,
        ..CONTEXT_SWITCHES
    },
];

/// Simulates a pair of threads on each pair of CPUs. The rate does not depend on the length of the
/// run, so more CPUs run fewer rounds.
fn context_switches(on: &Setup) -> Result<Measure, &'static str> {
    let pairs = on.cpus as u32 / 2;
    if pairs == 0 {
        return Err("the workload needs at least two CPUs");
    }
    let rounds = (20_000 / u64::from(pairs)).clamp(10, on.scale.of(100, 10));
    let workload = ContextSwitches { cpus: 2 * pairs, rounds, seed: on.seed };
    Ok(Measure::new(workload, |outcome| {
        ContextSwitches::switches(outcome.counts.switches) as f64 / outcome.time.us()
    }))
}

/// Simulates the exits of processes with four threads each.
fn exit_storm(on: &Setup) -> Result<Measure, &'static str> {
    let processes = if on.scale == Scale::Quick { 2 } else { 20 };
    let storm = ExitStorm { cpus: on.cpus as u32, processes, threads: 3, seed: on.seed };
    if storm.groups() == 0 {
        return Err("the workload needs at least four CPUs");
    }
    Ok(Measure::new(storm, |outcome| {
        outcome.counts.interrupts_sent as f64 / outcome.iterations as f64
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_with_one_cpu_is_refused() {
        let one = Setup { cpus: 1, scale: Scale::Full, seed: 1 };
        assert!(context_switches(&one).is_err());
        assert!(exit_storm(&one).is_err());
    }
}
