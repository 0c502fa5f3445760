//! Migration: pages move to the memory of another node, and keep their addresses. (Linux:
//! `migrate_pages`.)
//!
//! # Steps
//!
//! The entry of a page is claimed, as in copy-on-write, so that faults on the page are retried
//! later, and no other space can map the page. When no CPU caches the old translation, the page is
//! copied, and the entry written. So no CPU writes to the old page while it is copied. (Linux once
//! copied pages that threads could still write to: it assumed that every CPU had observed an entry
//! without permissions, while the flush that removed them was still in flight; 20841405940e, and
//! again 16af97dc5a89.)
//!
//! The areas are locked for reading from the first claim until all claims are resolved.
//! [`cow`](crate::AddressSpace::fault) describes the actions of other CPUs during a claim. Pages
//! that more than one space maps are not moved.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::ops::Range;

use shootdown::BatchIsFull;

use crate::coherence::Batching;
use crate::error::BadRange;
use crate::file::File;
use crate::format::{Format, Leaf, Marks};
use crate::mappings::Announced;
use crate::platform::{EntryAt, Frame, Platform, Work};
use crate::reclaim::rmap::{Owner, Rmap};
use crate::space::{AddressSpace, count};
use crate::system::{Batch, System};
use crate::table::{Found, Slot, change_leaf, pages_of};

/// A page that is being moved to another node.
struct Moving<S: System> {
    address: u64,
    at: EntryAt,
    /// The claim in the entry during the move.
    claim: u64,
    leaf: Leaf,
    new: Frame,
    file: Option<(Arc<File<S::Platform>>, u64)>,
    flush: Announced,
}

impl<S: System> AddressSpace<S> {
    /// Moves the pages that are mapped in `range`, and in no other space, to the memory of a node,
    /// as long as it has free frames. Returns the number of pages moved.
    ///
    /// Large pages are split first, and then move page by page. If there is no memory for their
    /// tables, they are not moved.
    ///
    /// Does nothing without [`with_reclaim`](crate::Vm::with_reclaim).
    ///
    /// # Errors
    ///
    /// [`BadRange`] if areas cannot be in all of `range`.
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
        let parts = areas.overlapping(&range).map(|area| area.part_in(&range));
        for found in parts.flat_map(|part| self.mappings.tables.entries(&self.vm.platform, part)) {
            let Found { address, slot: Slot { at, level }, entry } = found;
            let leaf = if level == 0 { S::Format::as_leaf(entry) } else { None };
            let Some(leaf) = leaf.filter(|leaf| self.is_elsewhere(leaf.frame, node)) else {
                continue;
            };
            let Ok(new) = self.vm.platform.allocate_on(node) else { break };
            match self.claim(rmap, &mut batch, address, (at, leaf), new) {
                Some(page) => moving.push(page),
                None => self.vm.platform.release(new),
            }
            if moving.len() >= self.vm.policy.migration_batch_pages {
                moved += self.finish_batch(rmap, mem::take(&mut batch), mem::take(&mut moving));
            }
        }
        Ok(moved + self.finish_batch(rmap, batch, moving))
    }

    fn is_elsewhere(&self, page: Frame, node: usize) -> bool {
        page != self.vm.zero_page && self.vm.platform.node_of(page) != node
    }

    /// Returns `true` if any part of a large page is on another node.
    fn is_large_elsewhere(&self, large: &Found, node: usize) -> bool {
        large.leaf::<S::Format>().is_some_and(|leaf| {
            pages_of::<S::Format>(large.address, leaf.frame, large.slot.level)
                .any(|(_, page)| self.is_elsewhere(page, node))
        })
    }

    /// Claims the entry of a page that only this space maps, so that the page can be moved to
    /// `new`.
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
        let claim = self.mappings.new_claim();
        platform.lock_table(at.table);
        let entry = platform.load(at);
        let claimed = change_leaf::<S::Format>(platform, Slot { at, level: 0 }, entry, |current| {
            (current.frame == leaf.frame).then_some(claim)
        });
        if let Some(leaf) = claimed {
            let sharers = self.mappings.sharers_of(platform, at.table);
            self.mappings.unmapped(coherence, batch, &flush, (address, leaf), &sharers);
        }
        platform.unlock_table(at.table);
        let Some(leaf) = claimed else {
            // Reclaim or another call has changed the entry.
            self.mappings.end(flush);
            return None;
        };
        Some(Moving { address, at, claim, leaf, new, file, flush })
    }

    /// Flushes the batch, and then moves the claimed pages. Returns the number of pages moved.
    fn finish_batch(&self, rmap: &Rmap<S>, batch: Batch<S>, moving: Vec<Moving<S>>) -> usize {
        self.vm.coherence.flush_batch(batch);
        let moved = moving.into_iter().filter_map(|page| self.finish_move(rmap, page)).count();
        count(&self.counters.migrated, moved);
        moved
    }

    /// Moves a claimed page and resolves the claim. Returns `None` if the page is not moved.
    fn finish_move(&self, rmap: &Rmap<S>, page: Moving<S>) -> Option<()> {
        let Moving { address, at, claim, leaf, new, file, flush } = page;
        self.mappings.end(flush);
        let platform = &self.vm.platform;
        let old = leaf.frame;
        let copy = || platform.copy_page(old, new);
        let is_ours = if let Some((file, number)) = &file {
            file.replace(*number, old, new, copy)
        } else {
            // The claim has the page's only count, and no fork can share the page during the claim.
            let is_ours = platform.user_count(old) == 1;
            if is_ours {
                copy();
            }
            is_ours
        };
        platform.work(Work::MovePage, 1);
        let (stays, goes) = if is_ours { (new, old) } else { (old, new) };
        if is_ours {
            self.add_mapping(new, file.as_ref().map(|(file, number)| (file, *number)), address);
            rmap.move_dirty(old, new);
            self.remove_mapping(old, address);
            rmap.forget_if(old, |_| true);
        }
        platform.release(goes);
        let entry = S::Format::leaf(Leaf { frame: stays, ..leaf });
        platform.lock_table(at.table);
        let mapped = platform.compare_exchange(at, claim, entry);
        platform.unlock_table(at.table);
        if mapped.is_err() {
            // Another call has discarded the page since the claim, and has left its release to this
            // call. No CPU has used the page in between.
            if leaf.marks.contains(Marks::DIRTY) {
                rmap.mark_dirty(stays);
            }
            self.remove_mapping(stays, address);
            platform.release(stays);
        }
        if let Some((file, _)) = file {
            // If all other references were dropped during this call, closing the file is left to
            // it.
            self.vm.close(file);
        }
        is_ours.then_some(())
    }
}
