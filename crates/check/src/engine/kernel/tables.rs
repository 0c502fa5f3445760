//! Operations that remove page tables from a space, and free them.

use shootdown::{Extent, Gather, PageSize};

use super::super::Fault;
use super::super::hostile::covers;
use super::free_list::{FreeList, Freed};
use super::{InFlight, Kernel, KernelSpace};
use crate::hardware::{Entry, PAGES};
use crate::interrupt_oracle::FlushScope;
use crate::machine::with_machine;
use crate::sometimes::Sometimes;

/// The size of a large page, which an entry of a root maps.
const LARGE: PageSize = PageSize::from_shift(12 + PAGES.ilog2() as u8);

impl<const LIFETIME: u8, const WORDS: usize> Kernel<'_, LIFETIME, WORDS> {
    /// Removes a table, and invalidates on all CPUs that may walk it. Returns `true` if it was
    /// there.
    pub(super) fn unmap_table(&self, space: usize, slot: usize) -> bool {
        let KernelSpace { tables, in_flight, .. } = &self.spaces[space];
        let _in_flight = InFlight::begin(in_flight);
        let Some(table) = tables.remove_table(slot) else { return false };
        let pages = self.unmap_pages(space, slot);
        let is_faulty = self.fault == Some(Fault::LargeStride);
        let size = if is_faulty { LARGE } else { PageSize::SIZE_4K };
        let extent = of_slot(slot, size).freeing_tables();
        self.flush(space, extent, self.stale_entries(space, extent));
        self.free(pages);
        with_machine(|machine| machine.free_table(table));
        true
    }

    /// Unmaps all pages of a table.
    fn unmap_pages(&self, space: usize, slot: usize) -> FreeList {
        let mut pages = FreeList::default();
        for number in slot * PAGES..(slot + 1) * PAGES {
            let entry = self.spaces[space].tables.swap(number, Entry::EMPTY);
            let frame = entry.target();
            pages.extend(entry.is_present().then_some(Freed::Page { space, number, frame }));
        }
        pages
    }

    /// Removes a table, and frees it when no lazy CPU can walk it.
    pub(super) fn free_table(&self, space: usize, slot: usize) {
        let KernelSpace { space: own, tables, in_flight, quarantine, .. } = &self.spaces[space];
        let _in_flight = InFlight::begin(in_flight);
        let Some(table) = tables.remove_table(slot) else { return };
        let mut gather: Gather<FreeList> = Gather::new();
        for freed in self.unmap_pages(space, slot) {
            if let Freed::Page { number, .. } = freed {
                gather.page((number as u64) << 12, PageSize::SIZE_4K, freed);
            }
        }
        gather.table(((slot * PAGES) as u64) << 12, Freed::Table(table));
        // A page that another CPU has unmapped is flushed by that CPU.
        let extents = *gather.extents();
        let is_gathered = |it| extents.as_slice().iter().any(|&extent| covers(extent, it));
        let stale_entries =
            with_machine(|machine| machine.stale_entries(tables.root(), is_gathered));
        let send = || self.pinned(|pin| gather.send(pin, own)).wait();
        let flushed = with_machine(|machine| {
            let flushed = machine.flushing(tables.root(), FlushScope::Pages, send);
            machine.complete_flush(stale_entries);
            flushed
        });
        let mut free = FreeList::default();
        let count_before = quarantine.borrow().table_count();
        let result = flushed.release(&mut quarantine.borrow_mut(), |freed| free.extend(freed));
        let count = quarantine.borrow().table_count();
        with_machine(|machine| {
            machine.observe((free.into_iter().count() as u64) << 8 | count as u64);
            if count > count_before {
                machine.reach(Sometimes::QuarantinedTable);
            }
        });
        self.free(free);
        if let Err(tables) = result {
            self.flush_walkers(space, tables);
        }
    }

    /// Makes all CPUs forget their pointers to these tables and to those in quarantine, and frees
    /// all.
    pub(super) fn flush_walkers(&self, space: usize, tables: FreeList) {
        let KernelSpace { space: own, quarantine, .. } = &self.spaces[space];
        let mut pending = self.pinned(|pin| pin.flush_walkers(own));
        let horizon = pending.horizon();
        pending.wait();
        if tables.into_iter().next().is_some() {
            with_machine(|machine| machine.reach(Sometimes::FlushedWalkers));
        }
        self.free(tables);
        loop {
            let cleared = quarantine.borrow_mut().take_cleared(horizon);
            with_machine(|machine| machine.observe(u64::from(cleared.is_some())));
            let Some((_, tables)) = cleared else { return };
            self.free(tables);
        }
    }

    /// Replaces a table by a large page, and unmaps the large page.
    pub(super) fn unmap_large(&self, space: usize, slot: usize) {
        let KernelSpace { tables, in_flight, large_frames, .. } = &self.spaces[space];
        let frame = large_frames.expect("a program with this operation has them")[slot];
        // Break before make: the slot stays empty until all CPUs have forgotten the table.
        if self.unmap_table(space, slot) {
            tables.map_large(slot, frame);
        }
        let _in_flight = InFlight::begin(in_flight);
        if let Some(frame) = tables.remove_large(slot) {
            let extent = of_slot(slot, LARGE);
            self.flush(space, extent, self.stale_entries(space, extent));
            with_machine(|machine| {
                machine.reuse_frame(frame);
                machine.reach(Sometimes::UnmappedLargePage);
            });
        }
    }
}

/// Returns the range that an entry of the root maps, in pages of a size.
const fn of_slot(slot: usize, size: PageSize) -> Extent {
    let start = ((slot * PAGES) as u64) << 12;
    Extent::range(start..start + LARGE.bytes(), size)
}
