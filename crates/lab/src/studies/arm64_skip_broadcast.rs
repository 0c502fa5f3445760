//! `arm64-skip-broadcast`: local invalidation while no other CPU runs the address space.

use shootdown_run::programs::{MprotectThreaded, SortCompute, TcmallocLargeHeap, Writes};

use super::experiment::{Measure, MeasureOf};

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

/// Returns a part of the published run, in which processes start as often as in the whole.
fn mprotect(copies: u32, iterations: u64, parts: u64, writes: Writes) -> Measure {
    let (fork_compute_ns, start_compute_ns) = (FORK_COMPUTE_NS / parts, START_COMPUTE_NS / parts);
    let alone = MprotectThreaded::new(copies, iterations);
    let workload = MprotectThreaded { writes, fork_compute_ns, start_compute_ns, ..alone };
    Measure::run(workload, parts)
}

pub(super) const MEASURES: &[(&str, MeasureOf)] = &[
    ("mprotect-threaded", |on| {
        let (copies, parts) = (on.cpus as u32, on.scale.parts(20));
        let iterations = MprotectThreaded::published().iterations / parts;
        Ok(mprotect(copies, iterations, parts, Writes::Once))
    }),
    ("mprotect-threaded-writes", |on| {
        let (copies, parts) = (on.cpus as u32, on.scale.parts(20));
        let iterations = MprotectThreaded::published().iterations / parts;
        Ok(mprotect(copies, iterations, parts, Writes::Always))
    }),
    ("tcmalloc-large-heap", |on| {
        let every = SIZES_PER_TRY * on.scale.parts(16);
        let (copies, compute_ns) = (on.cpus as u32, every * SIZE_COMPUTE_NS);
        Ok(Measure::run(TcmallocLargeHeap { copies, every, compute_ns }, 1))
    }),
    ("sort-compute", |on| {
        let (published, parts) = (SortCompute::published(SORT_COMPUTE_NS), on.scale.parts(16));
        let sorts = published.sorts / parts;
        Ok(Measure::run(SortCompute { sorts, ..published }, parts))
    }),
];
