//! The allocator of ASIDs, which are tags that mean the same space on every CPU.
//!
//! Each engine has one allocator. CPUs take blocks of ASIDs from it (`stock.rs`), without a lock:
//! one atomic operation on `next` takes a block. `global.rs` has the use by CPUs, and `reserved.rs`
//! the ASIDs that stay allocated in a new epoch.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::stock::Block;
use crate::base::cache_padded::CachePadded;
use crate::base::ids::{CpuId, Tag};
use crate::base::memory::{TagWords, Word, fence, order, zero_words};
use crate::base::rules::Rule;
use crate::parts::cpu_set::SharedCpuSet;
use crate::state::machine::Machine;

/// An ASID in one word, with its number of pins and the epoch in which it was allocated. 0 for no
/// ASID.
///
/// Epochs are even. The odd number after an epoch marks a space's ASID of that epoch as *proposed*:
/// no CPU may load it yet. It marks a CPU's ASID as *sealed*: see `reserved.rs`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AsidWord(pub(crate) u64);

impl AsidWord {
    pub(crate) const ASID: u64 = 0xffff;
    pub(crate) const PIN: u64 = 1 << 16;
    pub(crate) const PINS: u64 = 0xff << 16;
    const EPOCH_SHIFT: u32 = 24;
    const PROPOSED: u64 = 1 << Self::EPOCH_SHIFT;

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

    /// The epoch in which CPUs may load the ASID; an odd number, which is never the epoch, if the
    /// ASID is proposed.
    #[inline]
    pub(crate) const fn epoch(self) -> u64 {
        self.0 >> Self::EPOCH_SHIFT
    }

    /// The epoch in which the ASID was allocated.
    pub(crate) const fn allocated_in(self) -> u64 {
        self.epoch() & !1
    }

    #[inline]
    pub(crate) const fn is_pinned(self) -> bool {
        self.0 & Self::PINS != 0
    }

    pub(crate) const fn proposed(self) -> Self {
        Self(self.0 | Self::PROPOSED)
    }

    pub(crate) const fn confirmed(self) -> Self {
        Self(self.0 & !Self::PROPOSED)
    }

    /// The word with the same pins, and this ASID of this epoch.
    pub(crate) const fn renewed(self, epoch: u64, asid: u64) -> Self {
        Self(Self::new(epoch, asid).0 | self.0 & Self::PINS)
    }

    /// The word without pins, as a CPU that uses the ASID publishes it.
    #[inline]
    pub(crate) const fn unpinned(self) -> Self {
        Self(self.0 & !Self::PINS)
    }
}

/// The first epoch.
const FIRST: u64 = 2;
/// The distance of two epochs.
pub(crate) const EPOCH: u64 = 2;

/// The allocator of ASIDs.
///
/// The words that CPUs read at every switch have a cache line of their own, apart from the words
/// that CPUs write when they take a block.
pub(crate) struct AsidAllocator<M: Machine> {
    /// The epoch. A rollover increments it.
    pub(crate) epoch: M::Word,
    /// The epoch for which the list of unavailable ASIDs is complete; 0 while it is written.
    listed: M::Word,
    /// CPUs that have been online at any time. A CPU stays in the set, because its reservation
    /// lasts to the end of the epoch.
    pub(crate) users: SharedCpuSet<M, M::CpuBits>,
    /// The number of the block that is taken next, below its epoch.
    next: CachePadded<M::Word>,
    /// 1 plus the number of the CPU that holds the lock, with its interrupts masked; 0 if none. It
    /// guards the list and the pins. No CPU waits for it when it switches.
    lock: CachePadded<M::Word>,
    /// Number of failed allocations since the last rollover.
    pub(crate) failures: M::Word,
    /// Number of pinned ASIDs.
    pub(crate) pinned: M::Word,
    /// One bit per ASID for the list of unavailable ones, which are not handed out in the epoch
    /// `listed`; and then one bit per ASID for pinned ones.
    words: M::TagWords,
}

/// Number of bits for the number of a block, which is below 2¹⁶, or beyond it by a number of CPUs.
const BLOCK_BITS: u32 = AsidWord::EPOCH_SHIFT;
const BLOCK: u64 = (1 << BLOCK_BITS) - 1;

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
        self.listed = AtomicU64::new(FIRST);
    }
}

