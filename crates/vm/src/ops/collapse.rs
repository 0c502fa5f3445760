//! Collapsing: a large page replaces 512 small pages, and needs one TLB entry instead of 512.
//! (Linux: `MADV_COLLAPSE`, `collapse_huge_page`.)
//!
//! # Steps
//!
//! 1. Check the small pages, and allocate the large one. Every reason not to collapse is found
//!    here, before anything is changed.
//! 2. Empty the entries of the small pages, and then the entry of their table, which is no longer
//!    needed.
//! 3. Make all CPUs drop the small pages, and the path to the table, and wait for them.
//! 4. Copy, only now. A CPU that still had a small page cached could write to it after its word was
//!    copied, and the write would be lost.
//! 5. Write the large leaf to the entry of the table, not before the flush. Otherwise a CPU could
//!    hold the large page together with small ones (*break before make*), and read from one of them
//!    after another CPU had written to the other. This includes lazy CPUs, unless the machine
//!    [tolerates both sizes](shootdown::Machine::tolerates_mixed_sizes).
//!
//! The table is freed as any unhooked table: when no CPU can walk it any more. A lazy CPU that was
//! not notified may walk the table until then, and finds 512 empty entries. (Linux keeps the
//! entries until it has copied, interrupts lazy CPUs also, and then keeps the table for the split
//! of the page.)
//!
//! # Locks
//!
//! The space is locked for writing, and the area detached, for one large page at a time, as in
//! Linux. So there are no claims, no faults, and no fork that would share a page. A weaker lock
//! would not do: faults would have to be kept from making the table again, at a level where they
//! look for no claims. The same holds for operations that discard or protect pages while no table
//! refers to them.
//!
//! Reclaim takes no lock. If it unmaps a page before step 2, it leaves an empty entry, and the page
//! is zeros from then on, as if reclaim had come a moment earlier. Reclaim's flush may not be
//! complete, but the flush of step 3 then covers the page, as always if the space [is
//! batched](Batching::is_batched). From step 2 on, reclaim finds the entries empty and the pages'
//! mappings removed. They are removed before the table can be freed, which reclaim may be reading
//! while it holds the lock of a page's record.

use alloc::vec::Vec;
use core::ops::Range;

use crate::area::Protection;
use crate::areas::Areas;
use crate::coherence::Cause;
use crate::error::BadRange;
use crate::format::{EMPTY, Format, Leaf, Marks};
use crate::gather::Gather;
use crate::platform::{EntryAt, Frame, OutOfMemory, Platform, Work};
use crate::space::{AddressSpace, count};
use crate::system::System;
use crate::table::{Slot, pages_of};
use crate::{LARGE_PAGE_BYTES, PAGE_BYTES};

/// The level of the large pages that are made.
const LEVEL: usize = 1;

impl<S: System> AddressSpace<S> {
    /// Makes large pages from the small pages in `range`. Each block of [`LARGE_PAGE_BYTES`], at a
    /// multiple of that size, is collapsed if it lies in one anonymous private area. Returns the
    /// number of large pages made.
    ///
    /// A block with a page that is shared with another space is left as it is. At least one page of
    /// the block must have been written. Pages that were not written are zeros, and occupy memory
    /// from now on. (Linux: `max_ptes_none`, which is also 511.) If no [large
    /// frame](Platform::allocate_large) is available, all remaining blocks are left as they are.
    ///
    /// The contents of pages that were [freed by advice](crate::Advice::Free) are kept, as if they
    /// had been written since.
    ///
    /// # Errors
    ///
    /// [`BadRange`] if areas cannot be in all of `range`.
    pub fn collapse(&self, range: Range<u64>) -> Result<usize, BadRange> {
        const {
            assert!(S::Format::INDEX_BITS == 9, "2 MiB can be a page");
            assert!(S::Format::LEAF_LEVEL_MAX >= LEVEL, "2 MiB can be a page");
        };
        self.mappings.areas.read().check(&range)?;
        self.give_up_replicas();
        let (mut rest, mut collapsed) = (range, 0);
        loop {
            self.vm.platform.work(Work::Areas, 1);
            let mut areas = self.mappings.areas.write();
            let Some((block, protection)) = next_block(&areas, &rest) else {
                return Ok(collapsed);
            };
            areas.detach(&block);
            match self.collapse_block(&block, protection) {
                Ok(is_large) => collapsed += usize::from(is_large),
                // No large frame is left for the next block either.
                Err(OutOfMemory) => return Ok(collapsed),
            }
            rest.start = block.end;
        }
    }

