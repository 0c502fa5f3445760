//! What was unmapped, and is put aside until every CPU has come to its flush by itself: the pages,
//! the page tables, and the addresses. For designs that [put flushes off](Coherence::flush_later).
//!
//! Nothing of it is given to anybody else before that. Whoever needs memory has the rest of the
//! CPUs told, and waits; who needs these addresses, and no others will do, flushes them.

use alloc::collections::VecDeque;
use alloc::collections::btree_map::{BTreeMap, Entry};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use lock_api::Mutex;

use crate::coherence::Coherence;
use crate::format::Format;
use crate::gather::Removed;
use crate::platform::Platform;
use crate::space::{Mappings, Vm};

/// All that is put aside, of all spaces, oldest first.
pub(crate) struct Parked<P: Platform, C: Coherence, F> {
    lots: Mutex<P::SpinLock, VecDeque<Lot<P, C, F>>>,
    /// How many there are, for who would find none: who overlooks one that was just put there
    /// finds it the next time.
    count: AtomicUsize,
}

/// What one `munmap` took away.
struct Lot<P: Platform, C: Coherence, F> {
    /// It may have ended meanwhile.
    space: Arc<Mappings<P, C, F>>,
    range: Range<u64>,
    flush: C::Parked,
    removed: Removed,
}

/// The addresses of a space that are put aside.
pub(crate) struct ParkedRanges<P: Platform> {
    ranges: Mutex<P::SpinLock, Ranges>,
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

impl<P: Platform> ParkedRanges<P> {
    pub(crate) fn new() -> Self {
        Self { ranges: Mutex::new(Ranges::default()), count: AtomicUsize::new(0) }
    }

    /// Up to where one of them reaches that overlaps `range`: to be asked for after flights. One
    /// that was put aside is here before its flight ends, so who has not seen the flight finds it:
    /// the count, too, for `Flights::end` releases what `Flights::overlapping` acquires. Without
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

    fn insert(&self, range: &Range<u64>) {
        self.count.fetch_add(1, Relaxed);
        let Ranges { counts, longest } = &mut *self.ranges.lock();
        *longest = (range.end - range.start).max(*longest);
        *counts.entry((range.start, range.end)).or_default() += 1;
    }

    fn remove(&self, range: &Range<u64>) {
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

impl<P: Platform, C: Coherence, F: Format> Parked<P, C, F> {
    pub(crate) fn new() -> Self {
        Self { lots: Mutex::new(VecDeque::new()), count: AtomicUsize::new(0) }
    }

    /// Puts aside what an `munmap` of `range` took away.
    pub(crate) fn park(
        &self,
        space: &Arc<Mappings<P, C, F>>,
        range: Range<u64>,
        flush: C::Parked,
        removed: Removed,
    ) {
        space.parked.insert(&range);
        let mut lots = self.lots.lock();
        lots.push_back(Lot { space: Arc::clone(space), range, flush, removed });
        self.count.store(lots.len(), Relaxed);
    }

    /// Takes out the oldest, one after the other, of which `is_wanted` says so.
    fn take(&self, mut is_wanted: impl FnMut(&Lot<P, C, F>) -> bool) -> Vec<Lot<P, C, F>> {
        if self.count.load(Relaxed) == 0 {
            return Vec::new();
        }
        let mut lots = self.lots.lock();
        let wanted = lots.iter().take_while(|&lot| is_wanted(lot)).count();
        let taken = lots.drain(..wanted).collect();
        self.count.store(lots.len(), Relaxed);
        taken
    }
}

impl<P: Platform, C: Coherence, F: Format> Vm<P, C, F> {
    /// Frees what every CPU has come to by itself, up to the oldest that one has not.
    pub(crate) fn free_parked(&self) {
        let is_over = |lot: &Lot<P, C, F>| self.coherence.is_over(&lot.flush);
        self.free_lots(self.parked.take(is_over));
    }

    /// Frees all that is put aside, of any space. Returns how much it was.
    pub(crate) fn get_over_parked(&self) -> usize {
        self.free_lots(self.parked.take(|_| true))
    }

    fn free_lots(&self, lots: Vec<Lot<P, C, F>>) -> usize {
        let count = lots.len();
        for Lot { space, range, flush, removed } in lots {
            self.coherence.get_over(flush);
            removed.free_parked(self, &space);
            space.parked.remove(&range);
        }
        count
    }
}
