//! The extents that one operation unmaps, joined into as few [extents](Extent) as possible.
//!
//! `munmap` of a large area that has three pages unmaps three pages, and a CPU that invalidates
//! these three keeps all its other translations. Linux gathers one range from the first page to the
//! last (`mmu_gather`'s `start` and `end`). Such a range soon exceeds the ceiling, and then CPUs
//! drop everything.

use core::fmt;

use crate::extent::Extent;

/// Largest number of extents in a set. Each has its own generation, and the flush log keeps 16.
const EXTENTS_MAX: usize = 4;

/// A set of up to four extents.
///
/// The extents have at most [`Extent::MAX_PAGES`] pages together: a set with more is the whole
/// space.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ExtentSet {
    /// The first `count` are in use: several extents that are not whole, or a single one.
    extents: [Extent; EXTENTS_MAX],
    count: usize,
}

impl ExtentSet {
    /// The empty set.
    #[must_use]
    #[inline]
    pub const fn new() -> Self {
        Self { extents: [Extent::whole(); EXTENTS_MAX], count: 0 }
    }

    /// Returns `true` if nothing was added: then no flush is needed.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The extents.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[Extent] {
        &self.extents[..self.count]
    }

    /// Returns `true` if the set is the whole space.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.count == 1 && self.extents[0].is_unbounded()
    }

    /// The extents; or the whole space, if there are several with more than `page_count_max` pages
    /// together. Then no CPU would invalidate their pages one by one, and one generation is enough.
    pub(crate) fn up_to(&self, page_count_max: usize) -> &[Extent] {
        const PAGES: [Extent; 1] = [Extent::whole()];
        const TABLES: [Extent; 1] = [Extent::whole().freeing_tables()];
        if self.count < 2 || self.page_count() <= page_count_max {
            return self.as_slice();
        }
        if self.free_tables() { &TABLES } else { &PAGES }
    }

    /// Returns `true` if page tables are about to be freed.
    #[must_use]
    pub fn free_tables(&self) -> bool {
        self.as_slice().iter().any(|extent| extent.frees_tables())
    }

    /// Number of pages of all extents; 0 for the whole space.
    #[must_use]
    pub fn page_count(&self) -> usize {
        self.as_slice().iter().map(|extent| extent.page_count()).sum()
    }

    /// Adds an extent, unless it is empty.
    ///
    /// An adjacent or overlapping extent is joined with it. If the set is full, the extent that
    /// grows least is joined with it. So the set may come to cover more than was added, but never
    /// less.
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
        // Most extents are added in order, next to the previous one.
        for known in self.extents[..self.count].iter_mut().rev() {
            if let Some(joined) = known.joined_with(extent) {
                if joined.page_count() <= known.page_count() + extent.page_count() {
                    *known = joined;
                    return self.check_page_count();
                }
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

    /// Makes the set the whole space.
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
    fn adjacent_extents_join_and_distant_ones_do_not() {
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
    fn fifth_extent_joins_the_one_growing_least() {
        let mut extents = ExtentSet::new();
        for number in [0, 1000, 2000, 3000, 2010] {
            extents.add(page(number));
        }
        assert_eq!(extents.as_slice().len(), 4);
        assert_eq!(extents.as_slice()[2], Extent::pages(2000 << 12, 11, PageSize::SIZE_4K));
        let shown = std::format!("{extents:?}");
        assert_eq!(shown, "[0x0+1x4K, 0x3e8000+1x4K, 0x7d0000+11x4K, 0xbb8000+1x4K]");
    }

    /// Neither the length of the joined extent nor its relative growth counts.
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
    fn too_many_or_distant_pages_are_whole() {
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
    fn several_extents_above_the_ceiling_become_one() {
        let mut extents = ExtentSet::new();
        extents.add(Extent::pages(0, 20, PageSize::SIZE_4K));
        assert_eq!(extents.up_to(19), extents.as_slice(), "a single extent is kept");
        extents.add(page(100));
        assert_eq!(extents.up_to(21), extents.as_slice());
        assert_eq!(extents.up_to(20), [Extent::whole()]);
        extents.add(page(101).freeing_tables());
        assert_eq!(extents.up_to(20), [Extent::whole().freeing_tables()]);
    }

    #[test]
    fn extents_of_two_page_sizes_do_not_join() {
        let mut extents = ExtentSet::new();
        extents.add(page(0));
        extents.add(Extent::pages(0, 1, PageSize::SIZE_2M));
        assert_eq!(extents.as_slice().len(), 2);
    }

    proptest! {
        /// The set covers each extent that was added, and frees tables if one of them did.
        #[test]
        #[cfg_attr(miri, ignore = "takes seconds, and there is no unsafe code in this module")]
        fn added_extent_is_covered(
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
