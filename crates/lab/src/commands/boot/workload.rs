//! A workload on the booted machine and on the simulated machine: the same program, the same number
//! of CPUs, the same engine and the same memory manager.
//!
//! The CPUs of the simulated machine poll while they are idle, because the booted CPUs also keep
//! their translations while they are idle.
//!
//! # Agreement
//!
//! If time is measured in instructions and ticks are [short](TICK_NS), these counts agree on
//! x86-64: interrupts, flushes, switches and migrations of `migrate` with any number of CPUs, and
//! all flushes of every workload with one CPU. The workload `beside` discards a page beside threads
//! that compute. If it discards in the call, it sends one interrupt for each flush and each
//! computing CPU. The booted machine sends fewer of them, because some flushes find a CPU between
//! two pieces of work. The other differences come from time, which the two machines measure
//! differently:
//!
//! - QEMU counts every instruction of every CPU as a nanosecond and runs one CPU after the other.
//!   Without short ticks, one CPU runs alone for up to 100 ms, no other CPU is ever present, and no
//!   interrupts are sent.
//! - After a fork, parent and child write to the same pages. If both write at the same moment, both
//!   copy the page, and each copy is flushed. `mprotect`, `heap` and `sort` therefore flush some
//!   pages more or fewer.
//! - A flush interrupts the CPUs that it finds in user mode. If threads change memory all the time
//!   (`crowd`, `threads`), the number of interrupts depends on the share of time in user mode. On
//!   the simulated machine this share follows from the costs of system calls (microseconds) and
//!   accesses (nanoseconds). On the booted machine it follows from their numbers of instructions,
//!   which differ less.
//! - The threads that sleep on a lock, and the CPU that is idle when a thread is woken, follow from
//!   these differences.

use std::path::Path;
use std::rc::Rc;

use serde::Serialize;
use serde_json::Value;
use shootdown_designs::{Design, discarding_immediately, without_replicas};
use shootdown_program::Workload;
use shootdown_program::stream::{Encoded, encode};
use shootdown_run::programs::{
    ArenaPerThread, Crowd, ExitStorm, Kind, Loop, MadviseAndCompute, MadviseMigrate,
    MprotectThreaded, PageMigration, RereadFile, SortCompute, Tasks, TcmallocLargeHeap,
};
use shootdown_run::replay::{Survey, threads};
use shootdown_run::{Memory, Outcome, Settings, Supply, run};
use shootdown_sim::machine::{Machine, Tagging};
use shootdown_vm::ErasedCoherence;

use super::console::Line;
use super::emulator::{Architecture, Emulator};
use super::error::BootError;
use super::options::{Boot, Discards, ReclaimFlushes, Replicas};
use crate::error::{CannotRun, Failure};
use crate::machines::{Embedded, MachineFileError};
use crate::recordings::{RecordingError, open, refused};
use crate::render::Printed;
use crate::render::grouped;
use crate::render::table::Table;

/// The kernel's tick if instructions are counted, in nanoseconds. A CPU runs this long before the
/// next CPU's turn.
pub(crate) const TICK_NS: u64 = 10_000;

/// The workload that reads more than the kernel has memory for.
const RECLAIM: &str = "reclaim";

/// The workload whose pages are moved from one half of memory to the other and back.
const MOVES: &str = "moves";

/// Returns `true` for the workloads for which the kernel gets little memory.
pub(crate) fn is_short_of_memory(workload: &str) -> bool {
    [RECLAIM, MOVES].contains(&workload)
}

/// Number of frames of that memory, page tables included.
pub(crate) const SHORT_FRAMES: u64 = 256;

/// Number of nodes of the kernel's memory.
const NODES: usize = 2;

