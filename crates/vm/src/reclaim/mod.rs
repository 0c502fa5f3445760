//! Reclaim: takes pages from whoever has them, when memory is needed. (Linux: `shrink_folio_list`,
//! `try_to_unmap`.)
//!
//! The pages of stored files, and those that [`Free`](crate::Advice::Free) was said of, are on
//! lists by age. The oldest are looked at first. One that was used since the last look is left for
//! later; the others are taken from every space that maps them, so many at a time. Their flush is
//! the coherence's to put off, until all of them are taken; then it is done, and only after that is
//! anything written out or given away.
//!
//! No lock of a space is taken, so whoever holds one may come here for want of memory. What keeps
//! others in order meanwhile:
//!
//! - *Faults* find the entry empty. The page is still the file's, so that they find it there; of
//!   what is no file's they get another, when the old one is [settled].
//! - *`munmap` and all others* find the entry empty, and that the space
//!   [is batched](Batching::is_batched), and flush what they were asked to change.
//! - *Forks* find the page gone from where they have just read it, and leave it out.
//! - *The end of a space* finds its entry struck out, and leaves its count to us.
//!
//! To look whether a page was used takes the marks away, and flushes nothing: a CPU that remembers
//! a mark does not set it again, and the page is taken for older than it is.
//!
//! [settled]: shootdown::Here::settle

mod migrate;
pub(crate) mod rmap;

use alloc::sync::Weak;
use alloc::vec::Vec;
use core::mem;
use core::ops::AddAssign;

use crate::coherence::Batching;
use crate::file::File;
use crate::format::{EMPTY, Format, Leaf, Marks};
use crate::mappings::Announced;
use crate::platform::{EntryAt, Frame, FrameUse, OutOfMemory, Platform, Work};
use crate::reclaim::rmap::{Age, Mapping, Owner, Page, Rmap, State};
use crate::system::{Batch, System};
use crate::vm::Vm;

/// So many pages are looked at, taken and flushed together. (Linux: `SWAP_CLUSTER_MAX`.)
pub const RECLAIM_PAGES: usize = 32;

/// How often memory that was reclaimed may be somebody else's before one gives up.
const ATTEMPTS: usize = 16;

/// How often a page is come to before one gives up: once to take its marks, once to find that it
/// was used again, and once to find that it was not used any more.
const ROUNDS: usize = 3;

/// What reclaim came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Pages that are free now.
    pub freed: usize,
    /// Pages that were looked at.
    pub looked_at: usize,
    /// Pages that were written to where they are stored.
    pub written: usize,
}

impl AddAssign for Reclaimed {
    fn add_assign(&mut self, other: Self) {
        self.freed += other.freed;
        self.looked_at += other.looked_at;
        self.written += other.written;
    }
}

/// Whether pages that were used of late are left alone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Recent {
    Kept,
    Taken,
}

/// What is to be done with a page.
enum Verdict {
    /// It is no page any more that could be taken.
    Drop,
    Keep(Age),
    Take,
}

/// A page on its way out.
struct Reclaiming<S: System> {
    page: Frame,
    /// The file that it is of, and which of its pages.
    file: Option<(Weak<File<S::Platform>>, u64)>,
    /// How many entries held it.
    count: usize,
    /// One of them said so.
    was_written: bool,
}

/// What came of trying to take one entry.
enum Step<S: System> {
    Taken(Mapping<S>, Leaf, Announced),
    /// Somebody else is at it.
    Busy,
    /// It has been written, and is needed again.
    Needed,
    BatchIsFull,
    /// There is no entry left.
    Done,
}

impl<S: System> Vm<S> {
    /// Frees up to `target` pages of a node, or some more; less, if pages are in use, or changed
    /// hands meanwhile. For the kernel's reclaim thread, one for each node, which goes on until
    /// enough is free or nothing more was freed; and called by whoever finds no frame.
    ///
    /// Does nothing without [`with_reclaim`](Self::with_reclaim).
    pub fn reclaim(&self, node: usize, target: usize) -> Reclaimed {
        let mut total = Reclaimed::default();
        let Some(rmap) = &self.rmap else { return total };
        self.complete_deferred();
        let mut left = ROUNDS * rmap.listed(node);
        while total.freed < target && left > 0 {
            let oldest = rmap.take_oldest(node, RECLAIM_PAGES.min(left));
            if oldest.is_empty() {
                break;
            }
            left -= oldest.len();
            total += self.reclaim_pages(rmap, node, oldest, Recent::Kept);
        }
        total
    }

