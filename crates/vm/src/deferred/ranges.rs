//! The addresses of a space whose unmapping is deferred.

use alloc::collections::btree_map::{BTreeMap, Entry};
use core::ops::Range;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use lock_api::Mutex;

use crate::system::{SpinMutex, System};

/// The addresses of a space that are put aside.
pub(crate) struct DeferredRanges<S: System> {
    ranges: SpinMutex<S, Ranges>,
    /// Of how many `munmap`s they are, for who would find none.
    count: AtomicUsize,
}

#[derive(Default)]
struct Ranges {
    /// Starts and ends, and how often: an `munmap` may be asked for addresses where nothing is.
    counts: BTreeMap<(u64, u64), usize>,
    /// None of them is longer.
    longest: u64,
}

impl<S: System> DeferredRanges<S> {
    pub(crate) fn new() -> Self {
        Self { ranges: Mutex::new(Ranges::default()), count: AtomicUsize::new(0) }
    }

    /// Up to where one of them reaches that overlaps `range`: to be asked for after flights. One
    /// that was put aside is here before its flight ends, so who has not seen the flight finds it:
    /// the count, too, for `InFlight::end` releases what `InFlight::overlapping` acquires. Without
    /// that, whoever finds no flight could read a count of before, and rely on what is parked.
    pub(crate) fn overlapping(&self, range: &Range<u64>) -> Option<u64> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        let ranges = self.ranges.lock();
        let first = range.start.saturating_sub(ranges.longest);
        let near = ranges.counts.range((first, 0)..(range.end, 0));
        near.rev().map(|(&(_, end), _)| end).find(|&end| end > range.start)
    }

    pub(crate) fn insert(&self, range: &Range<u64>) {
        self.count.fetch_add(1, Relaxed);
        let Ranges { counts, longest } = &mut *self.ranges.lock();
        *longest = (range.end - range.start).max(*longest);
        *counts.entry((range.start, range.end)).or_default() += 1;
    }

    pub(crate) fn remove(&self, range: &Range<u64>) {
        self.count.fetch_sub(1, Relaxed);
        let Ranges { counts, longest } = &mut *self.ranges.lock();
        if let Entry::Occupied(mut count) = counts.entry((range.start, range.end)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        if counts.is_empty() {
            *longest = 0;
        }
    }
}