/// Returns the benchmarks by name. Each is short enough for an emulator.
fn benchmarks(cpus: u32, seed: u64) -> [(&'static str, Rc<dyn Workload>); 12] {
    let iterations = 200;
    let crowd = Crowd { kind: Kind::Madvise, processes: 2, threads: 2, iterations, seed };
    let loops = |kind, tasks, count| Loop { kind, tasks, count, iterations, seed };
    // Longer than a page stays in memory, and shorter than an entry stays in QEMU's TLB, which has
    // 256 entries.
    let distance = SHORT_FRAMES * 5 / 8;
    let reread = RereadFile { threads: cpus, pages: 4 * SHORT_FRAMES, distance };
    let heap = TcmallocLargeHeap { copies: cpus, every: 400, compute_ns: 1000 };
    // Longer than a page that was discarded in place may wait to be freed.
    let pause_ns = 25_000_000;
    let arena = ArenaPerThread { threads: cpus, iterations, pause_ns, seed };
    // Half of a node, so that all pages have room on one, and few frames are free there.
    let pages = SHORT_FRAMES / (2 * NODES as u64) / u64::from(cpus);
    let (nodes, compute_ns) = (NODES, 2_000);
    let moves = PageMigration {
        threads: cpus,
        pages,
        rounds: 20,
        nodes,
        laps: 50,
        compute_ns,
        sleep_ns: 0,
        seed,
    };
    [
        ("migrate", Rc::new(MadviseMigrate { cpus: cpus as usize, iterations })),
        ("mprotect", Rc::new(MprotectThreaded::new(cpus, iterations))),
        ("heap", Rc::new(heap)),
        ("crowd", Rc::new(crowd)),
        ("threads", Rc::new(loops(Kind::Mprotect, Tasks::Threads, cpus))),
        ("pairs", Rc::new(loops(Kind::ContextSwitch, Tasks::Processes, 2 * cpus))),
        (
            "beside",
            Rc::new(MadviseAndCompute { others: cpus, iterations, compute_ns: 20_000, seed }),
        ),
        ("exits", Rc::new(ExitStorm { cpus, processes: 40, threads: 1, seed })),
        ("sort", Rc::new(SortCompute { shells: 4, sorts: 3, compute_ns: 100_000 })),
        (RECLAIM, Rc::new(reread)),
        ("arena", Rc::new(arena)),
        (MOVES, Rc::new(moves)),
    ]
}

/// Finds a benchmark by its name, or reads the recording at a path, and encodes it for the kernel.
pub(crate) fn find(name: &str, options: &Boot) -> Result<Encoded, Failure> {
    let known = benchmarks(options.cpus, options.seed);
    let workload = match known.iter().find(|(known, _)| *known == name) {
        Some((_, workload)) => Rc::clone(workload),
        None if Path::new(name).exists() => Rc::new(recorded(Path::new(name), options.seed)?),
        None => {
            let known = known.iter().map(|(name, _)| *name).collect();
            return Err(BootError::UnknownWorkload { name: name.to_owned(), known }.into());
        }
    };
    Ok(encode(&*workload))
}

fn recorded(path: &Path, seed: u64) -> Result<Encoded, RecordingError> {
    let bad = |error| refused(path, error);
    let survey = Survey::of(open(path)?, |_| ()).map_err(bad)?;
    threads(open(path)?, &survey, seed, |_| ()).map_err(bad)
}

/// A count of the booted machine and, if it has one, of the simulated machine.
#[derive(Clone, Copy, Debug, Serialize)]
struct Row {
    /// The name of the count in JSON.
    count: &'static str,
    booted: u64,
    simulated: Option<u64>,
}

/// The counts of a workload on both machines.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    workload: String,
    arch: &'static str,
    cpus: u32,
    /// The name of the simulated machine.
    machine: String,
    rows: Vec<Row>,
    /// Number of words that a program read and that were stale or belonged to another program.
    violations: u64,
    /// All JSON lines of the kernel.
    reports: Vec<Value>,
}

impl Comparison {
    pub(crate) fn new(
        options: &Boot,
        name: &str,
        workload: Encoded,
        lines: &[Line],
    ) -> Result<Self, Failure> {
        let reports: Vec<Value> =
            lines.iter().filter_map(|line| serde_json::from_str(&line.0).ok()).collect();
        let booted = reports.iter().find(|report| report.get("workload").is_some());
        let booted = booted.ok_or(BootError::NoReport)?;
        // Both machines count the operations of the memory manager over the whole run.
        let memory = reports.iter().find_map(|report| report.get("memory"));
        let number = |count: &str| {
            let of_memory = memory.filter(|_| count == FLUSHES);
            of_memory.unwrap_or(booted).get(count)?.as_u64()
        };
        let machine = machine_like(options)?;
        let machine_name = machine.name.clone();
        let design = match options.replicas {
            Replicas::Never | Replicas::IfWorth => Design::SHOOTDOWN,
            Replicas::Always | Replicas::Unflushed => Design::SHOOTDOWN_REPLICAS,
        };
        let settings = if is_short_of_memory(name) {
            let frames = SHORT_FRAMES as usize;
            let memory = Memory { frames, nodes: NODES, supply: Supply::Reclaimed };
            Settings { memory, ..Settings::DEFAULT }
        } else {
            Settings::DEFAULT
        };
        let like_booted = |sim| like_booted(options, design.on(sim));
        // The simulated machines have replicas only where each CPU has tags of its own.
        let is_replicated_alike = match options.replicas {
            Replicas::Never => true,
            Replicas::IfWorth | Replicas::Always => machine.tagging == Tagging::PerCpu,
            Replicas::Unflushed => false,
        };
        let simulated = run(machine, settings, Rc::new(workload), like_booted)
            .map_err(|error| CannotRun::simulation(name, design, error))?;
        let row = |(count, simulated)| {
            // The simulated machine batches, and has no faults.
            let is_same = is_replicated_alike
                && (!is_short_of_memory(name) || options.reclaim == ReclaimFlushes::Batched)
                && matches!(options.discards, Discards::InPlace | Discards::Immediate);
            let simulated = is_same.then_some(simulated);
            number(count).map(|booted| Row { count, booted, simulated })
        };
        // If instructions are counted, the time is the number of instructions of all CPUs.
        let instructions = options.counts.then(|| number("time_ns")).flatten();
        let instructions =
            instructions.map(|booted| Row { count: "instructions", booted, simulated: None });
        Ok(Self {
            workload: name.to_owned(),
            arch: options.machine_name(),
            cpus: options.cpus,
            machine: machine_name,
            rows: counts(&simulated).into_iter().filter_map(row).chain(instructions).collect(),
            violations: number("violations").ok_or(BootError::NoReport)?,
            reports,
        })
    }
}

