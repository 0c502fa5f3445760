//! What is unmapped, and flushed by CPUs that come to it by themselves: what a memory manager does
//! around that, as far as tests of designs need it.

use core::ops::Range;

use shootdown_sim::FlushRecord;
use shootdown_vm::{Change, Coherence, Freed, Later};

use super::Rig;

/// Pages that were unmapped, and are free when their flush is over.
pub(crate) struct Unmapped<C: Coherence> {
    flush: C::Deferred,
    record: FlushRecord,
    frames: Vec<u64>,
}

impl<C: Coherence> Rig<C> {
    /// `munmap` of pages, as far as they are there. `None` if that was flushed at once.
    pub(crate) fn unmap_later(&self, number: u64, pages: Range<u64>) -> Option<Unmapped<C>> {
        let space = &self.spaces[number as usize];
        let take = |page| self.sim.update_entry(space.tables[3], page as usize, |_| 0) >> 12;
        let frames: Vec<_> = pages.clone().map(take).filter(|&frame| frame != 0).collect();
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

    pub(crate) fn is_over(&self, unmapped: &Unmapped<C>) -> bool {
        self.design.is_complete(&unmapped.flush)
    }

    pub(crate) fn get_over(&self, unmapped: Unmapped<C>) {
        let Unmapped { flush, record, frames } = unmapped;
        self.design.complete(flush);
        self.free_unmapped(record, frames);
    }

    fn free_unmapped(&self, record: FlushRecord, frames: Vec<u64>) {
        self.sim.flush_ended(record);
        frames.into_iter().for_each(|frame| self.sim.release(frame));
    }
}
