//! Advice about pages. (Linux: `madvise`.)

use alloc::vec::Vec;
use core::ops::Range;

use crate::areas::Areas;
use crate::coherence::Cause;
use crate::error::RangeError;
use crate::format::{Format, Leaf, Marks};
use crate::gather::Gather;
use crate::platform::{Frame, Platform, Work};
use crate::space::AddressSpace;
use crate::system::System;
use crate::table::{Found, Slot};

/// What user space says of some pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// They are not needed: private pages are discarded, and are as at first when next used.
    DontNeed,
    /// What was written to them is not needed, but what is written from now on is: the marks of
    /// private anonymous pages are taken away, and the next use sets them again. A page without a
    /// mark may be discarded, which [reclaim](crate::Vm::reclaim) does when it comes to it. Large
    /// pages are split for that. Of other areas no notice is taken. (Linux: `MADV_FREE`, which
    /// refuses them.)
    Free,
    /// They will not be used for some time: those of stored files are written out, if need be, and
    /// taken, as reclaim does, whether or not they were used of late. Nothing is lost. (Linux:
    /// `MADV_PAGEOUT`.)
    PageOut,
}

impl<S: System> AddressSpace<S> {
    /// Takes advice about the pages in `range`.
    ///
    /// The lock is held for reading: faults, and other advice, go on. Page tables stay. Where a
    /// large page must be split, it is held for writing first.
    ///
    /// # Errors
    ///
    /// If areas cannot be there, or if there is no memory to split large pages; nothing is changed
    /// then. If there are holes between them; the advice is taken all the same, as in Linux.
    pub fn advise(&self, range: Range<u64>, advice: Advice) -> Result<(), RangeError> {
        self.vm.platform.work(Work::Areas, 1);
        let (areas, split) = self.read_areas_split(&range, |large| match advice {
            Advice::DontNeed => large.reaches_beyond::<S::Format>(&range),
            Advice::Free => true,
            // Nothing in it can be taken: who gave up part of it has split it.
            Advice::PageOut => false,
        });
        areas.check(&range)?;
        split?;
        let is_covered = areas.cover(&range);
        if advice == Advice::PageOut {
            let frames = self.frames(&areas, &range);
            drop(areas);
            self.vm.page_out(&frames);
            return if is_covered { Ok(()) } else { Err(RangeError::NoArea) };
        }
        let mut gather = Gather::begin(self, range.clone(), Cause::Advise);
        for area in areas.overlapping(&range) {
            let part = area.range.start.max(range.start)..area.range.end.min(range.end);
            match advice {
                Advice::DontNeed => gather.clear_area(&area.range, &part),
                Advice::Free if area.is_private_anonymous() => self.unmark(&part, &mut gather),
                Advice::Free | Advice::PageOut => {}
            }
        }
        gather.send().wait_and_unlock(areas);
        if is_covered { Ok(()) } else { Err(RangeError::NoArea) }
    }

    /// The frames of what is mapped in `range`.
    fn frames(&self, areas: &Areas<S::Platform>, range: &Range<u64>) -> Vec<Frame> {
        let mut frames = Vec::new();
        for area in areas.overlapping(range) {
            let part = area.range.start.max(range.start)..area.range.end.min(range.end);
            let entries = self.mappings.tables.entries(&self.vm.platform, part);
            frames.extend(entries.filter_map(|found| Some(found.leaf::<S::Format>()?.frame)));
        }
        frames
    }

    /// Takes the marks from entries. A CPU that has cached one as marked would not mark it again,
    /// so this is flushed as if the entry was taken away.
    fn unmark(&self, range: &Range<u64>, gather: &mut Gather<'_, S>) {
        let platform = &self.vm.platform;
        for found in self.mappings.tables.entries(platform, range.clone()) {
            let Found { address, slot: Slot { at, .. }, mut entry } = found;
            // Nobody has written the page of zeros. A claimed page is being written, and is marked
            // then.
            while let Some(leaf) = S::Format::as_leaf(entry)
                && leaf.frame != self.vm.zero_page
                && !leaf.marks.is_empty()
            {
                let unmarked = S::Format::leaf(Leaf { marks: Marks::empty(), ..leaf });
                // It may be discardable from before, and until the flush, a CPU may write to it
                // that remembers the mark, and leaves no other.
                if let Some(rmap) = &self.vm.rmap {
                    rmap.mark_not_discardable(leaf.frame);
                }
                match platform.compare_exchange(at, entry, unmarked) {
                    Ok(_) => {
                        gather.add_leaf(address, leaf, 0);
                        gather.discard_later(leaf.frame, address);
                        break;
                    }
                    // The MMU has marked it, or another call was here.
                    Err(found) => entry = found,
                }
            }
        }
    }
}
