//! Collapsing: 512 small pages become a large one, that takes one entry of a TLB. (Linux:
//! `MADV_COLLAPSE`, `collapse_huge_page`.)
//!
//! # The order of things
//!
//! 1. The small pages are looked at, and room found for the large one. Whatever speaks against it
//!    does so now: nothing has been changed.
//! 2. Their entries are emptied, and then that of their table, which nobody needs any more.
//! 3. All CPUs are made to forget the pages, and the way to the table, and are waited for.
//! 4. Only then is copied. A CPU that still knew a small page could write to it behind the copy,
//!    and the word would be gone.
//! 5. The large page is put where the table was. Not before the flush: a CPU could hold it along
//!    with the small ones (*break before make*), and read in the one what another had written to
//!    the other. That includes lazy CPUs, unless the machine
//!    [tolerates both sizes](shootdown::Machine::tolerates_mixed_sizes).
//!
//! The table is freed as are all that were unhooked: when no CPU can walk it any more. A lazy CPU
//! that was not notified may walk it until then, and finds 512 empty entries there. (Linux keeps
//! the entries until it has copied, interrupts lazy CPUs, too, and then keeps the table for when
//! the page is split.)
//!
//! The areas are locked for writing, one large page at a time, as in Linux. So there are no claims
//! and no faults, and no fork that would share a page. Less would not do: faults in between would
//! have to be kept from making the table anew, at a level where they look for no claims, and so
//! would whoever discards or protects what is in nobody's tables.
//!
//! Reclaim asks for no lock. A page that it takes before step 2 leaves an empty entry behind, and
//! is zeros from then on, as if it had come a moment earlier. Its flush may not be done; but ours
//! covers the page then, as always where something [is batched](Batching::is_batched). From
//! step 2 on it finds the entries empty, and the pages' records gone: those are struck out before
//! the table can be freed that reclaim, holding a record, may be looking at.

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

/// At which level of the tables large pages are made.
const LEVEL: usize = 1;

impl<S: System> AddressSpace<S> {
    /// Makes large pages of the small ones in `range`: of each [`LARGE_PAGE_BYTES`], at a multiple
    /// of that, that lie in one anonymous private area. Returns how many.
    ///
    /// Only pages that are not shared with another space are taken. Those that have not been
    /// written are zeros, and take memory from now on; at least one must have been. (Linux:
    /// `max_ptes_none`, which is 511, too.) A block with a page that is shared is left as it is;
    /// so are all that are left when no [large frame](Platform::allocate_large) is to be had.
    ///
    /// What was [given up](crate::Advice::Free) is kept, as if it had been written since.
    ///
    /// # Errors
    ///
    /// If areas cannot be there.
    pub fn collapse(&self, range: Range<u64>) -> Result<usize, BadRange> {
        const {
            assert!(S::Format::INDEX_BITS == 9, "2 MiB can be a page");
            assert!(S::Format::LEAF_LEVEL_MAX >= LEVEL, "2 MiB can be a page");
        };
        self.mappings.areas.read().check(&range)?;
        let (mut rest, mut collapsed) = (range, 0);
        loop {
            self.vm.platform.work(Work::Areas, 1);
            let areas = self.mappings.areas.write();
            let Some((block, protection)) = next_block(&areas, &rest) else {
                return Ok(collapsed);
            };
            match self.collapse_block(&block, protection) {
                Ok(is_large) => collapsed += usize::from(is_large),
                // There is none for the next one, either.
                Err(OutOfMemory) => return Ok(collapsed),
            }
            rest.start = block.end;
        }
    }

    /// Returns whether the block can be, and is, a large page now.
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
        let small = self.take_small(block, table, &mut gather);
        tables.unlink(platform, at);
        // With its first page, CPUs forget the way to it.
        gather.table(block.start..block.start + PAGE_BYTES, table);
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
        // We have written to it, so nobody may take it for unneeded; and it spares the MMU the
        // marking.
        let marks = Marks::ACCESSED | Marks::DIRTY;
        let leaf = Leaf { frame: large, protection, marks };
        tables.set_large(platform, Slot { at, level: LEVEL }, leaf);
        count(&self.counters.collapsed, 1);
        Ok(true)
    }

    /// Whether a page of the block is ours, and none somebody else's, too.
    fn is_collapsible(&self, block: &Range<u64>) -> bool {
        let mut has_page = false;
        for found in self.mappings.tables.entries(&self.vm.platform, block.clone()) {
            let Some(leaf) = found.leaf::<S::Format>() else { return false };
            if leaf.frame != self.vm.zero_page {
                if !self.is_ours_alone(leaf.frame, found.address) {
                    return false;
                }
                has_page = true;
            }
        }
        has_page
    }

    /// Whether nobody else has the page at `address`. So it stays then: who shares a page has it
    /// first, and a fork of this space needs the lock.
    fn is_ours_alone(&self, page: Frame, address: u64) -> bool {
        let is_alone = || self.vm.platform.user_count(page) == 1;
        match &self.vm.rmap {
            // Reclaim may just have taken it, and its frame be another page's, or nobody's.
            Some(rmap) => rmap.is_mapped_at(page, &self.mappings, address, is_alone),
            None => is_alone(),
        }
    }

    /// Empties the entries of the block. Returns the page that each held, and its count with it.
    fn take_small(
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

/// The first addresses in `range` that could be a large page's, and what their area allows.
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
