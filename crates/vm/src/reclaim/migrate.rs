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

use shootdown::BatchIsFull;

use crate::coherence::Batching;
use crate::error::BadRange;
use crate::file::File;
use crate::format::{Format, Leaf, Marks};
use crate::mappings::Announced;
use crate::platform::{EntryAt, Frame, Platform, Work};
use crate::reclaim::RECLAIM_PAGES;
use crate::reclaim::rmap::{Owner, Rmap};
use crate::space::{AddressSpace, count};
use crate::system::{Batch, System};
use crate::table::{Found, Slot, pages_of};

/// A page on its way to another node.
struct Moving<S: System> {
    address: u64,
    at: EntryAt,
    /// What the entry holds meanwhile, and what it held.
    claim: u64,
    leaf: Leaf,
    new: Frame,
    file: Option<(Arc<File<S::Platform>>, u64)>,
    flush: Announced,
}

impl<S: System> AddressSpace<S> {
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
        let Some(rmap) = &self.vm.rmap else {
            return self.mappings.areas.read().check(&range).map(|()| 0);
        };
        let is_elsewhere = |large: &Found| self.is_large_elsewhere(large, node);
        let (areas, _) = self.read_areas_split(&range, is_elsewhere);
        areas.check(&range)?;
        let mut batch = Batch::<S>::default();
        let mut moving = Vec::new();
        let mut moved = 0;
        let parts: Vec<Range<u64>> = areas
            .overlapping(&range)
            .map(|area| area.range.start.max(range.start)..area.range.end.min(range.end))
            .collect();
        'parts: for part in parts {
            for found in self.mappings.tables.entries(&self.vm.platform, part) {
                let Found { address, slot: Slot { at, level }, entry } = found;
                let leaf = if level == 0 { S::Format::as_leaf(entry) } else { None };
                let Some(leaf) = leaf.filter(|leaf| self.is_elsewhere(leaf.frame, node)) else {
                    continue;
                };
                let Ok(new) = self.vm.platform.allocate_on(node) else { break 'parts };
                match self.claim(rmap, &mut batch, address, (at, leaf), new) {
                    Some(page) => moving.push(page),
                    None => self.vm.platform.release(new),
                }
                if moving.len() == RECLAIM_PAGES {
                    moved += self.finish_batch(rmap, mem::take(&mut batch), mem::take(&mut moving));
                }
            }
        }
        Ok(moved + self.finish_batch(rmap, batch, moving))
    }

    fn is_elsewhere(&self, page: Frame, node: usize) -> bool {
        page != self.vm.zero_page && self.vm.platform.node_of(page) != node
    }

    /// Whether any part of a large page is.
    fn is_large_elsewhere(&self, large: &Found, node: usize) -> bool {
        large.leaf::<S::Format>().is_some_and(|leaf| {
            pages_of::<S::Format>(large.address, leaf.frame, large.slot.level)
                .any(|(_, page)| self.is_elsewhere(page, node))
        })
    }

    /// Claims a page that only this space maps, so that it can be moved to `new`.
    fn claim(
        &self,
        rmap: &Rmap<S>,
        batch: &mut Batch<S>,
        address: u64,
        (at, leaf): (EntryAt, Leaf),
        new: Frame,
    ) -> Option<Moving<S>> {
        let platform = &self.vm.platform;
        let file = rmap.with(leaf.frame, |record| {
            if record.mappings.len() != 1 {
                return None;
            }
            match &record.owner {
                Owner::Anonymous => Some(None),
                Owner::File(file, number) => Some(Some((file.upgrade()?, *number))),
            }
        })??;
        let (coherence, reclaim_flush) = (&self.vm.coherence, self.vm.policy.reclaim_flush);
        let announce =
            |batch: &mut Batch<S>| self.mappings.announce(coherence, batch, address, reclaim_flush);
        let flush = announce(batch).or_else(|BatchIsFull| {
            coherence.flush_batch(mem::take(batch));
            announce(batch)
        });
        let flush = flush.ok()?;
        let claim = S::Format::claim(self.claims.fetch_add(1, Relaxed));
        let mut entry = platform.load(at);
        loop {
            let Some(held) = S::Format::as_leaf(entry).filter(|held| held.frame == leaf.frame)
            else {
                self.mappings.end(flush);
                return None;
            };
            match platform.compare_exchange(at, entry, claim) {
                Ok(_) => {
                    self.mappings.unmapped(coherence, batch, address, held);
                    return Some(Moving { address, at, claim, leaf: held, new, file, flush });
                }
                // The MMU has marked it, or reclaim or another call was here.
                Err(found) => entry = found,
            }
        }
    }

    /// Puts claimed pages where they are to be, when no CPU remembers where they were. Returns how
    /// many have moved.
    fn finish_batch(&self, rmap: &Rmap<S>, batch: Batch<S>, moving: Vec<Moving<S>>) -> usize {
        self.vm.coherence.flush_batch(batch);
        let moved = moving.into_iter().filter_map(|page| self.finish_move(rmap, page)).count();
        count(&self.counters.migrated, moved);
        moved
    }

    /// `None` if the page stays.
    fn finish_move(&self, rmap: &Rmap<S>, page: Moving<S>) -> Option<()> {
        let Moving { address, at, claim, leaf, new, file, flush } = page;
        self.mappings.end(flush);
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
            self.add_mapping(new, file.as_ref().map(|(file, number)| (file, *number)), address);
            rmap.move_dirty(old, new);
            self.remove_mapping(old, address);
            rmap.forget_if(old, |_| true);
        }
        platform.release(goes);
        let entry = S::Format::leaf(Leaf { frame: stays, ..leaf });
        if platform.compare_exchange(at, claim, entry).is_err() {
            // Somebody has discarded it meanwhile, and left its end to us: no CPU has found it.
            self.leave(rmap, stays, address, leaf.marks);
        }
        if let Some((file, _)) = file {
            // Who dropped it meanwhile has left its end to us.
            self.vm.close(file);
        }
        is_ours.then_some(())
    }

    fn leave(&self, rmap: &Rmap<S>, page: Frame, address: u64, marks: Marks) {
        if marks.contains(Marks::DIRTY) {
            rmap.mark_dirty(page);
        }
        self.remove_mapping(page, address);
        self.vm.platform.release(page);
    }
}
