//! Reclaim under Linux 7.0 on x86: `arch_tlbbatch_should_defer`, `arch_tlbbatch_add_pending` and
//! `arch_tlbbatch_flush`; the rest is in `linux/batch.rs`.
//!
//! A deferred page counts as a flush of its space (`inc_mm_tlb_gen`), and the space's mask is added
//! to the batch's; nothing else is recorded. So the batch's flush names no space and all addresses.
//! It goes to those members of the mask that are not lazy, whatever they run now. Each compares
//! generations, and drops everything that it has loaded if its generation is older. A CPU that runs
//! a space without reclaimed pages drops nothing. A CPU that has a space loaded lazily, or cached
//! under another tag, finds an older generation when it next runs the space.
//!
//! With INVLPGB, one broadcast drops everything from all TLBs instead, including spaces without
//! reclaimed pages (`invlpgb_flush_all_nonglobals`). It treats spaces with and without a global tag
//! alike, and interrupts no CPU. The generations of the CPUs' own tags are not updated, so their
//! next flush or switch flushes once more.
//!
//! If no other CPU is in the mask, the page is flushed immediately (`flush_tlb_page`). With a
//! global tag, that is a broadcast.

use core::sync::atomic::Ordering::Relaxed;
use std::rc::Rc;

use shootdown::Word;
use shootdown_vm::{Change, Flush};

use super::invlpgb::flush_all_nonglobals;
use super::{Linux70, Mm};
use crate::linux::{FlushInfo, LinuxRule, UnmapBatch};

impl Linux70 {
    /// The part of `try_to_unmap_one` that follows the clearing of the entry.
    pub(super) fn try_to_unmap(&self, batch: &mut UnmapBatch, mm: &Rc<Mm>, address: u64) {
        // `arch_tlbbatch_should_defer`.
        if mm.cpumask.others(self.cpu()).is_empty() {
            return self.flush(mm, &Change::reclaimed(address));
        }
        if self.broken != Some(LinuxRule::CountUnmapped) {
            // Precedes the load of the mask: a CPU that joins the mask later walks the new entry.
            mm.tlb_gen.0.fetch_add(1, Relaxed);
        }
        batch.add_pending(&mm.tlb_flush_batched, mm.cpumask.members());
    }

    pub(super) fn arch_tlbbatch_flush(&self, batch: &UnmapBatch) {
        if !batch.is_flush_required() || self.broken == Some(LinuxRule::FlushBatch) {
            return;
        }
        if self.global.is_some() {
            return flush_all_nonglobals(&self.sim);
        }
        let info = Rc::new(FlushInfo::of_batch());
        let others = self.without_stopped(batch.others(self.cpu()));
        let flush_local = || self.sim.masked(|| self.flush_func(&info));
        match (others.is_empty(), batch.contains(self.cpu())) {
            (true, true) => flush_local(),
            (true, false) => {}
            (false, is_in_mask) => {
                self.prefetch_states(&others);
                let is_notified = |&cpu: &usize| self.should_flush(cpu, &info, false);
                let targets: Vec<usize> = others.into_iter().filter(is_notified).collect();
                self.calls.call(&self.sim, &targets, &info, || {
                    if is_in_mask && !self.me().lazy.get() {
                        flush_local();
                    }
                });
            }
        }
    }
}
