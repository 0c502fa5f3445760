//! Pages that one thread moves between nodes while other threads write to them.

use std::rc::Rc;

use shootdown_designs::Design;
use shootdown_program::Workload;
use shootdown_run::programs::PageMigration;
use shootdown_run::{Limits, Memory, Outcome, Settings, Supply};
use shootdown_sim::Time;

use super::{machine, run};
use crate::common::is_soak;

const SETTINGS: Settings = Settings {
    memory: Memory { frames: 1 << 16, nodes: 2, supply: Supply::Reclaimed },
    limits: Limits { threads: 128, time: Time::from_ms(60_000) },
    ..Settings::DEFAULT
};

/// The activity of the writers between two laps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writers {
    Compute,
    Sleep,
}

/// Sums over all seeds.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    interrupts: u64,
    flushes_full: u64,
    /// Time until the last page has moved.
    moves: Time,
    /// Time until the last page has moved and the last writer is done.
    all: Time,
}

impl Cost {
    fn add(&mut self, outcome: &Outcome) {
        self.interrupts += outcome.counts.interrupts_sent;
        self.flushes_full += outcome.counts.flushes_full;
        self.moves += outcome.time - outcome.time_range;
        self.all += outcome.time;
    }
}

/// Sums over all cases.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    linux_interrupts: u64,
    interrupts: u64,
    /// Logarithms of the ratios of time.
    moves: f64,
    all: f64,
    cases: u32,
}

impl Sums {
    fn add(&mut self, linux: &Cost, ours: &Cost) {
        self.linux_interrupts += linux.interrupts;
        self.interrupts += ours.interrupts;
        self.moves += ratio(ours.moves, linux.moves).ln();
        self.all += ratio(ours.all, linux.all).ln();
        self.cases += 1;
    }
}

fn ratio(ours: Time, linux: Time) -> f64 {
    ours.ps() as f64 / linux.ps() as f64
}

/// Returns a workload in which the writers outlast the moves, so that one run gives both times.
fn workload(threads: u32, pages: u64, writers: Writers, seed: u64) -> Rc<dyn Workload> {
    let rounds = 1024 / pages;
    let laps = (64 + 20 * u64::from(threads)) * 64 / pages;
    let (laps, compute_ns, sleep_ns) = match writers {
        Writers::Compute => (laps, 500, 0),
        // With one length of lap, batches and sleeps are in step. Which writers a flush finds awake
        // then depends on how fast a design moves the pages.
        Writers::Sleep => (laps / 2, 250 + 50 * (seed % 16), 50_000),
    };
    let nodes = 2;
    Rc::new(PageMigration { threads, pages, rounds, nodes, laps, compute_ns, sleep_ns, seed })
}

/// The number of times its seeds that a case gets in a soak.
const SEEDS_IN_SOAK: u64 = 8;

/// Returns the cases that cost more than under Linux, by more than allowances for random
/// differences. In a soak, these are 1 % for both times, and nothing for interrupts. With fewer
/// seeds:
///
/// - the time of the moves: 2 %
/// - the time until the last writer is done: 4 % if writers compute (as in `designs.rs`), 6 % if
///   they sleep
/// - interrupts: 2 %
///
/// With few threads, the order of interrupted CPUs and the depth of their sleep are random. Fewer
/// CPUs therefore get more seeds.
fn worse_than_linux(
    (machine_name, cpus): (&str, usize),
    writers: Writers,
    sums: &mut Sums,
) -> Vec<String> {
    let machine = machine(machine_name, cpus);
    let more = if is_soak() { SEEDS_IN_SOAK } else { 1 };
    let seeds = more * (64 / cpus as u64).max(2);
    let mut worse = Vec::new();
    for (threads, pages) in [(cpus as u32 / 2, 64), (cpus as u32 - 1, 64), (cpus as u32 / 2, 512)] {
        let (mut linux, mut ours) = (Cost::default(), Cost::default());
        for seed in 1..=seeds {
            let workload = workload(threads, pages, writers, seed);
            linux.add(&run(Design::LINUX_7_0, &machine, SETTINGS, &workload));
            ours.add(&run(Design::SHOOTDOWN, &machine, SETTINGS, &workload));
        }
        let [moves, all] = [ratio(ours.moves, linux.moves), ratio(ours.all, linux.all)];
        let case = format!(
            "{threads} threads of {pages} pages that {writers:?} on {cpus} CPUs of {machine_name}: \
             moves {moves:.4} of {}, all {all:.4} of {}, interrupts {} against {}, \
             full flushes {} against {}",
            linux.moves,
            linux.all,
            ours.interrupts,
            linux.interrupts,
            ours.flushes_full,
            linux.flushes_full
        );
        println!("{case}");
        // A move takes 1.3 µs on `xeon-2s`, so that 4 % of it are 50 ns.
        let [moves_max, all_max, interrupts_max] = match (is_soak(), writers) {
            (true, _) => [1.02, 1.02, 1.0],
            (false, Writers::Compute) => [1.04, 1.04, 1.02],
            (false, Writers::Sleep) => [1.04, 1.06, 1.02],
        };
        let interrupts = ours.interrupts as f64 / linux.interrupts as f64;
        if moves > moves_max || all > all_max || interrupts > interrupts_max {
            worse.push(case);
        }
        sums.add(&linux, &ours);
    }
    worse
}

/// Asserts that no case costs more, and all cases together do not. The sum of interrupts has no
/// allowance, and both times have an allowance of 1 %.
fn migration_costs_no_more(writers: Writers) {
    let machines =
        [("skylake", 4), ("desktop-1s", 8), ("xeon-2s", 4), ("xeon-2s", 8), ("xeon-2s", 32)];
    let mut sums = Sums::default();
    let worse: Vec<String> = machines
        .into_iter()
        .flat_map(|machine| worse_than_linux(machine, writers, &mut sums))
        .collect();
    assert!(worse.is_empty(), "{worse:#?}");
    println!("{writers:?}: {sums:?}");
    let Sums { linux_interrupts, interrupts, moves, all, cases } = sums;
    assert!(interrupts <= linux_interrupts, "{interrupts} against {linux_interrupts}");
    let [moves, all] = [moves, all].map(|log_sum| (log_sum / f64::from(cases)).exp());
    assert!(moves <= 1.01 && all <= 1.01, "moves {moves}, all {all}");
}

/// Tests batches of 64 and 512 pages of one space, for which `linux-7.0` does one full flush. With
/// page-by-page invalidation of 32 pages, the moves took 24 % longer on `xeon-2s`.
#[test]
fn migration_under_computing_threads_costs_no_more() {
    migration_costs_no_more(Writers::Compute);
}

/// The time of the threads depends on the idle states of their CPUs. A CPU that is interrupted in
/// its sleep uses a shallower state afterwards, so unnecessary interrupts shorten the run.
#[test]
fn migration_under_sleeping_threads_costs_no_more() {
    migration_costs_no_more(Writers::Sleep);
}
