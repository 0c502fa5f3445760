//! The translations that an operation removes: they are gathered, then flushed, and only then
//! freed. (Linux: `mmu_gather`.)

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use shootdown::{Extent, ExtentSet, PageSize};

use crate::PAGE_BYTES;
use crate::area::{Area, LargePages, Sharing};
use crate::areas::Vacated;
use crate::coherence::{Batching, Cause, Change, ExtraFlushes, Flush, Freed, Later, UnmapLock};
use crate::deferred::in_flight::FlushInFlight;
use crate::deferred::unmaps::{DeferredUnmap, Marked, Removed};
use crate::flushing::Flushing;
use crate::format::{EMPTY, Format, Leaf, Marks};
use crate::mappings::Mappings;
use crate::platform::{Frame, Platform};
use crate::sharers::Sharers;
use crate::space::AddressSpace;
use crate::system::{Deferred, System};
use crate::table::{Slot, next_boundary, pages_of};

/// Maximum number of gathered pages, as in Linux: 8 on the stack, and 19 pages of 510.
const PAGES_MAX: usize = 8 + 19 * 510;
/// Maximum number of gathered page tables: one page of them.
const TABLES_MAX: usize = 509;

/// The changes of one operation, from before the first change until the flush is sent.
#[must_use = "`send` and `Sent::wait` release the gathered pages and tables"]
pub(crate) struct Gather<'s, S: System> {
    space: &'s AddressSpace<S>,
    in_flight: FlushInFlight,
    /// The range that the operation was asked to change.
    requested: Range<u64>,
    /// The smallest range that contains all removed translations.
    flush_range: Option<Range<u64>>,
    /// The size of the smallest page that was removed.
    page_size: PageSize,
    /// `true` if an entry of another size may be written where a translation was removed.
    resizes: bool,
    /// `true` if a page was removed that had been written.
    has_written: bool,
    /// The removed translations as extents, and the pages and tables to free after the flush.
    gathered: shootdown::Gather<Vec<Frame>>,
    marks: Marked,
    extra: Option<Extra>,
    cause: Cause,
    /// The sharers of the tables that were removed.
    unlinked: Sharers,
}

/// A flush that correctness does not need: see [`ExtraFlushes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extra {
    /// The whole space, also on idle CPUs.
    Everything,
    /// The whole space, if a translation was removed.
    SpaceIfAny,
    /// The removed translations, also on idle CPUs.
    IdleCpus,
}

impl<'s, S: System> Gather<'s, S> {
    /// Begins to gather. Call this before the first entry of `requested` is changed.
    pub(crate) fn begin(space: &'s AddressSpace<S>, requested: Range<u64>, cause: Cause) -> Self {
        if is_announced(cause) {
            space.vm.coherence.gather_begins(space.coherent());
        }
        Self {
            in_flight: space.mappings.in_flight.begin(&requested),
            space,
            requested,
            flush_range: None,
            page_size: size_at::<S::Format>(S::Format::LEAF_LEVEL_MAX),
            resizes: false,
            has_written: false,
            gathered: shootdown::Gather::new(),
            marks: Marked::default(),
            extra: None,
            cause,
            unlinked: Sharers::default(),
        }
    }

    /// Clears the entries for `range`, in which large pages are of one kind. A folio that reaches
    /// beyond the range is [split](AddressSpace::split_folio). Other large pages that do were split
    /// before, and one that a fault has just mapped stays.
    pub(crate) fn clear(&mut self, range: &Range<u64>, large: LargePages) {
        let space = self.space;
        let (platform, tables) = (&space.vm.platform, &space.mappings.tables);
        for found in tables.entries(platform, range.clone()) {
            if found.reaches_beyond::<S::Format>(range) {
                // A large page of the area's own was mapped by a fault since the call began. It is
                // as empty as the call leaves it.
                if large == LargePages::Folios {
                    space.split_folio(&found);
                }
                continue;
            }
            let Slot { at, level } = found.slot;
            let leaf = if level == 0 {
                // Remove the entry as it is now: since it was found, the MMU may have marked it, or
                // a fault may have mapped a page. A claim is cleared also; the CPU that claimed the
                // entry detects this. It may flush the page only after this call has returned, so
                // this call flushes the page as well.
                let entry = platform.swap(at, EMPTY);
                let leaf = S::Format::as_leaf(entry);
                if leaf.is_none() && entry != EMPTY {
                    self.add_translation(found.address, 0);
                }
                leaf
            } else {
                // Do not remove a table: a fault links one here after another call has cleared the
                // leaf. The translation that this call was asked to remove is gone then.
                tables.clear_large(platform, &found)
            };
            match leaf {
                Some(leaf) if level > 0 && large == LargePages::Folios => {
                    self.remove_folio(found.address, leaf, level);
                }
                Some(leaf) => self.remove_page(found.address, leaf, level),
                None => {}
            }
        }
    }

