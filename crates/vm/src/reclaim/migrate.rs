//! Migration: pages that move to the memory of another node, under the same addresses. (Linux:
//! `migrate_pages`.)
//!
//! # The order of things
//!
//! A page is claimed in its entry, as in copy-on-write, so that faults on it come back later, and
//! nobody can come to map it anew. When no CPU remembers where it was, it is copied, and the entry
//! written. So nothing is written to the old page while it is copied. (Linux once copied pages that
//! threads could still write to: it took an entry without permissions to be one that every CPU
//! knew of, while the flush that took them was on its way; 20841405940e, and again 16af97dc5a89.)
//!
//! The areas are locked for reading from the claims on until all of them are resolved: see
//! [`cow`](crate::AddressSpace::fault) for what others do meanwhile. Pages that more than one space
//! maps stay where they are.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use crate::PAGE_BYTES;
use crate::coherence::{Coherence, Taking};
use crate::deferred::in_flight::Flight;
use crate::error::BadRange;
use crate::file::File;
use crate::format::{Format, Leaf, Marks};
use crate::ops::large::pages_of;
use crate::platform::{EntryAt, Frame, Platform, Work};
use crate::reclaim::rmap::{Owner, Pages};
use crate::reclaim::{RECLAIM_PAGES, tell};
use crate::space::{AddressSpace, count};
use crate::table::{Found, Slot};

/// A page on its way to another node.
struct Moving<P: Platform> {
    address: u64,
    at: EntryAt,
    /// What the entry holds meanwhile, and what it held.
    claim: u64,
    leaf: Leaf,
    new: Frame,
    file: Option<(Arc<File<P>>, u64)>,
    flight: Option<Flight>,
}

impl<P: Platform, C: Coherence, F: Format> AddressSpace<P, C, F> {
    /// Moves the pages that are mapped in `range`, and in no other space, to the memory of a node,
    /// as far as there is room. Returns how many have moved.
    ///
    /// Large pages are split first, and move page by page; without memory for their tables they
    /// stay.
    ///
    /// Does nothing without [`with_reclaim`](crate::Vm::with_reclaim).
    ///
    /// # Errors
    ///
    /// If areas cannot be there.
    pub fn migrate(&self, range: Range<u64>, node: usize) -> Result<usize, BadRange> {
        self.vm.platform.work(Work::Areas, 1);
        let Some(pages) = &self.vm.pages else {
            return self.mappings.areas.read().check(&range).map(|()| 0);
        };
        let is_elsewhere = |large: &Found| self.is_large_elsewhere(large, node);
        let (areas, _) = self.read_areas_split(&range, is_elsewhere);
        areas.check(&range)?;
        let mut batch = C::Batch::default();
        let mut moving = Vec::new();
        let mut moved = 0;
        let parts: Vec<Range<u64>> = areas
            .overlapping(&range)
            .map(|area| area.range.start.max(range.start)..area.range.end.min(range.end))
            .collect();
        'parts: for part in parts {
            for found in self.mappings.tables.entries(&self.vm.platform, part) {
                let Found { address, slot: Slot { at, level }, entry } = found;
                let leaf = if level == 0 { F::as_leaf(entry) } else { None };
                let Some(leaf) = leaf.filter(|leaf| self.is_elsewhere(leaf.frame, node)) else {
                    continue;
                };
                let Ok(new) = self.vm.platform.allocate_on(node) else { break 'parts };
                match self.claim(pages, &mut batch, address, (at, leaf), new) {
                    Some(page) => moving.push(page),
                    None => self.vm.platform.release(new),
                }
                if moving.len() == RECLAIM_PAGES {
                    moved += self.arrive(pages, mem::take(&mut batch), mem::take(&mut moving));
                }
            }
        }
        Ok(moved + self.arrive(pages, batch, moving))
    }

    fn is_elsewhere(&self, page: Frame, node: usize) -> bool {
        page != self.vm.zero_page && self.vm.platform.node_of(page) != node
    }

    /// Whether any part of a large page is.
    fn is_large_elsewhere(&self, large: &Found, node: usize) -> bool {
        large.leaf::<F>().is_some_and(|leaf| {
            pages_of::<F>(large.address, leaf.frame, large.slot.level)
                .any(|(_, page)| self.is_elsewhere(page, node))
        })
    }

