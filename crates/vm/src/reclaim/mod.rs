//! Reclaim: unmaps pages and frees their frames when memory is short. (Linux: `shrink_folio_list`,
//! `try_to_unmap`.)
//!
//! The pages of stored files, and pages that [`Free`](crate::Advice::Free) was given for, are on
//! lists ordered by age. Reclaim examines the oldest pages first. It skips a page that was used
//! since the last examination, and unmaps the others, a fixed number at a time, from every space
//! that maps them. The coherence may defer the flush of each page until all of them are unmapped.
//! Only after the flush are pages written out or freed.
//!
//! Reclaim takes no lock of a space, so an operation that holds such a lock may reclaim when it
//! finds no free frame. Other operations stay correct as follows:
//!
//! - *Faults* find the entry empty. The page of a file is still in the page cache, where they find
//!   it. An anonymous page is replaced by another page, after the flush of the old one.
//! - *`munmap` and other operations* find the entry empty. They find also that the space [is
//!   batched](Batching::is_batched), and flush the range that they were asked to change.
//! - *Forks* find that the page has no mapping any more at the entry that they have just read, and
//!   omit it.
//! - *The end of a space* finds the mapping removed, and leaves the entry's count of the page to
//!   reclaim.
//!
//! The check whether a page was used clears the accessed marks, and flushes nothing. A CPU that has
//! cached an entry as accessed does not set the mark again, so the page may seem older than it is.

mod migrate;
mod reuse;
pub(crate) mod rmap;
mod truncate;
mod write_back;

use alloc::sync::Weak;
use alloc::vec::Vec;
use core::mem;
use core::ops::AddAssign;

use crate::coherence::{Batching, CleanPages, RECLAIM_PAGES};
use crate::file::File;
use crate::format::{EMPTY, Format, Leaf, Marks};
use crate::mappings::Announced;
use crate::platform::{EntryAt, Frame, FrameUse, OutOfMemory, Platform, Work};
use crate::reclaim::rmap::{Age, Mapping, Owner, Page, Rmap, State};
use crate::sharers::Sharers;
use crate::system::{Batch, System};
use crate::table::{Slot, change_leaf};
use crate::vm::Vm;

/// Number of times that an allocation may lose a reclaimed frame to another CPU before it fails.
const ATTEMPTS: usize = 16;

/// Number of times that an allocation may find nothing to free, and nothing to wait for, before it
/// fails. Another call may have isolated the pages when this one looked for them, and then have put
/// them back, because they were in use.
const FRUITLESS_MAX: usize = 3;

/// Number of times that one call may examine a page: once to clear its marks, once to find that it
/// was used again, and once to find that it is no longer used.
const ROUNDS: usize = 3;

/// Numbers of pages that a reclaim has handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Pages that are free now.
    pub freed: usize,
    /// Pages that were examined.
    pub scanned: usize,
    /// Pages that were written out.
    pub written: usize,
}

impl AddAssign for Reclaimed {
    fn add_assign(&mut self, other: Self) {
        self.freed += other.freed;
        self.scanned += other.scanned;
        self.written += other.written;
    }
}

/// The treatment of pages that were used recently.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Recent {
    Keep,
    Reclaim,
}

/// The decision about a page.
enum Verdict {
    /// The page can no longer be reclaimed, and leaves its list.
    Drop,
    Keep(Age),
    Reclaim,
}

/// A page that is being reclaimed.
struct Reclaiming<S: System> {
    page: Frame,
    /// The page's file, and its number there.
    file: Option<(Weak<File<S::Platform>>, u64)>,
    /// Number of entries that mapped the page.
    count: usize,
    /// `true` if one of the entries was marked as dirty.
    was_written: bool,
}

/// The result of an attempt to clear one entry.
enum Step<S: System> {
    /// The entry's table is locked.
    Cleared {
        mapping: Mapping<S>,
        leaf: Leaf,
        flush: Announced,
        table: Frame,
        sharers: Sharers,
    },
    /// Another CPU has locked the table of the entry.
    TableIsLocked(Frame),
    /// Another call is changing the entry.
    Busy,
    /// The page was written, and is needed again.
    Needed,
    BatchIsFull,
    /// No entry is left.
    Done,
}

