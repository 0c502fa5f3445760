//! The addresses of a space whose unmap is deferred.

use alloc::collections::btree_map::{BTreeMap, Entry};
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use lock_api::Mutex;

use crate::rules::{Rule, order};
use crate::sync::AtomicU64;
use crate::system::{SpinMutex, System};

/// The ranges of a space whose unmap is deferred.
pub(crate) struct DeferredRanges<S: System> {
    ranges: SpinMutex<S, Ranges>,
    /// Number of deferred unmaps. The lock is skipped while it is 0.
    count: AtomicU64,
}

#[derive(Default)]
struct Ranges {
    /// Number of deferred unmaps of each range, by start and end. Several unmaps may have the same
    /// range.
    counts: BTreeMap<(u64, u64), usize>,
    /// An upper bound of the ranges' lengths.
    longest: u64,
}

impl<S: System> DeferredRanges<S> {
    pub(crate) fn new() -> Self {
        Self { ranges: Mutex::new(Ranges::default()), count: AtomicU64::new(0) }
    }

    /// Returns the end of a deferred range that overlaps `range`.
    ///
    /// Call this after `InFlight::overlapping`. A range is added here before its flush is removed
    /// from the flushes in flight, so a caller that does not find the flush there finds the range
    /// here. The load of the count finds it also, because `InFlight::end` releases what
    /// `InFlight::overlapping` acquires ([`EndRelease`](Rule::EndRelease)). Without that pair, the
    /// caller could load an old count, and treat a deferred range as flushed.
    pub(crate) fn overlapping(&self, range: &Range<u64>) -> Option<u64> {
        if self.count.load(order(Rule::DeferredAcquire)) == 0 {
            return None;
        }
        let ranges = self.ranges.lock();
        let first = range.start.saturating_sub(ranges.longest);
        let near = ranges.counts.range((first, 0)..(range.end, 0));
        near.rev().map(|(&(_, end), _)| end).find(|&end| end > range.start)
    }

    pub(crate) fn insert(&self, range: &Range<u64>) {
        // Relaxed: the end of the flush in flight releases it.
        self.count.fetch_add(1, Relaxed);
        let Ranges { counts, longest } = &mut *self.ranges.lock();
        *longest = (range.end - range.start).max(*longest);
        *counts.entry((range.start, range.end)).or_default() += 1;
    }

    /// Removes a range. Call this when no CPU uses the old translations.
    pub(crate) fn remove(&self, range: &Range<u64>) {
        self.count.fetch_sub(1, order(Rule::DeferredRelease));
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
