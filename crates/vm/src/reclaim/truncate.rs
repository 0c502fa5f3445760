//! Truncation: pages leave a file, and every mapping of it. (Linux: `truncate_pagecache`, with
//! `unmap_mapping_range`.)
//!
//! # Steps
//!
//! 1. The device drops the data. Reads that are in progress start again, and find zeros.
//! 2. Each page leaves the page cache, as soon as only the cache and the page's entries use it: no
//!    call is writing it out, moving it, or about to map it. From then on, a fault finds another
//!    page, and the record counts as that of an anonymous page, so that reclaim writes nothing to
//!    the file.
//! 3. The entries are cleared, with one flush for each mapping of the file. A fork may have copied
//!    an entry in the meantime, and a fault may be writing one, so this is repeated until the
//!    record has no mapping.
//! 4. The frames are released. (Linux unmaps before step 2, and again after it, for such faults.)
//!
//! Copies of private pages stay, as when Linux punches a hole. (`ftruncate` also removes those.)

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::PAGE_BYTES;
use crate::coherence::Change;
use crate::deferred::in_flight::FlushInFlight;
use crate::file::File;
use crate::format::EMPTY;
use crate::mappings::Mappings;
use crate::platform::{Frame, Platform, Work};
use crate::reclaim::rmap::{Owner, Page, Rmap, State};
use crate::sharers::Sharers;
use crate::system::System;
use crate::table::{Slot, change_leaf};
use crate::vm::Vm;

/// The cleared entries of each mapping, which is named by its space and the address at which it
/// has, or would have, page 0 of the file.
type Unmapped<S> = BTreeMap<(usize, u64), OfMapping<S>>;

/// The entries of a mapping that were cleared, and are not flushed.
struct OfMapping<S: System> {
    space: Arc<Mappings<S>>,
    /// The addresses that CPUs may have cached.
    cached: Vec<u64>,
    flushes: Vec<FlushInFlight>,
    /// The pages, each with the count of its entry.
    pages: Vec<Frame>,
    /// The sharers of the tables, read after the entries were cleared.
    sharers: Sharers,
}

/// The result of an attempt to clear one entry.
enum Step {
    Cleared,
    /// Another call is writing or changing the entry.
    Busy,
    /// Another CPU has locked the table of the entry.
    TableIsLocked(Frame),
}

impl<S: System> Vm<S> {
    /// Removes the pages of a file from page `first` on. They hold zeros from now on, and are
    /// mapped nowhere. A file has no end: an access maps a new page.
    ///
    /// Does nothing without [`with_reclaim`](Self::with_reclaim).
    pub fn truncate(&self, file: &Arc<File<S::Platform>>, first: u64) {
        let Some(rmap) = &self.rmap else { return };
        let mut removed = Vec::new();
        for number in file.begin_truncation(first) {
            removed.extend(self.remove_from_file(rmap, file, number).map(|page| (page, number)));
        }
        let mut mapped = removed.clone();
        loop {
            let mut unmapped = Unmapped::<S>::new();
            mapped.retain(|&page| !self.clear_everywhere(rmap, page, &mut unmapped));
            for mapping in unmapped.into_values() {
                self.flush_unmapped(mapping);
            }
            if mapped.is_empty() {
                break;
            }
            self.platform.wait_for_memory();
        }
        for (page, _) in removed {
            rmap.forget_if(page, |_| true);
            self.platform.release(page);
        }
    }

    /// Removes a page from the page cache. Returns its frame, with the cache's count; `None` if the
    /// page is not in memory.
    fn remove_from_file(
        &self,
        rmap: &Rmap<S>,
        file: &Arc<File<S::Platform>>,
        number: u64,
    ) -> Option<Frame> {
        while let Some(page) = file.find_or_drop(number) {
            // The cache and this call, besides the entries.
            let others = 2;
            let is_removed = rmap.with(page, |record| {
                let users = record.mappings.len() as u64 + others;
                let is_removed =
                    !record.state.contains(State::WRITING) && file.remove_used(number, page, users);
                if is_removed {
                    record.owner = Owner::Anonymous;
                    record.state &= State::LISTED;
                }
                is_removed
            });
            // A page that was only copied has no record.
            let is_removed = is_removed.unwrap_or_else(|| file.remove_used(number, page, others));
            self.platform.release(page);
            if is_removed {
                return Some(page);
            }
            // Pages that wait for their flush keep the counts of their entries.
            self.complete_deferred();
            self.reuse_all(rmap);
            self.platform.wait_for_memory();
        }
        None
    }

