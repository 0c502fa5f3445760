//! Read-ahead: who reads a page of a stored file gets its neighbours read in, too. (Linux: the
//! read-around of `do_sync_mmap_readahead`.)
//!
//! Pages that came in together are listed together, and reclaim then comes to them together, too:
//! it finds many pages of few spaces in a batch, and has few CPUs to tell. (Linux gathers pages in
//! a `pagevec` first, for the sake of the list's lock, and with the same effect.)

use alloc::vec::Vec;

use crate::PAGE_BYTES;
use crate::area::{Area, Backing};
use crate::platform::{Frame, FrameUse, Platform};
use crate::space::{AddressSpace, count};
use crate::system::System;

/// So many pages are listed together. (Linux: `PAGEVEC_SIZE`, 14 until 4.15, 15 until 6.8.) Pages
/// that are not listed yet can't be reclaimed, so that there should not be many on every CPU.
const LISTED_TOGETHER: usize = 14;

impl<S: System> AddressSpace<S> {
    /// Reads in the window of the file in which `page` is, as far as the area reaches, if `page` is
    /// not in memory. What others have read in stays as it is. If memory runs short, the rest is
    /// left out: the fault asks for its own page after that.
    pub(crate) fn read_ahead(&self, area: &Area<S::Platform>, page: u64) {
        let Backing::File { file, first_page } = &area.backing else { return };
        let window_pages = self.vm.read_ahead_pages;
        let number = |address| first_page + (address - area.range.start) / PAGE_BYTES;
        let asked_for = number(page);
        if window_pages < 2 || !file.is_stored() || file.holds(asked_for) {
            return;
        }
        // A power of two.
        let window = asked_for & !(window_pages - 1);
        let end = (window + window_pages).min(number(area.range.end));
        let mut unlisted = Vec::with_capacity(LISTED_TOGETHER);
        for number in window.max(*first_page)..end {
            let Ok(frame) = file.page(number, || self.vm.allocate(FrameUse::Page)) else { break };
            if let Some(rmap) = &self.vm.rmap
                && rmap.add_unmapped(frame, file, number)
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
