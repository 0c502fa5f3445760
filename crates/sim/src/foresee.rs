//! Foresight while the machine runs: see [`Foresight`].

use core::cell::RefCell;

use crate::foresight::{Foresight, LeftOut};
use crate::sim::Sim;
use crate::tlb::Translation;

impl Sim {
    /// Makes [`will_not_use`](Self::will_not_use) answer from what earlier runs have recorded in
    /// `foresight`. Call this before the run.
    pub fn foresee(&self, foresight: Foresight) {
        let left_out = LeftOut::new(foresight, self.machine.cpu_count());
        let _ = self.left_out.set(RefCell::new(left_out));
    }

    /// Returns `true` if `target` will not use any translation that the flush which this CPU has
    /// begun removes, as far as earlier runs show. `false` without [foresight](Self::foresee), and
    /// for flushes that free page tables of which the target holds entries.
    #[must_use]
    pub fn will_not_use(&self, target: usize) -> bool {
        let Some(left_out) = self.left_out.get() else { return false };
        let (flushing, number) = {
            let cpu = &self.clock.borrow().cpus[self.cpu()];
            (cpu.flushing.clone(), cpu.flush_number)
        };
        let Some(flushing) = flushing else { return false };
        let key = (self.cpu(), number, target);
        left_out.borrow_mut().leave_out(key, &flushing.flushes, &self.tlbs.borrow()[target])
    }

    /// Records that this CPU has used an old translation. Returns `true` if an interrupt that was
    /// left out would have removed it.
    pub(crate) fn foresee_use(&self, address: u64, used: &Translation) -> bool {
        let Some(left_out) = self.left_out.get() else { return false };
        left_out.borrow().note_use(self.cpu(), address, used)
    }
}