    /// Clears the entries for a part of an area, and adds the extra flushes of the policy.
    pub(crate) fn clear_area(&mut self, area: &Area<S::Platform>, part: &Range<u64>) {
        let extra_flushes = self.space.vm.policy.extra_flushes;
        if extra_flushes.contains(ExtraFlushes::WRITTEN_SHARED_PAGES)
            && area.sharing == Sharing::Shared
        {
            self.clear_by_table(part, area.large_pages());
        } else {
            self.clear(part, area.large_pages());
        }
        if extra_flushes.contains(ExtraFlushes::SPACE_PER_UNMAP) {
            self.flush_also(Extra::SpaceIfAny);
        }
        if extra_flushes.contains(ExtraFlushes::TABLE_PER_DISCARD)
            && self.cause == Cause::Advise
            && self.has_emptied_table(part)
        {
            self.flush_also(Extra::IdleCpus);
        }
        if extra_flushes.contains(ExtraFlushes::AREA_PER_UNMAP) {
            self.gathered.changed(Extent::range(area.range.clone(), PageSize::SIZE_4K));
            self.extend_range(area.range.clone(), PageSize::SIZE_4K);
        }
    }

    /// Returns `true` if a translation was removed where `part` has all that a page table covers.
    fn has_emptied_table(&self, part: &Range<u64>) -> bool {
        let span = S::Format::span(1);
        let (start, end) = (part.start.next_multiple_of(span), part.end & !(span - 1));
        let removed = self.flush_range.as_ref();
        removed.is_some_and(|it| start < end && it.start < end && start < it.end)
    }

