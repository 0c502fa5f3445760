//! The allocator of ASIDs, which are tags that mean the same space on every CPU.
//!
//! Each engine has one allocator. Its words are written under its lock. `global.rs` has the use by
//! CPUs, and the rollover to a new epoch.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::cpu_set::SharedCpuSet;
use crate::ids::{CpuId, Tag};
use crate::machine::Machine;
use crate::memory::{TagWords, Word, order, zero_words};
use crate::rules::Rule;

/// An ASID in one word, with its number of pins and the epoch in which it was allocated. 0 for no
/// ASID.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AsidWord(pub(crate) u64);

impl AsidWord {
    pub(crate) const ASID: u64 = 0xffff;
    pub(crate) const PIN: u64 = 1 << 16;
    pub(crate) const PINS: u64 = 0xff << 16;
    pub(crate) const EPOCH_SHIFT: u32 = 24;

    #[inline]
    pub(crate) const fn new(epoch: u64, asid: u64) -> Self {
        Self(epoch << Self::EPOCH_SHIFT | asid)
    }

    #[inline]
    pub(crate) const fn asid(self) -> u64 {
        self.0 & Self::ASID
    }

    #[inline]
    pub(crate) const fn tag(self) -> Tag {
        Tag(self.0 as u16)
    }

    #[inline]
    pub(crate) const fn epoch(self) -> u64 {
        self.0 >> Self::EPOCH_SHIFT
    }

    #[inline]
    pub(crate) const fn is_pinned(self) -> bool {
        self.0 & Self::PINS != 0
    }

    /// The word without pins, as a CPU that uses the ASID publishes it.
    #[inline]
    pub(crate) const fn unpinned(self) -> Self {
        Self(self.0 & !Self::PINS)
    }
}

/// The allocator of ASIDs.
pub(crate) struct AsidAllocator<M: Machine> {
    /// 1 plus the number of the CPU that holds the lock, with its interrupts masked; 0 if none.
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
    /// One bit per ASID for allocated ones, and then one bit per ASID for pinned ones.
    words: M::TagWords,
}

/// The first epoch, and the first ASID. 0 stands for no ASID.
const FIRST: u64 = 1;

/// The lock's word while `cpu` holds it.
#[inline]
fn holder(cpu: CpuId) -> u64 {
    u64::from(cpu.0) + 1
}

impl<M: Machine<Word = AtomicU64>> AsidAllocator<M> {
    /// An allocator of which no ASID is allocated.
    #[expect(unsafe_code, reason = "an array of words cannot be made by a constant otherwise")]
    pub(crate) const fn new() -> Self {
        // SAFETY: `TagWords` is implemented for arrays of words only, so all fields are words.
        let mut allocator: Self = unsafe { zero_words() };
        allocator.set_first();
        allocator
    }

    /// Sets the words that are not 0 at first.
    pub(crate) const fn set_first(&mut self) {
        self.epoch = AtomicU64::new(FIRST);
        self.next = AtomicU64::new(FIRST);
    }
}

impl<M: Machine> Default for AsidAllocator<M> {
    fn default() -> Self {
        Self {
            lock: M::Word::new(0),
            epoch: M::Word::new(FIRST),
            next: M::Word::new(FIRST),
            failures: M::Word::new(0),
            pinned: M::Word::new(0),
            flush_pending: SharedCpuSet::default(),
            words: M::TagWords::zero(),
        }
    }
}

impl<M: Machine> AsidAllocator<M> {
    /// Returns `true` if there are more ASIDs than CPUs, so that no CPU ever runs a space without
    /// an ASID.
    pub(crate) fn covers_all_cpus(&self, machine: &M) -> bool {
        self.count(machine) > machine.cpu_limit() as u64
    }

    /// Number of ASIDs. The first one is 1.
    pub(crate) fn count(&self, machine: &M) -> u64 {
        let room = (self.allocated().len() * 64).saturating_sub(1);
        machine.tag_count().min(room).min(usize::from(u16::MAX)) as u64
    }

