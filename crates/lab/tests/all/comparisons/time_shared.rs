//! 4 to 64 processes on each CPU, on a machine with 16-bit ASIDs and on one with PCIDs.

use std::rc::Rc;

use shootdown_designs::Design;
use shootdown_program::operation::{AreaId, Operation, ProgramId, Steps, Workload};
use shootdown_run::{Limits, Memory, Outcome, Settings};
use shootdown_sim::{Rng, Time};

use super::{machine, run};

const CPUS: u32 = 4;
const TURNS: u64 = 20;
/// Numbers of processes on each CPU: below, at and above the six address spaces that a CPU
/// remembers where tags are per CPU.
const PROCESSES: [u32; 6] = [4, 6, 7, 8, 16, 64];

const SETTINGS: Settings = Settings {
    memory: Memory::of_frames(1 << 18),
    limits: Limits { threads: 512, time: Time::from_ms(60_000) },
    ..Settings::DEFAULT
};

/// Processes of one thread each, the same number bound to each CPU. In each turn a process reads
/// its working set, computes, and yields the CPU to the next process.
///
/// Every process flushes [a few times](Self::FIRST_FLUSHES) before its first turn, as a starting
/// process does, while no other CPU has its address space. No address space is ever used by two
/// CPUs. No flush therefore has to notify another CPU, and no switch has to drop translations as
/// long as there are tags for all processes. Working sets are at different addresses, so that
/// several working sets fit in a TLB that has room for them.
#[derive(Clone, Copy, Debug)]
struct TimeShared {
    /// Number of CPUs.
    cpus: u32,
    /// Number of processes on each CPU.
    processes: u32,
    /// Number of turns that each process takes.
    turns: u64,
    /// Number of pages in each process's working set.
    pages: u64,
    /// Time that a process computes in each turn.
    compute_ns: u64,
    /// A process discards one page with `madvise` in one turn of this number; 0 means never after
    /// the first turn.
    turns_per_flush: u64,
    /// Seed of the delay of up to 20 µs after which each process starts, and of the turns in which
    /// it flushes.
    seed: u64,
}

impl TimeShared {
    /// Number of flushes before the first turn: more than an engine's flush log has entries.
    const FIRST_FLUSHES: u64 = 20;

    /// Returns the CPU of a process.
    fn cpu(&self, program: ProgramId) -> usize {
        ((program.0 - 1) % self.cpus) as usize
    }
}

impl Workload for TimeShared {
    fn name(&self) -> String {
        let Self { processes, turns_per_flush, .. } = self;
        let flushes = if *turns_per_flush == 0 { "quiet" } else { "flushing" };
        format!("time-shared-{processes}-{flushes}")
    }

    fn steps(&self, program: ProgramId) -> Steps {
        if program == ProgramId(0) {
            let all = (1..=self.cpus * self.processes).map(ProgramId);
            let start = all.clone().map(Operation::Fork);
            return Box::new(
                [Operation::Begin].into_iter().chain(start).chain(all.map(Operation::Join)),
            );
        }
        let Self { turns, pages, compute_ns, turns_per_flush, .. } = *self;
        let (area, padding) = (AreaId(0), AreaId(1));
        let mut random = Rng::stream(self.seed, u64::from(program.0));
        let start = [
            Operation::Migrate(self.cpu(program)),
            Operation::map_own(padding, u64::from(program.0) * pages),
            Operation::map_own(area, pages),
            Operation::write(area, 0..pages),
        ];
        let first_flush = move |flush: u64| {
            let pages = flush % pages..flush % pages + 1;
            [Operation::discard(area, pages.clone()), Operation::write(area, pages)]
        };
        let first_flushes = (0..Self::FIRST_FLUSHES).flat_map(first_flush);
        let head_start = [Operation::Compute(random.below(20_000))];
        let flushing_turn = random.below(turns_per_flush.max(1));
        let turn = move |turn: u64| {
            let page = turn % pages;
            let flushes = turns_per_flush != 0 && turn % turns_per_flush == flushing_turn;
            let discard = flushes.then_some(Operation::discard(area, page..page + 1));
            let read = Operation::read(area, 0..pages);
            [Some(read), Some(Operation::Compute(compute_ns)), discard, Some(Operation::Yield)]
                .into_iter()
                .flatten()
        };
        let end = [Operation::End { iterations: turns }];
        let turns = (0..turns).flat_map(turn);
        Box::new(start.into_iter().chain(first_flushes).chain(head_start).chain(turns).chain(end))
    }
}

