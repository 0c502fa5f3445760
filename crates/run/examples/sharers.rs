//! Prints what regions of threads and upper page tables of each CPU save in the loops of the
//! matrix, each alone and both together: interrupts, those whose target had read the page table of
//! 2 MiB, and time relative to neither (the geometric mean over the loops of threads).
//!
//! ```text
//! cargo run --release -p shootdown-run --example sharers [SEEDS [PART OF A LOOP'S NAME]]
//! ```

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::env;
use std::error::Error;
use std::rc::Rc;

use shootdown_designs::{Engine, engine};
use shootdown_program::Workload;
use shootdown_run::programs::{Kind, Loop, PthreadMmap, Tasks, Touched};
use shootdown_run::{Limits, Memory, Outcome, Settings, run};
use shootdown_sim::{Machine, Time};
use shootdown_vm::{Placement, Policy, Replication};

const SETTINGS: Settings = Settings {
    memory: Memory::of_frames(1 << 20),
    limits: Limits { threads: 512, time: Time::from_ms(60_000) },
    ..Settings::DEFAULT
};

const POLICIES: [(&str, Placement, Replication); 5] = [
    ("neither", Placement::Lowest, Replication::Never),
    ("regions", Placement::PerThread, Replication::Never),
    ("replicas", Placement::Lowest, Replication::IfWorth),
    ("both", Placement::PerThread, Replication::IfWorth),
    ("always", Placement::PerThread, Replication::Always),
];

fn workloads(cpus: u32, seed: u64) -> Vec<Rc<dyn Workload>> {
    let (threads, touched) = (2 * cpus, Touched::First);
    let pthread_mmap =
        PthreadMmap { threads, rounds: 2, mappings: 20, pages: 1 << 12, touched, seed };
    let mut workloads: Vec<Rc<dyn Workload>> = vec![Rc::new(pthread_mmap)];
    for kind in Kind::ALL.into_iter().filter(|&kind| kind != Kind::ContextSwitch) {
        for count in [cpus, 2 * cpus] {
            let tasks = Tasks::Threads;
            workloads.push(Rc::new(Loop { kind, tasks, count, iterations: 50, seed }));
        }
    }
    workloads
}

/// Sums over the runs of a policy.
#[derive(Clone, Copy, Default)]
struct Sums {
    interrupts: u64,
    touched: u64,
    time: Time,
    replicas: u64,
    linked: u64,
    link_faults: u64,
}

impl Sums {
    fn add(&mut self, outcome: &Outcome) {
        assert_eq!((outcome.violations, outcome.hazards), (0, 0));
        self.interrupts += outcome.counts.interrupts_sent;
        self.touched += outcome.counts.interrupts_touched_2mib;
        self.time += outcome.time;
        self.replicas += outcome.memory.replicas;
        self.linked += outcome.memory.linked;
        self.link_faults += outcome.memory.link_faults;
    }

    fn print(&self, name: &str, policy: &str, ratio: f64) {
        let Self { interrupts, touched, replicas, linked, link_faults, .. } = self;
        println!(
            "{name:<26} {policy:<9} {interrupts:>7} interrupts, {touched:>6} touched 2 MiB, time \
             {ratio:.3}, {replicas} replicas, {linked} links, {link_faults} link faults"
        );
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let seeds = env::args().nth(1).map_or(Ok(1), |seeds| seeds.parse())?;
    let part = env::args().nth(2).unwrap_or_default();
    let machine = Machine::from_toml(include_str!("../../../machines/xeon-2s.toml"))?;
    for cpus in [2, 4, 8, 16, 32, 64_u32] {
        let machine = machine.clone().with_cpus(cpus as usize)?;
        let (mut all, mut logs, mut count) = ([Sums::default(); POLICIES.len()], [0.0; 5], 0.0);
        for (index, workload) in workloads(cpus, 0).iter().enumerate() {
            if !workload.name().contains(&part) {
                continue;
            }
            count += 1.0;
            let mut base = 0.0;
            for (number, &(name, placement, replication)) in POLICIES.iter().enumerate() {
                let policy = Policy { placement, replication, ..engine::POLICY };
                let mut sums = Sums::default();
                for seed in 1..=seeds {
                    let workload = workloads(cpus, seed).swap_remove(index);
                    let design = |sim| Engine::<1>::new(sim).with_policy(policy);
                    let outcome = run(machine.clone(), SETTINGS, workload, design)?;
                    sums.add(&outcome);
                    all[number].add(&outcome);
                }
                let time = sums.time.ps() as f64;
                base = if number == 0 { time } else { base };
                logs[number] += (time / base).ln();
                sums.print(&workload.name(), name, time / base);
            }
        }
        for ((sums, log), (policy, ..)) in all.iter().zip(logs).zip(POLICIES) {
            sums.print(&format!("all on {cpus} CPUs"), policy, (log / count).exp());
        }
    }
    Ok(())
}
