//! Faults that map a large page at the first write. (Linux: `do_huge_pmd_anonymous_page`, with
//! `MADV_HUGEPAGE`.)
//!
//! The block must lie in the area, and have no page table: where small pages were mapped, they
//! stay. Only [`collapse`](AddressSpace::collapse) replaces those. A read maps the page of zeros,
//! which is small. (Linux has a large page of zeros also.)
//!
//! The lock is held for reading. So an operation under the same lock, which has split the large
//! pages that it concerns in part, may find one that was mapped since. It leaves such a page alone,
//! as if the fault had come after the operation: the page was empty then.

use core::ops::Range;

use crate::area::{Access, Area, Folios};
use crate::coherence::{Batching, Change, Refault};
use crate::error::BadRange;
use crate::format::{EMPTY, Format, Leaf, Marks};
use crate::platform::{OutOfMemory, Platform, Work};
use crate::sharers::Sharers;
use crate::space::AddressSpace;
use crate::system::System;
use crate::table::{Slot, pages_of};
use crate::{LARGE_PAGE_BYTES, PAGE_BYTES};

/// The level of the entries that map large pages.
const LEVEL: usize = 1;
/// Number of small pages in a large one.
const PAGES: isize = (LARGE_PAGE_BYTES / PAGE_BYTES).cast_signed() as isize;

impl<S: System> AddressSpace<S> {
    /// Makes first writes map large pages, in the private anonymous areas in `range`. Pages that
    /// are mapped already stay.
    ///
    /// # Errors
    ///
    /// [`BadRange`] if areas cannot be in `range`.
    pub fn use_large_pages(&self, range: Range<u64>) -> Result<(), BadRange> {
        self.vm.platform.work(Work::Areas, 1);
        let mut areas = self.mappings.areas.write();
        areas.check(&range)?;
        for area in areas.cut(&range) {
            let folios = if area.is_private_anonymous() { Folios::Large } else { area.folios };
            areas.insert(Area { folios, ..area });
        }
        Ok(())
    }

    /// Maps a large page at the first write to its block. Returns `false` if the area does not use
    /// large pages, something is mapped in the block, or there is no large frame.
    pub(super) fn map_large(
        &self,
        area: &Area<S::Platform>,
        page: u64,
        access: Access,
    ) -> Result<bool, OutOfMemory> {
        let start = page & !(LARGE_PAGE_BYTES - 1);
        let block = start..start + LARGE_PAGE_BYTES;
        let may_be_mapped = area.folios == Folios::Large
            && area.is_private_anonymous()
            && access == Access::Write
            && S::Format::LEAF_LEVEL_MAX >= LEVEL
            && S::Format::span(LEVEL) == LARGE_PAGE_BYTES
            && area.range.start <= block.start
            && block.end <= area.range.end;
        if !may_be_mapped {
            return Ok(false);
        }
        let platform = &self.vm.platform;
        let slot = self.vm.make_entry_at(&self.mappings.tables, start, LEVEL)?;
        if slot.level != LEVEL || platform.load(slot.at) != EMPTY {
            return Ok(false);
        }
        let Ok(frame) = platform.allocate_large() else { return Ok(false) };
        let pages = || pages_of::<S::Format>(start, frame, LEVEL);
        pages().for_each(|(_, page)| platform.clear_page(page));
        self.give_up_replicas();
        if self.vm.rmap.is_some() {
            self.flush_block_if_pending(&block);
        }
        pages().for_each(|(address, page)| self.add_mapping(page, None, address));
        let marks = Marks::ACCESSED | Marks::DIRTY;
        let leaf = Leaf { frame, protection: area.protection, marks };
        platform.lock_table(slot.at.table);
        let slot = Slot { level: LEVEL, ..slot };
        let is_mapped = self.mappings.tables.set_large_if_empty(platform, slot, leaf);
        platform.unlock_table(slot.at.table);
        if is_mapped {
            self.count_resident(PAGES);
        } else {
            // Another CPU has mapped something first. The access faults again, if necessary.
            for (address, page) in pages() {
                self.remove_mapping(page, address);
                self.vm.release(page);
            }
        }
        Ok(true)
    }

    /// Makes every CPU drop pages that reclaim may just have unmapped from a block, as
    /// [`fault`](Self::fault) does before it maps a small page there.
    fn flush_block_if_pending(&self, block: &Range<u64>) {
        let (mappings, coherence) = (&*self.mappings, &self.vm.coherence);
        let is_flushed = self.vm.policy.refault == Refault::Unflushed
            || mappings.in_flight.overlapping(block, None).is_none()
                && !coherence.is_batched(&mappings.coherent);
        if !is_flushed {
            let change = Change::reclaimed_range(block.clone());
            self.flush(&change, Sharers::default()).wait(coherence, &self.vm.platform);
        }
    }
}