    /// Clears the entries that map a page. Returns `true` if no mapping is left.
    fn clear_everywhere(
        &self,
        rmap: &Rmap<S>,
        (page, number): (Frame, u64),
        unmapped: &mut Unmapped<S>,
    ) -> bool {
        let mut busy = 0;
        loop {
            let step = rmap.with(page, |record| {
                let is_left = busy < record.mappings.len();
                is_left.then(|| self.clear_one(page, number, record, busy, unmapped))
            });
            match step.flatten() {
                None => return busy == 0,
                Some(Step::Cleared) => {}
                Some(Step::Busy) => busy += 1,
                Some(Step::TableIsLocked(table)) => {
                    // Wait without the lock of the record: the other CPU may need it.
                    self.platform.lock_table(table);
                    self.platform.unlock_table(table);
                }
            }
        }
    }

    /// Clears the entry of a mapping, and removes the mapping.
    fn clear_one(
        &self,
        page: Frame,
        number: u64,
        record: &mut Page<S>,
        index: usize,
        unmapped: &mut Unmapped<S>,
    ) -> Step {
        let (platform, mapping) = (&self.platform, &record.mappings[index]);
        let (space, address) = (&mapping.space, mapping.address);
        let Some(at) = space.tables.find(platform, address) else { return Step::Busy };
        if !platform.try_lock_table(at.table) {
            return Step::TableIsLocked(at.table);
        }
        let range = address..address + PAGE_BYTES;
        // Before the entry changes, so that an operation that finds the entry cleared finds the
        // flush also.
        let flush = space.in_flight.begin(&range);
        let (slot, entry) = (Slot { at, level: 0 }, platform.load(at));
        let is_page = |leaf: crate::format::Leaf| (leaf.frame == page).then_some(EMPTY);
        let Some(leaf) = change_leaf::<S::Format>(platform, slot, entry, is_page) else {
            platform.unlock_table(at.table);
            space.in_flight.end(flush);
            return Step::Busy;
        };
        let may_be_cached =
            !leaf.protection.is_empty() || space.unflushed(&range, Some(&flush)).is_some();
        let sharers = space.sharers_of(platform, at.table);
        platform.unlock_table(at.table);
        platform.count_resident(space.tables.root_frame(), -1);
        let key = (Arc::as_ptr(space) as usize, address.wrapping_sub(number * PAGE_BYTES));
        let of_mapping = unmapped.entry(key).or_insert_with(|| OfMapping::new(Arc::clone(space)));
        of_mapping.cached.extend(may_be_cached.then_some(address));
        of_mapping.flushes.push(flush);
        of_mapping.pages.push(page);
        of_mapping.sharers.add_all(&sharers);
        record.mappings.swap_remove(index);
        Step::Cleared
    }

    /// Flushes cleared entries, and releases their counts.
    fn flush_unmapped(&self, mapping: OfMapping<S>) {
        let OfMapping { space, mut cached, flushes, pages, sharers } = mapping;
        cached.sort_unstable();
        if let Some(change) = Change::truncated(cached.into_iter()) {
            let sent = space.flush(&self.coherence, &self.platform, &change, sharers);
            sent.wait(&self.coherence, &self.platform);
        }
        for flush in flushes {
            space.in_flight.end(flush);
        }
        self.platform.work(Work::UnmapPage, pages.len());
        for page in pages {
            self.platform.release(page);
        }
    }
}

impl<S: System> OfMapping<S> {
    fn new(space: Arc<Mappings<S>>) -> Self {
        let (cached, flushes, pages) = (Vec::new(), Vec::new(), Vec::new());
        Self { space, cached, flushes, pages, sharers: Sharers::default() }
    }
}
