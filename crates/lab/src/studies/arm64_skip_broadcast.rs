//! `arm64-skip-broadcast`: local invalidation while no other CPU runs the address space.

use shootdown_designs::Design;
use shootdown_run::programs::{MprotectThreaded, SortCompute, TcmallocLargeHeap};

use super::experiment::{Better, Experiment, Measure, Pair, Study};
use crate::machines::Embedded;

/// Time that one `sort` computes, and that the kernel needs to start and end it, in nanoseconds.
/// It was fitted to the published time before the change, and does not depend on the design.
const SORT_COMPUTE_NS: u64 = 6_386_000;
/// Time that one size of the heap test computes, in nanoseconds, fitted in the same way.
const SIZE_COMPUTE_NS: u64 = 15_369;
/// Number of sizes of the published test for each size that is simulated. The system calls of the
/// other sizes find nothing to flush, so their time counts as computation.
const SIZES_PER_TRY: u64 = 8;

const MPROTECT_NOTE: &str = "Before the change the interconnect alone decides the time, so fitting \
    does not determine what mprotect costs without it: 2.85 us, taken from another machine. The \
    published 0.139 s are 7 us per call, including the start of 32 processes, which is almost free \
    in the model.";
const TCMALLOC_NOTE: &str = "The model has few flushes to skip: 74 per process, nearly all at its \
    start and end, because the heap returns memory that was never touched. The source of the \
    flushes in the published run is not known.";
const SORT_NOTE: &str = "The published gain is 16 us for each of the 41 broadcasts that the \
    model has per sort. A broadcast waits 7.5 us in the model, so the published run had more \
    broadcasts, or they came in bursts. The order of waiting CPUs changes the time by up to half a \
    percent.";

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
    calibrated_on: Some("arm64-skip-broadcast before: 2.1696 s"),
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
        calibrated_on: Some("arm64-skip-broadcast before: 0.99018 s (what is computed)"),
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
        calibrated_on: Some("arm64-skip-broadcast before: 1.8094 s (what is computed)"),
        note: Some(SORT_NOTE),
        measure: |on| {
            let (published, parts) = (SortCompute::published(SORT_COMPUTE_NS), on.scale.parts(16));
            let sorts = published.sorts / parts;
            Ok(Measure::run(SortCompute { sorts, ..published }, parts))
        },
        ..MPROTECT
    },
];
