//! The engine on the host's threads and atomics: briefly here, for as long as one likes with
//! `cargo xtask soak` or the `stress` example.
//!
//! An x86 host shows no missing barrier (each locked instruction is a full one); it does show
//! missed steps, at full speed. Run by miri, which knows C++20's weak memory, it shows both.

#[path = "platforms/lifetimes.rs"]
mod lifetimes;

use std::thread;

use lifetimes::{COUNTED, HANDOFF, SHOOT, With};
use shootdown::soft::{Churn, ChurnReport, Config, Host, Lives, LivesReport, Platform, Soft};
use shootdown::{CpuId, Reach, Rule, Shootdown, Tagging};

/// Runs `cpu` on one thread for each CPU, and adds up what they return.
fn on_all_cpus<R: Default + Send + std::ops::AddAssign>(
    config: Config,
    cpu: impl Fn(CpuId) -> R + Sync,
) -> R {
    let (cpu, mut total) = (&cpu, R::default());
    thread::scope(|scope| {
        let cpus: Vec<_> =
            (0..config.cpus).map(CpuId).map(|id| scope.spawn(move || cpu(id))).collect();
        for cpu in cpus {
            total += cpu.join().unwrap();
        }
    });
    total
}

/// The uses of given-away pages, and the walks of given-away tables.
fn churn(config: Config, steps: usize, seed: u64) -> (ChurnReport, u64) {
    let engine = Soft::<Host>::engine(config);
    let churn = Churn::new(&engine);
    let report = on_all_cpus(config, |cpu| churn.run(&engine, cpu, seed, steps));
    (report, engine.machine().freed_table_walks())
}

const CONFIG: Config = Config { cpus: 4, tables: 3, pages: 4, tags: 2, ..Config::DEFAULT };
/// Tags that all CPUs share, and that run out all the time: more than CPUs, fewer, and none.
const GLOBAL: [Config; 6] = {
    let many = Config { tables: 8, ..CONFIG.with_broadcasts(5) };
    [
        many,
        Config { broadcast: Some(Reach::Targets), ..many },
        Config { broadcast: None, ..many },
        Config { costs_turn_after: 5, ..many },
        Config { tags: 3, ..many },
        Config { tags: 0, ..many },
    ]
};
/// Tags that each CPU counts up.
const RENAMED: [Config; 3] = {
    let many = Config { tables: 8, tagging: Tagging::Renamed, ..CONFIG };
    [Config { tags: 1, ..many }, Config { tags: 2, ..many }, Config { tags: 15, ..many }]
};

/// A busy host may run one CPU after the other: then nothing goes wrong, whatever is missing.
const TRIES: u64 = 100;
/// miri is some thousand times slower.
const STEPS: usize = if cfg!(miri) { 60 } else { 100_000 };

#[test]
fn nobody_uses_what_was_given_away() {
    // miri brings seeds of its own.
    let seeds = if cfg!(miri) { 1 } else { 4 };
    for seed in 0..seeds {
        for tags in [0, 1, 6] {
            let config = Config { tags, ..CONFIG };
            let (report, walks) = churn(config, STEPS, seed);
            assert_eq!((report.stale, walks), (0, 0), "{tags} tags, seed {seed}");
            assert!(report.touches > 0 && report.flushes > 0);
        }
    }
}

#[test]
fn nobody_does_however_tags_are_given() {
    let mut total = ChurnReport::default();
    for (number, config) in GLOBAL.into_iter().chain(RENAMED).enumerate() {
        let (report, walks) = churn(config, STEPS.div_ceil(8), number as u64);
        assert_eq!((report.stale, walks), (0, 0), "{config:?}");
        total += report;
    }
    // Together: miri has eight steps for each, and whoever is not scheduled early may only flush.
    assert!(total.touches > 0 && total.flushes > 0);
}

#[test]
#[cfg_attr(miri, ignore = "takes more steps than miri has time for")]
fn without_the_ring_somebody_does() {
    let config = Config { broken: Some(Rule::RingPresent), ..CONFIG };
    assert!((0..TRIES).any(|seed| churn(config, STEPS, seed).0.stale > 0));
}

/// Spaces come and go, on the heap: whoever uses one that was freed is found by miri, and whoever
/// walks its page tables, here.
fn lives<P: Platform>(config: Config, steps: usize, seed: u64) -> (LivesReport, u64) {
    let engine: Shootdown<Soft<P>> = Soft::engine(config);
    let lives = Lives::new(&engine, 3);
    let mut report = on_all_cpus(config, |cpu| lives.run(&engine, cpu, seed, steps));
    report += lives.end(&engine, CpuId(0));
    (report, engine.machine().freed_table_walks())
}

fn every_space_is_freed_once<P: Platform>() {
    let mut total = LivesReport::default();
    for seed in 0..if cfg!(miri) { 1 } else { 4 } {
        let config = Config { tables: 8, ..CONFIG };
        let (report, walks) = lives::<P>(config, STEPS, seed);
        assert_eq!((report.stale, walks), (0, 0), "seed {seed}");
        assert_eq!(report.born, report.freed, "seed {seed}");
        total += report;
    }
    assert!(total.born > 0);
    if cfg!(not(miri)) {
        let LivesReport { touches, deferred, cleared, .. } = total;
        assert!(touches > 0 && deferred > 0 && cleared > 0, "{total:?}");
    }
}

#[test]
fn every_space_that_is_handed_off_is_freed_once() {
    every_space_is_freed_once::<With<Host, HANDOFF>>();
}

#[test]
fn every_space_that_is_shot_is_freed_once() {
    every_space_is_freed_once::<With<Host, SHOOT>>();
}

#[test]
fn every_space_that_is_counted_is_freed_once() {
    every_space_is_freed_once::<With<Host, COUNTED>>();
}

#[test]
fn every_space_is_freed_once_however_tags_are_given() {
    for (number, config) in GLOBAL.into_iter().chain(RENAMED).enumerate() {
        let (report, walks) = lives::<Host>(config, STEPS.div_ceil(16), number as u64);
        assert_eq!((report.stale, walks), (0, 0), "{config:?}");
        assert_eq!(report.born, report.freed, "{config:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes more steps than miri has time for")]
fn what_is_left_out_of_an_end_is_noticed() {
    let some_run = |rule, is_wrong: fn(LivesReport, u64) -> bool| {
        let config = Config { tables: 8, broken: Some(rule), ..CONFIG };
        (0..TRIES).any(|seed| {
            let (report, walks) = lives::<Host>(config, STEPS, seed);
            is_wrong(report, walks)
        })
    };
    for rule in [Rule::MarkHazards, Rule::QuarantineTables] {
        assert!(some_run(rule, |_, walks| walks > 0), "{rule:?}");
    }
    assert!(some_run(Rule::CheckMark, |report, _| report.freed < report.born));
}
