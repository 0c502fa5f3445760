//! A workload on the machine that boots, and the same stream on the simulated one: the same bytes,
//! as many CPUs, the same engine and the same memory manager. The simulated machine has CPUs that
//! poll when they idle, for those that boot keep their translations, too.
//!
//! # What agrees, and what does not
//!
//! Where instructions are counted and ticks are [short](TICK_NS), these are as simulated on x86-64:
//! interrupts, flushes, switches and migrations of `migrate`, with any number of CPUs; all flushes,
//! of every workload with one CPU. Interrupts of `beside`, one for each flush and CPU that
//! computes, are fewer by those that found somebody between two pieces of work. What differs does
//! so by time, of which the two have different notions:
//!
//! - QEMU counts every instruction of every CPU as a nanosecond, one CPU after the other. Without
//!   short ticks a CPU runs for up to 100 ms alone, and nobody is ever present: no interrupts.
//! - After a fork, parent and child write to the same pages. Where both do at the same moment, both
//!   copy, and each copy is flushed: `mprotect`, `heap` and `sort` flush some pages more or fewer.
//! - A flush interrupts whom it finds in user mode. Where threads change memory all the time
//!   (`crowd`, `threads`), that is a matter of how much of its time a CPU is there: on the
//!   simulated machine by what system calls and accesses cost, microseconds and nanoseconds; here
//!   by their numbers of instructions, which are not as far apart.
//! - Who sleeps on a lock, and which CPU is idle when it is woken, follows from all that.

use std::path::Path;
use std::rc::Rc;

use serde::Serialize;
use serde_json::Value;
use shootdown_designs::Design;
use shootdown_program::Workload;
use shootdown_program::stream::{Encoded, encode};
use shootdown_run::programs::{
    Crowd, ExitStorm, Kind, Loop, MadviseAndCompute, MadviseMigrate, MprotectThreaded, SortCompute,
    Tasks, TcmallocLargeHeap,
};
use shootdown_run::replay::{Survey, threads};
use shootdown_run::{Limits, Outcome, run};
use shootdown_sim::machine::{Machine, Tagging};

use super::console::Line;
use super::emulator::{Architecture, Emulator};
use super::error::BootError;
use super::options::Boot;
use crate::error::{Failure, SimulationError};
use crate::machines::{Embedded, MachineFileError};
use crate::recordings::{RecordingError, open, refused};
use crate::render::Printed;
use crate::render::grouped;
use crate::render::table::Table;

/// The kernel's tick, where instructions are counted: so long does a CPU run before another one's
/// turn.
pub(crate) const TICK_NS: u64 = 10_000;

/// Benchmarks by name, each for as long as an emulator has patience for.
fn benchmarks(cpus: u32, seed: u64) -> [(&'static str, Rc<dyn Workload>); 9] {
    let iterations = 200;
    let crowd = Crowd { kind: Kind::Madvise, processes: 2, threads: 2, iterations, seed };
    let loops = |kind, tasks, count| Loop { kind, tasks, count, iterations, seed };
    let heap = TcmallocLargeHeap { copies: cpus, every: 400, compute_ns: 1000 };
    [
        ("migrate", Rc::new(MadviseMigrate { cpus: cpus as usize, iterations })),
        ("mprotect", Rc::new(MprotectThreaded { copies: cpus, iterations })),
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
    ]
}

/// A benchmark by name, or the recording of a path, as the kernel is given it.
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

/// What both count; and what the machine that boots counts alone.
#[derive(Clone, Copy, Debug, Serialize)]
struct Row {
    /// As in the lab's JSON.
    count: &'static str,
    booted: u64,
    simulated: Option<u64>,
}

/// The same workload on both.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Comparison {
    workload: String,
    arch: &'static str,
    cpus: u32,
    /// By whose numbers the simulated machine goes.
    machine: String,
    rows: Vec<Row>,
    /// Pages with words in them that are another's, or old.
    violations: u64,
    /// All that the kernel says.
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
        // What was done to memory is counted in all of the run, on both.
        let memory = reports.iter().find_map(|report| report.get("memory"));
        let number = |count: &str| {
            let of_memory = memory.filter(|_| count == FLUSHES);
            of_memory.unwrap_or(booted).get(count)?.as_u64()
        };
        let machine = machine_like(options)?;
        let machine_name = machine.name.clone();
        let design = Design::SHOOTDOWN;
        let simulated = run(machine, Limits::DEFAULT, Rc::new(workload), |sim| design.on(sim))
            .map_err(|error| SimulationError::new(name, design, error))?;
        let row = |(count, simulated)| {
            number(count).map(|booted| Row { count, booted, simulated: Some(simulated) })
        };
        // Time is instructions, of all CPUs together, where they are counted.
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
            "{workload} on {arch}, {cpus} CPUs; simulated by the numbers of {machine}\n\n{table}\n\
             wrong words read: {violations}\n"
        )
    }
}

/// Flushes that the memory manager asked for.
const FLUSHES: &str = "flushes";

/// What is compared: what a flush comes to, and how often there is cause for one.
fn counts(simulated: &Outcome) -> [(&'static str, u64); 9] {
    let Outcome { counts, memory, .. } = simulated;
    let full = counts.flushes_full - counts.flushes_full_at_switch;
    let ranged = counts.flushes_ranged - counts.flushes_ranged_at_switch;
    [
        ("iterations", simulated.iterations),
        (FLUSHES, memory.flushes),
        ("ipis_sent", counts.interrupts_sent),
        ("ipis_coalesced", counts.interrupts_coalesced),
        ("broadcasts", counts.broadcasts),
        ("flushes_full", full),
        ("flushes_ranged", ranged),
        ("pages_invalidated", counts.pages_invalidated),
        ("switches", counts.switches),
    ]
}

/// The simulated machine that is like the emulated one, as far as counts depend on it.
fn machine_like(options: &Boot) -> Result<Machine, MachineFileError> {
    let Boot { arch, cpus, emulator, .. } = *options;
    let embedded = match arch {
        Architecture::X86_64 | Architecture::Loongarch64 => Embedded::SKYLAKE_LAPTOP_KVM,
        Architecture::Aarch64 => Embedded::AMPERE_EMAG_32,
    };
    let machine = embedded.machine()?.with_cpus(cpus as usize);
    let mut machine =
        machine.map_err(|error| MachineFileError::refused(Path::new(embedded.name), error))?;
    if (arch, emulator) == (Architecture::X86_64, Emulator::Qemu) {
        // It has no PCIDs.
        machine.tlb.tags = 0;
    }
    debug_assert!(arch != Architecture::Aarch64 || machine.tagging == Tagging::Global);
    Ok(machine)
}