    /// Clears the entries for `range`, and flushes after each page table in which a page was
    /// written.
    fn clear_by_table(&mut self, range: &Range<u64>, large: LargePages) {
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(next_boundary(start, S::Format::span(1)));
            self.has_written = false;
            self.clear(&(start..end), large);
            if self.has_written {
                self.flush_gathered();
            }
            start = end;
        }
    }

    /// Unhooks the tables for the addresses in `empty`. See
    /// [`PageTables::unhook`](crate::table::PageTables::unhook).
    pub(crate) fn unhook(&mut self, empty: &Vacated) {
        let space = self.space;
        let Vacated { ranges, gap } = empty;
        space.mappings.tables.unhook(&space.vm.platform, ranges, gap, |table, covered, level| {
            self.add_table(covered.start, table, level);
            self.make_room();
        });
    }

    /// Adds an empty table that was unhooked from an entry at `level`. The table covered `address`.
    ///
    /// The range of the flush gets the first page that the table covered, in steps of what the
    /// table covered, as in Linux (`pte_free_tlb`): the other addresses were not mapped, or are
    /// gathered themselves.
    pub(crate) fn add_table(&mut self, address: u64, table: Frame, level: usize) {
        self.unlink(address, table);
        self.gathered.table(address, table);
        let first = address & !(S::Format::span(level) - 1);
        let size = size_at::<S::Format>(level.min(S::Format::LEAF_LEVEL_MAX));
        self.extend_range(first..first + PAGE_BYTES, size);
    }

    /// Removes the links of replicas to a table that was unhooked, if it is of the last level.
    fn unlink(&mut self, address: u64, table: Frame) {
        let (platform, replicas) = (&self.space.vm.platform, &self.space.mappings.replicas);
        // No area has the table, so no CPU is making a link to it. The lock of the areas orders the
        // links that were made before.
        if !replicas.are_used() {
            return;
        }
        let mut sharers = Sharers::default();
        sharers.add_of(platform, table);
        for replica in replicas.of_sharers(&sharers) {
            replica.unlink(platform, address);
        }
        self.unlinked.add_all(&sharers);
    }

    /// Adds the page of an entry at `level` that was changed or cleared, and held `leaf`. The
    /// entry's reference to the page, or to each page of a large page, becomes the gather's.
    pub(crate) fn remove_page(&mut self, address: u64, leaf: Leaf, level: usize) {
        self.add_leaf(address, leaf, level);
        self.has_written |= leaf.marks.contains(Marks::DIRTY);
        if leaf.frame == self.space.vm.zero_page {
            return;
        }
        for (address, page) in pages_of::<S::Format>(address, leaf.frame, level) {
            self.space.remove_mapping(page, address);
            if leaf.marks.contains(Marks::DIRTY) && self.space.vm.rmap.is_some() {
                self.marks.dirty.push(page);
            }
            self.gathered.defer_free(page);
        }
        self.make_room();
    }

    /// Adds the folio of an entry at `level` that was cleared and held `leaf`.
    fn remove_folio(&mut self, address: u64, leaf: Leaf, level: usize) {
        self.add_leaf(address, leaf, level);
        self.gathered.defer_free(leaf.frame);
        self.make_room();
    }

    /// Records after the flush that the contents of a page are not needed.
    pub(crate) fn discard_later(&mut self, page: Frame, address: u64) {
        if self.space.vm.rmap.is_some() {
            self.marks.discardable.push((page, address));
        }
    }

    /// Adds the translation of an entry at `level` that held `leaf`. The page is not freed.
    pub(crate) fn add_leaf(&mut self, address: u64, leaf: Leaf, level: usize) {
        self.resizes |= level > 0;
        if !leaf.protection.is_empty()
            || self.space.vm.policy.extra_flushes.contains(ExtraFlushes::INACCESSIBLE_PAGES)
        {
            self.add_translation(address, level);
        }
    }

    /// Adds the translation of an entry at `level`.
    pub(crate) fn add_translation(&mut self, address: u64, level: usize) {
        let size = size_at::<S::Format>(level);
        self.gathered.changed(Extent::pages(address, 1, size));
        self.extend_range(address..address + size.bytes(), size);
    }

    /// Records that an entry of another size will be written where a translation was removed.
    pub(crate) const fn resize(&mut self) {
        self.resizes = true;
    }

    /// Adds an extra flush.
    pub(crate) const fn flush_also(&mut self, extra: Extra) {
        self.extra = Some(extra);
    }

    /// Sends the flush, if one is needed.
    pub(crate) fn send(self) -> Sent<'s, S> {
        self.send_by(|space, change, unlinked| Later::Sent(space.flush(change, unlinked)))
    }

    /// Sends the flush, if one is needed, or defers it. The addresses are not mapped again until
    /// the flush is complete, which may be after the operation has returned.
    pub(crate) fn send_later(self) -> Sent<'s, S> {
        self.send_by(AddressSpace::flush_later)
    }

    fn send_by(
        mut self,
        flush: impl FnOnce(&AddressSpace<S>, &Change, Sharers) -> Later<Flushing<S>, Deferred<S>>,
    ) -> Sent<'s, S> {
        let (mut change, removed) = self.take_change();
        let Self { space, in_flight, requested, unlinked, cause, .. } = self;
        if is_announced(cause) && space.vm.coherence.is_nested(space.coherent()) {
            // The extents stay: the flush is of more than was changed.
            let nothing = Change { extents: ExtentSet::new(), ..Change::whole(Freed::Tables) };
            let changed = change.unwrap_or(Change { cause, ..nothing });
            change = Some(Change { range: None, freed: Freed::Tables, ..changed });
        }
        let flush = change.map(|change| flush(space, &change, unlinked));
        if flush.is_none() {
            space.counters.flushes_avoided.fetch_add(1, Relaxed);
        }
        Sent { space, in_flight, requested, flush, removed, cause }
    }

    /// Returns `true` if no translation was added.
    pub(crate) const fn is_empty(&self) -> bool {
        self.flush_range.is_none()
    }

    /// Ends a gather that changed nothing.
    pub(crate) fn cancel(self) {
        debug_assert!(!is_announced(self.cause), "the end is not announced");
        self.space.mappings.in_flight.end(self.in_flight);
    }

    /// Takes out the change to flush, and the pages and tables to free after the flush.
    fn take_change(&mut self) -> (Option<Change>, Removed) {
        // This call may have found fewer entries than it was asked to change, because another call
        // had cleared them. The caller relies on all of the range being flushed. So if the other
        // call's flush is not complete, this flush covers the whole range, in addition to tables
        // that were removed elsewhere.
        let Mappings { in_flight, deferred, coherent, .. } = &*self.space.mappings;
        let raced = in_flight.overlapping(&self.requested, Some(&self.in_flight)).is_some()
            || deferred.overlapping(&self.requested).is_some()
            || self.space.vm.coherence.is_batched(coherent);
        if raced {
            // The tables of the other call may have been unhooked.
            self.unlinked.add_everyone();
            self.space.counters.flushes_for_races.fetch_add(1, Relaxed);
            self.gathered.changed(Extent::range(self.requested.clone(), PageSize::SIZE_4K));
            self.extend_range(self.requested.clone(), PageSize::SIZE_4K);
        }
        let range = self.flush_range.take();
        let page_size =
            mem::replace(&mut self.page_size, size_at::<S::Format>(S::Format::LEAF_LEVEL_MAX));
        let (extents, pages, tables) = mem::take(&mut self.gathered).into_parts();
        let has_tables = !tables.is_empty() || self.extra == Some(Extra::IdleCpus);
        let freed = if has_tables { Freed::Tables } else { Freed::Pages };
        let (resizes, cause) = (mem::take(&mut self.resizes), self.cause);
        let whole = |freed| Change { resizes, cause, ..Change::whole(freed) };
        let change = match self.extra {
            Some(Extra::Everything) => Some(whole(Freed::Tables)),
            Some(Extra::SpaceIfAny) => range.map(|_| whole(freed)),
            Some(Extra::IdleCpus) | None => range.map(|range| Change {
                range: Some(range),
                extents,
                page_size,
                freed,
                resizes,
                cause,
            }),
        };
        (change, Removed { pages, tables, marks: mem::take(&mut self.marks) })
    }

    fn extend_range(&mut self, range: Range<u64>, page_size: PageSize) {
        self.page_size = self.page_size.min(page_size);
        self.flush_range = Some(match &self.flush_range {
            None => range,
            Some(flush_range) => flush_range.start.min(range.start)..flush_range.end.max(range.end),
        });
    }

    /// Flushes and frees before the end of the operation, if too much is gathered.
    fn make_room(&mut self) {
        if self.gathered.pages().len() < PAGES_MAX && self.gathered.table_count() < TABLES_MAX {
            return;
        }
        self.flush_gathered();
    }

    /// Flushes and frees what is gathered so far.
    fn flush_gathered(&mut self) {
        let (change, removed) = self.take_change();
        let unlinked = mem::take(&mut self.unlinked);
        let flush = change.map(|change| self.space.flush(&change, unlinked));
        let horizon =
            flush.map(|flush| flush.wait(&self.space.vm.coherence, &self.space.vm.platform));
        self.space.free(removed, horizon);
    }
}

