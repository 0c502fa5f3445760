//! Page faults: map the page that an access needs, as late as possible.
//!
//! A fault locks the area, if the policy allows it and no call is changing the area, and otherwise
//! the space: see [`area_index`](crate::area_index). Below, "the lock" is either of the two. A call
//! that changes areas excludes faults under both.

use alloc::sync::Arc;

use crate::PAGE_BYTES;
use crate::area::{Access, Area, Folios, LargePages, Protection, Sharing};
use crate::coherence::{Batching, Change, FirstUse, Refault};
use crate::error::FaultError;
use crate::file::File;
use crate::format::{EMPTY, Format, Leaf, Marks};
use crate::mappings::Mappings;
use crate::platform::{EntryAt, Frame, FrameUse, OutOfMemory, Platform, Work};
use crate::sharers::Sharers;
use crate::space::{AddressSpace, count};
use crate::system::System;
use crate::table::{Found, Slot};

impl<S: System> AddressSpace<S> {
    /// Resolves a page fault, so that the access at `address` can be retried.
    ///
    /// The retry may fault again, if another CPU was changing the same page; call this again then.
    /// Sometimes there is nothing to change: the CPU may have had a translation that allowed less
    /// than the page tables do.
    ///
    /// # Errors
    ///
    /// [`FaultError`] if the areas do not allow the access, or if there is no memory for it.
    pub fn fault(&self, address: u64, access: Access) -> Result<(), FaultError> {
        let page = address & !(PAGE_BYTES - 1);
        self.vm.platform.work(Work::Fault, 1);
        self.make_replica();
        if let Some(result) = self.fault_in_locked_area(page, access) {
            return result;
        }
        let areas = self.mappings.areas.read();
        let area = areas.find(page).ok_or(FaultError::NoArea)?;
        if self.may_write(area, access) {
            areas.record_write(area);
        }
        self.resolve(area, page, access)
    }

    /// Resolves a fault with only the area locked. `None` if the space must be locked.
    fn fault_in_locked_area(&self, page: u64, access: Access) -> Option<Result<(), FaultError>> {
        let slot = self.mappings.index.as_ref()?.find(page)?;
        let area = slot.try_read(&(page..page + PAGE_BYTES))?;
        if self.may_write(&area, access) && !slot.is_written() {
            // Do not wait: a writer of the space may be waiting for this area.
            let _areas = self.mappings.areas.try_read()?;
            slot.record_write();
        }
        Some(self.resolve(&area, page, access))
    }

    /// Returns `true` if the access may give a private area a page of its own.
    fn may_write(&self, area: &Area<S::Platform>, access: Access) -> bool {
        area.sharing == Sharing::Private && self.expected(area, access) == Access::Write
    }

    /// Returns the access to prepare for, if this is the first access to a page.
    fn expected(&self, area: &Area<S::Platform>, access: Access) -> Access {
        self.zero_page_predictor.expected(self.vm.policy.zero_page, area, access)
    }

    /// Resolves a fault in an area that is locked.
    pub(crate) fn resolve(
        &self,
        area: &Area<S::Platform>,
        page: u64,
        access: Access,
    ) -> Result<(), FaultError> {
        if !area.protection.contains(access.needs()) {
            return Err(FaultError::NotPermitted);
        }
        if area.folios != Folios::Small
            && (self.map_folio(area, page, access)? || self.map_large(area, page, access)?)
        {
            return Ok(());
        }
        let Slot { at, level } = self.vm.make_entry(&self.mappings.tables, page)?;
        let is_linked = level == 0 && self.link(page, at.table)?;
        if level > 0 {
            self.give_up_replicas();
        }
        let entry = self.vm.platform.load(at);
        if entry == EMPTY && level == 0 {
            return Ok(self.install(area, page, access, at)?);
        }
        let Some(leaf) = S::Format::as_leaf_at(entry, level) else {
            // Either another call has claimed the entry, and waits for a flush before it maps or
            // frees the page. Or another call has just discarded a large page here; the retry finds
            // a table.
            if level == 0 {
                self.vm.platform.wait_for_claim(at, entry);
            }
            return Ok(());
        };
        if leaf.protection.contains(access.needs()) {
            if is_linked {
                self.note_link_fault();
            }
            return Ok(());
        }
        if leaf.protection.is_empty() {
            self.end_hint(area, Slot { at, level }, entry, leaf);
            return Ok(());
        }
        if level > 0 && area.large_pages() == LargePages::Folios {
            // The write makes a private copy, or the file system tracks it. The retry maps a page
            // or the folio.
            let address = page & !(S::Format::span(level) - 1);
            self.split_folio(&Found { address, slot: Slot { at, level }, entry });
            return Ok(());
        }
        // A large anonymous page is never shared.
        if area.sharing == Sharing::Private && access == Access::Write && level == 0 {
            return Ok(self.make_private(area, page, at, entry, leaf)?);
        }
        // A call that changes the protection of an area also changes its entries, so this is
        // not reached; it would be harmless.
        let allowed = Leaf { protection: leaf.protection | first_protection(area, access), ..leaf };
        let _ = self.vm.platform.compare_exchange(at, entry, S::Format::leaf_at(allowed, level));
        Ok(())
    }

