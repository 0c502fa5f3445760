//! Advice about pages. (Linux: `madvise`.)

use alloc::vec::Vec;
use core::ops::Range;

use crate::PAGE_BYTES;
use crate::area::{Area, LargePages};
use crate::areas::Areas;
use crate::coherence::Cause;
use crate::error::RangeError;
use crate::format::{Format, Leaf, Marks};
use crate::gather::Gather;
use crate::platform::{Frame, Platform, Work};
use crate::space::AddressSpace;
use crate::system::System;
use crate::table::{Found, change_leaf};

/// Advice of user space about some pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// The pages are not needed. Private pages are discarded, and the next access finds them as
    /// they were at first. A few anonymous pages may be discarded [in
    /// place](crate::Discards::InPlace).
    DontNeed,
    /// The current contents of the pages are not needed. The marks of private anonymous pages are
    /// cleared, and the next access sets them again. A page without a mark may be discarded:
    /// [reclaim](crate::Vm::reclaim) does so when it examines the page. Large pages are split for
    /// this. Other areas are ignored. (Linux: `MADV_FREE`, which returns an error for them.)
    Free,
    /// The pages will not be used for some time. The accessed marks of pages that are mapped once
    /// are cleared, and flushed so that CPUs set them again. Large pages are left alone. (Linux:
    /// `MADV_COLD`.)
    Cold,
    /// The pages will not be used for some time. Those of stored files are written out, if
    /// necessary, and reclaimed, whether or not they were used recently. No data is lost. (Linux:
    /// `MADV_PAGEOUT`.)
    PageOut,
}

impl<S: System> AddressSpace<S> {
    /// Acts on advice about the pages in `range`.
    ///
    /// The lock of the space is held for reading, so faults and other advice run concurrently. Page
    /// tables are kept. If a large page must be split, the lock is first held for writing. If
    /// [faults lock areas](crate::FaultLock::Area), advice to discard pages of one area holds only
    /// the lock of that area.
    ///
    /// # Errors
    ///
    /// [`RangeError::BadRange`], or [`RangeError::OutOfMemory`] if there is no memory to split
    /// large pages: nothing is changed then. [`RangeError::NoArea`] if a part of the range is in no
    /// area: the rest is changed nevertheless, as in Linux.
    pub fn advise(&self, range: Range<u64>, advice: Advice) -> Result<(), RangeError> {
        self.vm.platform.work(Work::FindArea, 1);
        let advised = match self.advise_in_locked_area(&range, advice) {
            Some(()) => Ok(()),
            None => self.advise_in_locked_space(core::slice::from_ref(&range), advice),
        };
        self.vm.free_discarded();
        advised
    }

    /// Acts on advice about pages in several ranges, in ascending order, with one flush. (Linux:
    /// `process_madvise`, which flushes once since 6.16 if the pages are discarded.)
    ///
    /// # Errors
    ///
    /// Those of [`advise`](Self::advise). [`RangeError::BadRange`] also if there is no range.
    pub fn advise_ranges(&self, ranges: &[Range<u64>], advice: Advice) -> Result<(), RangeError> {
        self.vm.platform.work(Work::FindArea, ranges.len());
        let advised = self.advise_in_locked_space(ranges, advice);
        self.vm.free_discarded();
        advised
    }

    /// Acts on advice with the space locked.
    fn advise_in_locked_space(
        &self,
        ranges: &[Range<u64>],
        advice: Advice,
    ) -> Result<(), RangeError> {
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else {
            return Err(RangeError::BadRange);
        };
        let hull = first.start..last.end;
        let (areas, split) = self.read_areas_split(&hull, |large| {
            ranges.iter().any(|range| must_split::<S::Format>(large, range, advice))
        });
        ranges.iter().try_for_each(|range| areas.check(range))?;
        split?;
        let is_covered = ranges.iter().all(|range| areas.cover(range));
        if advice == Advice::PageOut {
            let frames: Vec<_> =
                ranges.iter().flat_map(|range| self.frames(&areas, range)).collect();
            drop(areas);
            self.vm.page_out(&frames);
            return if is_covered { Ok(()) } else { Err(RangeError::NoArea) };
        }
        let mut gather = Gather::begin(self, hull, Cause::Advise);
        for range in ranges {
            for area in areas.overlapping(range) {
                self.discard(area, range, advice, &mut gather);
            }
        }
        gather.send().wait_and_unlock(areas);
        if is_covered { Ok(()) } else { Err(RangeError::NoArea) }
    }

