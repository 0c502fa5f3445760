//! Flushes in flight: changes to the page tables that CPUs may not have observed.
//!
//! Two callers look here. The first has found an entry already changed by another call that has
//! not flushed it yet. Linux's `madvise` and `mprotect` once returned immediately then, while other
//! CPUs still used the old translation (fixed by 3ea277194daa and 60bae7370896 with a count,
//! `tlb_flush_pending`). The second looks for room: addresses that were unmapped, and whose flush
//! is waited for without a lock, must not be mapped again, because old translations would hide the
//! new pages.
//!
//! # Why no flight is overlooked
//!
//! A flight [begins](InFlight::begin) before its call changes the first entry, and
//! [ends](InFlight::end) after its flush is complete. Another call loads a changed entry with
//! acquire, from a store with release, and looks here after that. It finds the flight listed, with
//! its range; or it finds the flight ended, and synchronises with the end, after which no CPU uses
//! the old translation. A flight that is listed but whose range is not yet written has changed
//! nothing. A reader may mix the ranges of two flights if the slot is reused as it loads them. The
//! first flight has then ended, and if the reader had loaded an entry that the second one changed,
//! the second range would be complete.

use core::array;
use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Number of flights that are known by their range.
const SLOTS: usize = 64;

/// The flushes in flight of one space.
pub(crate) struct InFlight {
    /// A bit for each slot that is taken.
    taken: AtomicU64,
    /// Number of flights without a slot. They could be anywhere.
    unlisted: AtomicU64,
    slots: [Slot; SLOTS],
}

/// A range. It is empty until its end is written, which is written last.
#[derive(Default)]
struct Slot {
    start: AtomicU64,
    end: AtomicU64,
}

/// One flight. Forgotten, it never ends, which costs flushes, but is safe.
#[must_use = "it goes on until `InFlight::end`"]
pub(crate) struct FlushInFlight {
    slot: Option<usize>,
}

impl InFlight {
    pub(crate) fn new() -> Self {
        Self {
            taken: AtomicU64::new(0),
            unlisted: AtomicU64::new(0),
            slots: array::from_fn(|_| Slot::default()),
        }
    }

    /// Says that entries for `range` are about to be changed.
    pub(crate) fn begin(&self, range: &Range<u64>) -> FlushInFlight {
        let taken = self.taken.fetch_update(AcqRel, Acquire, |taken| {
            let free = !taken & taken.wrapping_add(1);
            (free != 0).then_some(taken | free)
        });
        let Ok(taken) = taken else {
            self.unlisted.fetch_add(1, AcqRel);
            return FlushInFlight { slot: None };
        };
        let index = taken.trailing_ones() as usize;
        self.slots[index].start.store(range.start, Relaxed);
        self.slots[index].end.store(range.end, Release);
        FlushInFlight { slot: Some(index) }
    }

    /// Says that no CPU uses what was there before.
    #[expect(clippy::needless_pass_by_value, reason = "a flight ends once")]
    pub(crate) fn end(&self, flight: FlushInFlight) {
        match flight.slot {
            Some(index) => {
                self.slots[index].end.store(0, Relaxed);
                self.taken.fetch_and(!(1 << index), Release);
            }
            None => {
                self.unlisted.fetch_sub(1, Release);
            }
        }
    }

    /// Up to where a flight reaches that overlaps `range`, other than `own`.
    pub(crate) fn overlapping(
        &self,
        range: &Range<u64>,
        own: Option<&FlushInFlight>,
    ) -> Option<u64> {
        let own_slot = own.and_then(|flight| flight.slot);
        let own_unlisted = u64::from(own.is_some() && own_slot.is_none());
        if self.unlisted.load(Acquire) > own_unlisted {
            return Some(u64::MAX);
        }
        let mut taken = self.taken.load(Acquire);
        if let Some(own) = own_slot {
            taken &= !(1 << own);
        }
        while taken != 0 {
            let slot = &self.slots[taken.trailing_zeros() as usize];
            let end = slot.end.load(Acquire);
            let start = slot.start.load(Relaxed);
            if start < range.end && range.start < end {
                return Some(end);
            }
            taken &= taken - 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_flight_is_seen_by_others_until_it_ends() {
        let in_flight = InFlight::new();
        let flight = in_flight.begin(&(0x1000..0x3000));
        assert_eq!(in_flight.overlapping(&(0x2000..0x9000), None), Some(0x3000));
        assert_eq!(in_flight.overlapping(&(0x2000..0x9000), Some(&flight)), None);
        assert_eq!(in_flight.overlapping(&(0x3000..0x9000), None), None);
        in_flight.end(flight);
        assert_eq!(in_flight.overlapping(&(0x2000..0x9000), None), None);
    }

    #[test]
    fn flights_beyond_the_slots_could_be_anywhere() {
        let in_flight = InFlight::new();
        let mut all: Vec<_> = (0..65).map(|n| in_flight.begin(&(n..n + 1))).collect();
        let last = all.pop().expect("65 of them");
        assert_eq!(in_flight.overlapping(&(1000..1001), None), Some(u64::MAX));
        assert_eq!(in_flight.overlapping(&(1000..1001), Some(&last)), None);
        assert_eq!(in_flight.overlapping(&(7..8), Some(&last)), Some(8));
        in_flight.end(last);
        assert_eq!(in_flight.overlapping(&(1000..1001), None), None);
        in_flight.end(all.swap_remove(7));
        assert_eq!(in_flight.overlapping(&(7..8), None), None);
        all.push(in_flight.begin(&(70..71)));
        assert_eq!(in_flight.overlapping(&(70..71), None), Some(71));
    }
}
