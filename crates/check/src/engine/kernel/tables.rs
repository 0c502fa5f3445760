//! Page tables that are taken out of a space, and what becomes of them.

use shootdown::{Extent, Gather, PageSize};

use super::super::hostile::covers;
use super::bag::{Bag, Freed};
use super::{Flight, Kernel, KernelSpace};
use crate::flush_scope::FlushScope;
use crate::hardware::{Entry, PAGES};
use crate::sometimes::Sometimes;
use crate::world::with_world;

/// The size of what an entry of a root maps.
const LARGE: PageSize = PageSize::from_shift(12 + PAGES.ilog2() as u8);

impl<const LIFETIME: u8, const WORDS: usize> Kernel<'_, LIFETIME, WORDS> {
    /// Takes a table out, and has all CPUs told that may walk it. Returns whether it was there.
    pub(super) fn unmap_table(&self, space: usize, slot: usize) -> bool {
        let KernelSpace { tables, flights, .. } = &self.spaces[space];
        let _flight = Flight::begin(flights);
        let Some(table) = tables.take_table(slot) else { return false };
        let bag = self.take_pages(space, slot);
        let extent = of_slot(slot, PageSize::SIZE_4K).freeing_tables();
        self.flush(space, extent, self.outdated(space, extent));
        self.free(bag);
        with_world(|world| world.free_table(table));
        true
    }

    /// Takes all pages out of a table.
    fn take_pages(&self, space: usize, slot: usize) -> Bag {
        let mut bag = Bag::default();
        for number in slot * PAGES..(slot + 1) * PAGES {
            let entry = self.spaces[space].tables.swap(number, Entry::EMPTY);
            let frame = entry.target();
            bag.extend(entry.is_present().then_some(Freed::Page { space, number, frame }));
        }
        bag
    }

    /// Takes a table out, and frees it when no lazy CPU walks it any more.
    pub(super) fn free_table(&self, space: usize, slot: usize) {
        let KernelSpace { space: own, tables, flights, quarantine, .. } = &self.spaces[space];
        let _flight = Flight::begin(flights);
        let Some(table) = tables.take_table(slot) else { return };
        let mut gather: Gather<Bag> = Gather::new();
        for freed in self.take_pages(space, slot) {
            if let Freed::Page { number, .. } = freed {
                gather.page((number as u64) << 12, PageSize::SIZE_4K, freed);
            }
        }
        gather.table(((slot * PAGES) as u64) << 12, Freed::Table(table));
        // A page that another CPU has taken is that CPU's to flush.
        let extents = *gather.extents();
        let is_gathered = |it| extents.as_slice().iter().any(|&extent| covers(extent, it));
        let outdated = with_world(|world| world.outdated(tables.root(), is_gathered));
        let send = || self.pinned(|pin| gather.send(pin, own)).wait();
        let flushed = with_world(|world| {
            let flushed = world.flushing(tables.root(), FlushScope::Pages, send);
            world.flush_is_done(outdated);
            flushed
        });
        let mut free = Bag::default();
        let held_before = quarantine.borrow().table_count();
        let result = flushed.release(&mut quarantine.borrow_mut(), |bag| free.extend(bag));
        let held = quarantine.borrow().table_count();
        with_world(|world| {
            world.see((free.into_iter().count() as u64) << 8 | held as u64);
            if held > held_before {
                world.reach(Sometimes::HeldTableBack);
            }
        });
        self.free(free);
        if let Err(tables) = result {
            self.flush_walkers(space, tables);
        }
    }

    /// Has all CPUs forget the way to what is in quarantine, and to these tables, and frees all.
    pub(super) fn flush_walkers(&self, space: usize, tables: Bag) {
        let KernelSpace { space: own, quarantine, .. } = &self.spaces[space];
        let mut pending = self.pinned(|pin| pin.flush_walkers(own));
        let horizon = pending.horizon();
        pending.wait();
        if tables.into_iter().next().is_some() {
            with_world(|world| world.reach(Sometimes::Expelled));
        }
        self.free(tables);
        loop {
            let cleared = quarantine.borrow_mut().take_cleared(horizon);
            with_world(|world| world.see(u64::from(cleared.is_some())));
            let Some((_, tables)) = cleared else { return };
            self.free(tables);
        }
    }

    /// Puts a large page where a table is, and takes it away.
    pub(super) fn unmap_large(&self, space: usize, slot: usize) {
        let KernelSpace { tables, flights, large_frames, .. } = &self.spaces[space];
        let frame = large_frames.expect("they are made where this is done")[slot];
        // Break before make: nothing is there until all CPUs have forgotten the table.
        if self.unmap_table(space, slot) {
            tables.map_large(slot, frame);
        }
        let _flight = Flight::begin(flights);
        if let Some(frame) = tables.take_large(slot) {
            let extent = of_slot(slot, LARGE);
            self.flush(space, extent, self.outdated(space, extent));
            with_world(|world| {
                world.reuse_frame(frame);
                world.reach(Sometimes::UnmappedLargePage);
            });
        }
    }
}

/// What an entry of the root maps, in pages of a size.
const fn of_slot(slot: usize, size: PageSize) -> Extent {
    let start = ((slot * PAGES) as u64) << 12;
    Extent::range(start..start + LARGE.bytes(), size)
}
