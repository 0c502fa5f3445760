//! What one operation takes away: a few [extents](Extent), as few as it can be told in.
//!
//! `munmap` of a large area with three pages in it takes three pages away, and a CPU that drops
//! those three keeps the rest of its translations. Linux gathers one range from the first page to
//! the last (`mmu_gather`'s `start` and `end`), which is soon too long, and then all is dropped.

use core::fmt;

use crate::extent::Extent;

/// How many extents are kept apart. Each is a generation of its own, of which a log keeps 16.
const EXTENTS_MAX: usize = 4;

/// A set of extents; empty to begin with.
///
/// No more than [`Extent::MAX_PAGES`] pages together: what is more is the whole space.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ExtentSet {
    /// The first `count` of them, none of them whole; or one that is.
    extents: [Extent; EXTENTS_MAX],
    count: usize,
}

impl ExtentSet {
    /// Nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { extents: [Extent::whole(); EXTENTS_MAX], count: 0 }
    }

    /// Whether nothing was taken away: then nothing need be flushed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The extents, none of them twice.
    #[must_use]
    pub fn as_slice(&self) -> &[Extent] {
        &self.extents[..self.count]
    }

    /// Whether it is the whole space.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.count == 1 && self.extents[0].is_unbounded()
    }

    /// The extents; or the whole space, if they are several and have more pages than that together:
    /// then nobody would drop them one by one, and one generation is enough.
    pub(crate) fn up_to(&self, page_count_max: usize) -> &[Extent] {
        const PAGES: [Extent; 1] = [Extent::whole()];
        const TABLES: [Extent; 1] = [Extent::whole().freeing_tables()];
        if self.count < 2 || self.page_count() <= page_count_max {
            return self.as_slice();
        }
        if self.free_tables() { &TABLES } else { &PAGES }
    }

    /// Whether page tables are among what was taken away.
    #[must_use]
    pub fn free_tables(&self) -> bool {
        self.as_slice().iter().any(|extent| extent.frees_tables())
    }

    /// The pages of all extents; 0 for the whole space.
    #[must_use]
    pub fn page_count(&self) -> usize {
        self.as_slice().iter().map(|extent| extent.page_count()).sum()
    }

    /// Adds an extent, unless it is empty. It may make another one longer, or, where there are too
    /// many, be joined to the one that grows least by it; what is covered in the end is at least
    /// what was added.
    #[inline]
    pub fn add(&mut self, extent: Extent) {
        if self.count == 0 && !extent.is_empty() {
            (self.extents[0], self.count) = (extent, 1);
        } else if !extent.is_empty() {
            self.add_to_others(extent);
        }
    }

    fn add_to_others(&mut self, extent: Extent) {
        if extent.is_unbounded() || self.is_whole() {
            return self.widen(extent);
        }
        // Most are added in order, next to the one before.
        for known in self.extents[..self.count].iter_mut().rev() {
            if let Some(joined) = known.joined_with(extent)
                && joined.page_count() <= known.page_count() + extent.page_count()
            {
                *known = joined;
                return self.check_page_count();
            }
        }
        if self.count < EXTENTS_MAX {
            self.extents[self.count] = extent;
            self.count += 1;
            return self.check_page_count();
        }
        let growths = self.extents.iter().enumerate().filter_map(|(index, known)| {
            let joined = known.joined_with(extent)?;
            Some((joined.page_count() - known.page_count(), index, joined))
        });
        match growths.min_by_key(|&(growth, ..)| growth) {
            Some((_, index, joined)) => {
                self.extents[index] = joined;
                self.check_page_count();
            }
            None => self.widen(extent),
        }
    }

    fn check_page_count(&mut self) {
        if self.page_count() > Extent::MAX_PAGES {
            self.widen(Extent::whole());
        }
    }

    /// The whole space from now on.
    fn widen(&mut self, extent: Extent) {
        let whole = if self.free_tables() || extent.frees_tables() {
            Extent::whole().freeing_tables()
        } else {
            Extent::whole()
        };
        (self.extents[0], self.count) = (whole, 1);
    }
}

impl Default for ExtentSet {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ExtentSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::PageSize;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn page(number: u64) -> Extent {
        Extent::page(number << 12)
    }

