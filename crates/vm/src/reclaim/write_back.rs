//! Write-back: pages of stored files are written out, and stay mapped. (Linux: `msync`,
//! `folio_mkclean`.)
//!
//! First, every entry that was written loses its mark and its permission to write, in each space
//! that maps the page. The next write is a fault, which permits it again. The page is written out
//! only after the flush: until then, a CPU that has cached the entry may write without setting a
//! mark, and the page would count as clean although its last words are not stored.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Range;

use crate::PAGE_BYTES;
use crate::area::{Protection, Sharing};
use crate::coherence::{Change, ReclaimFlush};
use crate::deferred::in_flight::FlushInFlight;
use crate::error::RangeError;
use crate::file::File;
use crate::format::{Format, Leaf, Marks};
use crate::mappings::Mappings;
use crate::platform::{Frame, Platform, Work};
use crate::reclaim::rmap::{Mapping, Owner, Page, Rmap, State};
use crate::sharers::Sharers;
use crate::space::AddressSpace;
use crate::system::System;
use crate::table::{Slot, change_leaf};
use crate::vm::Vm;

/// The protected pages of each space that are not flushed yet, by the address of the space.
type Unflushed<S> = BTreeMap<usize, (Arc<Mappings<S>>, Vec<(u64, FlushInFlight)>)>;

/// The result of an attempt to protect one entry.
enum Step<S: System> {
    /// The entry's table is locked.
    Protected { space: Arc<Mappings<S>>, address: u64, flush: FlushInFlight, table: Frame },
    /// The entry was not written, or another call is changing it.
    Skipped,
    /// Another CPU has locked the table of the entry.
    TableIsLocked(Frame),
}

impl<S: System> AddressSpace<S> {
    /// Writes out the pages of stored files that shared areas in `range` map and that were written,
    /// by this space or another one. (Linux: `msync(MS_SYNC)`.)
    ///
    /// Does nothing without [`with_reclaim`](crate::Vm::with_reclaim).
    ///
    /// # Errors
    ///
    /// [`RangeError::BadRange`]. [`RangeError::NoArea`] if a part of the range is in no area: the
    /// rest is written out nevertheless, as in Linux.
    pub fn write_back(&self, range: Range<u64>) -> Result<(), RangeError> {
        self.vm.platform.work(Work::Areas, 1);
        let areas = self.mappings.areas.read();
        areas.check(&range)?;
        let is_covered = areas.cover(&range);
        let shared = areas.overlapping(&range).filter(|area| area.sharing == Sharing::Shared);
        let parts = shared.map(|area| area.part_in(&range));
        let entries = parts.flat_map(|part| self.mappings.tables.entries(&self.vm.platform, part));
        let frames: Vec<_> =
            entries.filter_map(|found| Some(found.leaf::<S::Format>()?.frame)).collect();
        drop(areas);
        self.vm.write_back(&frames);
        if is_covered { Ok(()) } else { Err(RangeError::NoArea) }
    }
}

impl<S: System> Vm<S> {
    fn write_back(&self, frames: &[Frame]) {
        let Some(rmap) = &self.rmap else { return };
        for chunk in frames.chunks(self.policy.reclaim_batch_pages.max(1)) {
            let mut unflushed = Unflushed::<S>::new();
            let mut written = Vec::new();
            for &page in chunk {
                let held = rmap.with(page, |record| self.hold(page, record)).flatten();
                let Some((file, number)) = held else { continue };
                let protected = self.protect_everywhere(rmap, page, &mut unflushed);
                written.push((page, file, number, protected));
            }
            for (space, pages) in unflushed.into_values() {
                self.flush_protected(&space, pages);
            }
            for (page, file, number, protected) in written {
                if protected > 0 {
                    // Only after the flush: a concurrent reclaim of the page would write it out
                    // while a CPU can still write to it, and clear the mark.
                    rmap.mark_dirty(page);
                }
                if let Some(file) = file.upgrade() {
                    if rmap.with(page, Page::take_dirty) == Some(true) {
                        file.write_out(number, page);
                    }
                    self.platform.release(page);
                    // If all other references were dropped during this call, closing the file is
                    // left to it.
                    self.close(file);
                } else {
                    self.platform.release(page);
                }
            }
        }
    }