impl<S: System> Vm<S> {
    /// Frees at least `target` pages of a node, if possible. Frees fewer if pages are in use or are
    /// changed by other calls. The kernel's reclaim threads, one for each node, call this until
    /// enough memory is free or nothing was freed. An allocation that finds no frame calls it also.
    ///
    /// Does nothing without [`with_reclaim`](Self::with_reclaim).
    pub fn reclaim(&self, node: usize, target: usize) -> Reclaimed {
        let mut total = Reclaimed::default();
        let Some(rmap) = &self.rmap else { return total };
        self.complete_deferred();
        total.freed += self.free_all_discarded();
        let mut left = ROUNDS * rmap.listed(node);
        while total.freed < target && left > 0 {
            let oldest = rmap.take_oldest(node, self.policy.reclaim_batch_pages.clamp(1, left));
            if oldest.is_empty() {
                break;
            }
            let (mut kept, count) = (Vec::new(), oldest.len());
            left -= count;
            total += self.reclaim_chosen(rmap, oldest, Recent::Keep, |page, age| {
                kept.push((page, age));
            });
            rmap.put_back(node, kept);
            rmap.remove_isolated(count);
        }
        if total.freed < target {
            total += self.reuse_all(rmap);
        }
        total
    }

    /// Allocates a frame after an allocation has failed with `error`. Reclaims as long as this call
    /// or others free pages.
    ///
    /// Other calls may have isolated every page that could be reclaimed, and be writing them out.
    /// Memory is then not exhausted, only late, so this call waits for them. (Linux:
    /// `reclaim_throttle`.)
    pub(crate) fn allocate_reclaimed(
        &self,
        purpose: FrameUse,
        error: OutOfMemory,
    ) -> Result<Frame, OutOfMemory> {
        let Some(rmap) = &self.rmap else { return Err(error) };
        let mut fruitless = 0;
        for _ in 0..ATTEMPTS {
            let freed_before = rmap.freed();
            if self.reuse_all(rmap).freed > 0
                && let Ok(frame) = self.platform.allocate(purpose)
            {
                return Ok(frame);
            }
            let reclaim = |node| self.reclaim(node, RECLAIM_PAGES).freed;
            let is_freed = (0..rmap.node_count()).any(|node| reclaim(node) > 0);
            if !is_freed && !self.wait_for_others(rmap, freed_before) {
                fruitless += 1;
                if fruitless == FRUITLESS_MAX {
                    return Err(error);
                }
            }
            if let Ok(frame) = self.platform.allocate(purpose) {
                return Ok(frame);
            }
        }
        Err(error)
    }

    /// Waits until other calls that have isolated pages have freed one, or have no isolated page
    /// left. Returns `true` if a page was freed or the call has waited.
    fn wait_for_others(&self, rmap: &Rmap<S>, freed_before: u64) -> bool {
        let mut has_waited = false;
        while rmap.has_isolated() && rmap.freed() == freed_before {
            self.platform.wait_for_memory();
            has_waited = true;
        }
        has_waited || rmap.freed() != freed_before
    }

    /// Reclaims those of the pages that can be reclaimed, whether or not they were used recently.
    pub(crate) fn page_out(&self, frames: &[Frame]) {
        let Some(rmap) = &self.rmap else { return };
        for chunk in frames.chunks(self.policy.reclaim_batch_pages.max(1)) {
            rmap.add_isolated(chunk.len());
            // A page that is kept is still on its list.
            self.reclaim_chosen(rmap, chunk.iter().copied(), Recent::Reclaim, |_, _| {});
            rmap.remove_isolated(chunk.len());
        }
    }

    /// Reclaims `chosen` pages as far as possible, with one flush. Calls `keep` with each page that
    /// belongs back on a list.
    fn reclaim_chosen(
        &self,
        rmap: &Rmap<S>,
        chosen: impl IntoIterator<Item = Frame>,
        recent: Recent,
        mut keep: impl FnMut(Frame, Age),
    ) -> Reclaimed {
        let mut reclaimed = Reclaimed::default();
        let (mut batch, mut clean_batch) = (Batch::<S>::default(), Batch::<S>::default());
        let (mut unmapped, mut clean) = (Vec::new(), Vec::new());
        for page in chosen {
            reclaimed.scanned += 1;
            let verdict = rmap.with(page, |record| self.judge(page, record, recent));
            match verdict {
                None => {}
                Some(Verdict::Drop) => {
                    rmap.forget_if(page, Page::is_orphan);
                }
                Some(Verdict::Keep(age)) => keep(page, age),
                Some(Verdict::Reclaim) => {
                    let clean_pages = self.clean_pages(rmap, page);
                    let (batch, unmapped) = match clean_pages {
                        CleanPages::AsOthers => (&mut batch, &mut unmapped),
                        CleanPages::AtReuse => (&mut clean_batch, &mut clean),
                    };
                    match self.unmap_everywhere(rmap, page, batch, clean_pages) {
                        Some(page) => unmapped.push(page),
                        None => keep(page, Age::Active),
                    }
                }
            }
        }
        self.coherence.flush_batch(batch);
        for page in unmapped {
            self.finish(rmap, page, &mut reclaimed, &mut keep);
        }
        if clean.is_empty() {
            self.coherence.flush_batch(clean_batch);
        } else {
            self.defer(rmap, clean_batch, clean, &mut reclaimed, &mut keep);
        }
        reclaimed
    }