    /// A frame, when there was none: reclaims for as long as that frees any, or others do.
    ///
    /// Nothing that could be taken may be left because others are about to: then every page is on
    /// its way to where it is stored, and memory is not out, but late. (Linux: `reclaim_throttle`.)
    pub(crate) fn allocate_reclaimed(
        &self,
        purpose: FrameUse,
        error: OutOfMemory,
    ) -> Result<Frame, OutOfMemory> {
        let Some(rmap) = &self.rmap else { return Err(error) };
        for _ in 0..ATTEMPTS {
            let freed_before = rmap.freed();
            let reclaim = |node| self.reclaim(node, RECLAIM_PAGES).freed;
            let is_freed = (0..rmap.node_count()).any(|node| reclaim(node) > 0);
            if !is_freed && !self.wait_for_others(rmap, freed_before) {
                return Err(error);
            }
            if let Ok(frame) = self.platform.allocate(purpose) {
                return Ok(frame);
            }
        }
        Err(error)
    }

    /// Waits until others, who are about to reclaim pages, have freed one, or are done. Returns
    /// whether there was anything to wait for.
    fn wait_for_others(&self, rmap: &Rmap<S>, freed_before: u64) -> bool {
        let mut has_waited = false;
        while rmap.has_isolated() && rmap.freed() == freed_before {
            self.platform.wait_for_memory();
            has_waited = true;
        }
        has_waited || rmap.freed() != freed_before
    }

    /// Takes pages, whether or not they were used of late, if they are pages that can be taken.
    pub(crate) fn page_out(&self, frames: &[Frame]) -> Reclaimed {
        let mut total = Reclaimed::default();
        let Some(rmap) = &self.rmap else { return total };
        for chunk in frames.chunks(RECLAIM_PAGES) {
            rmap.add_isolated(chunk.len());
            let chosen = chunk.iter().copied();
            // What is kept is on a list already.
            let reclaimed = self.reclaim_chosen(rmap, chosen, Recent::Taken, |_, _| {});
            rmap.remove_isolated(chunk.len());
            total += reclaimed;
        }
        total
    }

    fn reclaim_pages(
        &self,
        rmap: &Rmap<S>,
        node: usize,
        oldest: Vec<Frame>,
        recent: Recent,
    ) -> Reclaimed {
        let (mut kept, count) = (Vec::new(), oldest.len());
        let reclaimed =
            self.reclaim_chosen(rmap, oldest, recent, |page, age| kept.push((page, age)));
        rmap.put_back(node, kept);
        rmap.remove_isolated(count);
        reclaimed
    }

    fn reclaim_chosen(
        &self,
        rmap: &Rmap<S>,
        chosen: impl IntoIterator<Item = Frame>,
        recent: Recent,
        mut keep: impl FnMut(Frame, Age),
    ) -> Reclaimed {
        let mut reclaimed = Reclaimed::default();
        let mut batch = Batch::<S>::default();
        let mut taken = Vec::new();
        for page in chosen {
            reclaimed.looked_at += 1;
            let verdict = rmap.with(page, |record| self.judge(page, record, recent));
            match verdict {
                None => {}
                Some(Verdict::Drop) => {
                    rmap.forget_if(page, Page::is_orphan);
                }
                Some(Verdict::Keep(age)) => keep(page, age),
                Some(Verdict::Take) => match self.unmap_everywhere(rmap, page, &mut batch) {
                    Some(page) => taken.push(page),
                    None => keep(page, Age::Active),
                },
            }
        }
        self.coherence.flush_batch(batch);
        for taken in taken {
            self.finish(rmap, taken, &mut reclaimed, &mut keep);
        }
        reclaimed
    }

