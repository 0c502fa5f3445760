//! Stress workloads in random schedules, under shuttle.
//!
//! The same seed gives the same run. A failure prints its schedule, which `shuttle::replay`
//! accepts. shuttle has no weak memory ordering; `tests/rules` and miri test that.

#[path = "platforms/shuttle.rs"]
mod platform;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use platform::Shuttle;
use shootdown::soft::{Churn, Config, Lifecycles, Soft, StressReport};
use shootdown::{CpuId, Reach, Rule, Shootdown, Tagging};
use shuttle::scheduler::{PctScheduler, RandomScheduler};

/// Four CPUs with two tags.
const CONFIG: Config = Config { cpus: 4, tables: 3, pages: 2, tags: 2, ..Config::DEFAULT };

/// Other kinds of tags, with six spaces, so that tags run out.
const OTHER_TAGS: [Config; 6] = {
    let global = Config { tables: 6, ..CONFIG.with_broadcasts(5) };
    [
        global,
        Config { broadcast: Some(Reach::Targets), ..global },
        Config { costs_swap_after: 3, ..global },
        Config { refuses_each: 2, ..global },
        Config { tags: 3, broadcast: None, ..global },
        Config { tagging: Tagging::Renamed, broadcast: None, tags: 3, ..global },
    ]
};

type Engine = Arc<Shootdown<Soft<Shuttle, 2>>>;

/// Runs `cpu` with a random seed on one thread for each CPU, and returns the sum of the results.
fn on_all_cpus(
    config: Config,
    cpu: impl Fn(CpuId, u64) -> StressReport + Clone + Send + 'static,
) -> StressReport {
    let threads: Vec<_> = (0..config.cpus)
        .map(|id| {
            let cpu = cpu.clone();
            shuttle::thread::spawn(move || {
                let seed = shuttle::rand::Rng::r#gen(&mut shuttle::rand::thread_rng());
                cpu(CpuId(id), seed)
            })
        })
        .collect();
    let mut report = StressReport::default();
    for thread in threads {
        report += thread.join().unwrap();
    }
    report
}

/// Runs 40 steps of [`Churn`] on each CPU, on spaces of two pages.
fn churn(config: Config) {
    let engine: Engine = Arc::new(Soft::engine(config));
    let shared = (Arc::clone(&engine), Arc::new(Churn::new(&engine)));
    let report = on_all_cpus(config, move |cpu, seed| shared.1.run(&shared.0, cpu, seed, 40));
    assert_eq!((report.stale, engine.machine().freed_table_walks()), (0, 0));
}

/// Runs 60 steps of [`Lifecycles`] on each CPU, with up to two live spaces and six page tables.
/// Every space must be freed once, when no CPU can walk its tables any more.
fn lifecycles(config: Config) {
    let config = Config { tables: 6, ..config };
    let engine: Engine = Arc::new(Soft::engine(config));
    let lifecycles = Arc::new(Lifecycles::new(&engine, 2));
    let shared = (Arc::clone(&engine), Arc::clone(&lifecycles));
    let mut report = on_all_cpus(config, move |cpu, seed| shared.1.run(&shared.0, cpu, seed, 60));
    report += lifecycles.end(&engine, CpuId(0));
    assert_eq!((report.stale, engine.machine().freed_table_walks()), (0, 0));
    assert_eq!(report.created, report.freed);
}

fn shuttle_config() -> shuttle::Config {
    let mut config = shuttle::Config::new();
    // Waiting spins, and some schedules starve the CPU that another one waits for.
    config.max_steps = shuttle::MaxSteps::ContinueAfter(200_000);
    config
}

#[test]
fn random_schedules_use_no_freed_memory() {
    let scheduler = RandomScheduler::new_from_seed(1, 400);
    shuttle::Runner::new(scheduler, shuttle_config()).run(|| churn(CONFIG));
    let scheduler = RandomScheduler::new_from_seed(1, 400);
    shuttle::Runner::new(scheduler, shuttle_config()).run(|| lifecycles(CONFIG));
}

/// Schedules by random priorities find bugs that need few, well-placed preemptions.
#[test]
fn priority_schedules_use_no_freed_memory() {
    let scheduler = PctScheduler::new_from_seed(1, 3, 100);
    shuttle::Runner::new(scheduler, shuttle_config()).run(|| churn(CONFIG));
    let scheduler = PctScheduler::new_from_seed(1, 3, 100);
    shuttle::Runner::new(scheduler, shuttle_config()).run(|| lifecycles(CONFIG));
}

#[test]
fn random_schedules_pass_with_any_tagging() {
    for config in OTHER_TAGS {
        let scheduler = RandomScheduler::new_from_seed(1, 100);
        shuttle::Runner::new(scheduler, shuttle_config()).run(move || churn(config));
        let scheduler = RandomScheduler::new_from_seed(1, 100);
        shuttle::Runner::new(scheduler, shuttle_config()).run(move || lifecycles(config));
    }
}

/// The workloads detect the removal of these steps.
#[test]
fn missing_steps_are_detected() {
    // Without this hook, each expected failure would print its schedule.
    std::panic::set_hook(Box::new(|_| ()));
    let of_lifecycles = [
        Rule::MarkHazards,
        Rule::CheckMark,
        Rule::QuarantineTables,
        Rule::InterruptWalkers,
        Rule::DiscardFreedTables,
    ];
    let of_churn = [
        Rule::RingPresent,
        Rule::RingSwitching,
        Rule::RingLazy,
        Rule::FlushLocally,
        Rule::Wait,
        Rule::RecheckBell,
        Rule::CatchUpOnSwitch,
        Rule::CatchUpOnResume,
        Rule::DiscardReusedTag,
        Rule::DiscardFreedTables,
        Rule::KeepPresent,
        Rule::MarkBatched,
    ];
    let of_lifecycles = of_lifecycles.map(|rule| (rule, lifecycles as fn(Config)));
    let of_churn = of_churn.map(|rule| (rule, churn as fn(Config)));
    let mut survivors = Vec::new();
    for (rule, workload) in of_lifecycles.into_iter().chain(of_churn) {
        let scheduler = RandomScheduler::new_from_seed(1, 10_000);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            shuttle::Runner::new(scheduler, shuttle_config())
                .run(move || workload(Config { broken: Some(rule), ..CONFIG }));
        }));
        if outcome.is_ok() {
            survivors.push(rule);
        }
    }
    assert!(survivors.is_empty(), "not detected: {survivors:?}");
}