    /// Counts this call as a user of a page that is stored and mapped, so that nothing frees it.
    /// Returns the file, and the page's number there.
    ///
    /// A call that clears an entry removes its mapping from the record before it releases the
    /// entry's count. So a page with a mapping has a count as long as its record is locked.
    fn hold(&self, page: Frame, record: &Page<S>) -> Option<(Weak<File<S::Platform>>, u64)> {
        let Owner::File(file, number) = &record.owner else { return None };
        let is_held = record.state.contains(State::STORED) && !record.mappings.is_empty();
        is_held.then(|| {
            self.platform.share(page);
            (Weak::clone(file), *number)
        })
    }

    /// Protects each entry that maps a page and was written. Returns their number.
    fn protect_everywhere(
        &self,
        rmap: &Rmap<S>,
        page: Frame,
        unflushed: &mut Unflushed<S>,
    ) -> usize {
        let (mut protected, mut left) = (0, usize::MAX);
        loop {
            let step = rmap.with(page, |record| {
                // From the last mapping to the first: the last one replaces one that is removed,
                // and would be left out otherwise.
                left = left.min(record.mappings.len());
                Some(self.protect_one(page, &record.mappings[left.checked_sub(1)?]))
            });
            match step.flatten() {
                None => return protected,
                Some(Step::Skipped) => left -= 1,
                Some(Step::TableIsLocked(table)) => {
                    // Wait without the lock of the record: the other CPU may need it.
                    self.platform.lock_table(table);
                    self.platform.unlock_table(table);
                }
                Some(Step::Protected { space, address, flush, table }) => {
                    (protected, left) = (protected + 1, left - 1);
                    let page = (address, flush);
                    if self.policy.write_back_flush == ReclaimFlush::PerPage {
                        // With the table locked (`ptep_clear_flush`).
                        self.flush_protected(&space, Vec::from([page]));
                    } else {
                        let key = Arc::as_ptr(&space) as usize;
                        unflushed.entry(key).or_insert_with(|| (space, Vec::new())).1.push(page);
                    }
                    self.platform.unlock_table(table);
                }
            }
        }
    }

    /// Takes the mark and the permission to write from the entry of a mapping, if it was written.
    fn protect_one(&self, page: Frame, Mapping { space, address }: &Mapping<S>) -> Step<S> {
        let Some(at) = space.tables.find(&self.platform, *address) else { return Step::Skipped };
        if !self.platform.try_lock_table(at.table) {
            return Step::TableIsLocked(at.table);
        }
        // Before the entry changes: an operation that finds it without the permission must find
        // also that CPUs may still have it.
        let flush = space.in_flight.begin(&(*address..*address + PAGE_BYTES));
        let entry = self.platform.load(at);
        let protected =
            change_leaf::<S::Format>(&self.platform, Slot { at, level: 0 }, entry, |leaf| {
                let is_written = leaf.frame == page && leaf.marks.contains(Marks::DIRTY);
                let protection = leaf.protection - Protection::WRITE;
                let marks = leaf.marks - Marks::DIRTY;
                is_written.then(|| S::Format::leaf(Leaf { protection, marks, ..leaf }))
            });
        if protected.is_none() {
            self.platform.unlock_table(at.table);
            space.in_flight.end(flush);
            return Step::Skipped;
        }
        Step::Protected { space: Arc::clone(space), address: *address, flush, table: at.table }
    }

    /// Flushes protected pages of a space.
    fn flush_protected(&self, space: &Mappings<S>, mut pages: Vec<(u64, FlushInFlight)>) {
        pages.sort_unstable_by_key(|(address, _)| *address);
        let addresses = pages.iter().map(|(address, _)| *address);
        if let Some(change) = Change::write_back(addresses) {
            let sent = space.flush(&self.coherence, &self.platform, &change, Sharers::default());
            sent.wait(&self.coherence, &self.platform);
        }
        for (_, flush) in pages {
            space.in_flight.end(flush);
        }
    }
}