    pub(crate) fn allocated(&self) -> &[M::Word] {
        let words = self.words.words();
        &words[..words.len() / 2]
    }

    pub(crate) fn pins(&self) -> &[M::Word] {
        let words = self.words.words();
        &words[words.len() / 2..]
    }

    /// Calls `f` while `cpu`, the caller's, holds the lock.
    pub(crate) fn with_lock<R>(&self, machine: &M, cpu: CpuId, f: impl FnOnce() -> R) -> R {
        let acquire = order(machine, Rule::TagLockAcquire);
        // Relaxed: after a failure, nothing is read before the next attempt.
        while self.lock.compare_exchange(0, holder(cpu), acquire, Relaxed).is_err() {
            machine.spin_hint();
        }
        self.finish(machine, f)
    }

    /// Calls `f` with the lock of a CPU that has stopped while it held the lock, and releases it.
    /// Does nothing if the CPU did not hold it. The caller has acquired the CPU's last accesses.
    pub(crate) fn with_lock_of(&self, machine: &M, stopped: CpuId, f: impl FnOnce()) {
        // Relaxed: if the CPU holds the lock, no other CPU writes the word, and the caller has
        // acquired what was written under the lock.
        if self.lock.load(Relaxed) == holder(stopped) {
            self.finish(machine, f);
        }
    }

    /// Takes the lock for a CPU that is going to stop.
    #[cfg(all(test, feature = "soft"))]
    pub(crate) fn lock_for_ever(&self, cpu: CpuId) {
        // Relaxed: a test of one thread.
        self.lock.store(holder(cpu), Relaxed);
    }

    fn finish<R>(&self, machine: &M, f: impl FnOnce() -> R) -> R {
        let result = f();
        self.lock.store(0, order(machine, Rule::TagLockRelease));
        result
    }

    /// Allocates this ASID. Returns `false` if it is allocated already.
    ///
    /// Relaxed: called under the lock (`TagLockAcquire`).
    pub(crate) fn allocate(&self, asid: u64) -> bool {
        let (word, bit) = (&self.allocated()[asid as usize / 64], 1 << (asid % 64));
        let before = word.load(Relaxed);
        word.store(before | bit, Relaxed);
        before & bit == 0
    }

    /// Allocates the next free ASID; `None` if all are allocated.
    ///
    /// Relaxed: called under the lock (`TagLockAcquire`).
    pub(crate) fn allocate_next(&self, machine: &M) -> Option<u64> {
        let (count, first) = (self.count(machine), self.next.load(Relaxed));
        let asid = self.find_free(first..count + 1).or_else(|| self.find_free(1..first))?;
        self.allocate(asid);
        self.next.store(asid % count + 1, Relaxed);
        Some(asid)
    }

    /// The first free ASID in a range.
    ///
    /// Relaxed: called under the lock (`TagLockAcquire`).
    fn find_free(&self, mut asids: core::ops::Range<u64>) -> Option<u64> {
        while asids.start < asids.end {
            let (index, bit) = (asids.start / 64, asids.start % 64);
            let free = !self.allocated()[index as usize].load(Relaxed) >> bit << bit;
            if free != 0 {
                let asid = index * 64 + u64::from(free.trailing_zeros());
                return (asid < asids.end).then_some(asid);
            }
            asids.start = (index + 1) * 64;
        }
        None
    }