    /// Decides about a page, and clears its accessed marks.
    fn judge(&self, page: Frame, record: &mut Page<S>, recent: Recent) -> Verdict {
        let can_go = match &record.owner {
            Owner::Anonymous => record.state.contains(State::DISCARDABLE),
            Owner::File(file, _) => {
                record.state.contains(State::STORED) && file.strong_count() != 0
            }
        };
        if !can_go {
            record.state.remove(State::LISTED);
            return Verdict::Drop;
        }
        if recent == Recent::Reclaim {
            return Verdict::Reclaim;
        }
        let used =
            record.mappings.iter().filter(|mapping| self.clear_accessed(page, mapping)).count();
        let was_used = record.state.contains(State::REFERENCED);
        record.state.set(State::REFERENCED, used > 0);
        match used {
            0 => Verdict::Reclaim,
            1 if !was_used => Verdict::Keep(Age::Inactive),
            _ => Verdict::Keep(Age::Active),
        }
    }

    /// Clears the accessed mark of a mapping. Returns `true` if the mark was set: the page was used
    /// since the last call.
    fn clear_accessed(&self, page: Frame, mapping: &Mapping<S>) -> bool {
        let Some((at, entry)) = self.entry_of(page, mapping) else { return false };
        // Linux locks the table for this. A table that is locked is not waited for, because the
        // other CPU may need the lock of this record.
        if self.platform.try_lock_table(at.table) {
            self.platform.unlock_table(at.table);
        }
        let slot = Slot { at, level: 0 };
        let cleared = change_leaf::<S::Format>(&self.platform, slot, entry, |leaf| {
            let is_accessed = leaf.frame == page && leaf.marks.contains(Marks::ACCESSED);
            let marks = leaf.marks - Marks::ACCESSED;
            is_accessed.then(|| S::Format::leaf(Leaf { marks, ..leaf }))
        });
        cleared.is_some()
    }

    /// Returns the entry of a mapping and its value, if the entry maps the page.
    fn entry_of(&self, page: Frame, mapping: &Mapping<S>) -> Option<(EntryAt, u64)> {
        let at = mapping.space.tables.find(&self.platform, mapping.address)?;
        let entry = self.platform.load(at);
        S::Format::as_leaf(entry).is_some_and(|leaf| leaf.frame == page).then_some((at, entry))
    }

    /// Unmaps a page from every space that maps it, and adds it to the batch, which is deferred if
    /// `clean_pages` is [`AtReuse`](CleanPages::AtReuse). Returns `None` if the page is needed.
    fn unmap_everywhere(
        &self,
        rmap: &Rmap<S>,
        page: Frame,
        batch: &mut Batch<S>,
        clean_pages: CleanPages,
    ) -> Option<Reclaiming<S>> {
        let file = rmap.with(page, |record| match &record.owner {
            Owner::Anonymous => None,
            Owner::File(file, number) => Some((Weak::clone(file), *number)),
        })?;
        let mut unmapped = Reclaiming { page, file, count: 0, was_written: false };
        let mut busy = 0;
        loop {
            let step = rmap.with(page, |record| {
                self.unmap_one(page, record, busy, (&mut *batch, clean_pages))
            });
            // Without a record, the page's file was closed, and this call holds the remaining
            // counts of the page.
            match step.unwrap_or(Step::Done) {
                Step::Cleared { mapping, leaf, flush, table, sharers } => {
                    let Mapping { space, address } = mapping;
                    // A page that is flushed alone is flushed with its table locked
                    // (`ptep_clear_flush`).
                    let (coherence, found) = (&self.coherence, (address, leaf));
                    match clean_pages {
                        CleanPages::AsOthers => {
                            space.unmapped(coherence, batch, &flush, found, &sharers);
                        }
                        CleanPages::AtReuse => {
                            space.clean_unmapped(coherence, &self.platform, batch, found, sharers);
                        }
                    }
                    self.platform.unlock_table(table);
                    space.end(flush);
                    self.platform.count_resident(space.tables.root_frame(), -1);
                    unmapped.was_written |= leaf.marks.contains(Marks::DIRTY);
                    unmapped.count += 1;
                }
                Step::TableIsLocked(table) => {
                    // Wait without the lock of the record: the other CPU may need it.
                    self.platform.lock_table(table);
                    self.platform.unlock_table(table);
                }
                Step::Busy => busy += 1,
                Step::BatchIsFull => self.coherence.flush_batch(mem::take(batch)),
                Step::Needed => return None,
                Step::Done => return Some(unmapped),
            }
        }
    }

