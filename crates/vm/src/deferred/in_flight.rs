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
//! # Blocks
//!
//! The slots are in blocks of [`SLOTS`]. A flush that finds no slot free in a block goes on to the
//! next one, which it makes if there is none. A block stays until the space ends, so a space has as
//! many as its most flushes at a time needed. A flush and a search load one word for each block,
//! and a search two more for each flush in flight. So each flush costs the others as much as the
//! one before, and no number of them makes a search less exact.
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
//! and `begin` that can show the flush to be unlisted releases ([rules](crate::rules)). A reader
//! that finds no block where the flush is listed has not loaded the changed entry.
//!
//! A flush that is listed but whose range is not yet written has changed nothing. If a slot is
//! reused while a reader loads it, the reader may mix the ranges of two flushes. This is harmless:
//! the first flush has then ended, and if the reader had loaded an entry that the second call
//! changed, it would load the complete second range.

use alloc::boxed::Box;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use core::{array, ptr};

use crate::rules::{Rule, order};
use crate::sync::{AtomicPtr, AtomicU64, OwnedWord};

/// Number of slots of a block: at most the bits of a word, and few in programs under loom, which
/// step from one block to the next.
pub(crate) const SLOTS: usize = if cfg!(test) { 2 } else { 64 };

/// The flushes in flight of one space: the first block, which leads to the others.
pub(crate) struct InFlight(Block);

struct Block {
    /// One bit for each slot in use.
    used: AtomicU64,
    slots: [Slot; SLOTS],
    next: NextBlock,
}

/// A range. It is empty until its end is written, which is written last.
struct Slot {
    start: OwnedWord,
    end: OwnedWord,
}

/// The block after another one, made when it is first needed.
struct NextBlock(AtomicPtr<Block>);

/// One flush in flight. If the value is dropped instead of passed to [`InFlight::end`], the flush
/// stays listed, which costs flushes but is safe.
#[must_use = "the flush stays listed until `InFlight::end`"]
pub(crate) struct FlushInFlight {
    /// Number of the slot, counted through all blocks.
    slot: usize,
}

impl InFlight {
    pub(crate) fn new() -> Self {
        Self(Block::new())
    }

    /// Lists a flush of `range`. Call this before entries for the range are changed.
    pub(crate) fn begin(&self, range: &Range<u64>) -> FlushInFlight {
        let (mut block, mut first) = (&self.0, 0);
        loop {
            if let Some(index) = block.take_slot() {
                block.slots[index].start.store(range.start, order(Rule::RangeRelease));
                block.slots[index].end.store(range.end, order(Rule::RangeRelease));
                return FlushInFlight { slot: first + index };
            }
            block = block.next.get_or_make();
            first += SLOTS;
        }
    }

    /// Unlists a flush. Call this when no CPU uses the old translations.
    #[expect(clippy::needless_pass_by_value, reason = "a flush ends once")]
    pub(crate) fn end(&self, flush: FlushInFlight) {
        let (mut block, mut index) = (&self.0, flush.slot);
        while index >= SLOTS {
            block = block.next.get_or_make();
            index -= SLOTS;
        }
        block.slots[index].end.store(0, order(Rule::EndRelease));
        block.used.fetch_and(!(1 << index), order(Rule::EndRelease));
    }

    /// Returns the end of a listed flush other than `own` that overlaps `range`.
    pub(crate) fn overlapping(
        &self,
        range: &Range<u64>,
        own: Option<&FlushInFlight>,
    ) -> Option<u64> {
        let (mut block, mut own) = (&self.0, own.map_or(usize::MAX, |own| own.slot));
        loop {
            if let Some(end) = block.overlapping(range, own) {
                return Some(end);
            }
            block = block.next.get()?;
            own = own.wrapping_sub(SLOTS);
        }
    }
}

impl Block {
    fn new() -> Self {
        Self {
            used: AtomicU64::new(0),
            slots: array::from_fn(|_| Slot { start: OwnedWord::new(0), end: OwnedWord::new(0) }),
            next: NextBlock(AtomicPtr::new(ptr::null_mut())),
        }
    }