/// Each process's working set is 12 pages: those of 64 processes fit into 1024 entries.
fn workload(processes: u32, turns_per_flush: u64) -> Rc<dyn Workload> {
    Rc::new(TimeShared {
        cpus: CPUS,
        processes,
        turns: TURNS,
        pages: 12,
        compute_ns: 10_000,
        turns_per_flush,
        seed: 1,
    })
}

fn show(design: Design, workload: &Rc<dyn Workload>, outcome: &Outcome) {
    let counts = &outcome.counts;
    println!(
        "{} under {design}: {} full flushes at {} switches, {} walks, {} interrupts, {}",
        workload.name(),
        counts.flushes_full_at_switch,
        counts.switches,
        counts.walks,
        counts.interrupts_sent,
        outcome.time
    );
}

fn outcome(design: Design, machine_name: &str, workload: &Rc<dyn Workload>) -> Outcome {
    let outcome = run(design, &machine(machine_name, CPUS as usize), SETTINGS, workload);
    show(design, workload, &outcome);
    outcome
}

/// Every case, with processes that flush only when they start and with ones that flush in every
/// tenth turn.
fn workloads() -> impl Iterator<Item = Rc<dyn Workload>> {
    PROCESSES.into_iter().flat_map(|processes| [0, 10].map(|flush| workload(processes, flush)))
}

#[test]
fn time_shared_cpus_cost_no_more_than_linux() {
    for machine in ["arm64-2s", "xeon-2s"] {
        for workload in workloads() {
            let [linux, ours] = [Design::LINUX_7_0, Design::SHOOTDOWN]
                .map(|design| outcome(design, machine, &workload));
            let name = format!("{} on {machine}", workload.name());
            assert!(ours.counts.interrupts_sent <= linux.counts.interrupts_sent, "{name}");
            assert!(100 * ours.time.ps() <= 101 * linux.time.ps(), "{name}");
        }
    }
}

/// There are 65535 ASIDs for at most 256 processes, and no flush covers what another process has:
/// Linux on arm64 drops none of them at a switch.
#[test]
fn global_tags_last_for_64_processes_a_cpu() {
    for workload in workloads() {
        let [linux, ours] = [Design::ARM64_SKIP, Design::SHOOTDOWN]
            .map(|design| outcome(design, "arm64-2s", &workload));
        let (name, counts) = (workload.name(), &ours.counts);
        // A process may begin on another CPU before it moves to its own.
        assert!(100 * counts.flushes_full_at_switch <= counts.switches, "{name}: {counts:?}");
        assert!(100 * ours.time.ps() <= 101 * linux.time.ps(), "{name}");
    }
}

const SHARED: TimeShared = TimeShared {
    cpus: 3,
    processes: 4,
    turns: 10,
    pages: 8,
    compute_ns: 100,
    turns_per_flush: 5,
    seed: 1,
};

#[test]
fn cpus_have_equal_numbers_of_processes() {
    let mut counts = [0; 3];
    (1..=12).for_each(|program| counts[SHARED.cpu(ProgramId(program))] += 1);
    assert_eq!(counts, [4; 3]);
}

#[test]
fn process_flushes_first_and_then_regularly() {
    let flushes = |shared: TimeShared| {
        let steps = shared.steps(ProgramId(7));
        steps.filter(|step| matches!(step, Operation::Discard { .. })).count()
    };
    let first = TimeShared::FIRST_FLUSHES as usize;
    assert_eq!(flushes(SHARED), first + 2);
    assert_eq!(flushes(TimeShared { turns_per_flush: 0, ..SHARED }), first);
}
