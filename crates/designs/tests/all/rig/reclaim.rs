//! Pages that are taken, and who comes upon that: what a memory manager does around a batch, as far
//! as tests of designs need it.

use core::ops::Range;

use shootdown::StaleWrites;
use shootdown_sim::{FlushRecord, Purpose, Touch};
use shootdown_vm::{Change, Coherence, Freed, ReclaimFlush};

use super::Rig;

/// Pages that were taken, of any space, and are free when the batch was flushed.
pub(crate) struct Batch<C: Coherence> {
    batch: C::Batch,
    taken: Vec<(FlushRecord, u64)>,
}

impl<C: Coherence> Batch<C> {
    pub(crate) fn new() -> Self {
        Self { batch: C::Batch::default(), taken: Vec::new() }
    }
}

impl<C: Coherence> Rig<C> {
    /// Takes pages of a space, as far as they are there.
    pub(crate) fn take(&self, batch: &mut Batch<C>, number: u64, pages: Range<u64>) {
        let space = &self.spaces[number as usize];
        for page in pages {
            self.design.add_space(&mut batch.batch, &space.coherent).unwrap();
            let entry = self.sim.update_entry(space.tables[3], page as usize, |_| 0);
            if entry == 0 {
                continue;
            }
            let (address, frame) = (page << 12, entry >> 12);
            let record = self.sim.flush_began(space.tables[0], Some(address..address + 4096));
            let stale_writes = StaleWrites::Impossible;
            self.design.unmapped(&mut batch.batch, &space.coherent, address, stale_writes);
            self.sim.flush_sent();
            match self.design.policy().reclaim_flush {
                ReclaimFlush::Batched => batch.taken.push((record, frame)),
                ReclaimFlush::PerPage => {
                    self.sim.flush_ended(record);
                    self.sim.release(frame);
                }
            }
        }
    }

    pub(crate) fn flush_batch(&self, Batch { batch, taken }: Batch<C>) {
        let began_at = self.sim.now();
        let (records, frames): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
        self.sim.batch_began(&records);
        self.design.flush_batch(batch);
        self.sim.flush_sent();
        self.sim.batch_ended(records, began_at);
        frames.into_iter().for_each(|frame| self.sim.release(frame));
    }

    pub(crate) fn is_batched(&self, space: u64) -> bool {
        self.design.is_batched(&self.spaces[space as usize].coherent)
    }

    /// Which of these pages of the loaded space are not there.
    pub(crate) fn faults(&self, pages: Range<u64>) -> Vec<u64> {
        let is_gone = |page: &u64| self.sim.touch(page << 12, Touch::Read).is_err();
        pages.filter(is_gone).collect()
    }

    /// Puts a page where there is none.
    pub(crate) fn fault_in(&self, space: u64, page: u64) {
        let frame = self.sim.allocate(Purpose::Page).unwrap();
        let table = self.spaces[space as usize].tables[3];
        let fill = |entry| if entry == 0 { frame << 12 | 7 } else { entry };
        if self.sim.update_entry(table, page as usize, fill) != 0 {
            self.sim.release(frame);
        }
    }

    /// `munmap` of a page, by the only thread that does so in its space: it flushes if it has found
    /// the page, or if somebody may have just taken it.
    pub(crate) fn unmap(&self, number: u64, page: u64) {
        let space = &self.spaces[number as usize];
        let (address, entry) =
            (page << 12, self.sim.update_entry(space.tables[3], page as usize, |_| 0));
        let record = self.sim.flush_began(space.tables[0], Some(address..address + 4096));
        if self.design.is_batched(&space.coherent) || entry != 0 {
            let change = Change::range(address..address + 4096, Freed::Pages);
            let pending = self.design.flush(&space.coherent, &change);
            self.sim.flush_sent();
            self.design.wait(pending);
        }
        self.sim.flush_ended(record);
        if entry != 0 {
            self.sim.release(entry >> 12);
        }
    }
}
