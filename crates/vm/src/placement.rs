//! Regions of threads: the addresses of new mappings, if each thread's are kept apart.
//!
//! A thread's small mappings are placed in a region of its own, of the size that one page table
//! covers. So no other thread uses that table, unless it is given an address in it. Mappings of the
//! size of a region or larger begin at a multiple of that size. The last one of a thread is a
//! region of its own also: when the thread has unmapped it and maps again, it finds the same
//! tables, and no other thread has used them.
//!
//! A region belongs to a slot, and a thread's slot follows from its number. Two threads with one
//! slot share a region, which costs precision and nothing else, and the slots of threads that have
//! ended need not be freed.

use alloc::collections::BTreeMap;
use core::ops::Range;

/// Number of slots. If there are more threads, some share regions.
const SLOTS: u64 = 256;

/// The regions in which each slot places new mappings.
pub(crate) struct ThreadRegions(BTreeMap<(u64, Size), Range<u64>>);

/// The size of mappings, compared with that of a page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Size {
    Small,
    Large,
}

impl ThreadRegions {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Returns a thread's region for mappings of this size, if it has one.
    pub(crate) fn of(&self, thread: u64, size: Size) -> Option<Range<u64>> {
        self.0.get(&(thread % SLOTS, size)).cloned()
    }

    /// Gives a thread another region for mappings of this size.
    pub(crate) fn set(&mut self, thread: u64, size: Size, region: Range<u64>) {
        self.0.insert((thread % SLOTS, size), region);
    }

    /// Returns the end of the last region of any thread in a range.
    pub(crate) fn last_end(&self, range: &Range<u64>) -> Option<u64> {
        let regions = self.0.values();
        let in_range = |region: &&Range<u64>| region.start < range.end && range.start < region.end;
        regions.filter(in_range).map(|region| region.end).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_257_shares_the_region_of_the_first() {
        let mut regions = ThreadRegions::new();
        regions.set(0, Size::Small, 0..1);
        assert_eq!(regions.of(256, Size::Small), Some(0..1));
        assert_eq!([1, 128, 255].map(|thread| regions.of(thread, Size::Small)), [None, None, None]);
    }
}