impl<M: Machine> Default for AsidAllocator<M> {
    fn default() -> Self {
        Self {
            epoch: M::Word::new(FIRST),
            listed: M::Word::new(FIRST),
            users: SharedCpuSet::default(),
            next: CachePadded(M::Word::new(0)),
            lock: CachePadded(M::Word::new(0)),
            failures: M::Word::new(0),
            pinned: M::Word::new(0),
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

    /// Returns `true` if all ASIDs of an epoch can be taken before any CPU has chosen one, though
    /// there are enough for all CPUs.
    ///
    /// Each CPU keeps the ASID that it has loaded, and takes a block that has one to hand out. So
    /// all CPUs find one if the ASIDs beyond those that are pinned or loaded, which are at most one
    /// for each CPU, fill a block for each CPU. Blocks of several ASIDs are too few only beside
    /// pins, because they are a quarter of all ASIDs at most.
    pub(crate) fn may_run_out_early(&self, machine: &M) -> bool {
        // Relaxed: for progress only. A wrong number makes a CPU wait in vain, or not wait.
        let unpinned = self.count(machine).saturating_sub(self.pinned.load(Relaxed));
        let enough = machine.cpu_limit() as u64 * (self.block_size(machine) + 1);
        unpinned < enough && self.covers_all_cpus(machine)
    }

    /// Number of ASIDs. The first one is 1.
    pub(crate) fn count(&self, machine: &M) -> u64 {
        let room = (self.unavailable().len() * 64).saturating_sub(1);
        machine.tag_count().min(room).min(usize::from(u16::MAX)) as u64
    }

    /// Number of ASIDs of a block: a power of two of up to 64. In all stocks together, at most a
    /// quarter of the ASIDs is out of use when a rollover begins, or, where blocks are of one ASID,
    /// none.
    pub(crate) fn block_size(&self, machine: &M) -> u64 {
        let share = self.count(machine) / (4 * machine.cpu_limit() as u64).max(1);
        1 << share.clamp(1, 64).ilog2()
    }

    /// The list of unavailable ASIDs.
    pub(crate) fn unavailable(&self) -> &[M::Word] {
        let words = self.words.words();
        &words[..words.len() / 2]
    }

    pub(crate) fn pins(&self) -> &[M::Word] {
        let words = self.words.words();
        &words[words.len() / 2..]
    }

    /// A word of the list of unavailable ASIDs; `None` if the list is not complete for `epoch`.
    pub(crate) fn listed(&self, machine: &M, epoch: u64, word: usize) -> Option<u64> {
        let is_listed = || self.listed.load(order(machine, Rule::ListAcquire)) == epoch;
        if !is_listed() {
            return None;
        }
        // Pairs with ListFence. Without: the load returns a word that is being written for a later
        // epoch, and `listed` is still the old value.
        let members = self.unavailable()[word].load(order(machine, Rule::ListAcquire));
        is_listed().then_some(members)
    }

    /// Writes the list of unavailable ASIDs for `epoch`: those that are pinned, and those to which
    /// `add_reserved` adds. That function returns `false` if the epoch is over. Call this under the
    /// lock.
    ///
    /// Relaxed: loads and stores under the lock (`TagLockAcquire`). A CPU that reads the list while
    /// it is written finds `listed` changed.
    pub(crate) fn write_list(
        &self,
        machine: &M,
        epoch: u64,
        add_reserved: impl FnOnce(&mut dyn FnMut(u64)) -> bool,
    ) {
        self.listed.store(0, Relaxed);
        fence(machine, Rule::ListFence);
        for (unavailable, pins) in self.unavailable().iter().zip(self.pins()) {
            unavailable.store(pins.load(Relaxed), Relaxed);
        }
        let is_complete = add_reserved(&mut |asid| {
            let word = &self.unavailable()[asid as usize / 64];
            word.store(word.load(Relaxed) | 1 << (asid % 64), Relaxed);
        });
        if is_complete {
            self.listed.store(epoch, order(machine, Rule::ListRelease));
        }
    }

    /// Changes the bit that records whether an ASID is pinned. `change` gets the word and the bit,
    /// and returns the new word.
    ///
    /// Relaxed: loads under the lock (`TagLockAcquire`).
    pub(crate) fn set_pinned(&self, machine: &M, asid: u64, change: impl FnOnce(u64, u64) -> u64) {
        let (word, bit) = (&self.pins()[asid as usize / 64], 1 << (asid % 64));
        word.store(change(word.load(Relaxed), bit), order(machine, Rule::ListRelease));
    }

    /// Takes a block; `None` if all blocks of `epoch` are taken, or if it is over. The block may be
    /// of a later epoch.
    pub(crate) fn take_block(&self, machine: &M, epoch: u64) -> Option<Block> {
        let (size, count) = (self.block_size(machine), self.count(machine));
        let first = epoch << BLOCK_BITS;
        loop {
            // Relaxed: confirmed by the operation below.
            let next = self.next.0.load(Relaxed);
            let taken = if next < first {
                // Relaxed: each block has one taker, because the word never decreases.
                match self.next.0.compare_exchange(next, first + 1, Relaxed, Relaxed) {
                    Ok(_) => first,
                    Err(_) => continue,
                }
            } else if next >> BLOCK_BITS > epoch || (next - first) * size > count {
                return None;
            } else {
                // Relaxed: as above. Beyond the last block, the word grows by at most one for each
                // CPU.
                self.next.0.fetch_add(1, Relaxed)
            };
            // ASID 0 stands for none, so a block of this ASID alone is left out.
            let block = (taken & BLOCK) + u64::from(size == 1);
            let (epoch, first) = (taken >> BLOCK_BITS, block * size);
            if first > count {
                return None;
            }
            // `size` divides 64.
            let asids = u64::MAX >> (64 - size.min(count + 1 - first)) << (first % 64);
            let asids = if first == 0 { asids & !1 } else { asids };
            return Some(Block { epoch, word: (first / 64) as usize, asids });
        }
    }

    /// Calls `f` while `cpu`, the caller's, holds the lock. Waits for it, so a CPU that switches
    /// uses [`try_with_lock`](Self::try_with_lock).
    pub(crate) fn with_lock<R>(&self, machine: &M, cpu: CpuId, f: impl FnOnce() -> R) -> R {
        while !self.try_lock(machine, cpu) {
            machine.spin_hint();
        }
        self.finish(machine, f)
    }

    /// Calls `f` while `cpu`, the caller's, holds the lock, unless a CPU holds it already.
    pub(crate) fn try_with_lock<R>(
        &self,
        machine: &M,
        cpu: CpuId,
        f: impl FnOnce() -> R,
    ) -> Option<R> {
        self.try_lock(machine, cpu).then(|| self.finish(machine, f))
    }

    fn try_lock(&self, machine: &M, cpu: CpuId) -> bool {
        // Relaxed: a hint, so that waiters do not write the word. After a failure, nothing is read
        // before the next attempt.
        self.lock.0.load(Relaxed) == 0 && {
            let acquire = order(machine, Rule::TagLockAcquire);
            self.lock.0.compare_exchange(0, holder(cpu), acquire, Relaxed).is_ok()
        }
    }

    /// Releases the lock of a CPU that has stopped while it held the lock. Does nothing if the CPU
    /// did not hold it. The caller has acquired the CPU's last accesses.
    ///
    /// An incomplete list is not used, and the next holder writes it again.
    pub(crate) fn release_lock_of(&self, machine: &M, stopped: CpuId) {
        // Relaxed: if the CPU holds the lock, no other CPU writes the word, and the caller has
        // acquired what was written under the lock.
        if self.lock.0.load(Relaxed) == holder(stopped) {
            self.finish(machine, || ());
        }
    }

    /// Takes the lock for a CPU that is going to stop.
    #[cfg(all(test, feature = "soft"))]
    pub(crate) fn lock_for_ever(&self, cpu: CpuId) {
        // Relaxed: a test of one thread.
        self.lock.0.store(holder(cpu), Relaxed);
    }

    fn finish<R>(&self, machine: &M, f: impl FnOnce() -> R) -> R {
        let result = f();
        self.lock.0.store(0, order(machine, Rule::TagLockRelease));
        result
    }
}

#[cfg(test)]
mod tests;