    /// Changes the bit that records whether an ASID is pinned. `change` gets the word and the bit,
    /// and returns the new word.
    ///
    /// Relaxed: called under the lock (`TagLockAcquire`).
    pub(crate) fn set_pinned(&self, asid: u64, change: impl FnOnce(u64, u64) -> u64) {
        let (word, bit) = (&self.pins()[asid as usize / 64], 1 << (asid % 64));
        word.store(change(word.load(Relaxed), bit), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::tests::Plain;
    use std::vec::Vec;

    #[test]
    fn word_keeps_asid_pins_and_epoch_apart() {
        let mut word = AsidWord::new(5, 0xfffe);
        for pins in 0..=255 {
            assert_eq!((word.asid(), word.tag(), word.epoch()), (0xfffe, Tag(0xfffe), 5));
            assert_eq!(word.is_pinned(), pins != 0);
            assert_eq!(word.unpinned().0, AsidWord::new(5, 0xfffe).0);
            word.0 = word.0.wrapping_add(AsidWord::PIN);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes half a minute, and runs no unsafe code that others do not")]
    fn asid_count_is_limited_by_machine_and_words() {
        fn count<const WORDS: usize>(tags: usize) -> u64 {
            AsidAllocator::<Plain<WORDS>>::new().count(&Plain::with_tags(tags))
        }
        assert_eq!([count::<8>(15), count::<8>(255), count::<8>(256)], [15, 255, 255]);
        assert_eq!([count::<2048>(1 << 20), count::<2>(0), count::<0>(9)], [65535, 0, 0]);
        // One ASID for each CPU, and one more.
        let covers_all_cpus =
            |tags| AsidAllocator::<Plain<8>>::new().covers_all_cpus(&Plain::with_tags(tags));
        assert!(covers_all_cpus(129) && !covers_all_cpus(128));
    }

    #[test]
    fn asids_are_allocated_in_turn_and_once() {
        for count in [1, 63, 64, 65, 130, 255] {
            let machine = Plain::<8>::with_tags(count);
            let allocator = AsidAllocator::<Plain<8>>::new();
            let allocate_all =
                || core::iter::from_fn(|| allocator.allocate_next(&machine)).take(300);
            let asids: Vec<_> = allocate_all().collect();
            assert!(asids.iter().copied().eq(1..=count as u64), "{asids:?}");
            // Some are freed. The search begins with the ASID after the last allocated one.
            let free = [1, count as u64 / 2, count as u64].map(|asid| asid.max(1));
            for asid in free {
                allocator.allocated()[asid as usize / 64].fetch_and(!(1 << (asid % 64)), Relaxed);
            }
            let mut again: Vec<_> = allocate_all().collect();
            again.dedup();
            let mut expected = free.to_vec();
            expected.dedup();
            assert_eq!(again, expected);
            allocator.allocated().iter().for_each(|word| word.store(0, Relaxed));
            assert_eq!(allocator.allocate_next(&machine), Some(1));
            assert!(!allocator.allocate(1));
            if count > 2 {
                assert!(allocator.allocate(2) && !allocator.allocate(2));
                assert_eq!(allocator.allocate_next(&machine), Some(3));
            }
        }
    }

    #[test]
    fn pins_have_separate_words() {
        let allocator = AsidAllocator::<Plain<8>>::new();
        for asid in [1, 64, 200] {
            allocator.set_pinned(asid, |word, bit| word | bit);
        }
        let pins = || allocator.pins().iter().map(|word| word.load(Relaxed)).collect::<Vec<_>>();
        assert_eq!(pins(), [2, 1, 0, 1 << 8]);
        allocator.set_pinned(64, |word, bit| word & !bit);
        assert_eq!(pins(), [2, 0, 0, 1 << 8]);
        assert!(allocator.allocated().iter().all(|word| word.load(Relaxed) == 0));
    }

    #[test]
    fn lock_is_held_during_the_closure() {
        let machine = Plain::<2>::with_tags(3);
        let allocator = AsidAllocator::<Plain<2>>::new();
        let inside = allocator.with_lock(&machine, CpuId(2), || allocator.lock.load(Relaxed));
        assert_eq!((inside, allocator.lock.load(Relaxed)), (holder(CpuId(2)), 0));
        let mut calls = 0;
        for stopped in [CpuId(1), CpuId(2)] {
            allocator.lock.store(holder(CpuId(2)), Relaxed);
            allocator.with_lock_of(&machine, stopped, || calls += 1);
        }
        assert_eq!((calls, allocator.lock.load(Relaxed)), (1, 0));
    }
}
