//! What reclaim takes, on arm64 since Linux 6.6: `arch_tlbbatch_add_pending` broadcasts each page
//! at once, and does not wait; `arch_tlbbatch_flush` waits for all (`dsb ish`). Nothing is put off
//! but the wait, and the batch holds nothing (`arch_tlbbatch_should_defer` is true of all spaces).
//!
//! A CPU waits for its own broadcasts alone. So that a thread may go on elsewhere before the batch
//! is flushed, every switch of threads waits, too (`__switch_to`). Here one does only if there is
//! something to wait for: otherwise the barrier is part of what a switch costs on the machine. And
//! who finds an entry empty flushes all of the tag, as on other architectures: to wait for others'
//! broadcasts, as Linux did on arm64 from 6.6 on, waits for nothing
//! (`arch_flush_tlb_batched_pending`; gone in 7.0).
//!
//! Seed 003 is older than all this. With it, a page is taken here as its `flush_tlb_page` flushes
//! one: where nobody else is active on the space, the tag is marked as stale for all others and the
//! page is invalidated locally, if at all, and then there is nothing left to wait for.
//!
//! Where the hardware does not broadcast, pages are flushed one by one, as by 32-bit Arm, which has
//! no batches.

use std::rc::Rc;

use shootdown_sim::BroadcastScope;
use shootdown_vm::Freed;

use super::{Arm64, Mm, Reach, tag_of};
use crate::linux::{LinuxRule, UnmapBatch};

impl Arm64 {
    /// Of `try_to_unmap_one`, what comes after the entry was cleared.
    pub(super) fn try_to_unmap(&self, batch: &mut UnmapBatch, mm: &Rc<Mm>, address: u64) {
        let range = address..address + (1 << 12);
        if self.calls.is_some() {
            return self.flush_mm(mm, Some(range), Freed::Pages);
        }
        // `__flush_tlb_range_nosync`.
        self.sim.fence();
        match self.reach(mm) {
            Reach::Nobody => {}
            Reach::Local => self.sim.invalidate(core::iter::once(address)),
            Reach::Everyone => {
                let scope = BroadcastScope::Pages(core::slice::from_ref(&range));
                self.sim.broadcast(tag_of(&mm.context.id), scope);
                self.is_waited_for[self.sim.cpu()].set(false);
            }
        }
        batch.add_pending(&mm.tlb_flush_batched, []);
    }

    pub(super) fn arch_tlbbatch_flush(&self, batch: &UnmapBatch) {
        if batch.is_flush_required() {
            self.dsb_ish();
        }
    }

    /// Of `__switch_to`, the barrier: whose broadcasts are not complete may go on elsewhere.
    pub(super) fn complete_at_switch(&self) {
        let is_done = self.is_waited_for[self.sim.cpu()].get();
        if !is_done && self.broken != Some(LinuxRule::CompleteAtSwitch) {
            self.dsb_ish();
        }
    }

    /// Waits for all that this CPU has broadcast.
    pub(super) fn dsb_ish(&self) {
        if self.broken != Some(LinuxRule::Complete) {
            self.sim.complete_broadcasts();
            self.is_waited_for[self.sim.cpu()].set(true);
        }
    }
}
