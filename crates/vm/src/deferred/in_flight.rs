//! Flushes in flight: changes to the page tables that CPUs may not have observed.
//!
//! Two callers search them:
//!
//! - An operation that finds an entry already changed by another call, which may not have flushed
//!   the entry yet. Linux's `madvise` and `mprotect` once returned immediately in this case, while
//!   other CPUs still used the old translation. 3ea277194daa and 60bae7370896 fixed this with a
//!   count, `tlb_flush_pending`.
//! - An operation that looks for a gap in the address space. Addresses that were unmapped, and
//!   whose flush is waited for without a lock, must not be mapped again, because old translations
//!   would hide the new pages.
//!
//! # Why no flush is overlooked
//!
//! A flush is listed by [`begin`](InFlight::begin) before its call changes the first entry, and
//! unlisted by [`end`](InFlight::end) after the flush is complete. Another call loads a changed
//! entry with acquire, from a store with release, and searches the list after that load. Either it
//! finds the flush listed, with its range; or it finds the flush unlisted, and synchronises with
//! `end`, after which no CPU uses the old translation.
//!
//! There are three ways to find a flush unlisted: its bit is clear, its range is empty, or a later
//! flush has reused its slot. So a reader acquires each word that it reads, and each store of `end`
//! and `begin` that can show the flush to be unlisted releases ([rules](crate::rules)).
//!
//! A flush that is listed but whose range is not yet written has changed nothing. If a slot is
//! reused while a reader loads it, the reader may mix the ranges of two flushes. This is harmless:
//! the first flush has then ended, and if the reader had loaded an entry that the second call
//! changed, it would load the complete second range.

use core::array;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use crate::rules::{Rule, order};
use crate::sync::{AtomicU64, OwnedWord};

/// Number of flushes whose range is listed.
const SLOTS: usize = 64;

/// The flushes in flight of one space.
pub(crate) struct InFlight {
    /// One bit for each slot in use.
    used: AtomicU64,
    /// Number of flushes without a slot. Their range is unknown.
    unlisted: AtomicU64,
    slots: [Slot; SLOTS],
}

/// A range. It is empty until its end is written, which is written last.
struct Slot {
    start: OwnedWord,
    end: OwnedWord,
}

/// One flush in flight. If the value is dropped instead of passed to [`InFlight::end`], the flush
/// stays listed, which costs flushes but is safe.
#[must_use = "the flush stays listed until `InFlight::end`"]
pub(crate) struct FlushInFlight {
    slot: Option<usize>,
}

impl InFlight {
    pub(crate) fn new() -> Self {
        Self {
            used: AtomicU64::new(0),
            unlisted: AtomicU64::new(0),
            slots: array::from_fn(|_| Slot { start: OwnedWord::new(0), end: OwnedWord::new(0) }),
        }
    }

    /// Lists a flush of `range`. Call this before entries for the range are changed.
    pub(crate) fn begin(&self, range: &Range<u64>) -> FlushInFlight {
        // Relaxed: a call that must find this flush has acquired an entry that it changed.
        let used = self.used.fetch_update(order(Rule::ReuseAcquire), Relaxed, |used| {
            let free = !used & used.wrapping_add(1);
            (free != 0).then_some(used | free)
        });
        let Ok(used) = used else {
            // Relaxed: as above.
            self.unlisted.fetch_add(1, Relaxed);
            return FlushInFlight { slot: None };
        };
        let index = used.trailing_ones() as usize;
        self.slots[index].start.store(range.start, order(Rule::RangeRelease));
        self.slots[index].end.store(range.end, order(Rule::RangeRelease));
        FlushInFlight { slot: Some(index) }
    }

    /// Unlists a flush. Call this when no CPU uses the old translations.
    #[expect(clippy::needless_pass_by_value, reason = "a flush ends once")]
    pub(crate) fn end(&self, flush: FlushInFlight) {
        match flush.slot {
            Some(index) => {
                self.slots[index].end.store(0, order(Rule::EndRelease));
                self.used.fetch_and(!(1 << index), order(Rule::EndRelease));
            }
            None => {
                self.unlisted.fetch_sub(1, order(Rule::EndRelease));
            }
        }
    }

    /// Returns the end of a listed flush other than `own` that overlaps `range`. Returns `u64::MAX`
    /// if there are flushes without a slot.
    pub(crate) fn overlapping(
        &self,
        range: &Range<u64>,
        own: Option<&FlushInFlight>,
    ) -> Option<u64> {
        let own_slot = own.and_then(|flush| flush.slot);
        let own_unlisted = u64::from(own.is_some() && own_slot.is_none());
        if self.unlisted.load(order(Rule::ListAcquire)) > own_unlisted {
            return Some(u64::MAX);
        }
        let mut used = self.used.load(order(Rule::ListAcquire));
        if let Some(own) = own_slot {
            used &= !(1 << own);
        }
        while used != 0 {
            let slot = &self.slots[used.trailing_zeros() as usize];
            let end = slot.end.load(order(Rule::ListAcquire));
            let start = slot.start.load(order(Rule::ListAcquire));
            if start < range.end && range.start < end {
                return Some(end);
            }
            used &= used - 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn flush_is_listed_for_others_until_it_ends() {
        loom::model(|| {
            let in_flight = InFlight::new();
            let flush = in_flight.begin(&(0x1000..0x3000));
            assert_eq!(in_flight.overlapping(&(0x2000..0x9000), None), Some(0x3000));
            assert_eq!(in_flight.overlapping(&(0x2000..0x9000), Some(&flush)), None);
            assert_eq!(in_flight.overlapping(&(0x3000..0x9000), None), None);
            in_flight.end(flush);
            assert_eq!(in_flight.overlapping(&(0x2000..0x9000), None), None);
        });
    }

    #[test]
    fn flush_without_slot_overlaps_every_range() {
        let mut model = loom::model::Builder::new();
        model.max_branches = 10_000;
        model.check(|| {
            let in_flight = InFlight::new();
            let mut all: Vec<_> = (0..65).map(|n| in_flight.begin(&(n..n + 1))).collect();
            let last = all.pop().expect("there are 65 flushes");
            assert_eq!(in_flight.overlapping(&(1000..1001), None), Some(u64::MAX));
            assert_eq!(in_flight.overlapping(&(1000..1001), Some(&last)), None);
            assert_eq!(in_flight.overlapping(&(7..8), Some(&last)), Some(8));
            in_flight.end(last);
            assert_eq!(in_flight.overlapping(&(1000..1001), None), None);
            in_flight.end(all.swap_remove(7));
            assert_eq!(in_flight.overlapping(&(7..8), None), None);
            all.push(in_flight.begin(&(70..71)));
            assert_eq!(in_flight.overlapping(&(70..71), None), Some(71));
        });
    }
}