    /// Discards pages of one area, with only the area locked. `None` if nothing was done, because
    /// the space must be locked.
    fn advise_in_locked_area(&self, range: &Range<u64>, advice: Advice) -> Option<()> {
        let index = self.mappings.index.as_ref()?;
        let is_good = range.start < range.end
            && range.start.is_multiple_of(PAGE_BYTES)
            && range.end.is_multiple_of(PAGE_BYTES);
        if matches!(advice, Advice::Cold | Advice::PageOut) || !is_good {
            return None;
        }
        let slot = index.find(range.start)?;
        let area = slot.try_read(range)?;
        let mut large = self.mappings.tables.large_leaves(&self.vm.platform, range.clone());
        if area.large_pages() == LargePages::Own
            && large.any(|large| must_split::<S::Format>(&large, range, advice))
        {
            return None;
        }
        let mut gather = Gather::begin(self, range.clone(), Cause::Advise);
        self.discard(&area, range, advice, &mut gather);
        gather.send().wait_and_unlock(area);
        Some(())
    }

    /// Discards the pages of an area in `range`, which overlaps it.
    fn discard(
        &self,
        area: &Area<S::Platform>,
        range: &Range<u64>,
        advice: Advice,
        gather: &mut Gather<'_, S>,
    ) {
        let part = area.part_in(range);
        match advice {
            Advice::DontNeed => {
                if !self.discard_in_place(area, &part, gather) {
                    gather.clear_area(area, &part);
                }
            }
            Advice::Free if area.is_private_anonymous() => self.unmark(&part, gather),
            Advice::Cold => self.cool(area, &part, gather),
            Advice::Free | Advice::PageOut => {}
        }
    }

    /// Clears the accessed marks in entries.
    fn cool(&self, area: &Area<S::Platform>, range: &Range<u64>, gather: &mut Gather<'_, S>) {
        let platform = &self.vm.platform;
        // A frame of a file is also counted by the file.
        let is_private = area.is_private_anonymous();
        let is_mapped_once = |frame| !is_private || platform.user_count(frame) == 1;
        for Found { address, slot, entry } in self.mappings.tables.entries(platform, range.clone())
        {
            if slot.level > 0 {
                continue;
            }
            let cooled = change_leaf::<S::Format>(platform, slot, entry, |leaf| {
                let is_warm = leaf.marks.contains(Marks::ACCESSED)
                    && leaf.frame != self.vm.zero_page
                    && is_mapped_once(leaf.frame);
                let marks = leaf.marks - Marks::ACCESSED;
                is_warm.then(|| S::Format::leaf(Leaf { marks, ..leaf }))
            });
            if let Some(leaf) = cooled {
                gather.add_leaf(address, leaf, 0);
            }
        }
    }

    /// Returns the frames that are mapped in `range`.
    fn frames(&self, areas: &Areas<S::Platform>, range: &Range<u64>) -> Vec<Frame> {
        let parts = areas.overlapping(range).map(|area| area.part_in(range));
        let entries = parts.flat_map(|part| self.mappings.tables.entries(&self.vm.platform, part));
        entries.filter_map(|found| Some(found.leaf::<S::Format>()?.frame)).collect()
    }

    /// Clears the marks in entries. A CPU that has cached an entry as marked would not mark it
    /// again, so the translation is flushed as if the entry was cleared.
    fn unmark(&self, range: &Range<u64>, gather: &mut Gather<'_, S>) {
        let platform = &self.vm.platform;
        for Found { address, slot, entry } in self.mappings.tables.entries(platform, range.clone())
        {
            if slot.level > 0 {
                // A fault has just mapped it: the others were split.
                continue;
            }
            // The page of zeros is never dirty. A claimed page is skipped also: it is being
            // written, and then marked.
            let unmarked = change_leaf::<S::Format>(platform, slot, entry, |leaf| {
                if leaf.frame == self.vm.zero_page
                    || !leaf.marks.intersects(Marks::ACCESSED | Marks::DIRTY)
                {
                    return None;
                }
                // The page may be discardable because of earlier advice. Until the flush, a CPU
                // that caches the mark may write to the page without marking it again.
                if let Some(rmap) = &self.vm.rmap {
                    rmap.mark_not_discardable(leaf.frame);
                }
                Some(S::Format::leaf(Leaf { marks: Marks::empty(), ..leaf }))
            });
            if let Some(leaf) = unmarked {
                gather.add_leaf(address, leaf, 0);
                gather.discard_later(leaf.frame, address);
            }
        }
    }
}

/// Returns `true` if a large page must be split before the advice is followed.
fn must_split<F: Format>(large: &Found, range: &Range<u64>, advice: Advice) -> bool {
    match advice {
        Advice::DontNeed => large.reaches_beyond::<F>(range),
        Advice::Free => true,
        // Nothing in a large page can be reclaimed, because `Free` splits.
        Advice::Cold | Advice::PageOut => false,
    }
}
