//! The extents that one operation unmaps, joined into as few [extents](Extent) as possible.
//!
//! `munmap` of a large area that has three pages unmaps three pages, and a CPU that invalidates
//! these three keeps all its other translations. Linux gathers one range from the first page to the
//! last (`mmu_gather`'s `start` and `end`). Such a range soon exceeds the ceiling, and then CPUs
//! drop everything.

use core::fmt;

use crate::parts::extent::Extent;

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
        let weight = || self.as_slice().iter().map(|extent| extent.weight()).sum::<usize>();
        if self.count < 2 || weight() <= page_count_max {
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
mod tests;
