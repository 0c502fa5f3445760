//! Regions of threads: the addresses of new mappings, if each thread's are kept apart.
//!
//! A thread's small mappings are placed in a region of its own, of the size that one page table
//! covers. So no other thread uses that table, unless it is given an address in it. Mappings of the
//! size of a region or larger begin at a multiple of that size.
//!
//! A region belongs to a slot, and a thread's slot follows from its number. Two threads with one
//! slot share a region, which costs precision and nothing else, and the slots of threads that have
//! ended need not be freed.

use alloc::collections::BTreeMap;
use core::ops::Range;

/// Number of slots. If there are more threads, some share regions.
const SLOTS: u64 = 256;

/// The first address of the region in which each slot places new mappings.
pub(crate) struct ThreadRegions(BTreeMap<u64, u64>);

impl ThreadRegions {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Returns the first address of a thread's region, if it has one.
    pub(crate) fn of(&self, thread: u64) -> Option<u64> {
        self.0.get(&(thread % SLOTS)).copied()
    }

    /// Gives a thread another region.
    pub(crate) fn set(&mut self, thread: u64, start: u64) {
        self.0.insert(thread % SLOTS, start);
    }

    /// Returns the last region of any thread that begins in a range.
    pub(crate) fn last_in(&self, range: &Range<u64>) -> Option<u64> {
        self.0.values().copied().filter(|start| range.contains(start)).max()
    }
}