    /// Maps a page at its first access.
    fn install(
        &self,
        area: &Area<S::Platform>,
        page: u64,
        access: Access,
        at: EntryAt,
    ) -> Result<(), OutOfMemory> {
        let expected = self.expected(area, access);
        let marks = if expected == access {
            marks_of(access)
        } else {
            self.zero_page_predictor.record_prediction(page);
            count(&self.counters.predicted, 1);
            // The mark of a write shows later whether the prediction was right.
            Marks::ACCESSED
        };
        let access = expected;
        self.read_ahead(area, page);
        let frame = self.first_frame(area, page, access)?;
        if self.vm.rmap.is_some() && mapped_file_page(area, page, access).is_none() {
            self.flush_if_pending(page);
        }
        let is_inserted = self.vm.policy.first_use == FirstUse::Inserted;
        let marks = if is_inserted { marks - Marks::ACCESSED } else { marks };
        self.vm.platform.lock_table(at.table);
        self.install_frame(area, page, frame, access, marks, at);
        if is_inserted {
            self.vm.platform.insert_translation(at, page);
        }
        self.map_around(area, page, access, at);
        self.vm.platform.unlock_table(at.table);
        Ok(())
    }

    /// Maps `frame`, which the caller has counted once for the entry, at an address without a page.
    /// The entry allows no more than `access` needs. Marks of what has happened save the MMU from
    /// setting them.
    pub(crate) fn install_frame(
        &self,
        area: &Area<S::Platform>,
        page: u64,
        frame: Frame,
        access: Access,
        marks: Marks,
        at: EntryAt,
    ) {
        self.add_mapping(frame, mapped_file_page(area, page, access), page);
        let leaf = Leaf { frame, protection: first_protection(area, access), marks };
        // No flush: no CPU caches an empty entry.
        if self.vm.platform.compare_exchange(at, EMPTY, S::Format::leaf(leaf)).is_err() {
            // Another CPU has mapped a page first. If that page does not allow the access, the
            // access faults again.
            self.remove_mapping(frame, page);
            self.vm.release(frame);
        } else if frame != self.vm.zero_page {
            self.count_resident(1);
        }
    }

    /// Makes every CPU drop the page that reclaim may just have unmapped from `page`. Another page
    /// is about to be mapped there: without the flush, one CPU could write to the new page while
    /// another still reads the old one. [`Refault::Unflushed`] omits this.
    fn flush_if_pending(&self, page: u64) {
        if self.vm.policy.refault == Refault::Unflushed {
            return;
        }
        let Mappings { in_flight, coherent, .. } = &*self.mappings;
        let is_flushed = in_flight.overlapping(&(page..page + PAGE_BYTES), None).is_none()
            && !self.vm.coherence.is_batched(coherent);
        if !is_flushed {
            self.flush(&Change::reclaimed(page), Sharers::default())
                .wait(&self.vm.coherence, &self.vm.platform);
        }
    }

    /// Returns the page to map, and counts one user for the entry.
    fn first_frame(
        &self,
        area: &Area<S::Platform>,
        page: u64,
        access: Access,
    ) -> Result<Frame, OutOfMemory> {
        let platform = &self.vm.platform;
        let allocate = || self.vm.allocate(FrameUse::Page);
        let Some((file, number)) = area.file_page(page) else {
            if access != Access::Write {
                return Ok(self.vm.zero_page);
            }
            let own = allocate()?;
            platform.clear_page(own);
            return Ok(own);
        };
        let cached = file.page(number, allocate)?;
        if mapped_file_page(area, page, access).is_some() {
            return Ok(cached);
        }
        let own = allocate();
        if let Ok(own) = own {
            platform.copy_page(cached, own);
        }
        platform.release(cached);
        own
    }
}

/// Returns the marks of an entry for which `access` has happened.
pub(super) fn marks_of(access: Access) -> Marks {
    if access == Access::Write { Marks::ACCESSED | Marks::DIRTY } else { Marks::ACCESSED }
}

/// Returns the protection of an entry that `access` is the first to use. It allows writes to a
/// private page only if the access is a write, because the page is shared until then.
pub(super) fn first_protection<P: Platform>(area: &Area<P>, access: Access) -> Protection {
    if area.sharing == Sharing::Private && access != Access::Write {
        area.protection - Protection::WRITE
    } else {
        area.protection
    }
}

/// Returns the file and the number of the page that the first access to `page` maps; `None` if the
/// access maps a page that belongs to no file.
fn mapped_file_page<P: Platform>(
    area: &Area<P>,
    page: u64,
    access: Access,
) -> Option<(&Arc<File<P>>, u64)> {
    let is_shared = area.sharing == Sharing::Shared || access != Access::Write;
    area.file_page(page).filter(|_| is_shared)
}
