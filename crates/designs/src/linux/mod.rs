//! What the Linux designs share: sets of CPUs, calls to other CPUs, what a flush asks for, tags
//! that are the same on all CPUs, the references of lazy CPUs, and reclaim's batches.

mod active_mm;
pub(crate) mod asids;
pub(crate) mod batch;
mod calls;
mod mask;
mod mm_count;
mod rules;

pub mod arc;
pub mod arm64;
pub mod lifetime;
pub mod riscv;
pub mod v4_12;
pub mod v4_14;
pub mod v7_0;

use core::ops::Range;
use std::rc::Rc;

use shootdown_sim::Sim;
use shootdown_vm::{Change, ExtraFlushes, Freed, Policy, ReclaimFlush, Refault, UnmapLock};

pub use batch::UnmapBatch;
pub(crate) use calls::Calls;
pub(crate) use mask::CpuMask;
pub use rules::LinuxRule;

/// The policy of Linux today. Its extra flushes were measured with 6.18 on x86: pages that may be
/// written or executed from now on; inaccessible pages, when they are unmapped; the whole space at
/// every fork, whatever changed; and pages that move, up to 2 MiB at a time, and once more for
/// tables.
pub const POLICY: Policy = Policy {
    reclaim_flush: ReclaimFlush::Batched,
    refault: Refault::Unflushed,
    extra_flushes: ExtraFlushes::PERMISSION_GAINS
        .union(ExtraFlushes::INACCESSIBLE_PAGES)
        .union(ExtraFlushes::SPACE_PER_FORK)
        .union(ExtraFlushes::TABLE_PER_MOVE),
    ..Policy::new(UnmapLock::Shared)
};

/// The policy of Linux until 4.19, with reclaim as until 4.2: pages are flushed one by one.
pub const UNBATCHED: Policy =
    Policy { unmap_lock: UnmapLock::Exclusive, reclaim_flush: ReclaimFlush::PerPage, ..POLICY };

/// A word that has a cache line to itself.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct CachePadded<T>(pub(crate) T);

/// How many pages are invalidated one by one at most; what is more is all of the space
/// (`tlb_single_page_flush_ceiling`: about 100 ns per page, 3 µs at most).
const SINGLE_PAGE_FLUSH_CEILING: u64 = 33;

/// What is to be flushed (`flush_tlb_info`).
#[derive(Clone, Debug)]
pub(crate) struct FlushInfo {
    /// `ctx_id` of the space.
    pub(crate) mm: u64,
    /// The space's mask, for a CPU that finds itself in it wrongly.
    pub(crate) cpumask: Rc<CpuMask>,
    /// `None` for all of it.
    pub(crate) range: Option<Range<u64>>,
    pub(crate) stride: u64,
    pub(crate) new_tlb_gen: u64,
    pub(crate) freed_tables: bool,
}

impl FlushInfo {
    pub(crate) fn new(mm: u64, cpumask: &Rc<CpuMask>, new_tlb_gen: u64, change: &Change) -> Self {
        let stride = change.page_size.bytes();
        let few = |range: &Range<u64>| {
            range.end.wrapping_sub(range.start) >> change.page_size.shift()
                <= SINGLE_PAGE_FLUSH_CEILING
        };
        Self {
            mm,
            cpumask: Rc::clone(cpumask),
            range: change.range.clone().filter(few),
            stride,
            new_tlb_gen,
            freed_tables: change.freed == Freed::Tables,
        }
    }

    /// All of whatever a CPU has loaded: what a batch asks for, which knows of no space.
    pub(crate) fn of_batch() -> Self {
        Self {
            mm: NO_MM,
            cpumask: Rc::new(CpuMask::new(0)),
            range: None,
            stride: 1 << 12,
            new_tlb_gen: TLB_GENERATION_INVALID,
            freed_tables: false,
        }
    }

    /// Invalidates what is loaded on this CPU: page by page, or all of it.
    pub(crate) fn invalidate(&self, sim: &Sim) {
        match &self.range {
            Some(range) => sim.invalidate(range.clone().step_by(self.stride as usize)),
            None => sim.invalidate_tag(),
        }
    }
}

/// In place of a `ctx_id`: whichever space is loaded (`NULL`).
pub(crate) const NO_MM: u64 = 0;
/// No flush of one space has it.
pub(crate) const TLB_GENERATION_INVALID: u64 = 0;
/// `ctx_id` of the kernel's own space, which has no user pages.
pub(crate) const INIT_MM: u64 = 1;
/// Between two spaces (`LOADED_MM_SWITCHING`).
pub(crate) const SWITCHING: u64 = u64::MAX;
