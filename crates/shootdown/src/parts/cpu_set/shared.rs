//! A set of CPUs in shared words.

use core::fmt;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{self, Relaxed};

use super::{CpuBits, CpuSet, named_words, place, top_bit};
use crate::base::ids::CpuId;
use crate::base::memory::{Memory, Word, fence, order, zero_words};
use crate::base::rules::Rule;

/// A set of CPUs that any CPU may read and write at any time.
///
/// A CPU is a member when both its bit and its word's bit of the top word are set, in that order. A
/// reader that observes only one of the two bits comes before the insertion, and the inserting CPU
/// fences before it relies on being observed.
///
/// Bits of the top word are never cleared, so they may name an empty word. If they were cleared, a
/// concurrent insertion could leave its bit set in a word that is not named.
pub(crate) struct SharedCpuSet<M: Memory, B: CpuBits> {
    top: M::Word,
    words: B::Shared<M::Word>,
}

impl<M: Memory<Word = AtomicU64>, B: CpuBits> SharedCpuSet<M, B> {
    /// The empty set.
    pub(crate) const fn new() -> Self {
        // SAFETY: `CpuBits` is implemented for arrays of words only, so all fields are words.
        unsafe { zero_words() }
    }
}

impl<M: Memory, B: CpuBits> Default for SharedCpuSet<M, B> {
    fn default() -> Self {
        Self { top: M::Word::new(0), words: B::shared() }
    }
}

impl<M: Memory, B: CpuBits> SharedCpuSet<M, B> {
    /// `false` if there is only one word: then the compiler drops the code for the top word.
    const HAS_TOP: bool = B::WORDS > 1;

    #[inline]
    pub(super) fn words(&self) -> &[M::Word] {
        B::shared_words(&self.words)
    }

    #[inline]
    pub(crate) fn contains(&self, cpu: CpuId) -> bool {
        let (word, bit) = place(cpu);
        // Relaxed: a CPU loads its own bit, or loads under the lock that guards the set.
        self.words()[word].load(Relaxed) & bit != 0
            // Relaxed: see the load of the word.
            && (!Self::HAS_TOP || self.top.load(Relaxed) & top_bit(word) != 0)
    }

    /// Inserts a CPU, without ordering: fence before relying on the insertion being observed.
    pub(crate) fn insert(&self, cpu: CpuId) {
        let (word, bit) = place(cpu);
        // Relaxed: the bit is never cleared, so a reader that observes the caller's fence observes
        // the bit also, whichever CPU has set it. This is argued: loom's programs have sets of one
        // word. Each write would move the line, for which all CPUs of a new space wait.
        let is_named = !Self::HAS_TOP || self.top.load(Relaxed) & top_bit(word) != 0;
        // Relaxed: the caller's fence, or the lock that guards the set, orders both.
        self.words()[word].fetch_or(bit, Relaxed);
        if !is_named {
            // Relaxed: see the insertion into the word.
            self.top.fetch_or(top_bit(word), Relaxed);
        }
    }

    /// Inserts a CPU, then executes the full barrier that `rule` demands.
    #[track_caller]
    pub(crate) fn insert_then_fence(&self, machine: &M, cpu: CpuId, rule: Rule) {
        if Self::HAS_TOP || machine.breaks(rule) {
            self.insert(cpu);
            fence(machine, rule);
        } else {
            let (word, bit) = place(cpu);
            // Relaxed: the barrier that follows orders it.
            machine.fetch_or_then_fence(&self.words()[word], bit, Relaxed);
        }
    }

    /// Removes a CPU. If `ordering` is a release, the removal comes after the CPU's accesses as a
    /// member.
    pub(crate) fn remove(&self, cpu: CpuId, ordering: Ordering) {
        let (word, bit) = place(cpu);
        self.words()[word].fetch_and(!bit, ordering);
    }

    /// Removes every CPU, while other CPUs may read the set. See [`Rule::ClearRelease`].
    pub(crate) fn clear(&self, machine: &M) {
        let release = order(machine, Rule::ClearRelease);
        for word in self.word_indices() {
            self.words()[word].store(0, release);
        }
    }

    /// Returns `true` if there is no member but `cpu`. May return `false` although there is none,
    /// where CPUs of another word were members once, or beyond 4096 CPUs.
    #[inline]
    pub(crate) fn has_only(&self, machine: &M, cpu: CpuId) -> bool {
        let (word, bit) = place(cpu);
        match B::WORDS {
            1 => self.members(machine, 0) & !bit == 0,
            2..=64 => {
                // Relaxed: as in `word_indices`.
                let other_words = self.top.load(Relaxed) & !top_bit(word);
                other_words == 0 && self.members(machine, word) & !bit == 0
            }
            _ => false,
        }
    }

    /// Adds the members to `into`.
    #[inline]
    pub(crate) fn read_into(&self, machine: &M, into: &mut CpuSet<B>) {
        for word in self.word_indices() {
            into.insert_word(word, self.members(machine, word));
        }
    }

    /// The members in one word, as a bit mask. See [`Rule::ScanAcquire`].
    #[inline]
    fn members(&self, machine: &M, word: usize) -> u64 {
        self.words()[word].load(order(machine, Rule::ScanAcquire))
    }

    /// Indices of the words that may have members.
    #[inline]
    fn word_indices(&self) -> impl Iterator<Item = usize> + use<M, B> {
        // Relaxed: a word that is not named yet has no member that a reader must observe.
        named_words::<B>(if Self::HAS_TOP { self.top.load(Relaxed) } else { 1 })
    }
}

impl<M: Memory, B: CpuBits> fmt::Debug for SharedCpuSet<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: for debug output only.
        f.debug_list().entries(self.words().iter().map(|word| word.load(Relaxed))).finish()
    }
}