/// Returns `true` if the coherence is told when an operation gathers: other operations of Linux use
/// no `mmu_gather`.
const fn is_announced(cause: Cause) -> bool {
    matches!(cause, Cause::Unmap | Cause::Advise | Cause::Protect)
}

fn end_announced<S: System>(space: &AddressSpace<S>, cause: Cause) {
    if is_announced(cause) {
        space.vm.coherence.gather_ends(space.coherent());
    }
}

/// Returns the size of a page at `level`.
fn size_at<F: Format>(level: usize) -> PageSize {
    PageSize::from_shift(F::span(level).ilog2() as u8)
}

/// A flush that was sent, or was not needed, and the pages and tables to free after it.
#[must_use = "`wait` releases the gathered pages and tables"]
pub(crate) struct Sent<'s, S: System> {
    space: &'s AddressSpace<S>,
    in_flight: FlushInFlight,
    requested: Range<u64>,
    flush: Option<Later<Flushing<S>, Deferred<S>>>,
    removed: Removed,
    cause: Cause,
}

impl<S: System> Sent<'_, S> {
    /// Waits until the flush is complete, and frees what was gathered; or defers both.
    pub(crate) fn wait(self) {
        let Self { space, in_flight, requested, flush, removed, cause } = self;
        let horizon = match flush {
            Some(Later::Deferred(flush)) => {
                // Add the deferred range before the flush leaves the list that has covered it so
                // far: see `DeferredRanges::overlapping`.
                let mappings = Arc::clone(&space.mappings);
                let unmap = DeferredUnmap { space: mappings, range: requested, flush, removed };
                space.vm.deferred.push(unmap);
                space.mappings.in_flight.end(in_flight);
                return end_announced(space, cause);
            }
            Some(Later::Sent(flush)) => Some(flush.wait(&space.vm.coherence, &space.vm.platform)),
            None => None,
        };
        space.mappings.in_flight.end(in_flight);
        space.free(removed, horizon);
        end_announced(space, cause);
    }

    /// Does the same, and drops the lock: before the wait if the policy allows it, and after it
    /// otherwise.
    pub(crate) fn wait_and_unlock(self, lock: impl Sized) {
        if self.space.vm.policy.unmap_lock == UnmapLock::Released {
            drop(lock);
            self.wait();
        } else {
            self.wait();
            drop(lock);
        }
    }
}
