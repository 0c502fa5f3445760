//! Writes a benchmark down for the kernel that boots, and says what the simulator makes of it.
//!
//! ```text
//! cargo run -p shootdown-workload --example stream -- crowd 4 crowd.load [name=value …]
//! qemu-system-x86_64 … -smp 4 -kernel shootdown-kernel -initrd crowd.load
//! ```
//!
//! What it prints has the names of the kernel's report, so that the two can be compared: the same
//! bytes, as many CPUs, the same engine and the same memory manager. The simulated machine has CPUs
//! that poll when they idle, for those that boot keep their translations, too; and no tags, as
//! QEMU's x86-64 has none.
//!
//! # What agrees, and what does not
//!
//! With instructions counted (`-icount shift=0,sleep=off`) and `tick_ns=10000`, two runs are the
//! same to the byte, and these are as simulated: interrupts, flushes, switches and migrations of
//! `migrate`, with any number of CPUs; all flushes, of every workload with one CPU; interrupts of
//! `beside`, one for each flush and CPU that computes, while others still do. What differs does so
//! by time, of which the two have different notions:
//!
//! - QEMU counts every instruction of every CPU as a nanosecond, one CPU after the other. Without
//!   short ticks a CPU runs for up to 100 ms alone, and nobody is ever present: no interrupts.
//! - After a fork, parent and child write to the same pages. Where both do at the same moment, both
//!   copy, and each copy is flushed: `mprotect`, `heap` and `sort` flush some pages more or fewer.
//! - The kernel's interpreter takes the place of a program's own instructions, of which the
//!   simulator's takes none: CPUs are in user mode for longer, and so interrupted more often, where
//!   they change memory all the time (`crowd`, `threads`).
//! - Who sleeps on a lock, and which CPU is idle when it is woken, follows from all that.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use shootdown_designs::engine::{Engine, Ours};
use shootdown_sim::Machine;
use shootdown_workload::programs::{
    Beside, Crowd, ExitStorm, Kind, Loop, MadviseMigrate, MprotectThreaded, SortCompute, Tasks,
    TcmallocLargeHeap,
};
use shootdown_workload::stream::{Encoded, encode};
use shootdown_workload::{Limits, Outcome, Workload, run};

const USAGE: &str = "stream WORKLOAD CPUS LOAD [name=value ...]";

fn main() -> ExitCode {
    match try_main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn try_main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or(USAGE);
    let (name, cpus, load) = (next()?, next()?.parse()?, PathBuf::from(next()?));
    let lines: Vec<String> = arguments.collect();
    let workload = benchmark(&name, cpus).ok_or_else(|| format!("no `{name}`: {}", names()))?;
    let encoded = Encoded::new(encode(&*workload))?;
    std::fs::write(load, in_memory(cpus, &lines, encoded.bytes()))?;
    let machine = Machine::from_toml(include_str!("../../../machines/skylake-laptop-kvm.toml"))?;
    let mut machine = machine.with_cpus(cpus)?;
    machine.tlb.tags = 0;
    let workload: Rc<dyn Workload> = Rc::new(encoded);
    let outcome = run(machine, Limits::DEFAULT, workload, Engine::<1, Ours>::new)?;
    print(&name, cpus, &outcome);
    Ok(())
}

/// Short ones of each kind.
fn benchmarks(cpus: usize) -> [(&'static str, Rc<dyn Workload>); 9] {
    let (iterations, seed, threads) = (200, 1, cpus as u32);
    let crowd = |kind| Crowd { kind, processes: 2, threads: 2, iterations, seed };
    let loops = |kind, tasks, count| Loop { kind, tasks, count, iterations, seed };
    let heap = TcmallocLargeHeap { copies: threads, every: 400, compute_ns: 1000 };
    [
        ("migrate", Rc::new(MadviseMigrate { cpus, iterations })),
        ("mprotect", Rc::new(MprotectThreaded { copies: threads, iterations })),
        ("heap", Rc::new(heap)),
        ("crowd", Rc::new(crowd(Kind::Madvise))),
        ("threads", Rc::new(loops(Kind::Mprotect, Tasks::Threads, threads))),
        ("pairs", Rc::new(loops(Kind::ContextSwitch, Tasks::Processes, 2 * threads))),
        ("beside", Rc::new(Beside { others: threads, iterations, compute_ns: 20_000, seed })),
        ("exits", Rc::new(ExitStorm { cpus: threads, processes: 40, threads: 1, seed })),
        ("sort", Rc::new(SortCompute { shells: 4, sorts: 3, compute_ns: 100_000 })),
    ]
}

fn benchmark(name: &str, cpus: usize) -> Option<Rc<dyn Workload>> {
    benchmarks(cpus).into_iter().find(|(known, _)| *known == name).map(|(_, workload)| workload)
}

fn names() -> String {
    benchmarks(1).map(|(name, _)| name).join(", ")
}

/// As the kernel finds it: how long it is, lines, and the workload.
fn in_memory(cpus: usize, lines: &[String], stream: &[u8]) -> Vec<u8> {
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let rest = format!("mode=workload\ncpus={cpus}\n{lines}\n");
    let with_length = |length: usize| format!("shootdown-load {length:08}\n{rest}");
    let length = with_length(0).len() + stream.len();
    [with_length(length).as_bytes(), stream].concat()
}

fn print(name: &str, cpus: usize, outcome: &Outcome) {
    let Outcome { counts, memory, .. } = outcome;
    let at_switch = counts.flushes_full_at_switch + counts.flushes_ranged_at_switch;
    println!(
        "{{\"workload\":\"{name}\",\"design\":\"shootdown\",\"arch\":\"simulated\",\
         \"cpus\":{cpus},\"time_ns\":{},\"iterations\":{},\"ipis_sent\":{},\
         \"ipis_coalesced\":{},\"flushes_full\":{},\"flushes_ranged\":{},\
         \"flushes_at_switch\":{at_switch},\"pages_invalidated\":{},\"switches\":{},\
         \"migrations\":{},\"violations\":{},\"memory_flushes\":{}}}",
        outcome.time.ns(),
        outcome.iterations,
        counts.interrupts_sent,
        counts.interrupts_coalesced,
        counts.flushes_full - counts.flushes_full_at_switch,
        counts.flushes_ranged - counts.flushes_ranged_at_switch,
        counts.pages_invalidated,
        counts.switches,
        counts.migrations,
        outcome.violations,
        memory.flushes,
    );
}