impl Printed for Comparison {
    fn csv(&self) -> String {
        let names = ["workload", "arch", "cpus", "count", "booted", "simulated"];
        let mut table = Table::default().left(names);
        for Row { count, booted, simulated } in &self.rows {
            let [cpus, booted] = [u64::from(self.cpus), *booted].map(|number| number.to_string());
            let simulated = simulated.map_or_else(String::new, |count| count.to_string());
            table.row([&self.workload, self.arch, &cpus, count, &booted, &simulated]);
        }
        table.csv()
    }

    fn text(&self) -> String {
        let Self { workload, arch, cpus, machine, .. } = self;
        let mut table = Table::default().left([""]).right(["booted", "simulated"]);
        for Row { count, booted, simulated } in &self.rows {
            let name = count.replace('_', " ").replace("ipis", "interrupts");
            table.row([name, grouped(*booted), simulated.map_or_else(String::new, grouped)]);
        }
        let violations = self.violations;
        format!(
            "{workload} on {arch}, {cpus} CPUs; simulated on {machine}\n\n{table}\n\
             stale words read: {violations}\n"
        )
    }
}

/// The count of flushes that the memory manager requested.
const FLUSHES: &str = "flushes";

/// Returns the compared counts: the requests for flushes, and their interrupts and invalidations.
fn counts(simulated: &Outcome) -> [(&'static str, u64); 9] {
    let Outcome { counts, memory, discards, .. } = simulated;
    let full = counts.flushes_full - counts.flushes_full_at_switch;
    let ranged = counts.flushes_ranged - counts.flushes_ranged_at_switch;
    [
        ("iterations", simulated.iterations),
        (FLUSHES, memory.flushes + discards.flushes),
        ("ipis_sent", counts.interrupts_sent),
        ("ipis_coalesced", counts.interrupts_coalesced),
        ("broadcasts", counts.broadcasts),
        ("flushes_full", full),
        ("flushes_ranged", ranged),
        ("pages_invalidated", counts.pages_invalidated),
        ("switches", counts.switches),
    ]
}

/// Returns a design with the policy of the booted kernel.
fn like_booted(options: &Boot, design: ErasedCoherence) -> ErasedCoherence {
    let design = match options.replicas {
        Replicas::Never => without_replicas(design),
        _ => design,
    };
    match options.discards {
        Discards::Immediate => discarding_immediately(design),
        _ => design,
    }
}

/// Returns a simulated machine that resembles the emulated machine in all properties that affect
/// counts.
fn machine_like(options: &Boot) -> Result<Machine, MachineFileError> {
    let Boot { arch, cpus, emulator, .. } = *options;
    let embedded = match arch {
        Architecture::X86_64 | Architecture::Loongarch64 => Embedded::SKYLAKE_LAPTOP_KVM,
        Architecture::Aarch64 => Embedded::AMPERE_EMAG_32,
        Architecture::Riscv64 => Embedded::RISCV_64,
    };
    let machine = embedded.machine()?.with_cpus(cpus as usize);
    let mut machine =
        machine.map_err(|error| MachineFileError::refused(Path::new(embedded.name), error))?;
    if (arch, emulator) == (Architecture::X86_64, Emulator::Qemu) {
        // QEMU has no PCIDs.
        machine.tlb.tags = 0;
    }
    debug_assert!(arch != Architecture::Aarch64 || machine.tagging == Tagging::Global);
    Ok(machine)
}
