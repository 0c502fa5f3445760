//! The mark of a space from which batches have unmapped pages that are not flushed yet.

use core::sync::atomic::Ordering::Relaxed;

use crate::base::memory::{Word, order};
use crate::base::rules::Rule;
use crate::parts::extent::Extent;
use crate::path::pending::Pending;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

impl<M: Machine> Space<M> {
    /// Returns `true` if a batch has unmapped pages of this space, and their flush is not yet done.
    ///
    /// Call this after changing page tables of the space, or use [`PinnedCpu::flush_if_batched`].
    /// See [`Rule::BatchedAcquire`].
    #[inline]
    pub fn is_batched(&self, machine: &M) -> bool {
        self.batched.load(order(machine, Rule::BatchedAcquire)) != 0
    }

    /// Marks the space, before a batch unmaps pages of it.
    pub(super) fn mark_batched(&self, machine: &M) {
        if !machine.breaks(Rule::MarkBatched) {
            // Relaxed: the kernel clears the entry after this, with release.
            self.batched.fetch_add(1, Relaxed);
        }
    }

    /// Removes the mark of one batch, when no CPU uses the pages that the batch unmapped. See
    /// [`Rule::BatchedRelease`].
    pub(super) fn unmark_batched(&self, machine: &M) {
        if !machine.breaks(Rule::MarkBatched) {
            self.batched.fetch_add(1_u64.wrapping_neg(), order(machine, Rule::BatchedRelease));
        }
    }
}

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Flushes `extent` of `space`, if a [`Batch`](crate::Batch) has unflushed pages of the
    /// space. (Linux: `flush_tlb_batched_pending`.)
    ///
    /// Call this after changing page tables, if you found nothing to flush where reclaim may just
    /// have unmapped a page. When the returned [`Pending`] is done, no CPU uses that page. If you
    /// also have entries to flush, then check [`Space::is_batched`] and do one
    /// [`flush`](Self::flush) of the whole extent of the operation, which covers both.
    pub fn flush_if_batched(&self, space: &Space<M>, extent: Extent) -> Pending<'e, M> {
        if space.is_batched(self.machine()) {
            self.flush(space, extent)
        } else {
            Pending::done(self.engine)
        }
    }
}
