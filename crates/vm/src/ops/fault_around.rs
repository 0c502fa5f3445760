//! Fault-around: a page of a file that is read comes with its neighbours. (Linux:
//! `do_fault_around`, `filemap_map_pages`.)
//!
//! Files are read in order more often than not, and a page that is in memory costs only an entry,
//! where a fault of its own would cost a hundred times that.

use core::cell::Cell;

use crate::PAGE_BYTES;
use crate::area::{Access, Area, Backing};
use crate::format::{EMPTY, Format};
use crate::platform::{EntryAt, Platform, Work};
use crate::space::{AddressSpace, count};
use crate::system::System;

impl<S: System> AddressSpace<S> {
    /// Maps what is in memory around `page`, whose entry is `at` and was read first: in the same
    /// window, of the same area, in the same page table. Nothing is read in, so nothing can fail.
    pub(crate) fn map_around(
        &self,
        area: &Area<S::Platform>,
        page: u64,
        access: Access,
        at: EntryAt,
    ) {
        let window_bytes = self.vm.fault_around_bytes.min(S::Format::span(1));
        let Backing::File { file, first_page } = &area.backing else { return };
        if access == Access::Write || window_bytes <= PAGE_BYTES {
            return;
        }
        // A power of two, so that it lies in one page table.
        let window = page & !(window_bytes - 1);
        let start = window.max(area.range.start);
        let end = (window + window_bytes).min(area.range.end);
        let number = |address| first_page + (address - area.range.start) / PAGE_BYTES;
        let place = |number_there| {
            let address = start + (number_there - number(start)) * PAGE_BYTES;
            (address, EntryAt { index: S::Format::index(address, 0), ..at })
        };
        let platform = &self.vm.platform;
        let looked_at = Cell::new(0);
        let is_empty = |number_there| {
            looked_at.update(|count| count + 1);
            platform.load(place(number_there).1) == EMPTY
        };
        let cached = file.cached(number(start)..number(end), is_empty);
        if looked_at.get() != 0 {
            platform.work(Work::Entry, looked_at.get());
        }
        count(&self.counters.mapped_around, cached.len());
        for (number_there, frame) in cached {
            let (address, neighbour) = place(number_there);
            self.install_frame(area, address, frame, access, neighbour);
        }
    }
}
