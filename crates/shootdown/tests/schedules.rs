//! Random schedules of whole programs, under shuttle.
//!
//! Same seed, same run; a failure prints the schedule, which `shuttle::replay` accepts. No weak
//! ordering here: that is for `tests/rules` and miri.

#[path = "platforms/shuttle.rs"]
mod platform;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use platform::Shuttle;
use shootdown::soft::{Churn, Config, Lives, LivesReport, Soft};
use shootdown::{CpuId, Reach, Rule, Tagging};
use shuttle::scheduler::{PctScheduler, RandomScheduler};

/// Four CPUs with two tags.
const CONFIG: Config = Config { cpus: 4, tables: 3, pages: 2, tags: 2, ..Config::DEFAULT };

/// The same with tags of other kinds, and six spaces, so that they run out.
const OTHER_TAGS: [Config; 5] = {
    let global = Config { tables: 6, ..CONFIG.with_broadcasts(5) };
    [
        global,
        Config { broadcast: Some(Reach::Targets), ..global },
        Config { costs_turn_after: 3, ..global },
        Config { tags: 3, broadcast: None, ..global },
        Config { tagging: Tagging::Renamed, broadcast: None, tags: 3, ..global },
    ]
};

/// Spaces of two pages, 160 steps.
fn churn(config: Config) {
    let engine = Arc::new(Soft::<Shuttle, 2>::engine(config));
    let churn = Arc::new(Churn::new(&engine));
    let threads: Vec<_> = (0..config.cpus)
        .map(|cpu| {
            let (engine, churn) = (Arc::clone(&engine), Arc::clone(&churn));
            shuttle::thread::spawn(move || {
                let seed = shuttle::rand::Rng::r#gen(&mut shuttle::rand::thread_rng());
                churn.run(&engine, CpuId(cpu), seed, 40)
            })
        })
        .collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap().stale, 0);
    }
    assert_eq!(engine.machine().freed_table_walks(), 0);
}

/// Two spaces at a time of six page tables, 240 steps. Every space must be freed once, when nobody
/// can walk its tables any more.
fn lives(config: Config) {
    let config = Config { tables: 6, ..config };
    let engine = Arc::new(Soft::<Shuttle, 2>::engine(config));
    let lives = Arc::new(Lives::new(&engine, 2));
    let threads: Vec<_> = (0..config.cpus)
        .map(|cpu| {
            let (engine, lives) = (Arc::clone(&engine), Arc::clone(&lives));
            shuttle::thread::spawn(move || {
                let seed = shuttle::rand::Rng::r#gen(&mut shuttle::rand::thread_rng());
                lives.run(&engine, CpuId(cpu), seed, 60)
            })
        })
        .collect();
    let mut report = LivesReport::default();
    for thread in threads {
        report += thread.join().unwrap();
    }
    report += lives.end(&engine, CpuId(0));
    assert_eq!((report.stale, engine.machine().freed_table_walks()), (0, 0));
    assert_eq!(report.born, report.freed);
}

fn config_of_runs() -> shuttle::Config {
    let mut config = shuttle::Config::new();
    // Waiting spins, and a fair share of the schedules starves the one who is waited for.
    config.max_steps = shuttle::MaxSteps::ContinueAfter(200_000);
    config
}

#[test]
fn random_schedules_are_right() {
    let scheduler = RandomScheduler::new_from_seed(1, 400);
    shuttle::Runner::new(scheduler, config_of_runs()).run(|| churn(CONFIG));
    let scheduler = RandomScheduler::new_from_seed(1, 400);
    shuttle::Runner::new(scheduler, config_of_runs()).run(|| lives(CONFIG));
}

/// Priorities rather than dice: finds what takes few, well-placed preemptions.
#[test]
fn priority_schedules_are_right() {
    let scheduler = PctScheduler::new_from_seed(1, 3, 100);
    shuttle::Runner::new(scheduler, config_of_runs()).run(|| churn(CONFIG));
    let scheduler = PctScheduler::new_from_seed(1, 3, 100);
    shuttle::Runner::new(scheduler, config_of_runs()).run(|| lives(CONFIG));
}

#[test]
fn random_schedules_are_right_however_tags_are_given() {
    for config in OTHER_TAGS {
        let scheduler = RandomScheduler::new_from_seed(1, 100);
        shuttle::Runner::new(scheduler, config_of_runs()).run(move || churn(config));
        let scheduler = RandomScheduler::new_from_seed(1, 100);
        shuttle::Runner::new(scheduler, config_of_runs()).run(move || lives(config));
    }
}

/// The workload is worth its time only if it notices what is missing.
#[test]
fn steps_left_out_are_noticed() {
    // Each of the many expected failures would print its schedule.
    std::panic::set_hook(Box::new(|_| ()));
    let of_lives = [
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
    let of_lives = of_lives.map(|rule| (rule, lives as fn(Config)));
    let of_churn = of_churn.map(|rule| (rule, churn as fn(Config)));
    let mut survivors = Vec::new();
    for (rule, workload) in of_lives.into_iter().chain(of_churn) {
        let scheduler = RandomScheduler::new_from_seed(1, 10_000);
        let noticed = catch_unwind(AssertUnwindSafe(|| {
            shuttle::Runner::new(scheduler, config_of_runs())
                .run(move || workload(Config { broken: Some(rule), ..CONFIG }));
        }));
        if noticed.is_ok() {
            survivors.push(rule);
        }
    }
    println!("nobody noticed: {survivors:?}");
    assert!(survivors.is_empty());
}
