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

use shootdown_designs::Design;
use shootdown_run::programs::MappedReaders;
use shootdown_run::{Memory, Outcome, Settings, Supply};

use super::experiment::{Better, Experiment, Measure, Pair, Setup, Study};
use crate::machines::Embedded;

/// Frames of memory for each CPU.
const FRAMES_PER_CPU: u64 = 512;
/// The size of all files together, as a multiple of memory.
const FILES: u64 = 10;

const UNFAIR: &str = "Most of the gain is fairness: a reader that shares its CPU with a reclaim \
    thread falls behind while that thread waits for other CPUs, and at the end all wait for the \
    slowest reader.";
const RANGE: &str = "The difference of two ends is a fifth of the run before the change, and the \
    most sensitive of its figures. The model has the sign; the cause of its larger size is not \
    known.";
const SYSTEM: &str = "The published system time fell by 14 us per saved interrupt, more than an \
    interrupt costs. In the model, a page is flushed with its page table locked, as in Linux until \
    4.2, so that other reclaimers of the same reader's pages and the reader's faults wait. Linux \
    also had the page and its file locked, and readers that found the page locked slept, which \
    the model lacks.";
const SOCKET_NOTE: &str = "Most of the gain is that reclaimers do not wait for each other: a page \
    was flushed with its page table locked before the change.";
const SOCKET_SYSTEM: &str = "The time before the change includes waiting for page tables that are \
    locked during a flush. Linux also had the page and its file locked, and the model has no such \
    locks, so it predicts half of the saved time.";
const SOCKET_INTERRUPTS: &str = "The size of memory, 5.5 GiB, follows from the published \
    interrupts before the change, if a reclaim thread sends 7 for 8 pages. A batch has pages of \
    three readers in the model, and of two in the published run.";

const NODES: Experiment = Experiment {
    study: Study::X86BatchedUnmap,
    workload: "lru-read-4-nodes",
    machine: Embedded::XEON_4S,
    metric: "time of a run",
    unit: "s",
    better: Better::Lower,
    published: Some(Pair { before: 159.62, after: 120.68 }),
    designs: Pair { before: Design::UNMAP_4_2, after: Design::UNMAP_BATCHED },
    peers: &[Design::LINUX_7_0],
    calibrated_on: Some("x86-batched-unmap before: 159.62 s (what the kernel does for a page)"),
    note: Some(UNFAIR),
    measure: |on| Ok(FOUR_NODES.measure(on, Figure::Time)),
};

const SOCKET: Experiment = Experiment {
    workload: "lru-read-1-socket",
    machine: Embedded::DESKTOP_1S,
    published: Some(Pair { before: 25.33, after: 20.38 }),
    calibrated_on: Some("x86-batched-unmap before: 25.33 s (what the kernel does for a page)"),
    note: Some(SOCKET_NOTE),
    measure: |on| Ok(ONE_SOCKET.measure(on, Figure::Time)),
    ..NODES
};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    NODES,
    Experiment {
        metric: "from the first reader's end to the last's",
        published: Some(Pair { before: 30.59, after: 2.80 }),
        calibrated_on: None,
        note: Some(RANGE),
        measure: |on| Ok(FOUR_NODES.measure(on, Figure::Range)),
        ..NODES
    },
    Experiment {
        metric: "system time",
        unit: "CPU s",
        published: Some(Pair { before: 5804.93, after: 4111.76 }),
        calibrated_on: None,
        note: Some(SYSTEM),
        measure: |on| Ok(FOUR_NODES.measure(on, Figure::SystemTime)),
        ..NODES
    },
    Experiment {
        metric: "interrupts",
        unit: "K/s",
        published: Some(Pair { before: 900.0, after: 180.0 }),
        calibrated_on: None,
        note: None,
        measure: |on| Ok(FOUR_NODES.measure(on, Figure::InterruptRate)),
        ..NODES
    },
    SOCKET,
    Experiment {
        metric: "system time",
        unit: "CPU s",
        published: Some(Pair { before: 111.82, after: 76.56 }),
        calibrated_on: None,
        note: Some(SOCKET_SYSTEM),
        measure: |on| Ok(ONE_SOCKET.measure(on, Figure::SystemTime)),
        ..SOCKET
    },
    Experiment {
        metric: "interrupts",
        unit: "K/s",
        published: Some(Pair { before: 500.0, after: 45.0 }),
        calibrated_on: None,
        note: Some(SOCKET_INTERRUPTS),
        measure: |on| Ok(ONE_SOCKET.measure(on, Figure::InterruptRate)),
        ..SOCKET
    },
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
