//! Parts that the Linux designs share: sets of CPUs, calls to other CPUs, descriptions of flushes,
//! global tags, the references of lazy CPUs, and reclaim's batches.

mod active_mm;
pub(crate) mod asids;
pub(crate) mod batch;
mod calls;
mod gathers;
mod mask;
mod mm_count;
mod release;
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

use shootdown::PageSize;
use shootdown_sim::{BroadcastScope, Sim};
use shootdown_vm::{
    Cause, Change, ExtraFlushes, FaultLock, Freed, Policy, ReclaimFlush, Refault, UnmapLock,
};

pub use batch::UnmapBatch;
pub(crate) use calls::Calls;
pub(crate) use mask::CpuMask;
pub use release::version;
pub use rules::LinuxRule;

/// Number of pages that Linux migrates with one flush, since 6.3 (`NR_MAX_BATCHED_MIGRATION`).
const MIGRATION_BATCH_PAGES: usize = 512;

/// The policy of Linux today. Its extra flushes were measured with 6.18 on x86: for pages that
/// become writable or executable; for inaccessible pages, when they are unmapped; for the whole
/// space at every fork; for pages that move, up to 2 MiB at a time, and once more for tables; and
/// for shared pages that were written, when they are unmapped, up to 2 MiB at a time.
pub const POLICY: Policy = Policy {
    fault_lock: FaultLock::Area,
    reclaim_flush: ReclaimFlush::Batched,
    migration_batch_pages: MIGRATION_BATCH_PAGES,
    refault: Refault::Unflushed,
    extra_flushes: ExtraFlushes::PERMISSION_GAINS
        .union(ExtraFlushes::INACCESSIBLE_PAGES)
        .union(ExtraFlushes::SPACE_PER_FORK)
        .union(ExtraFlushes::WRITTEN_SHARED_PAGES)
        .union(ExtraFlushes::TABLE_PER_MOVE),
    ..Policy::new(UnmapLock::Shared)
};

/// The policy of Linux until 4.19, with the reclaim of Linux until 4.2: pages are flushed one by
/// one. So are pages that migrate, until 6.2.
pub const UNBATCHED: Policy = Policy {
    fault_lock: FaultLock::Space,
    unmap_lock: UnmapLock::Exclusive,
    reclaim_flush: ReclaimFlush::PerPage,
    migration_batch_pages: 1,
    ..POLICY
};

/// A word that has its own cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct CachePadded<T>(pub(crate) T);

/// Largest number of pages that are invalidated one by one. A flush of more pages drops all of the
/// space (`tlb_single_page_flush_ceiling`: about 100 ns per page, 3 µs at most).
const SINGLE_PAGE_FLUSH_CEILING: u64 = 33;

/// Description of a flush (`flush_tlb_info`).
#[derive(Clone, Debug)]
pub(crate) struct FlushInfo {
    /// `ctx_id` of the space.
    pub(crate) mm: u64,
    /// The space's mask, from which a CPU that does not use the space removes itself.
    pub(crate) cpumask: Rc<CpuMask>,
    /// The range; `None` for the whole space.
    pub(crate) range: Option<Range<u64>>,
    pub(crate) stride: u64,
    pub(crate) new_tlb_gen: u64,
    pub(crate) freed_tables: bool,
}

impl FlushInfo {
    pub(crate) fn new(mm: u64, cpumask: &Rc<CpuMask>, new_tlb_gen: u64, change: &Change) -> Self {
        // A split flushes the large page in steps of small ones (`flush_pmd_tlb_range`, which is
        // `flush_tlb_range` here).
        let page_size = match change.cause {
            Cause::Split => PageSize::SIZE_4K,
            _ => change.page_size,
        };
        let shift = page_size.shift();
        Self {
            mm,
            cpumask: Rc::clone(cpumask),
            range: change
                .range
                .clone()
                .filter(|range| pages(range, shift) <= SINGLE_PAGE_FLUSH_CEILING),
            stride: page_size.bytes(),
            new_tlb_gen,
            freed_tables: change.freed == Freed::Tables,
        }
    }

    /// The flush of a range of 4 KiB pages. If it has more than `max_pages`, or `range` is `None`,
    /// the flush of the whole space.
    pub(crate) fn small_pages(
        mm: u64,
        cpumask: &Rc<CpuMask>,
        range: Option<Range<u64>>,
        max_pages: u64,
    ) -> Self {
        Self {
            mm,
            cpumask: Rc::clone(cpumask),
            range: range.filter(|range| pages(range, 12) <= max_pages),
            stride: 1 << 12,
            new_tlb_gen: TLB_GENERATION_INVALID,
            freed_tables: false,
        }
    }

    /// The flush of a batch, which names no space: it drops everything that a CPU has loaded.
    pub(crate) fn of_batch() -> Self {
        Self::small_pages(NO_MM, &Rc::new(CpuMask::new(0)), None, 0)
    }

    /// Invalidates the loaded space on this CPU, page by page or completely.
    pub(crate) fn invalidate(&self, sim: &Sim) {
        match &self.range {
            Some(range) => sim.invalidate(range.clone().step_by(self.stride as usize)),
            None => sim.invalidate_tag(),
        }
    }

    /// The entries that a broadcast of this flush drops.
    pub(crate) fn broadcast_scope(&self) -> BroadcastScope<'_> {
        match self.range.as_ref().map(core::slice::from_ref) {
            Some(range) if self.freed_tables => BroadcastScope::Tables(range),
            Some(range) => BroadcastScope::Pages(range),
            None => BroadcastScope::Tag,
        }
    }
}

/// Number of pages of 2^`shift` bytes in a range.
const fn pages(range: &Range<u64>, shift: u8) -> u64 {
    range.end.wrapping_sub(range.start) >> shift
}

/// Stands for any loaded space in place of a `ctx_id` (`NULL`).
pub(crate) const NO_MM: u64 = 0;
/// A generation that no flush of one space has.
pub(crate) const TLB_GENERATION_INVALID: u64 = 0;
/// `ctx_id` of the kernel's own space, which has no user pages.
pub(crate) const INIT_MM: u64 = 1;
/// Stands for a CPU that is between two spaces (`LOADED_MM_SWITCHING`).
pub(crate) const SWITCHING: u64 = u64::MAX;
