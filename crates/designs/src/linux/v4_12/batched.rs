//! With seed 004, as merged for Linux 4.3: what reclaim takes is flushed many pages at a time, by
//! one interrupt for each CPU. In all else it is [`Linux412`].
//!
//! Read in the patches as posted, and as merged: `should_defer_flush`, `set_tlb_ubc_flush_pending`,
//! `try_to_unmap_flush` and `percpu_flush_tlb_batch_pages`. If another CPU is in the mask of the
//! space, a page's entry is cleared, and the mask added to the batch's; if none is, the page is
//! flushed at once, which interrupts nobody. The batch's flush empties this CPU's TLB, if it is in
//! the mask, and then interrupts all others there, each of which empties its own: the batch knows
//! of no page and no space. A lazy CPU is told, too. It does not leave, as it would if told of one
//! space, and so it is told of the next batch as well.
//!
//! # What differs
//!
//! - Linux 4.3 had a bug: a page that was put off and not yet flushed was not there for `mprotect`
//!   and `munmap`, which then flushed nothing, and other CPUs went on using it. 3ea277194daa mended
//!   that for 4.13, by a mark on the space, and it is mended here; by generations, as later Linux
//!   has them (`batch.rs`), where 4.13 had one bit.
//! - A batch's calls went by `smp_call_function_many` in 4.3, with a function of their own. Later
//!   versions send them as all flushes (`flush_tlb_others`, of no space), and lazy CPUs leave.

use std::rc::Rc;

use shootdown::{BatchIsFull, StaleWrites};
use shootdown_sim::Sim;
use shootdown_vm::{Batching, Change, ReclaimFlush};

use super::{Linux412, Mm};
use crate::design::{Design, Purpose};
use crate::linux::{FlushInfo, LinuxRule, UnmapBatch};

impl Design {
    /// Linux with seed 004: one interrupt for each CPU and batch of pages.
    pub const UNMAP_BATCHED: Self =
        Self::new("unmap-batched", Purpose::Reclaim, |sim| Linux412::batched(sim).into());
}

impl Linux412 {
    /// With seed 004, on this machine: `unmap-batched`.
    #[must_use]
    pub fn batched(sim: Rc<Sim>) -> Self {
        Self { reclaim_flush: ReclaimFlush::Batched, ..Self::new(sim) }
    }

    /// The same, but that it breaks a rule, for tests that expect the oracle to notice.
    #[must_use]
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

    /// Whatever is loaded, lazily or not.
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
        // `should_defer_flush`: to flush one page here costs less than to flush all later.
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
