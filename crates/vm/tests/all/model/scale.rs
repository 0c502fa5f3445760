//! The size of a page of the model.

use std::ops::Range;

use shootdown_vm::{Area, PAGE_BYTES, Protection, Sharing};

use crate::platform::{Host, PAGES};

/// Number of pages that each page of the model stands for.
#[derive(Clone, Copy)]
pub(crate) struct Scale(pub(crate) u64);

impl Scale {
    /// For large pages. The model then covers parts of three blocks; half of the first and half of
    /// the last are outside the user addresses.
    pub(crate) const LARGE: Self = Self(16);

    pub(crate) fn bytes(self) -> u64 {
        self.0 * PAGE_BYTES
    }

    /// Returns the addresses of pages of the model, around a boundary of 1 GiB.
    pub(crate) fn pages(self, first: u64, count: u64) -> Range<u64> {
        let base = (1 << 30) - PAGES / 2 * self.bytes();
        base + first * self.bytes()..base + (first + count) * self.bytes()
    }

    pub(crate) fn page(self, address: u64) -> u64 {
        (address - self.pages(0, 0).start) / self.bytes()
    }

    pub(crate) fn pages_of(
        self,
        area: &Area<Host>,
    ) -> impl Iterator<Item = (u64, Protection, Sharing)> + use<> {
        let (protection, sharing) = (area.protection, area.sharing);
        let pages = self.page(area.range.start)..self.page(area.range.end);
        pages.map(move |page| (page, protection, sharing))
    }
}
