//! The rows of seed 004: readers of mapped files that memory does not hold.
//!
//! # Scaled down
//!
//! A run has the published number of readers, and memory for [`FRAMES_PER_CPU`] pages each, of
//! which the larger machine had 350 000; the files are ten times as long as memory, as published.
//! What is counted happens per page that is read: from the first tenth on, each takes the place of
//! an older one, and a batch has 32 of them, however many there are. So times are multiplied by how
//! many more pages were read, and rates are taken as they are.
//!
//! What does not scale are the pages that are on nobody's list for a moment, or were read ahead and
//! not used yet. With twice the memory, elapsed times are by 1 to 3 % less, and what batches save
//! of them is the same within a point.

use std::rc::Rc;

use shootdown_sim::Machine;
use shootdown_workload::programs::MappedReaders;
use shootdown_workload::{Limits, Memory, Outcome as Found};

use super::measure::Measured;
use crate::studies::{Experiment, Scale};

/// So much memory there is, for each CPU.
const FRAMES_PER_CPU: u64 = 512;
const FRAMES_PER_CPU_QUICK: u64 = 128;
/// The files together, in memories.
const FILES: u64 = 10;

/// What is read from a run, as the rows name it; and else, interrupts.
pub(crate) const TIME: &str = "time of a run";
pub(crate) const RANGE: &str = "from the first reader's end to the last's";
pub(crate) const SYSTEM_TIME: &str = "system time";

/// One of the seed's machines.
struct Published {
    memory_gib: u64,
    nodes: usize,
    /// The published user time before the change, divided by the pages that were read.
    compute_ns: u64,
}

impl Published {
    const PAGES_PER_GIB: u64 = 1 << 18;
    /// 581.00 s.
    const FOUR_NODES: Self = Self { memory_gib: 64, nodes: 4, compute_ns: 3463 };
    /// 58.09 s; the memory is not published.
    const ONE_SOCKET: Self = Self { memory_gib: 8, nodes: 1, compute_ns: 2770 };
}

pub(super) fn measured(
    experiment: &Experiment,
    machine: &Machine,
    scale: Scale,
) -> Option<Measured> {
    let published = match experiment.workload {
        "lru-read-4-nodes" => Published::FOUR_NODES,
        "lru-read-1-socket" => Published::ONE_SOCKET,
        _ => return None,
    };
    let Published { memory_gib, nodes, compute_ns } = published;
    let cpus = machine.cpu_count();
    let readers = u32::try_from(cpus).ok()?;
    let frames_per_cpu = if scale == Scale::Quick { FRAMES_PER_CPU_QUICK } else { FRAMES_PER_CPU };
    let pages = FILES * frames_per_cpu;
    let frames = frames_per_cpu as usize * cpus;
    let limits = Limits { frames, memory: Memory::ReclaimedReadAhead, nodes, ..Limits::DEFAULT };
    let times = (memory_gib * Published::PAGES_PER_GIB) as f64 / frames as f64;
    let seconds = |found: &Found| found.time.seconds();
    let system = move |found: &Found| {
        let user = (found.iterations * compute_ns) as f64 / 1e9;
        cpus as f64 * found.time.seconds() - found.counts.idle.seconds() - user
    };
    let interrupts = |found: &Found| found.counts.interrupts_sent as f64 / found.time.us() * 1e3;
    let range = |found: &Found| found.time_range.seconds();
    let is_rate = ![TIME, RANGE, SYSTEM_TIME].contains(&experiment.metric);
    let value: Box<dyn Fn(&Found) -> f64> = match experiment.metric {
        TIME => Box::new(seconds),
        RANGE => Box::new(range),
        SYSTEM_TIME => Box::new(system),
        _ => Box::new(interrupts),
    };
    let times = if is_rate { 1.0 } else { times };
    let readers = MappedReaders { readers, pages, compute_ns };
    Some(Measured { times, limits, ..Measured::of(Rc::new(readers), value) })
}
