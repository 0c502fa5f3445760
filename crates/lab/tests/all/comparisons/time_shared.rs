//! 4 to 64 processes on each CPU, on a machine with 16-bit ASIDs and on one with PCIDs.

use std::rc::Rc;

use shootdown_designs::Design;
use shootdown_program::Workload;
use shootdown_run::programs::TimeShared;
use shootdown_run::{Limits, Memory, Outcome, Settings};
use shootdown_sim::Time;

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
