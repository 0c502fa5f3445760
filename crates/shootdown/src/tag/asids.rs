//! The allocator of ASIDs: tags that mean the same space on every CPU.
//!
//! It is one per engine, and its words are written under its lock. How CPUs use it, and how a new
//! epoch begins, is in `global.rs`.

use core::sync::atomic::Ordering::Relaxed;

use crate::cpu_set::SharedCpuSet;
use crate::ids::Tag;
use crate::machine::Machine;
use crate::memory::{TagWords, Word, order};
use crate::rules::Rule;

/// An ASID, the epoch in which it was allocated, and the number of pins; 0 for none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asid(pub(crate) u64);

impl Asid {
    pub(crate) const NUMBER: u64 = 0xffff;
    pub(crate) const PIN: u64 = 1 << 16;
    pub(crate) const PINS: u64 = 0xff << 16;
    pub(crate) const EPOCH_SHIFT: u32 = 24;

    pub(crate) const fn new(epoch: u64, number: u64) -> Self {
        Self(epoch << Self::EPOCH_SHIFT | number)
    }

    pub(crate) const fn number(self) -> u64 {
        self.0 & Self::NUMBER
    }

    pub(crate) const fn tag(self) -> Tag {
        Tag(self.0 as u16)
    }

    pub(crate) const fn epoch(self) -> u64 {
        self.0 >> Self::EPOCH_SHIFT
    }

    pub(crate) const fn is_pinned(self) -> bool {
        self.0 & Self::PINS != 0
    }

    /// The form in which a CPU publishes that it uses the ASID.
    pub(crate) const fn unpinned(self) -> Self {
        Self(self.0 & !Self::PINS)
    }
}

/// The allocator.
pub(crate) struct AsidAllocator<M: Machine> {
    /// 1 while a CPU, with its interrupts masked, holds the lock.
    lock: M::Word,
    pub(crate) epoch: M::Word,
    /// The ASID at which the search for a free one begins.
    pub(crate) next: M::Word,
    /// Number of failed allocations since the last rollover.
    pub(crate) failures: M::Word,
    /// Number of pinned ASIDs.
    pub(crate) pinned: M::Word,
    /// CPUs that must empty their TLB before they use an ASID of this epoch.
    pub(crate) flush_pending: SharedCpuSet<M, M::CpuBits>,
    /// One bit for each allocated ASID; then as many bits for pinned ones.
    words: M::TagWords,
}

impl<M: Machine> AsidAllocator<M> {
    pub(crate) fn new() -> Self {
        Self {
            lock: M::Word::new(0),
            epoch: M::Word::new(1),
            next: M::Word::new(1),
            failures: M::Word::new(0),
            pinned: M::Word::new(0),
            flush_pending: SharedCpuSet::new(),
            words: M::TagWords::zero(),
        }
    }

    /// Whether there are more ASIDs than CPUs, so that no CPU ever runs a space without one.
    pub(crate) fn covers_all_cpus(&self, machine: &M) -> bool {
        self.count(machine) > machine.cpu_limit() as u64
    }

    /// Number of ASIDs, which are 1 and up.
    pub(crate) fn count(&self, machine: &M) -> u64 {
        let room = (self.taken().len() * 64).saturating_sub(1);
        machine.tag_count().min(room).min(usize::from(u16::MAX)) as u64
    }

    pub(crate) fn taken(&self) -> &[M::Word] {
        let words = self.words.words();
        &words[..words.len() / 2]
    }

    pub(crate) fn pins(&self) -> &[M::Word] {
        let words = self.words.words();
        &words[words.len() / 2..]
    }

    /// Calls `f` while holding the lock.
    pub(crate) fn with_lock<R>(&self, machine: &M, f: impl FnOnce() -> R) -> R {
        let acquire = order(machine, Rule::TagLockAcquire);
        // Relaxed: where it fails, nothing has been read.
        while self.lock.compare_exchange(0, 1, acquire, Relaxed).is_err() {
            machine.spin_hint();
        }
        let result = f();
        self.lock.store(0, order(machine, Rule::TagLockRelease));
        result
    }

    /// Allocates this ASID, if it is free. Returns whether it was.
    ///
    /// Relaxed: called under the lock (`TagLockAcquire`).
    pub(crate) fn take(&self, number: u64) -> bool {
        let (word, bit) = (&self.taken()[number as usize / 64], 1 << (number % 64));
        let held = word.load(Relaxed);
        word.store(held | bit, Relaxed);
        held & bit == 0
    }

