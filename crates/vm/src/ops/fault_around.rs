//! Fault-around: a read of one page of a file also maps its neighbours. (Linux: `do_fault_around`,
//! `filemap_map_pages`.)
//!
//! Files are usually read in order. Mapping a page that is in memory costs only an entry, and a
//! separate fault would cost a hundred times as much.

use core::cell::Cell;

use crate::PAGE_BYTES;
use crate::area::{Access, Area};
use crate::format::{EMPTY, Format, Marks};
use crate::platform::{EntryAt, Platform, Work};
use crate::space::{AddressSpace, count};
use crate::system::System;

impl<S: System> AddressSpace<S> {
    /// Maps the pages that are in memory around `page`, which is mapped by the entry `at`, and was
    /// read first. They are in the same window, of the same area, in the same page table. Nothing
    /// is read in, so nothing can fail.
    pub(crate) fn map_around(
        &self,
        area: &Area<S::Platform>,
        page: u64,
        access: Access,
        at: EntryAt,
    ) {
        let window_bytes = self.vm.fault_around_bytes.min(S::Format::span(1));
        if access == Access::Write || window_bytes <= PAGE_BYTES {
            return;
        }
        // The size is a power of two, so the window lies in one page table.
        let window = page & !(window_bytes - 1);
        let start = window.max(area.range.start);
        let end = (window + window_bytes).min(area.range.end);
        let Some((file, first)) = area.file_page(start) else { return };
        let place = |number| {
            let address = start + (number - first) * PAGE_BYTES;
            (address, EntryAt { index: S::Format::index(address, 0), ..at })
        };
        let platform = &self.vm.platform;
        let examined = Cell::new(0);
        let is_empty = |number| {
            examined.update(|count| count + 1);
            platform.load(place(number).1) == EMPTY
        };
        let cached = file.cached(first..first + (end - start) / PAGE_BYTES, is_empty);
        if examined.get() != 0 {
            platform.work(Work::AroundFault, examined.get());
        }
        count(&self.counters.mapped_around, cached.len());
        for (number, frame) in cached {
            let (address, neighbour) = place(number);
            self.install_frame(area, address, frame, access, Marks::ACCESSED, neighbour);
        }
    }
}
