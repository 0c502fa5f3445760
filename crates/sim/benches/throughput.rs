//! Throughput and memory use of the simulator: memory operations per second of one of the host's
//! cores, and resident memory per simulated CPU.
//!
//! Half of the operations access pages through the TLB, a quarter increment a word of the CPU's
//! own, and a quarter increment a word that two neighbouring CPUs share. The result is the best of
//! five runs, in CPU time of this thread, so that other users of the host have no effect. A result
//! below its aim is marked but is not an error, because hosts differ.
//!
//! Memory is the largest resident size of a process that does nothing else, minus that of one that
//! simulates a single CPU. If it is the same per CPU for all sizes, memory is linear in CPUs.

use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use shootdown::Word;
use shootdown_sim::{
    Affinity, Machine, Purpose, RunEnd, Sim, SimWord, TagEntries, ThreadSpec, Time, Touch,
};

/// Number of CPUs, and the aim in millions of operations per second.
const CASES: [(usize, f64); 4] = [(4, 25.0), (64, 7.0), (192, 6.0), (4096, 4.0)];
const MEMORY_CASES: [usize; 4] = [8, 64, 512, 4096];
const OPERATIONS: u64 = 2_000_000;
const RUNS: usize = 5;

/// The argument of a process whose memory is measured, followed by its number of CPUs.
const MEMORY: &str = "memory-of";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, memory, cpus] = &arguments[..]
        && memory == MEMORY
    {
        run(cpus.parse().expect("a number of CPUs"));
        return println!("{}", resident_max_kib());
    }
    println!("{:>5}  {:>13}  {:>5}", "CPUs", "M operations/s", "aim");
    for (cpus, aim) in CASES {
        let best = (0..RUNS).map(|_| run(cpus)).fold(0.0, f64::max);
        let verdict = if best < aim { "  below its aim" } else { "" };
        println!("{cpus:>5}  {best:>13.1}  {aim:>5.1}{verdict}");
    }
    println!("\n{:>5}  {:>10}  {:>11}", "CPUs", "KiB in all", "KiB per CPU");
    let alone = memory_kib(1);
    for cpus in MEMORY_CASES {
        let all = memory_kib(cpus);
        let each = all.saturating_sub(alone) as f64 / (cpus - 1) as f64;
        println!("{cpus:>5}  {all:>10}  {each:>11.0}");
    }
}

/// The largest resident size, in KiB, of a new process that simulates `cpus` CPUs.
fn memory_kib(cpus: usize) -> u64 {
    let this = std::env::current_exe().expect("the path of this program");
    let output = Command::new(this).args([MEMORY, &cpus.to_string()]).output();
    let output = output.expect("this program runs again");
    let text = String::from_utf8(output.stdout).expect("text");
    text.trim().parse().expect("a number of KiB")
}

/// The largest resident size of this process, in KiB; 0 on hosts other than Linux.
fn resident_max_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[repr(align(64))]
struct Line(SimWord);

/// Runs the benchmark. Returns millions of operations per second.
fn run(cpus: usize) -> f64 {
    let round = include_str!("../tests/round.toml");
    let machine = Machine::from_toml(round).and_then(|machine| machine.with_cpus(cpus));
    let machine = machine.expect("the file is part of this crate");
    let sim = Rc::new(Sim::new(machine, 1 << 16, cpus).expect("there is room for the stacks"));
    let root = tables(&sim);
    let lines: Rc<Vec<Line>> = Rc::new((0..2 * cpus).map(|_| Line(SimWord::with(0))).collect());
    for cpu in 0..cpus {
        let spec = ThreadSpec { space: None, affinity: Affinity::Cpu(cpu) };
        let (inside, lines) = (Rc::clone(&sim), Rc::clone(&lines));
        let body = move || {
            inside.load_root(root, 1, TagEntries::Discarded);
            for turn in 0..OPERATIONS / cpus as u64 / 4 {
                let page = (turn * 7 + cpu as u64) % 32;
                inside.touch(page << 12, Touch::Read).expect("it is mapped");
                inside.touch(page << 12, Touch::Write(turn)).expect("it is mapped");
                lines[cpu].0.fetch_add(1, Relaxed);
                lines[cpus + cpu / 2].0.fetch_add(1, Relaxed);
            }
        };
        sim.spawn(spec, body).expect("there is room for the stack");
    }
    let start = cpu_seconds();
    assert_eq!(sim.run_until(Time::END), RunEnd::Done);
    OPERATIONS as f64 / (cpu_seconds() - start) / 1e6
}

/// Builds page tables that map the first 32 pages.
fn tables(sim: &Sim) -> u64 {
    let table = || sim.allocate(Purpose::Table).expect("there is memory");
    let (top, upper, middle, leaf) = (table(), table(), table(), table());
    for (from, to) in [(top, upper), (upper, middle), (middle, leaf)] {
        sim.update_entry(from, 0, |_| to << 12 | 7);
    }
    for index in 0..32 {
        let page = sim.allocate(Purpose::Page).expect("there is memory");
        sim.update_entry(leaf, index, |_| page << 12 | 7);
    }
    top
}

/// CPU time of this thread of the host so far, in seconds.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `clock_gettime` writes only to `time`.
    #[expect(unsafe_code, reason = "the standard library has no clock of CPU time")]
    unsafe {
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
    }
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
