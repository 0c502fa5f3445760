//! Reclaimed pages, and operations that find their entries empty: the part of a memory manager
//! around a batch that tests of designs need.

use core::ops::Range;

use shootdown::StaleWrites;
use shootdown_sim::{FlushRecord, Purpose, Touch};
use shootdown_vm::{Change, Coherence, Freed, ReclaimFlush};

use super::Rig;

/// Pages of any spaces that were reclaimed, and that are free when the batch was flushed.
pub(crate) struct Batch<C: Coherence> {
    batch: C::Batch,
    reclaimed: Vec<(FlushRecord, u64)>,
}

/// A batch that waits for the reuse of its frames.
pub(crate) struct Waiting<C: Coherence> {
    flush: C::Deferred,
    reclaimed: Vec<(FlushRecord, u64)>,
}

impl<C: Coherence> Batch<C> {
    pub(crate) fn new() -> Self {
        Self { batch: C::Batch::default(), reclaimed: Vec::new() }
    }
}

impl<C: Coherence> Rig<C> {
    /// Reclaims those of the given pages of a space that are mapped.
    pub(crate) fn reclaim(&self, batch: &mut Batch<C>, number: u64, pages: Range<u64>) {
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
                ReclaimFlush::Batched => batch.reclaimed.push((record, frame)),
                ReclaimFlush::PerPage => {
                    self.sim.flush_ended(record);
                    self.sim.release(frame);
                }
            }
        }
    }

    pub(crate) fn flush_batch(&self, Batch { batch, reclaimed }: Batch<C>) {
        let began_at = self.sim.now();
        let (records, frames): (Vec<_>, Vec<_>) = reclaimed.into_iter().unzip();
        self.sim.batch_began(&records);
        self.design.flush_batch(batch);
        self.sim.flush_sent();
        self.sim.batch_ended(records, began_at);
        frames.into_iter().for_each(|frame| _ = self.sim.release(frame));
    }

    /// Lets a batch wait until its frames are needed, if the design does so.
    pub(crate) fn defer_batch(&self, Batch { batch, reclaimed }: Batch<C>) -> Waiting<C> {
        let records: Vec<_> = reclaimed.iter().map(|(record, _)| record.clone()).collect();
        self.sim.batch_began(&records);
        let flush = self.design.defer_batch(batch).expect("the design defers batches");
        self.sim.flush_sent();
        Waiting { flush, reclaimed }
    }

    /// Flushes a batch that waits, and frees its frames.
    pub(crate) fn complete_batch(&self, Waiting { flush, reclaimed }: Waiting<C>) {
        let began_at = self.sim.now();
        let (records, frames): (Vec<_>, Vec<_>) = reclaimed.into_iter().unzip();
        self.sim.batch_began(&records);
        self.design.complete(flush);
        self.sim.flush_sent();
        self.sim.batch_ended(records, began_at);
        frames.into_iter().for_each(|frame| _ = self.sim.release(frame));
    }

    pub(crate) fn is_batched(&self, space: u64) -> bool {
        self.design.is_batched(&self.spaces[space as usize].coherent)
    }

    /// Those of the given pages of the loaded space that fault.
    pub(crate) fn faults(&self, pages: Range<u64>) -> Vec<u64> {
        let faults = |page: &u64| self.sim.touch(page << 12, Touch::Read).is_err();
        pages.filter(faults).collect()
    }

    /// Puts translations of pages of the loaded space into the TLB, without their accessed bits.
    pub(crate) fn insert(&self, space: u64, pages: Range<u64>) {
        let table = self.spaces[space as usize].tables[3];
        pages.for_each(|page| self.sim.insert_translation(table, page << 12));
    }

    /// Maps a page if none is mapped.
    pub(crate) fn fault_in(&self, space: u64, page: u64) {
        let frame = self.sim.allocate(Purpose::Page).unwrap();
        let table = self.spaces[space as usize].tables[3];
        let fill = |entry| if entry == 0 { frame << 12 | 7 } else { entry };
        if self.sim.update_entry(table, page as usize, fill) != 0 {
            self.sim.release(frame);
        }
    }

    /// Unmaps a page as `munmap`. Only one thread calls it for a space. It flushes if the page was
    /// mapped, or if reclaim may have just unmapped it.
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
