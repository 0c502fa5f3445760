//! arm64-skip-broadcast (003): local invalidation while no other CPU runs the address space.

use shootdown_designs::Design;
use shootdown_run::programs::{MprotectThreaded, SortCompute, TcmallocLargeHeap};

use super::experiment::{Better, Experiment, Measure, Pair, Study};
use crate::machines::Embedded;

/// What one `sort` computes, and the kernel to start and end it. Fitted to the published time
/// before the change; the same under every design.
const SORT_COMPUTE_NS: u64 = 6_386_000;
/// The same for one size that the heap's test tries.
const SIZE_COMPUTE_NS: u64 = 15_369;
/// The number of sizes for which one size is tried: what the others ask of the kernel finds
/// nothing to flush, and counts as computed.
const SIZES_PER_TRY: u64 = 8;

const MPROTECT_NOTE: &str = "Before, the interconnect is all that counts, so that fitting says \
    nothing of what mprotect costs without it: 2.85 us, from another machine. The published \
    0.139 s are 7 us per call, the start of 32 processes included, which costs a shell next to \
    nothing here.";
const TCMALLOC_NOTE: &str = "The model has few flushes to skip: 74 per process, nearly all of \
    its start and end, since the heap returns memory that was never touched. What flushed in the \
    published run is not known.";
const SORT_NOTE: &str = "The published gain is 16 us for each of the 41 broadcasts that the \
    model has per sort, of which one waits for 7.5 here: there were more of them, or they came \
    in bursts. How CPUs happen to queue changes the time by up to half a percent.";

const MPROTECT: Experiment = Experiment {
    study: Study::Arm64SkipBroadcast,
    workload: "mprotect-threaded",
    machine: Embedded::AMPERE_EMAG_32,
    metric: "time of a run",
    unit: "s",
    better: Better::Lower,
    published: Some(Pair { before: 2.1696, after: 0.139_41 }),
    designs: Pair { before: Design::ARM64, after: Design::ARM64_SKIP },
    peers: &[Design::LINUX_7_0],
    calibrated_on: Some("seed 003 before: 2.1696 s"),
    note: Some(MPROTECT_NOTE),
    measure: |on| {
        let (copies, parts) = (on.cpus as u32, on.scale.parts(20));
        let iterations = MprotectThreaded::published().iterations / parts;
        Ok(Measure::run(MprotectThreaded { copies, iterations }, parts))
    },
};

pub(super) const EXPERIMENTS: &[Experiment] = &[
    MPROTECT,
    Experiment {
        workload: "tcmalloc-large-heap",
        published: Some(Pair { before: 0.990_18, after: 0.905_10 }),
        peers: &[],
        calibrated_on: Some("seed 003 before: 0.99018 s (what is computed)"),
        note: Some(TCMALLOC_NOTE),
        measure: |on| {
            let every = SIZES_PER_TRY * on.scale.parts(16);
            let (copies, compute_ns) = (on.cpus as u32, every * SIZE_COMPUTE_NS);
            Ok(Measure::run(TcmallocLargeHeap { copies, every, compute_ns }, 1))
        },
        ..MPROTECT
    },
    Experiment {
        workload: "sort-compute",
        published: Some(Pair { before: 1.8094, after: 1.640_25 }),
        peers: &[],
        calibrated_on: Some("seed 003 before: 1.8094 s (what is computed)"),
        note: Some(SORT_NOTE),
        measure: |on| {
            let (published, parts) = (SortCompute::published(SORT_COMPUTE_NS), on.scale.parts(16));
            let sorts = published.sorts / parts;
            Ok(Measure::run(SortCompute { sorts, ..published }, parts))
        },
        ..MPROTECT
    },
];
