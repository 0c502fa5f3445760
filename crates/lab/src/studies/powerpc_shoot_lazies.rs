//! `powerpc-shoot-lazies`: lazy address spaces without a contended reference count.

use shootdown_run::programs::{ContextSwitches, ExitStorm};

use super::experiment::{Measure, MeasureOf, Scale, Setup};

pub(super) const MEASURES: &[(&str, MeasureOf)] =
    &[("context-switches", context_switches), ("exit-storm", exit_storm)];

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
