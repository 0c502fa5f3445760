//! Read-ahead: the fault that reads a page of a stored file in also reads its neighbours. (Linux:
//! the read-around of `do_sync_mmap_readahead`.)
//!
//! Pages that were read in together are added to the reclaim list together. Reclaim then also finds
//! them together: a batch has many pages of few spaces, and its flush interrupts few CPUs. (Linux
//! collects pages in a `pagevec` first, to reduce contention on the list's lock, with the same
//! effect.)

use alloc::vec::Vec;

use crate::PAGE_BYTES;
use crate::area::{Area, Backing};
use crate::platform::{Frame, FrameUse, Platform};
use crate::space::{AddressSpace, count};
use crate::system::System;

/// Number of pages that are added to the list together. (Linux: `PAGEVEC_SIZE`, 14 until 4.15, 15
/// until 6.8.) Pages that are not listed yet cannot be reclaimed, so no CPU should have many of
/// them.
const LISTED_TOGETHER: usize = 14;

impl<S: System> AddressSpace<S> {
    /// Reads in the window of the file around `page`, as far as the area reaches, if `page` is not
    /// in memory. Keeps pages that are in memory already. If memory runs short, omits the rest: the
    /// fault then reads its own page.
    pub(crate) fn read_ahead(&self, area: &Area<S::Platform>, page: u64) {
        let Backing::File { file, first_page } = &area.backing else { return };
        let window_pages = self.vm.read_ahead_pages;
        let number = |address| first_page + (address - area.range.start) / PAGE_BYTES;
        let asked_for = number(page);
        if window_pages < 2 || !file.is_stored() || file.is_resident(asked_for) {
            return;
        }
        // The size is a power of two.
        let window = asked_for & !(window_pages - 1);
        let end = (window + window_pages).min(number(area.range.end));
        let mut unlisted = Vec::with_capacity(LISTED_TOGETHER);
        for number in window.max(*first_page)..end {
            let Ok(frame) = file.page(number, || self.vm.allocate(FrameUse::Page)) else { break };
            if let Some(rmap) = &self.vm.rmap
                && rmap.add(frame, Some((file, number)), None)
            {
                unlisted.push(frame);
                count(&self.counters.read_ahead, usize::from(number != asked_for));
            }
            self.vm.platform.release(frame);
            if unlisted.len() == LISTED_TOGETHER {
                self.list(&mut unlisted);
            }
        }
        self.list(&mut unlisted);
    }

    fn list(&self, unlisted: &mut Vec<Frame>) {
        if let Some(rmap) = &self.vm.rmap {
            rmap.list(unlisted.drain(..).map(|page| (page, self.vm.platform.node_of(page))));
        }
    }
}
