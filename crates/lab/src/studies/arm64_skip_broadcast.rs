//! `arm64-skip-broadcast`: local invalidation while no other CPU runs the address space.

use shootdown_designs::Design;
use shootdown_run::programs::{MprotectThreaded, SortCompute, TcmallocLargeHeap, Writes};

use super::experiment::{Better, Experiment, Measure, Pair, Study};
use crate::machines::Embedded;

/// Time that one `sort` computes, and that the kernel needs to start and end it, in nanoseconds.
/// It was fitted to the published time before the change, and does not depend on the design.
const SORT_COMPUTE_NS: u64 = 5_205_000;
/// Time that one size of the heap test computes, in nanoseconds, fitted in the same way.
const SIZE_COMPUTE_NS: u64 = 15_369;
/// Number of sizes of the published test for each size that is simulated. The system calls of the
/// other sizes find nothing to flush, so their time counts as computation.
const SIZES_PER_TRY: u64 = 8;

/// Time that the shell computes to start a process, and that the process computes until it calls
/// `main`, in nanoseconds, besides their work on memory. On `emerald-rapids-kvm`, where a
/// shell started 32 small programs with a second thread, 40 times, the shell took 158 us and a
/// program 927 us of CPU time for each start. The model of that machine takes 58 and 96 us for the
/// work on memory.
const FORK_COMPUTE_NS: u64 = 100_000;
const START_COMPUTE_NS: u64 = 831_000;

const MPROTECT_NOTE: &str = "Before the change the interconnect alone decides the time, so \
    fitting does not determine what mprotect costs without it: 2.85 us, taken from another \
    machine. The published 0.139 s are 7 us per call, more than a call costs on any machine in \
    our sources. The start of 32 processes is included, as it was measured on another machine: 6 \
    ms. So the time after the change is not that of the TLB, and its cause is not known.";
const WRITES_NOTE: &str = "The other end of a bracket: the page is written in each iteration. \
    The fault flushes a third time, as Linux for arm64 did until the end of 2025. The \
    interconnect's time is fitted to the other end, so that the three broadcasts take half as \
    long again as published.";
const TCMALLOC_NOTE: &str = "The model has few flushes to skip: 74 per process, nearly all at its \
    start and end, because the heap returns memory that was never touched. The source of the \
    flushes in the published run is not known.";
const SORT_NOTE: &str = "Linux for arm64 flushed each page that a process writes again after a \
    fork, if no other process had it any more, until the end of 2025 (Huang Ying, 'arm64, \
    tlbflush: don't TLBI broadcast if page reused in write fault'). The order of waiting CPUs \
    changes the time by up to half a percent.";

const MPROTECT: Experiment = Experiment {
    study: Study::Arm64SkipBroadcast,
    workload: "mprotect-threaded",
    machine: Embedded::AMPERE_EMAG_32,
    metric: "time of a run",
    unit: "s",
    better: Better::Lower,
    published: Some(Pair { before: 2.1696, after: 0.139_41 }),
    designs: Pair { before: Design::ARM64_5_6, after: Design::ARM64_SKIP },
    peers: &[Design::LINUX_7_0],
    calibrated_on: Some("arm64-skip-broadcast before: 2.1696 s"),
    note: Some(MPROTECT_NOTE),
    measure: |on| {
        let (copies, parts) = (on.cpus as u32, on.scale.parts(20));
        let iterations = MprotectThreaded::published().iterations / parts;
        Ok(mprotect(copies, iterations, parts, Writes::Once))
    },
};

/// Returns a part of the published run, in which processes start as often as in the whole.
fn mprotect(copies: u32, iterations: u64, parts: u64, writes: Writes) -> Measure {
    let (fork_compute_ns, start_compute_ns) = (FORK_COMPUTE_NS / parts, START_COMPUTE_NS / parts);
    let alone = MprotectThreaded::new(copies, iterations);
    let workload = MprotectThreaded { writes, fork_compute_ns, start_compute_ns, ..alone };
    Measure::run(workload, parts)
}

pub(super) const EXPERIMENTS: &[Experiment] = &[
    MPROTECT,
    Experiment {
        workload: "mprotect-threaded-writes",
        calibrated_on: None,
        note: Some(WRITES_NOTE),
        measure: |on| {
            let (copies, parts) = (on.cpus as u32, on.scale.parts(20));
            let iterations = MprotectThreaded::published().iterations / parts;
            Ok(mprotect(copies, iterations, parts, Writes::Always))
        },
        ..MPROTECT
    },
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
