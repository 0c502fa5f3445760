//! The engine on the host's threads and atomics. These tests are short. With
//! `SHOOTDOWN_STRESS_SECONDS`, which `cargo xtask soak` sets, the first one tries further seeds for
//! this time.
//!
//! On an x86 host they detect missing steps, at full speed, but no missing barrier, because each
//! locked instruction is a full barrier. Under miri, which implements C++20's weak memory, they
//! detect both.

#![expect(unsafe_code, reason = "switching and retiring are unsafe")]

#[path = "platforms/lifetimes.rs"]
mod lifetimes;
mod workloads;

use std::thread;
use std::time::{Duration, Instant};

use lifetimes::{COUNTED, HANDOFF, SHOOT, With};
use shootdown::soft::{Config, Host, Platform, Soft};
use shootdown::{CpuId, Reach, Rule, Shootdown, Tagging};
use workloads::{Churn, Lifecycles, StressReport};

/// Runs `cpu` on one thread for each CPU, and returns the sum of the results.
fn on_all_cpus(config: Config, cpu: impl Fn(CpuId) -> StressReport + Sync) -> StressReport {
    let (cpu, mut total) = (&cpu, StressReport::default());
    thread::scope(|scope| {
        let cpus: Vec<_> =
            (0..config.cpus).map(CpuId).map(|id| scope.spawn(move || cpu(id))).collect();
        for cpu in cpus {
            total += cpu.join().unwrap();
        }
    });
    total
}

/// Runs [`Churn`]. Returns the report, and the number of walks of freed page tables.
fn churn(config: Config, steps: usize, seed: u64) -> (StressReport, u64) {
    let engine = Soft::<Host>::engine(config);
    let churn = Churn::new(&engine, config);
    let report = on_all_cpus(config, |cpu| churn.run(&engine, cpu, seed, steps));
    (report, engine.machine().freed_table_walks())
}

const CONFIG: Config = Config { cpus: 4, tables: 3, pages: 4, tags: 2, ..Config::DEFAULT };
/// Global tags that run out often: more than CPUs, fewer than CPUs, and none.
const GLOBAL: [Config; 8] = {
    let many = Config { tables: 8, ..CONFIG.with_broadcasts(5) };
    [
        many,
        Config { broadcast: Some(Reach::Targets), ..many },
        Config { broadcast: None, ..many },
        Config { costs_swap_after: 5, ..many },
        Config { tags: 3, ..many },
        Config { tags: 0, ..many },
        Config { refuses_each: 3, ..many },
        Config {
            broadcast: Some(Reach::Targets),
            completes_at_issue: true,
            refuses_each: 2,
            ..many
        },
    ]
};
/// Tags that each CPU counts up.
const RENAMED: [Config; 3] = {
    let many = Config { tables: 8, tagging: Tagging::Renamed, ..CONFIG };
    [Config { tags: 1, ..many }, Config { tags: 2, ..many }, Config { tags: 15, ..many }]
};

/// Number of attempts to detect a missing step. A busy host may run one CPU after the other, and
/// then no step is missed.
const TRIES: u64 = 100;
/// Number of steps of each CPU. miri is about a thousand times slower.
const STEPS: usize = if cfg!(miri) { 20 } else { 100_000 };

#[test]
fn no_cpu_uses_a_freed_page() {
    // miri has its own seeds.
    let seeds = if cfg!(miri) { 1 } else { 4 };
    let seconds = std::env::var("SHOOTDOWN_STRESS_SECONDS").ok();
    let time = Duration::from_secs(seconds.map_or(0, |seconds| seconds.parse().unwrap()));
    let start = Instant::now();
    for seed in (0..).take_while(|&seed| seed < seeds || start.elapsed() < time) {
        for tags in [0, 1, 6] {
            let config = Config { tags, ..CONFIG };
            let (report, walks) = churn(config, STEPS, seed);
            assert_eq!((report.stale, walks), (0, 0), "{tags} tags, seed {seed}");
            assert!(report.touches > 0 && report.flushes > 0);
        }
    }
}

#[test]
fn no_freed_page_is_used_with_any_tagging() {
    let mut total = StressReport::default();
    for (number, config) in GLOBAL.into_iter().chain(RENAMED).enumerate() {
        let (report, walks) = churn(config, STEPS.div_ceil(8), number as u64);
        assert_eq!((report.stale, walks), (0, 0), "{config:?}");
        total += report;
    }
    // The sum is checked, because miri runs eight steps of each configuration, and a CPU that miri
    // does not schedule early may do nothing but flush.
    assert!(total.touches > 0 && total.flushes > 0);
}

#[test]
#[cfg_attr(miri, ignore = "takes more steps than miri has time for")]
fn flush_without_rings_is_detected() {
    let config = Config { broken: Some(Rule::RingPresent), ..CONFIG };
    assert!((0..TRIES).any(|seed| churn(config, STEPS, seed).0.stale > 0));
}

/// Runs [`Lifecycles`]. Returns the report, and the number of walks of freed page tables. miri
/// detects a use of a freed space, which is on the heap.
fn lifecycles<P: Platform>(config: Config, steps: usize, seed: u64) -> (StressReport, u64) {
    let engine: Shootdown<Soft<P>> = Soft::engine(config);
    let lifecycles = Lifecycles::new(config, 3);
    let mut report = on_all_cpus(config, |cpu| lifecycles.run(&engine, cpu, seed, steps));
    report += lifecycles.end(&engine, CpuId(0));
    (report, engine.machine().freed_table_walks())
}

fn every_space_is_freed_once<P: Platform>() {
    let mut total = StressReport::default();
    for seed in 0..if cfg!(miri) { 1 } else { 4 } {
        let config = Config { tables: 8, ..CONFIG };
        let (report, walks) = lifecycles::<P>(config, STEPS, seed);
        assert_eq!((report.stale, walks), (0, 0), "seed {seed}");
        assert_eq!(report.created, report.freed, "seed {seed}");
        total += report;
    }
    assert!(total.created > 0);
    if cfg!(not(miri)) {
        let StressReport { touches, deferred, cleared, .. } = total;
        assert!(touches > 0 && deferred > 0 && cleared > 0, "{total:?}");
    }
}

#[test]
fn handed_off_space_is_freed_once() {
    every_space_is_freed_once::<With<Host, HANDOFF>>();
}

#[test]
fn shot_space_is_freed_once() {
    every_space_is_freed_once::<With<Host, SHOOT>>();
}

#[test]
fn counted_space_is_freed_once() {
    every_space_is_freed_once::<With<Host, COUNTED>>();
}

#[test]
fn every_space_is_freed_once_with_any_tagging() {
    for (number, config) in GLOBAL.into_iter().chain(RENAMED).enumerate() {
        let (report, walks) = lifecycles::<Host>(config, STEPS.div_ceil(16), number as u64);
        assert_eq!((report.stale, walks), (0, 0), "{config:?}");
        assert_eq!(report.created, report.freed, "{config:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes more steps than miri has time for")]
fn missing_step_of_retire_is_detected() {
    let some_run = |rule, is_wrong: fn(StressReport, u64) -> bool| {
        let config = Config { tables: 8, broken: Some(rule), ..CONFIG };
        (0..TRIES).any(|seed| {
            let (report, walks) = lifecycles::<Host>(config, STEPS, seed);
            is_wrong(report, walks)
        })
    };
    for rule in [Rule::MarkHazards, Rule::QuarantineTables] {
        assert!(some_run(rule, |_, walks| walks > 0), "{rule:?}");
    }
    assert!(some_run(Rule::CheckMark, |report, _| report.freed < report.created));
}