    /// Clears the entry at the mapping with index `busy`, after those that are busy, and removes
    /// the mapping.
    fn unmap_one(
        &self,
        page: Frame,
        record: &mut Page<S>,
        busy: usize,
        (batch, clean_pages): (&mut Batch<S>, CleanPages),
    ) -> Step<S> {
        let Some(mapping) = record.mappings.get(busy) else { return Step::Done };
        let Some((at, mut entry)) = self.entry_of(page, mapping) else { return Step::Busy };
        let is_anonymous = matches!(record.owner, Owner::Anonymous);
        let Mapping { space, address } = mapping;
        let (coherence, reclaim_flush) = (&self.coherence, self.policy.reclaim_flush);
        let announced = match clean_pages {
            CleanPages::AsOthers => space.announce(coherence, batch, *address, reclaim_flush),
            CleanPages::AtReuse => space.announce_clean(coherence, batch),
        };
        let Ok(flush) = announced else { return Step::BatchIsFull };
        if !self.platform.try_lock_table(at.table) {
            space.end(flush);
            return Step::TableIsLocked(at.table);
        }
        let not_cleared = loop {
            let Some(leaf) = S::Format::as_leaf(entry).filter(|leaf| leaf.frame == page) else {
                break Step::Busy;
            };
            if is_anonymous && (leaf.marks.contains(Marks::DIRTY) || record.mappings.len() > 1) {
                record.state.remove(State::DISCARDABLE);
                break Step::Needed;
            }
            match self.platform.compare_exchange(at, entry, EMPTY) {
                Ok(_) => {
                    // While the record has the mapping, its table is in the tree.
                    let sharers = space.sharers_of(&self.platform, at.table);
                    let mapping = record.mappings.swap_remove(busy);
                    return Step::Cleared { mapping, leaf, flush, table: at.table, sharers };
                }
                // The MMU has marked the entry, or another call has changed it.
                Err(found) => entry = found,
            }
        };
        self.platform.unlock_table(at.table);
        space.end(flush);
        not_cleared
    }

    /// Writes out and frees a page that no CPU uses any more, as far as possible.
    fn finish(
        &self,
        rmap: &Rmap<S>,
        Reclaiming { page, file, count, was_written }: Reclaiming<S>,
        reclaimed: &mut Reclaimed,
        keep: &mut impl FnMut(Frame, Age),
    ) {
        if count != 0 {
            self.platform.work(Work::UnmapPage, count);
        }
        let Some((file, number)) = file else {
            if count == 0 {
                // All mappings were busy or gone. The page stays on its list, as its record claims.
                keep(page, Age::Inactive);
                return;
            }
            // The page is discarded. Its last counts were those of the entries.
            rmap.forget_if(page, |_| true);
            (0..count).for_each(|_| self.platform.release(page));
            rmap.count_freed();
            reclaimed.freed += 1;
            return;
        };
        if was_written {
            // Mark the page only after the flush. Otherwise a concurrent reclaim of the same page
            // could write it out while a CPU can still write to it, and clear the mark.
            rmap.mark_dirty(page);
        }
        let file = file.upgrade();
        if let Some(file) = &file
            && rmap.with(page, Page::begin_writing) == Some(true)
        {
            file.write_out(number, page);
            reclaimed.written += 1;
        }
        (0..count).for_each(|_| self.platform.release(page));
        let Some(file) = file else { return };
        let is_free = rmap.forget_if(page, |record| {
            !record.state.contains(State::DIRTY) && file.remove_unused(number, page)
        });
        if is_free {
            self.platform.release(page);
            rmap.count_freed();
            reclaimed.freed += 1;
        } else {
            keep(page, Age::Inactive);
        }
        // If all other references were dropped during this call, closing the file is left to it.
        self.close(file);
    }
}
