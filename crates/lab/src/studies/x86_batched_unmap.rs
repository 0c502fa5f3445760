//! `x86-batched-unmap`: reclaim unmaps many pages and then interrupts each CPU once. The workload
//! reads mapped files that are larger than memory.
//!
//! # Scale
//!
//! A run has the published number of readers, and memory for [`FRAMES_PER_CPU`] pages for each of
//! them. The larger published machine had memory for 350 000 pages each. The files are ten times as
//! large as memory, as published.
//!
//! The counted events happen once per page that is read. After the first tenth of the files, each
//! page replaces an older one, and a batch has 32 pages, independent of the size of memory. Times
//! are therefore multiplied by the ratio of the pages read, and rates are not scaled.
//!
//! Pages that are on no LRU list for a moment, or that were read ahead and not used yet, do not
//! scale. With twice the memory, elapsed times are 1 to 3 % shorter, and the share that batches
//! save is the same within one percentage point.

use shootdown_run::programs::MappedReaders;
use shootdown_run::{Memory, Outcome, Settings, Supply};

use super::experiment::{Measure, MeasureOf, Setup};

/// Frames of memory for each CPU.
const FRAMES_PER_CPU: u64 = 512;
/// The size of all files together, as a multiple of memory.
const FILES: u64 = 10;

pub(super) const MEASURES: &[(&str, MeasureOf)] = &[
    ("lru-read-4-nodes/time", |on| Ok(FOUR_NODES.measure(on, Figure::Time))),
    ("lru-read-4-nodes/range", |on| Ok(FOUR_NODES.measure(on, Figure::Range))),
    ("lru-read-4-nodes/system-time", |on| Ok(FOUR_NODES.measure(on, Figure::SystemTime))),
    ("lru-read-4-nodes/interrupts", |on| Ok(FOUR_NODES.measure(on, Figure::InterruptRate))),
    ("lru-read-1-socket/time", |on| Ok(ONE_SOCKET.measure(on, Figure::Time))),
    ("lru-read-1-socket/system-time", |on| Ok(ONE_SOCKET.measure(on, Figure::SystemTime))),
    ("lru-read-1-socket/interrupts", |on| Ok(ONE_SOCKET.measure(on, Figure::InterruptRate))),
];

/// A published run.
struct Published {
    memory_mib: u64,
    nodes: usize,
    /// The published user time before the change, divided by the pages that were read.
    compute_ns: u64,
}

/// The run on four nodes. Its user time is 581.00 s.
const FOUR_NODES: Published = Published { memory_mib: 64 << 10, nodes: 4, compute_ns: 3463 };
/// The run on one socket. Its user time is 58.09 s. Its memory is not published. It follows from
/// the published interrupts before the change: 500 K/s in 25.33 s, 7 for 8 pages, because the CPU
/// that reclaims a page is in one of 8 cases the one that has used it.
const ONE_SOCKET: Published = Published { memory_mib: 5632, nodes: 1, compute_ns: 4029 };

/// A figure of a run.
#[derive(Clone, Copy)]
enum Figure {
    Time,
    /// The time from the first reader's end to the last's.
    Range,
    SystemTime,
    InterruptRate,
}

impl Published {
    const PAGES_PER_MIB: u64 = 1 << 8;

    /// Number of pages between two watermarks of a node of the published machine: a quarter of
    /// `min_free_kbytes`, which is the square root of 16 times the memory in KiB
    /// (`calculate_min_free_kbytes`, `__setup_per_zone_wmarks` of `mm/page_alloc.c`).
    const fn watermark_distance(&self) -> u64 {
        let min_free_kib = (16 * 1024 * self.memory_mib).isqrt();
        min_free_kib / 4 / 4 / self.nodes as u64
    }

    fn measure(&self, on: &Setup, figure: Figure) -> Measure {
        let Self { memory_mib, nodes, compute_ns } = *self;
        let cpus = on.cpus;
        let frames_per_cpu = on.scale.of(FRAMES_PER_CPU, 4);
        let frames = frames_per_cpu as usize * cpus;
        let read = move |outcome: &Outcome| match figure {
            Figure::Time => outcome.time.seconds(),
            Figure::Range => outcome.time_range.seconds(),
            Figure::SystemTime => {
                let user = (outcome.iterations * compute_ns) as f64 / 1e9;
                cpus as f64 * outcome.time.seconds() - outcome.counts.idle.seconds() - user
            }
            Figure::InterruptRate => {
                outcome.counts.interrupts_sent as f64 / outcome.time.us() * 1e3
            }
        };
        let scale = match figure {
            Figure::InterruptRate => 1.0,
            _ => (memory_mib * Self::PAGES_PER_MIB) as f64 / frames as f64,
        };
        let readers =
            MappedReaders { readers: cpus as u32, pages: FILES * frames_per_cpu, compute_ns };
        let memory = Memory { frames, nodes, supply: Supply::ReclaimedReadAhead };
        let kept_free_frames = Some(self.watermark_distance() as usize);
        let settings = Settings { memory, kept_free_frames, ..Settings::DEFAULT };
        Measure { scale, settings, ..Measure::new(readers, read) }
    }
}
