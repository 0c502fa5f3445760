//! What reclaim takes, under Linux 7.0 on x86: `arch_tlbbatch_should_defer`,
//! `arch_tlbbatch_add_pending` and `arch_tlbbatch_flush`; the rest is in `linux/batch.rs`.
//!
//! A page that is put off counts as a flush of its space (`inc_mm_tlb_gen`), and its mask is added
//! to the batch's: that is all that is left of it. The batch's flush is then one of no space, of
//! all addresses. It goes to those of the mask that are not lazy, wherever they are by now; each
//! compares generations, and drops all of what it has loaded if that is behind: of a space that
//! nothing was taken from, nothing. Who has a space loaded lazily, or has kept it under another
//! tag, is behind when it comes back.
//!
//! With INVLPGB, one broadcast empties all TLBs instead, of all spaces, those included that nothing
//! was taken from (`invlpgb_flush_all_nonglobals`). Spaces with and without a global tag are alike
//! in that, and nobody is interrupted. CPUs' own tags stay behind in generation, so that what they
//! flush when they are next told, or come back, is flushed twice.
//!
//! If no other CPU is in the mask, the page is flushed at once (`flush_tlb_page`), and with a
//! global tag that is a broadcast.

use core::sync::atomic::Ordering::Relaxed;
use std::rc::Rc;

use shootdown::Word;
use shootdown_vm::{Change, Flush};

use super::{Linux70, Mm};
use crate::linux::{FlushInfo, LinuxRule, UnmapBatch};

impl Linux70 {
    /// Of `try_to_unmap_one`, what comes after the entry was cleared.
    pub(super) fn try_to_unmap(&self, batch: &mut UnmapBatch, mm: &Rc<Mm>, address: u64) {
        // `arch_tlbbatch_should_defer`.
        if mm.cpumask.others(self.cpu()).is_empty() {
            return self.flush(mm, &Change::reclaimed(address));
        }
        if self.broken != Some(LinuxRule::CountTaken) {
            // Before the mask is read: who comes later reads the entry as it is now.
            mm.tlb_gen.0.fetch_add(1, Relaxed);
        }
        batch.add_pending(&mm.tlb_flush_batched, mm.cpumask.members());
    }

    pub(super) fn arch_tlbbatch_flush(&self, batch: &UnmapBatch) {
        if !batch.is_flush_required() || self.broken == Some(LinuxRule::FlushBatch) {
            return;
        }
        if self.global.is_some() {
            return self.invlpgb_flush_all_nonglobals();
        }
        let info = Rc::new(FlushInfo::of_batch());
        let others = batch.others(self.cpu());
        let flush_here = || {
            self.sim.mask();
            self.flush_func(&info);
            self.sim.unmask();
        };
        match (others.is_empty(), batch.contains(self.cpu())) {
            (true, true) => flush_here(),
            (true, false) => {}
            (false, is_in_mask) => {
                self.prefetch_states(&others);
                let is_notified = |&cpu: &usize| self.should_flush(cpu, &info, false);
                let targets: Vec<usize> = others.into_iter().filter(is_notified).collect();
                self.calls.call(&self.sim, &targets, &info, || {
                    if is_in_mask && !self.me().lazy.get() {
                        flush_here();
                    }
                });
            }
        }
    }
}