    /// Claims a page that only this space maps, so that it can be moved to `new`.
    fn claim(
        &self,
        pages: &Pages<P, C, F>,
        batch: &mut C::Batch,
        address: u64,
        (at, leaf): (EntryAt, Leaf),
        new: Frame,
    ) -> Option<Moving<P>> {
        let platform = &self.vm.platform;
        let file = pages.with(leaf.frame, |record| {
            if record.places.len() != 1 {
                return None;
            }
            match &record.owner {
                Owner::Anonymous => Some(None),
                Owner::File(file, number) => Some(Some((file.upgrade()?, *number))),
            }
        })??;
        // Before the entry changes: who finds it so must find this, too.
        let flight = match C::TAKING {
            Taking::FlushedAtOnce => {
                Some(self.mappings.flights.begin(&(address..address + PAGE_BYTES)))
            }
            Taking::Batched => {
                if self.vm.coherence.hold_back(batch, &self.mappings.coherent).is_err() {
                    self.vm.coherence.flush_batch(mem::take(batch));
                    self.vm.coherence.hold_back(batch, &self.mappings.coherent).ok()?;
                }
                None
            }
        };
        let claim = F::claim(self.claims.fetch_add(1, Relaxed));
        let mut entry = platform.load(at);
        loop {
            let Some(held) = F::as_leaf(entry).filter(|held| held.frame == leaf.frame) else {
                if let Some(flight) = flight {
                    self.mappings.flights.end(flight);
                }
                return None;
            };
            match platform.compare_exchange(at, entry, claim) {
                Ok(_) => {
                    tell(&self.vm.coherence, batch, &self.mappings.coherent, address, held);
                    return Some(Moving { address, at, claim, leaf: held, new, file, flight });
                }
                // The MMU has marked it, or reclaim or another call was here.
                Err(found) => entry = found,
            }
        }
    }

    /// Puts claimed pages where they are to be, when no CPU remembers where they were. Returns how
    /// many have moved.
    fn arrive(&self, pages: &Pages<P, C, F>, batch: C::Batch, moving: Vec<Moving<P>>) -> usize {
        self.vm.coherence.flush_batch(batch);
        let moved = moving.into_iter().filter_map(|page| self.put_at_new(pages, page)).count();
        count(&self.counters.migrated, moved);
        moved
    }

    /// `None` if the page stays.
    fn put_at_new(&self, pages: &Pages<P, C, F>, page: Moving<P>) -> Option<()> {
        let Moving { address, at, claim, leaf, new, file, flight } = page;
        if let Some(flight) = flight {
            self.mappings.flights.end(flight);
        }
        let platform = &self.vm.platform;
        let old = leaf.frame;
        let copy = || platform.copy_page(old, new);
        let is_ours = if let Some((file, number)) = &file {
            file.replace(*number, old, new, copy)
        } else {
            // The claim has its only count, and no fork can share it meanwhile.
            let is_ours = platform.user_count(old) == 1;
            if is_ours {
                copy();
            }
            is_ours
        };
        let (stays, goes) = if is_ours { (new, old) } else { (old, new) };
        if is_ours {
            self.note(new, file.as_ref().map(|(file, number)| (file, *number)), address);
            pages.take_over(old, new);
            self.strike_out(old, address);
            pages.forget_if(old, |_| true);
        }
        platform.release(goes);
        let entry = F::leaf(Leaf { frame: stays, ..leaf });
        if platform.compare_exchange(at, claim, entry).is_err() {
            // Somebody has discarded it meanwhile, and left its end to us: no CPU has found it.
            self.leave(pages, stays, address, leaf.marks);
        }
        if let Some((file, _)) = file {
            // Who dropped it meanwhile has left its end to us.
            self.vm.close(file);
        }
        is_ours.then_some(())
    }

    fn leave(&self, pages: &Pages<P, C, F>, page: Frame, address: u64, marks: Marks) {
        if marks.contains(Marks::DIRTY) {
            pages.mark_dirty(page);
        }
        self.strike_out(page, address);
        self.vm.platform.release(page);
    }
}
