//! Unmapped pages that CPUs flush by themselves: the part of a memory manager around deferred
//! flushes that tests of designs need.

use core::ops::Range;

use shootdown_sim::FlushRecord;
use shootdown_vm::{Change, Coherence, Freed, Later};

use super::Rig;

/// Pages that were unmapped, and that are free when their flush is complete.
pub(crate) struct Unmapped<C: Coherence> {
    flush: C::Deferred,
    record: FlushRecord,
    frames: Vec<u64>,
}

impl<C: Coherence> Rig<C> {
    /// Unmaps those of the given pages that are mapped. Returns `None` if they were flushed
    /// already.
    pub(crate) fn unmap_later(&self, number: u64, pages: Range<u64>) -> Option<Unmapped<C>> {
        let space = &self.spaces[number as usize];
        let clear = |page| self.sim.update_entry(space.tables[3], page as usize, |_| 0) >> 12;
        let frames: Vec<_> = pages.clone().map(clear).filter(|&frame| frame != 0).collect();
        let range = pages.start << 12..pages.end << 12;
        let record = self.sim.flush_began(space.tables[0], Some(range.clone()));
        let change = Change::range(range, Freed::Pages);
        let later = self.design.flush_later(&space.coherent, &change);
        self.sim.flush_sent();
        match later {
            Later::Deferred(flush) => Some(Unmapped { flush, record, frames }),
            Later::Sent(pending) => {
                self.design.wait(pending);
                self.free_unmapped(record, frames);
                None
            }
        }
    }

    pub(crate) fn is_complete(&self, unmapped: &Unmapped<C>) -> bool {
        self.design.is_complete(&unmapped.flush)
    }

    pub(crate) fn complete(&self, unmapped: Unmapped<C>) {
        let Unmapped { flush, record, frames } = unmapped;
        self.design.complete(flush);
        self.free_unmapped(record, frames);
    }

    fn free_unmapped(&self, record: FlushRecord, frames: Vec<u64>) {
        self.sim.flush_ended(record);
        frames.into_iter().for_each(|frame| _ = self.sim.release(frame));
    }
}
