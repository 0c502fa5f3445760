//! Reclaim on arm64 since Linux 6.6. `arch_tlbbatch_add_pending` broadcasts each page immediately
//! and does not wait; `arch_tlbbatch_flush` waits for all (`dsb ish`). Only the wait is deferred,
//! and the batch stores nothing (`arch_tlbbatch_should_defer` is true for all spaces).
//!
//! A CPU can wait only for its own broadcasts. A thread may continue on another CPU before the
//! batch is flushed, so every thread switch also waits (`__switch_to`). The model waits only if
//! broadcasts are incomplete; otherwise the barrier is part of the machine's cost of a switch. A
//! thread that finds an empty entry flushes the whole tag, as on other architectures. From 6.6 on,
//! Linux on arm64 waited there for other CPUs' broadcasts, which a barrier cannot do
//! (`arch_flush_tlb_batched_pending`; removed in 7.0).
//!
//! The patch of the `arm64-skip-broadcast` study is older. With that patch, the model flushes a
//! reclaimed page as the patch's `flush_tlb_page` does: if no other CPU is active on the space, the
//! tag is marked as stale for all other CPUs, the page is invalidated locally or not at all, and
//! nothing is left to wait for.
//!
//! If the hardware does not broadcast, pages are flushed one by one, as on 32-bit Arm, which has no
//! batches.

use std::rc::Rc;

use shootdown_sim::BroadcastScope;
use shootdown_vm::Freed;

use super::{Arm64, Mm, Reach, tag_of};
use crate::linux::{LinuxRule, UnmapBatch};

impl Arm64 {
    /// The part of `try_to_unmap_one` that follows the clearing of the entry.
    pub(super) fn try_to_unmap(&self, batch: &mut UnmapBatch, mm: &Rc<Mm>, address: u64) {
        let range = address..address + (1 << 12);
        if self.calls.is_some() {
            return self.flush_mm(mm, Some(range), Freed::Pages);
        }
        // `__flush_tlb_range_nosync`.
        self.sim.fence();
        match self.reach(mm) {
            Reach::None => {}
            Reach::Local => self.sim.invalidate(core::iter::once(address)),
            Reach::All => {
                let scope = BroadcastScope::Pages(core::slice::from_ref(&range));
                self.sim.broadcast(tag_of(&mm.context.id), scope);
                self.broadcasts_complete[self.sim.cpu()].set(false);
            }
        }
        batch.add_pending(&mm.tlb_flush_batched, []);
    }

    pub(super) fn arch_tlbbatch_flush(&self, batch: &UnmapBatch) {
        if batch.is_flush_required() {
            self.dsb_ish();
        }
    }

    /// The barrier of `__switch_to`: a thread with incomplete broadcasts may continue on another
    /// CPU.
    pub(super) fn complete_at_switch(&self) {
        let is_done = self.broadcasts_complete[self.sim.cpu()].get();
        if !is_done && self.broken != Some(LinuxRule::CompleteAtSwitch) {
            self.dsb_ish();
        }
    }

    /// Waits for all broadcasts of this CPU.
    pub(super) fn dsb_ish(&self) {
        if self.broken != Some(LinuxRule::Complete) {
            self.sim.complete_broadcasts();
            self.broadcasts_complete[self.sim.cpu()].set(true);
        }
    }
}
