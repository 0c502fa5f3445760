//! Stress workloads in random schedules, under shuttle.
//!
//! The same seed gives the same run. A failure prints its schedule, which `shuttle::replay`
//! accepts. shuttle has no weak memory ordering; `tests/rules` and miri test that.

#![expect(unsafe_code, reason = "switching is unsafe")]

#[path = "platforms/shuttle.rs"]
mod platform;
mod workloads;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use platform::Shuttle;
use shootdown::soft::{Config, Soft};
use shootdown::{CpuId, Reach, Root, Rule, Shootdown, Tagging};
use shuttle::scheduler::{PctScheduler, RandomScheduler, RoundRobinScheduler, Scheduler};
use workloads::{Churn, Lifecycles, StressReport};

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
    let shared = (Arc::clone(&engine), Arc::new(Churn::new(&engine, config)));
    let report = on_all_cpus(config, move |cpu, seed| shared.1.run(&shared.0, cpu, seed, 40));
    assert_eq!((report.stale, engine.machine().freed_table_walks()), (0, 0));
}

/// Runs 60 steps of [`Lifecycles`] on each CPU, with up to two live spaces and six page tables.
/// Every space must be freed once, when no CPU can walk its tables any more.
fn lifecycles(config: Config) {
    let config = Config { tables: 6, ..config };
    let engine: Engine = Arc::new(Soft::engine(config));
    let lifecycles = Arc::new(Lifecycles::new(config, 2));
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

/// Switches each CPU from one new space to the next, with `tags` ASIDs and `pins` more, which are
/// pinned. Fails if that takes more than 200,000 steps, of which the longest run takes a tenth.
fn run_new_spaces(scheduler: impl Scheduler + 'static, cpus: u32, tags: usize, pins: usize) {
    const SPACES: usize = 6;
    let spaces_in_all = cpus as usize * SPACES + pins;
    let mut limit = shuttle::Config::new();
    limit.max_steps = shuttle::MaxSteps::FailAfter(200_000);
    shuttle::Runner::new(scheduler, limit).run(move || {
        let config = Config { cpus, tables: spaces_in_all, ..CONFIG };
        let engine: Engine = Arc::new(Soft::engine(config.with_broadcasts(tags + pins)));
        let spaces = (0..spaces_in_all).map(|root| engine.space(Root(root as u64)));
        let spaces: Arc<[_]> = spaces.collect();
        let pinned = &spaces[spaces_in_all - pins..];
        (0..cpus).for_each(|cpu| engine.enter(CpuId(cpu)).pin().online());
        let zero = engine.enter(CpuId(0));
        assert!(pinned.iter().all(|space| zero.pin().pin_tag(space).is_some()));
        drop(zero);
        let all = (Arc::clone(&engine), Arc::clone(&spaces));
        on_all_cpus(config, move |cpu, _| {
            let on_cpu = all.0.enter(cpu);
            let rollovers = || all.0.cpu(cpu).stats().rollovers;
            for space in &all.1[cpu.index() * SPACES..][..SPACES] {
                let before = rollovers();
                // SAFETY: the space outlives the CPU's use of it, and does not move.
                unsafe { on_cpu.pin().switch(space) };
                assert!(tags > cpus as usize || rollovers() - before <= 1, "a CPU competes on");
            }
            StressReport::default()
        });
    });
}

/// CPUs do not end epochs for each other for ever, if they run in turn or at random: with one ASID
/// more than CPUs, on both sides of the number from which no CPU waits, beside pins, and with
/// fewer ASIDs than CPUs.
#[test]
fn switches_end_with_few_asids() {
    for cpus in [2, 3, 4, 6] {
        let few = cpus as usize;
        for tags in [1, few - 1, few, few + 1, 2 * few - 1, 2 * few, 2 * few + 1] {
            for pins in [0, 2, 5] {
                if pins != 0 && tags <= few {
                    continue;
                }
                run_new_spaces(RoundRobinScheduler::new(1), cpus, tags, pins);
                run_new_spaces(RandomScheduler::new_from_seed(1, 20), cpus, tags, pins);
            }
        }
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