    /// Returns the end of a listed flush that overlaps `range`. Leaves out the one in slot `own`,
    /// which may be in another block.
    #[inline]
    fn overlapping(&self, range: &Range<u64>, own: usize) -> Option<u64> {
        let mut used = self.used.load(order(Rule::ListAcquire));
        if own < SLOTS {
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

    /// Returns a slot that was free.
    #[inline]
    fn take_slot(&self) -> Option<usize> {
        // Relaxed: a call that must find this flush has acquired an entry that it changed.
        let used = self.used.fetch_update(order(Rule::ReuseAcquire), Relaxed, |used| {
            let free = !used & used.wrapping_add(1) & (u64::MAX >> (64 - SLOTS));
            (free != 0).then_some(used | free)
        });
        Some(used.ok()?.trailing_ones() as usize)
    }
}

#[expect(unsafe_code, reason = "a reference from a pointer that is written once")]
impl NextBlock {
    fn get(&self) -> Option<&Block> {
        let block = self.0.load(order(Rule::BlockAcquire));
        // SAFETY: the pointer is null or from `get_or_make`, which has released the block. It stays
        // until `self` is dropped.
        unsafe { block.as_ref() }
    }

    #[cold]
    fn get_or_make(&self) -> &Block {
        if let Some(block) = self.get() {
            return block;
        }
        let new = Box::into_raw(Box::new(Block::new()));
        let (made, found) = (order(Rule::BlockRelease), order(Rule::BlockAcquire));
        match self.0.compare_exchange(ptr::null_mut(), new, made, found) {
            // SAFETY: as in `get`.
            Ok(_) => unsafe { &*new },
            Err(block) => {
                // SAFETY: no other CPU has the pointer.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: as in `get`; the pointer is not null.
                unsafe { &*block }
            }
        }
    }
}

#[expect(unsafe_code, reason = "frees what the pointer owns")]
impl Drop for NextBlock {
    fn drop(&mut self) {
        // Relaxed: the owner has acquired all uses of the space.
        let block = self.0.load(Relaxed);
        if !block.is_null() {
            // SAFETY: from `Box::into_raw`, and no reference to the block outlives `self`.
            drop(unsafe { Box::from_raw(block) });
        }
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

    fn blocks(in_flight: &InFlight) -> usize {
        core::iter::successors(Some(&in_flight.0), |block| block.next.get()).count()
    }

    /// One flush in the last block, and all blocks full.
    #[test]
    fn flushes_of_every_block_are_listed_exactly() {
        for count in [SLOTS, SLOTS + 1, 2 * SLOTS, 2 * SLOTS + 1] {
            let mut model = loom::model::Builder::new();
            model.max_branches = 10_000;
            model.check(move || {
                let in_flight = InFlight::new();
                let page = |n: usize| n as u64..n as u64 + 1;
                let find =
                    |n: usize, own: Option<&FlushInFlight>| in_flight.overlapping(&page(n), own);
                let mut all: Vec<_> = (0..count).map(|n| in_flight.begin(&page(n))).collect();
                for n in 0..count {
                    for (own, flush) in all.iter().enumerate() {
                        let expected = (n != own).then_some(page(n).end);
                        assert_eq!(find(n, Some(flush)), expected, "{n} beside {own}");
                    }
                    assert_eq!(find(count, None), None);
                }
                // The slot of each flush is free again, and no other.
                for n in 0..count {
                    in_flight.end(all.swap_remove(n));
                    assert_eq!(find(n, None), None);
                    all.push(in_flight.begin(&page(count + n)));
                    all.swap(n, count - 1);
                    assert_eq!(find(count + n, None), Some(page(count + n).end));
                    assert_eq!(blocks(&in_flight), count.div_ceil(SLOTS));
                }
                // The last flush, also after blocks that are empty.
                all.drain(..count - 1).for_each(|flush| in_flight.end(flush));
                assert_eq!(find(2 * count - 1, None), Some(page(2 * count - 1).end));
            });
        }
    }
}
