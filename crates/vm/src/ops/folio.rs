//! Folios: large pages of a file's page cache, each mapped by one entry. (Linux: `do_set_pmd`, and
//! `__split_huge_pmd` of file mappings.)
//!
//! A fault maps all of a folio if the area and the file allow it: the folio lies in the area, and
//! at an address that is a multiple of its size. Nothing is made large later: where small pages are
//! mapped or in memory, they stay.
//!
//! # Split
//!
//! An operation on a part of a folio *splits* the entry: it empties the entry, and flushes the
//! whole folio. No table replaces the entry, because the page cache has the pages: the next access
//! to any of them faults, and may map the folio again. So the split needs no memory, cannot fail,
//! and takes no lock for writing. As in Linux, it has a flush of its own, also where the operation
//! then flushes something else.
//!
//! Writes to a folio that an entry does not allow to be written split it also: a write to a private
//! area, which needs a copy of one page, and the first write to an area of a file whose writes are
//! [tracked](Folios::LargeTracked).
//!
//! During the flush of a split, a fault on another CPU may map the folio again, or link a table for
//! copies of its pages. [Discarding a large page](super::large) has the consequences.
//!
//! # Users
//!
//! The entry is a user of the folio's first frame. The file, which the area keeps, is a user of all
//! frames, so none of them is freed while the folio is mapped.
//!
//! # Limits
//!
//! A memory manager that reclaims or migrates maps no folios, because it would have to record and
//! unmap them as one. Operations that move areas unmap folios first.

use core::ops::Range;

use shootdown::{Extent, ExtentSet, PageSize};

use super::fault::{first_protection, marks_of};
use crate::area::{Access, Area, Folios, LargePages, Protection, Sharing};
use crate::areas::Areas;
use crate::coherence::{Cause, Change, Freed};
use crate::error::BadRange;
use crate::format::{EMPTY, Format, Leaf};
use crate::platform::{OutOfMemory, Platform, Work};
use crate::sharers::Sharers;
use crate::space::{AddressSpace, count};
use crate::system::System;
use crate::table::Found;
use crate::{LARGE_PAGE_BYTES, PAGE_BYTES};

/// The level of the entries that map folios.
const LEVEL: usize = 1;

impl<S: System> AddressSpace<S> {
    /// Sets the pages that one entry may map, for the areas of files in `range`. Pages that are
    /// mapped already stay. (Linux decides by the file system, its options, `MADV_HUGEPAGE`, and
    /// the sizes in which the file was written or read.)
    ///
    /// # Errors
    ///
    /// [`BadRange`] if areas cannot be in `range`.
    pub fn use_folios(&self, range: Range<u64>, folios: Folios) -> Result<(), BadRange> {
        self.vm.platform.work(Work::Areas, 1);
        let mut areas = self.mappings.areas.write();
        areas.check(&range)?;
        for area in areas.cut(&range) {
            let folios = if area.is_private_anonymous() { Folios::Small } else { folios };
            areas.insert(Area { folios, ..area });
        }
        Ok(())
    }

    /// Maps the folio that contains `page`, in an area that uses folios. Returns `false` if there
    /// is none, if the access needs a page of its own, or if something is mapped there.
    pub(super) fn map_folio(
        &self,
        area: &Area<S::Platform>,
        page: u64,
        access: Access,
    ) -> Result<bool, OutOfMemory> {
        let start = page & !(LARGE_PAGE_BYTES - 1);
        let may_be_mapped = self.vm.rmap.is_none()
            && S::Format::LEAF_LEVEL_MAX >= LEVEL
            && S::Format::span(LEVEL) == LARGE_PAGE_BYTES
            && area.range.start <= start
            && start + LARGE_PAGE_BYTES <= area.range.end
            && !(area.sharing == Sharing::Private && access == Access::Write);
        if !may_be_mapped {
            return Ok(false);
        }
        let Some((file, first)) = area.file_page(start) else { return Ok(false) };
        if !(first * PAGE_BYTES).is_multiple_of(LARGE_PAGE_BYTES) {
            return Ok(false);
        }
        let platform = &self.vm.platform;
        let slot = self.vm.make_entry_at(&self.mappings.tables, start, LEVEL)?;
        if slot.level != LEVEL || platform.load(slot.at) != EMPTY {
            return Ok(false);
        }
        let Some(frame) = file.folio(first, || platform.allocate_large()) else {
            return Ok(false);
        };
        self.give_up_replicas();
        let protection = match area.folios {
            Folios::LargeTracked if access != Access::Write => area.protection - Protection::WRITE,
            _ => first_protection(area, access),
        };
        let leaf = Leaf { frame, protection, marks: marks_of(access) };
        platform.lock_table(slot.at.table);
        let is_mapped = self.mappings.tables.set_large_if_empty(platform, slot, leaf);
        platform.unlock_table(slot.at.table);
        if is_mapped {
            self.count_resident(1);
            count(&self.counters.folios_mapped, 1);
        } else {
            self.vm.release(frame);
        }
        // If another CPU has mapped something first, and that does not allow the access, the access
        // faults again.
        Ok(true)
    }

    /// Empties the entry of a folio, flushes the folio, and waits for the flush. Does nothing if
    /// another call has emptied the entry. The lock of the space or of the area must be held.
    pub(crate) fn split_folio(&self, found: &Found) {
        let (platform, range) = (&self.vm.platform, found.range::<S::Format>());
        // Another call that finds the entry empty finds the flush in flight.
        let in_flight = self.mappings.in_flight.begin(&range);
        if let Some(leaf) = self.mappings.tables.clear_large(platform, found) {
            let page_size = PageSize::from_shift(S::Format::span(found.slot.level).ilog2() as u8);
            let mut extents = ExtentSet::new();
            extents.add(Extent::pages(range.start, 1, page_size));
            let change = Change {
                range: Some(range),
                extents,
                page_size,
                freed: Freed::Pages,
                resizes: true,
                cause: Cause::Split,
            };
            self.flush(&change, Sharers::default()).wait(&self.vm.coherence, platform);
            self.count_resident(-1);
            self.vm.release(leaf.frame);
            count(&self.counters.folios_split, 1);
        }
        self.mappings.in_flight.end(in_flight);
    }

    /// [Splits](Self::split_folio) all folios in `range`, or partly in it. The areas must be locked
    /// for writing.
    pub(super) fn split_folios(&self, areas: &Areas<S::Platform>, range: &Range<u64>) {
        let files = areas.overlapping(range).filter(|it| it.large_pages() == LargePages::Folios);
        for part in files.map(|area| area.part_in(range)) {
            for found in self.mappings.tables.large_leaves(&self.vm.platform, part) {
                self.split_folio(&found);
            }
        }
    }
}