    #[test]
    fn neighbours_become_one_and_strangers_stay_apart() {
        let mut extents = ExtentSet::new();
        assert!(extents.is_empty());
        for number in [3, 4, 5, 100, 101, 2, 4] {
            extents.add(page(number));
        }
        let expected = [
            Extent::pages(2 << 12, 4, PageSize::SIZE_4K),
            Extent::pages(100 << 12, 2, PageSize::SIZE_4K),
        ];
        assert_eq!(extents.as_slice(), expected);
    }

    #[test]
    fn the_fifth_joins_the_one_that_grows_least() {
        let mut extents = ExtentSet::new();
        for number in [0, 1000, 2000, 3000, 2010] {
            extents.add(page(number));
        }
        assert_eq!(extents.as_slice().len(), 4);
        assert_eq!(extents.as_slice()[2], Extent::pages(2000 << 12, 11, PageSize::SIZE_4K));
        let shown = std::format!("{extents:?}");
        assert_eq!(shown, "[0x0+1x4K, 0x3e8000+1x4K, 0x7d0000+11x4K, 0xbb8000+1x4K]");
    }

    /// Not the shortest in the end, and not the one that it is the smallest part of.
    #[test]
    fn growth_is_counted_in_pages() {
        for (number, longer) in [(110, 0), (152, 1)] {
            let mut extents = ExtentSet::new();
            extents.add(Extent::pages(0, 100, PageSize::SIZE_4K));
            for number in [200, 5000, 9000] {
                extents.add(page(number));
            }
            let before = extents;
            extents.add(page(number));
            for (index, extent) in extents.as_slice().iter().enumerate() {
                assert_eq!(*extent != before.as_slice()[index], index == longer, "{extents:?}");
            }
        }
    }

    #[test]
    fn too_far_apart_or_too_many_is_the_whole_space() {
        let mut far = ExtentSet::new();
        for number in [0, 5000, 10_000, 15_000, 20_000] {
            far.add(page(number));
        }
        assert_eq!(far.as_slice(), [Extent::whole()]);
        let mut most = ExtentSet::new();
        most.add(Extent::pages(0, 4000, PageSize::SIZE_4K));
        most.add(Extent::pages(1 << 30, 95, PageSize::SIZE_4K));
        assert_eq!((most.as_slice().len(), most.page_count()), (2, Extent::MAX_PAGES));
        let mut many = ExtentSet::new();
        many.add(Extent::pages(0, 4000, PageSize::SIZE_4K).freeing_tables());
        many.add(Extent::pages(1 << 30, 96, PageSize::SIZE_4K));
        assert_eq!(many.as_slice(), [Extent::whole().freeing_tables()]);
        assert!(many.free_tables());
    }

    #[test]
    fn several_with_more_pages_than_anyone_would_drop_are_one() {
        let mut extents = ExtentSet::new();
        extents.add(Extent::pages(0, 20, PageSize::SIZE_4K));
        assert_eq!(extents.up_to(19), extents.as_slice(), "who reads it drops everything anyway");
        extents.add(page(100));
        assert_eq!(extents.up_to(21), extents.as_slice());
        assert_eq!(extents.up_to(20), [Extent::whole()]);
        extents.add(page(101).freeing_tables());
        assert_eq!(extents.up_to(20), [Extent::whole().freeing_tables()]);
    }

    #[test]
    fn sizes_are_not_mixed() {
        let mut extents = ExtentSet::new();
        extents.add(page(0));
        extents.add(Extent::pages(0, 1, PageSize::SIZE_2M));
        assert_eq!(extents.as_slice().len(), 2);
    }

    proptest! {
        /// Whatever is added is covered; and tables, where they were freed.
        #[test]
        fn nothing_is_forgotten(
            pages in prop::collection::vec((0u64..9000, 1usize..300, 0u8..2, any::<bool>()), 1..40)
        ) {
            let mut extents = ExtentSet::new();
            let mut added = Vec::new();
            for (number, count, size, tables) in pages {
                let size = PageSize::from_shift(12 + 9 * size);
                let extent = Extent::pages(number << size.shift(), count, size);
                let extent = if tables { extent.freeing_tables() } else { extent };
                extents.add(extent);
                added.push(extent);
            }
            for extent in added {
                let covers = |known: &Extent| {
                    known.is_whole() && (known.frees_tables() || !extent.frees_tables())
                        || known.contains(extent)
                };
                prop_assert!(extents.as_slice().iter().any(covers));
            }
            prop_assert!(extents.page_count() <= Extent::MAX_PAGES);
        }
    }
}
