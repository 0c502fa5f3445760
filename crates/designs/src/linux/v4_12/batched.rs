//! Linux 4.12 with the patch of the `x86-batched-unmap` study, as merged for Linux 4.3. Reclaimed
//! pages are flushed many at a time, with one interrupt for each CPU. Everything else is
//! [`Linux412`].
//!
//! Read in the patches as posted, and as merged: `should_defer_flush`, `set_tlb_ubc_flush_pending`,
//! `try_to_unmap_flush` and `percpu_flush_tlb_batch_pages`. If another CPU is in the mask of the
//! space, a page's entry is cleared and the mask is added to the batch's. Otherwise the page is
//! flushed immediately, which interrupts no CPU. The batch's flush drops everything on this CPU, if
//! it is in the mask, and then interrupts all other members, which do the same: the batch names no
//! page and no space. A lazy CPU is also interrupted. It does not leave the space, as it would for
//! a flush of that space, so the next batch also interrupts it.
//!
//! # Differences from Linux
//!
//! - Linux 4.3 had a bug: a page that was deferred and not yet flushed was invisible to `mprotect`
//!   and `munmap`, which then flushed nothing, and other CPUs kept using the page. 3ea277194daa
//!   fixed that for 4.13 with one bit in the space. The model has the fix, but with generations
//!   (`batch.rs`), as in later Linux.
//! - In 4.3, a batch's calls used `smp_call_function_many` with a separate function. Later versions
//!   send them as flushes of no space (`flush_tlb_others`), and lazy CPUs leave their spaces.

use std::rc::Rc;

use shootdown::{BatchIsFull, StaleWrites};
use shootdown_sim::Sim;
use shootdown_vm::{Batching, Change, ReclaimFlush};

use super::{Linux412, Mm};
use crate::linux::{FlushInfo, LinuxRule, UnmapBatch};

impl Linux412 {
    /// Creates the design `unmap-batched` on this machine.
    pub fn batched(sim: Rc<Sim>) -> Self {
        Self { reclaim_flush: ReclaimFlush::Batched, ..Self::new(sim) }
    }

    /// Returns this design with a broken rule, for tests that expect the oracle to detect it.
    pub fn breaking(self, broken: Option<LinuxRule>) -> Self {
        Self { broken, ..self }
    }

    /// `try_to_unmap_flush`.
    fn try_to_unmap_flush(&self, batch: &UnmapBatch) {
        let sim = &self.sim;
        if batch.contains(sim.cpu()) {
            self.percpu_flush_tlb_batch_pages();
        }
        let targets = batch.others(sim.cpu());
        if !targets.is_empty() {
            self.calls.call(sim, &targets, &Rc::new(FlushInfo::of_batch()), || {});
        }
    }

    /// Drops everything that is loaded, lazily or not.
    pub(super) fn percpu_flush_tlb_batch_pages(&self) {
        self.sim.invalidate_tag();
    }
}

impl Batching for Linux412 {
    type Batch = UnmapBatch;

    fn add_space(&self, batch: &mut UnmapBatch, space: &Rc<Mm>) -> Result<(), BatchIsFull> {
        batch.add_space(&space.tlb_flush_batched);
        Ok(())
    }

    fn unmapped(&self, batch: &mut UnmapBatch, space: &Rc<Mm>, address: u64, _: StaleWrites) {
        // `should_defer_flush`: without other CPUs, one page flush costs less than a later full
        // one.
        if self.reclaim_flush == ReclaimFlush::PerPage
            || space.cpumask.others(self.sim.cpu()).is_empty()
        {
            return self.flush_tlb_mm_range(space, &Change::reclaimed(address));
        }
        batch.add_pending(&space.tlb_flush_batched, space.cpumask.members());
    }

    fn flush_batch(&self, batch: UnmapBatch) {
        if batch.is_flush_required() && self.broken != Some(LinuxRule::FlushBatch) {
            self.try_to_unmap_flush(&batch);
        }
        batch.finish();
    }

    fn is_batched(&self, space: &Rc<Mm>) -> bool {
        self.reclaim_flush == ReclaimFlush::Batched
            && self.broken != Some(LinuxRule::MarkBatched)
            && space.tlb_flush_batched.is_batched()
    }
}