    /// Collapses a block if possible. Returns `true` if it was collapsed.
    fn collapse_block(
        &self,
        block: &Range<u64>,
        protection: Protection,
    ) -> Result<bool, OutOfMemory> {
        let (platform, tables) = (&self.vm.platform, &self.mappings.tables);
        let Some((at, table)) = tables.leaf_table(platform, block.start) else { return Ok(false) };
        if !self.is_collapsible(block) {
            return Ok(false);
        }
        let large = platform.allocate_large()?;
        let mut gather = Gather::begin(self, block.clone(), Cause::Collapse);
        let small = self.clear_small(block, table, &mut gather);
        tables.unlink(platform, at);
        // A flush of the first page also makes CPUs drop the path to the table.
        gather.add_table(block.start, table, LEVEL);
        gather.resize();
        gather.send().wait();
        for ((address, page), small) in pages_of::<S::Format>(block.start, large, LEVEL).zip(small)
        {
            match small {
                Some(small) => {
                    platform.copy_page(small, page);
                    platform.release(small);
                }
                None => platform.clear_page(page),
            }
            self.add_mapping(page, None, address);
        }
        // The large page was just written, so it must not count as unneeded. Setting both marks
        // also saves the MMU from setting them.
        let marks = Marks::ACCESSED | Marks::DIRTY;
        let leaf = Leaf { frame: large, protection, marks };
        tables.set_large(platform, Slot { at, level: LEVEL }, leaf);
        count(&self.counters.collapsed, 1);
        Ok(true)
    }

    /// Returns `true` if the block has a page besides the page of zeros, and all such pages belong
    /// to this space alone.
    fn is_collapsible(&self, block: &Range<u64>) -> bool {
        let mut has_page = false;
        for found in self.mappings.tables.entries(&self.vm.platform, block.clone()) {
            let Some(leaf) = found.leaf::<S::Format>() else { return false };
            if leaf.frame != self.vm.zero_page {
                if !self.is_unshared(leaf.frame, found.address) {
                    return false;
                }
                has_page = true;
            }
        }
        has_page
    }

    /// Returns `true` if no other space has the page at `address`. This cannot change while the
    /// lock is held: another user must first get the page from this space, and a fork of this space
    /// needs the lock.
    fn is_unshared(&self, page: Frame, address: u64) -> bool {
        let is_alone = || self.vm.platform.user_count(page) == 1;
        match &self.vm.rmap {
            // Reclaim may just have unmapped the page. Its frame may then be free, or have another
            // use, so the count alone proves nothing.
            Some(rmap) => rmap.is_mapped_at(page, &self.mappings, address, is_alone),
            None => is_alone(),
        }
    }

    /// Empties the entries of the block. Returns the page that each entry mapped, with its count.
    fn clear_small(
        &self,
        block: &Range<u64>,
        table: Frame,
        gather: &mut Gather<'_, S>,
    ) -> Vec<Option<Frame>> {
        let take = |(index, address)| {
            let entry = self.vm.platform.swap(EntryAt { table, index }, EMPTY);
            let leaf = S::Format::as_leaf(entry)?;
            gather.add_leaf(address, leaf, 0);
            if leaf.frame == self.vm.zero_page {
                return None;
            }
            self.remove_mapping(leaf.frame, address);
            Some(leaf.frame)
        };
        (0..).zip(block.clone().step_by(PAGE_BYTES as usize)).map(take).collect()
    }
}

/// Returns the first block in `range` that can be a large page, and the protection of its area.
fn next_block<P: Platform>(
    areas: &Areas<P>,
    range: &Range<u64>,
) -> Option<(Range<u64>, Protection)> {
    areas.overlapping(range).filter(|area| area.is_private_anonymous()).find_map(|area| {
        let start = area.range.start.max(range.start).next_multiple_of(LARGE_PAGE_BYTES);
        let end = start + LARGE_PAGE_BYTES;
        (end <= area.range.end.min(range.end)).then_some((start..end, area.protection))
    })
}
