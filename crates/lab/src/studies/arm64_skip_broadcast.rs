//! The rows of seed 003.

use std::rc::Rc;

use shootdown_workload::programs::{MprotectThreaded, SortCompute, TcmallocLargeHeap};

use super::measure::Measured;
use crate::studies::Scale;

/// What one `sort` computes, and the kernel to start and end it. Fitted to the published time
/// before the change; the same under every design.
const SORT_COMPUTE_NS: u64 = 6_386_000;
/// The same for one size that the heap's test tries.
const SIZE_COMPUTE_NS: u64 = 15_369;
/// Of so many sizes one is tried, and stands for all: what the others ask of the kernel finds
/// nothing to flush, and counts as computed.
const SIZES_PER_TRY: u64 = 8;

pub(super) fn measured(workload: &str, cpus: usize, scale: Scale) -> Option<Measured> {
    let copies = u32::try_from(cpus).ok()?;
    let is_quick = scale == Scale::Quick;
    match workload {
        "mprotect-threaded" => {
            let part = if is_quick { 20 } else { 1 };
            let published = MprotectThreaded::published();
            let iterations = published.iterations / part;
            Some(Measured::run(Rc::new(MprotectThreaded { copies, iterations }), part))
        }
        "tcmalloc-large-heap" => {
            let every = if is_quick { 16 * SIZES_PER_TRY } else { SIZES_PER_TRY };
            let compute_ns = every * SIZE_COMPUTE_NS;
            Some(Measured::run(Rc::new(TcmallocLargeHeap { copies, every, compute_ns }), 1))
        }
        "sort-compute" => {
            let part = if is_quick { 16 } else { 1 };
            let published = SortCompute::published(SORT_COMPUTE_NS);
            let sorts = published.sorts / part;
            Some(Measured::run(Rc::new(SortCompute { sorts, ..published }), part))
        }
        _ => None,
    }
}