    /// Allocates the next ASID that is free.
    ///
    /// Relaxed: called under the lock (`TagLockAcquire`).
    pub(crate) fn take_next(&self, machine: &M) -> Option<u64> {
        let (count, first) = (self.count(machine), self.next.load(Relaxed));
        let number = self.free_in(first..count + 1).or_else(|| self.free_in(1..first))?;
        self.take(number);
        self.next.store(number % count + 1, Relaxed);
        Some(number)
    }

    /// Relaxed: called under the lock (`TagLockAcquire`).
    pub(crate) fn free_in(&self, mut numbers: core::ops::Range<u64>) -> Option<u64> {
        while numbers.start < numbers.end {
            let (index, bit) = (numbers.start / 64, numbers.start % 64);
            let free = !self.taken()[index as usize].load(Relaxed) >> bit << bit;
            if free != 0 {
                let number = index * 64 + u64::from(free.trailing_zeros());
                return (number < numbers.end).then_some(number);
            }
            numbers.start = (index + 1) * 64;
        }
        None
    }

    /// Relaxed: called under the lock (`TagLockAcquire`).
    pub(crate) fn set_pinned(&self, number: u64, change: impl FnOnce(u64, u64) -> u64) {
        let (word, bit) = (&self.pins()[number as usize / 64], 1 << (number % 64));
        word.store(change(word.load(Relaxed), bit), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::Plain;
    use std::vec::Vec;

    #[test]
    fn a_word_keeps_number_pins_and_version_apart() {
        let mut full = Asid::new(5, 0xfffe);
        for pins in 0..=255 {
            assert_eq!((full.number(), full.tag(), full.epoch()), (0xfffe, Tag(0xfffe), 5));
            assert_eq!(full.is_pinned(), pins != 0);
            assert_eq!(full.unpinned().0, Asid::new(5, 0xfffe).0);
            full.0 = full.0.wrapping_add(Asid::PIN);
        }
    }

    #[test]
    fn there_are_as_many_numbers_as_machine_words_and_width_have() {
        fn count<const WORDS: usize>(tags: usize) -> u64 {
            AsidAllocator::<Plain<WORDS>>::new().count(&Plain::with_tags(tags))
        }
        assert_eq!([count::<8>(15), count::<8>(255), count::<8>(256)], [15, 255, 255]);
        assert_eq!([count::<2048>(1 << 20), count::<2>(0), count::<0>(9)], [65535, 0, 0]);
        // One for each CPU, and one more.
        let covers_all_cpus =
            |tags| AsidAllocator::<Plain<8>>::new().covers_all_cpus(&Plain::with_tags(tags));
        assert!(covers_all_cpus(129) && !covers_all_cpus(128));
    }

    #[test]
    fn numbers_are_given_in_turn_and_none_twice() {
        for count in [1, 63, 64, 65, 130, 255] {
            let (machine, book) = (Plain::<8>::with_tags(count), AsidAllocator::<Plain<8>>::new());
            let take_all = || core::iter::from_fn(|| book.take_next(&machine)).take(300);
            let numbers: Vec<_> = take_all().collect();
            assert!(numbers.iter().copied().eq(1..=count as u64), "{numbers:?}");
            // Some come back; first those that were not given lately.
            let free = [1, count as u64 / 2, count as u64].map(|number| number.max(1));
            for number in free {
                book.taken()[number as usize / 64].fetch_and(!(1 << (number % 64)), Relaxed);
            }
            let mut again: Vec<_> = take_all().collect();
            again.dedup();
            let mut expected = free.to_vec();
            expected.dedup();
            assert_eq!(again, expected);
            book.taken().iter().for_each(|word| word.store(0, Relaxed));
            assert_eq!(book.take_next(&machine), Some(1));
            assert!(!book.take(1));
            if count > 2 {
                assert!(book.take(2) && !book.take(2));
                assert_eq!(book.take_next(&machine), Some(3));
            }
        }
    }

    #[test]
    fn pins_are_noted_in_words_of_their_own() {
        let book = AsidAllocator::<Plain<8>>::new();
        for number in [1, 64, 200] {
            book.set_pinned(number, |word, bit| word | bit);
        }
        let pins = || book.pins().iter().map(|word| word.load(Relaxed)).collect::<Vec<_>>();
        assert_eq!(pins(), [2, 1, 0, 1 << 8]);
        book.set_pinned(64, |word, bit| word & !bit);
        assert_eq!(pins(), [2, 0, 0, 1 << 8]);
        assert!(book.taken().iter().all(|word| word.load(Relaxed) == 0));
    }

    #[test]
    fn one_at_a_time_writes_in_the_book() {
        let (machine, book) = (Plain::<2>::with_tags(3), AsidAllocator::<Plain<2>>::new());
        let inside = book.with_lock(&machine, || book.lock.load(Relaxed));
        assert_eq!((inside, book.lock.load(Relaxed)), (1, 0));
    }
}