    /// What is to be done with a page; takes the marks of having been used away.
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
        if recent == Recent::Taken {
            return Verdict::Take;
        }
        let used =
            record.mappings.iter().filter(|mapping| self.take_accessed(page, mapping)).count();
        let was_used = record.state.contains(State::REFERENCED);
        record.state.set(State::REFERENCED, used > 0);
        match used {
            0 => Verdict::Take,
            1 if !was_used => Verdict::Keep(Age::Inactive),
            _ => Verdict::Keep(Age::Active),
        }
    }

    /// Whether a page was used through an entry since this was last asked.
    fn take_accessed(&self, page: Frame, mapping: &Mapping<S>) -> bool {
        let Some((at, mut entry)) = self.entry_of(page, mapping) else { return false };
        while let Some(leaf) = S::Format::as_leaf(entry).filter(|leaf| leaf.frame == page) {
            if !leaf.marks.contains(Marks::ACCESSED) {
                return false;
            }
            let unmarked = Leaf { marks: leaf.marks - Marks::ACCESSED, ..leaf };
            match self.platform.compare_exchange(at, entry, S::Format::leaf(unmarked)) {
                Ok(_) => return true,
                Err(found) => entry = found,
            }
        }
        false
    }

    /// The entry at a mapping, if it holds the page.
    fn entry_of(&self, page: Frame, mapping: &Mapping<S>) -> Option<(EntryAt, u64)> {
        let at = mapping.space.tables.find(&self.platform, mapping.address)?;
        let entry = self.platform.load(at);
        S::Format::as_leaf(entry).is_some_and(|leaf| leaf.frame == page).then_some((at, entry))
    }

    /// Takes a page from every space that maps it. `None` if it is needed after all.
    fn unmap_everywhere(
        &self,
        rmap: &Rmap<S>,
        page: Frame,
        batch: &mut Batch<S>,
    ) -> Option<Reclaiming<S>> {
        let file = rmap.with(page, |record| match &record.owner {
            Owner::Anonymous => None,
            Owner::File(file, number) => Some((Weak::clone(file), *number)),
        })?;
        let mut taken = Reclaiming { page, file, count: 0, was_written: false };
        let mut busy = 0;
        loop {
            let step = rmap.with(page, |record| self.unmap_one(page, record, busy, batch));
            // Without a record: its file was closed meanwhile, and what is left are our counts.
            match step.unwrap_or(Step::Done) {
                Step::Taken(mapping, leaf, flush) => {
                    let Mapping { space, address } = mapping;
                    space.unmapped(&self.coherence, batch, address, leaf);
                    space.end(flush);
                    taken.was_written |= leaf.marks.contains(Marks::DIRTY);
                    taken.count += 1;
                }
                Step::Busy => busy += 1,
                Step::BatchIsFull => self.coherence.flush_batch(mem::take(batch)),
                Step::Needed => return None,
                Step::Done => return Some(taken),
            }
        }
    }

    /// Clears the entry at the mapping after so many that are busy, and strikes it out.
    fn unmap_one(
        &self,
        page: Frame,
        record: &mut Page<S>,
        busy: usize,
        batch: &mut Batch<S>,
    ) -> Step<S> {
        let Some(mapping) = record.mappings.get(busy) else { return Step::Done };
        let Some((at, mut entry)) = self.entry_of(page, mapping) else { return Step::Busy };
        let is_anonymous = matches!(record.owner, Owner::Anonymous);
        let Mapping { space, address } = mapping;
        let reclaim_flush = self.policy.reclaim_flush;
        let Ok(flush) = space.announce(&self.coherence, batch, *address, reclaim_flush) else {
            return Step::BatchIsFull;
        };
        let not_taken = loop {
            let Some(leaf) = S::Format::as_leaf(entry).filter(|leaf| leaf.frame == page) else {
                break Step::Busy;
            };
            if is_anonymous && (leaf.marks.contains(Marks::DIRTY) || record.mappings.len() > 1) {
                record.state.remove(State::DISCARDABLE);
                break Step::Needed;
            }
            match self.platform.compare_exchange(at, entry, EMPTY) {
                Ok(_) => return Step::Taken(record.mappings.swap_remove(busy), leaf, flush),
                // The MMU has marked it, or another call has taken it.
                Err(found) => entry = found,
            }
        };
        space.end(flush);
        not_taken
    }

    /// Does with a page, which no CPU uses any more, what is to be done with it.
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
                // Busy, or gone meanwhile. On its list it stays: its record says that it is there.
                keep(page, Age::Inactive);
                return;
            }
            // Discarded: its last count was the entry's.
            rmap.forget_if(page, |_| true);
            (0..count).for_each(|_| self.platform.release(page));
            rmap.count_freed();
            reclaimed.freed += 1;
            return;
        };
        if was_written {
            // Not before the flush: another reclaim of the same page would write it out while it
            // is still written to, and leave nothing to do for us.
            rmap.mark_dirty(page);
        }
        let file = file.upgrade();
        if let Some(file) = &file
            && rmap.with(page, Page::take_dirty) == Some(true)
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
        // Who dropped it meanwhile has left its end to us.
        self.close(file);
    }
}
