//! Sets of CPUs: one of our own, and one that all CPUs share.
//!
//! Both have two levels: a summary word says which of the words below hold anything. Walking a set
//! therefore costs what its members cost, not what the machine's size costs: at 4096 CPUs a set of
//! one is two words, not 64. (Making a set of our own clears all its words; and a shared set that
//! has once held CPUs of every word names every word for good.)

use core::fmt;
use core::sync::atomic::Ordering::{self, Relaxed};

use crate::machine::sealed::Sealed;
use crate::machine::{CpuId, Machine, Word};
use crate::rules::{Rule, fence, order};

/// Room for one bit per possible CPU. Implemented for `[u64; N]`, which holds `64 * N` CPUs, and
/// for nothing else.
pub trait CpuBits: Copy + Sealed {
    /// The same room in shared words.
    type Shared<W: Word>: Send + Sync;
    /// No CPU.
    const EMPTY: Self;
    /// How many words.
    const WORDS: usize;
    /// The words.
    fn words(&self) -> &[u64];
    /// The words, for writing.
    fn words_mut(&mut self) -> &mut [u64];
    /// Shared words, none of them set.
    fn shared<W: Word>() -> Self::Shared<W>;
    /// The shared words.
    fn shared_words<W: Word>(shared: &Self::Shared<W>) -> &[W];
}

impl<const N: usize> Sealed for [u64; N] {}
impl<const N: usize> CpuBits for [u64; N] {
    type Shared<W: Word> = [W; N];
    const EMPTY: Self = [0; N];
    const WORDS: usize = N;
    #[inline]
    fn words(&self) -> &[u64] {
        self
    }
    #[inline]
    fn words_mut(&mut self) -> &mut [u64] {
        self
    }
    fn shared<W: Word>() -> [W; N] {
        core::array::from_fn(|_| W::new(0))
    }
    #[inline]
    fn shared_words<W: Word>(shared: &[W; N]) -> &[W] {
        shared
    }
}

/// The word that a CPU's bit is in, and the bit.
#[inline]
const fn place(cpu: CpuId) -> (usize, u64) {
    (cpu.index() / 64, 1 << (cpu.index() % 64))
}

/// The bit of the summary that stands for a word. Beyond 4096 CPUs several words share one.
#[inline]
const fn summary_bit(word: usize) -> u64 {
    1 << (word % 64)
}

/// The words that a summary names, in ascending order for up to 4096 CPUs.
#[inline]
fn named_words<B: CpuBits>(summary: u64) -> impl Iterator<Item = usize> {
    bits(summary).flat_map(|first| (first..B::WORDS).step_by(64))
}

/// The numbers of the bits that are set, in ascending order.
#[inline]
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(bit)
    })
}

/// A set of CPUs, as large as the machine: `64 * N` of them, 8 bytes and a bit per CPU.
pub struct CpuSet<M: Machine> {
    summary: u64,
    bits: M::CpuBits,
}

impl<M: Machine> CpuSet<M> {
    /// No CPU.
    #[must_use]
    #[inline]
    pub const fn new() -> Self {
        Self { summary: 0, bits: M::CpuBits::EMPTY }
    }

    /// How many CPUs a set can hold.
    #[must_use]
    pub const fn capacity() -> usize {
        M::CpuBits::WORDS * 64
    }

    /// Whether no CPU is in the set.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.summary == 0
    }

    /// Whether `cpu` is in the set.
    #[must_use]
    #[inline]
    pub fn contains(&self, cpu: CpuId) -> bool {
        let (word, bit) = place(cpu);
        self.bits.words()[word] & bit != 0
    }

    /// Puts `cpu` into the set.
    ///
    /// # Panics
    ///
    /// If `cpu` is not below [`capacity`](Self::capacity).
    #[inline]
    pub fn insert(&mut self, cpu: CpuId) {
        let (word, bit) = place(cpu);
        self.bits.words_mut()[word] |= bit;
        self.summary |= summary_bit(word);
    }

    /// Takes `cpu` out of the set.
    #[inline]
    pub fn remove(&mut self, cpu: CpuId) {
        let (word, bit) = place(cpu);
        let words = self.bits.words_mut();
        words[word] &= !bit;
        // Beyond 4096 CPUs, several words share a summary bit.
        let shares = M::CpuBits::WORDS > 64;
        if words[word] == 0
            && (!shares || words[word % 64..].iter().step_by(64).all(|&word| word == 0))
        {
            self.summary &= !summary_bit(word);
        }
    }

    /// Puts in every CPU of `other`.
    pub fn insert_all(&mut self, other: &Self) {
        for word in named_words::<M::CpuBits>(other.summary) {
            self.bits.words_mut()[word] |= other.bits.words()[word];
        }
        self.summary |= other.summary;
    }

    /// The CPUs in the set, in ascending order for up to 4096 CPUs.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        named_words::<M::CpuBits>(self.summary).flat_map(|word| {
            bits(self.bits.words()[word]).map(move |bit| CpuId((word * 64 + bit) as u32))
        })
    }

    /// The first CPU in the set.
    #[inline]
    pub(crate) fn first(&self) -> Option<CpuId> {
        self.iter().next()
    }

    /// How many CPUs are in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        named_words::<M::CpuBits>(self.summary)
            .map(|word| self.bits.words()[word].count_ones() as usize)
            .sum()
    }
}

impl<M: Machine> Default for CpuSet<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Machine> Clone for CpuSet<M> {
    fn clone(&self) -> Self {
        Self { summary: self.summary, bits: self.bits }
    }
}

impl<M: Machine> fmt::Debug for CpuSet<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|cpu| cpu.0)).finish()
    }
}

/// A set of CPUs that any CPU may read and write at any time.
///
/// A CPU counts as a member when both its bit and its word's summary bit are set, in that order: a
/// reader who sees only one of them came before the insertion, and whoever inserts fences before it
/// relies on having been seen. Summary bits are never cleared: they may name an empty word, but if
/// they could be cleared, a late insertion could be left with its bit set and its word unnamed.
pub(crate) struct SharedCpuSet<M: Machine> {
    summary: M::Word,
    bits: <M::CpuBits as CpuBits>::Shared<M::Word>,
}

impl<M: Machine> SharedCpuSet<M> {
    /// With one word there is nothing to summarise; the compiler drops the summary's code.
    const SUMMARISED: bool = M::CpuBits::WORDS > 1;

    pub(crate) fn new() -> Self {
        Self { summary: M::Word::new(0), bits: M::CpuBits::shared() }
    }

    #[inline]
    fn words(&self) -> &[M::Word] {
        M::CpuBits::shared_words(&self.bits)
    }

    #[inline]
    pub(crate) fn contains(&self, cpu: CpuId) -> bool {
        let (word, bit) = place(cpu);
        // Relaxed: a CPU asks for its own bit; others ask under a lock, or after PhaseAcquire.
        self.words()[word].load(Relaxed) & bit != 0
            && (!Self::SUMMARISED || self.summary.load(Relaxed) & summary_bit(word) != 0)
    }

    /// Not ordered with anything: the caller fences before it relies on being seen.
    pub(crate) fn insert(&self, cpu: CpuId) {
        let (word, bit) = place(cpu);
        // Relaxed: see above.
        self.words()[word].fetch_or(bit, Relaxed);
        if Self::SUMMARISED {
            self.summary.fetch_or(summary_bit(word), Relaxed);
        }
    }

    /// Inserts, and then the full barrier that `rule` asks for.
    #[track_caller]
    pub(crate) fn insert_then_fence(&self, machine: &M, cpu: CpuId, rule: Rule) {
        if Self::SUMMARISED || machine.breaks(rule) {
            self.insert(cpu);
            fence(machine, rule);
        } else {
            let (word, bit) = place(cpu);
            // Relaxed: the fence of `rule` follows.
            machine.fetch_or_then_fence(&self.words()[word], bit, Relaxed);
        }
    }

    /// Removes, with `release` as the ordering of what `cpu` did before.
    pub(crate) fn remove(&self, cpu: CpuId, release: Ordering) {
        let (word, bit) = place(cpu);
        self.words()[word].fetch_and(!bit, release);
    }

    /// Empties the set while others may read it: see [`Rule::ClearRelease`].
    pub(crate) fn clear(&self, machine: &M) {
        let release = order(machine, Rule::ClearRelease);
        if Self::SUMMARISED {
            // Relaxed: bits of the summary are only ever set; a word that is named later is a new
            // insertion, whose fence has its own pair.
            for word in named_words::<M::CpuBits>(self.summary.load(Relaxed)) {
                self.words()[word].store(0, release);
            }
        } else {
            self.words()[0].store(0, release);
        }
    }

    /// Adds the members to `into`: see [`Rule::ScanAcquire`].
    #[inline]
    pub(crate) fn read_into(&self, machine: &M, into: &mut CpuSet<M>) {
        let acquire = order(machine, Rule::ScanAcquire);
        let mut read_word = |word: usize| {
            let members = self.words()[word].load(acquire);
            if members != 0 {
                into.bits.words_mut()[word] |= members;
                into.summary |= summary_bit(word);
            }
        };
        if Self::SUMMARISED {
            // Relaxed: a reader who misses a name came before the fence of the insertion.
            named_words::<M::CpuBits>(self.summary.load(Relaxed)).for_each(read_word);
        } else {
            read_word(0);
        }
    }
}

impl<M: Machine> fmt::Debug for SharedCpuSet<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: for people.
        f.debug_list().entries(self.words().iter().map(|word| word.load(Relaxed))).finish()
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::soft::{Config, Host, Soft};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::format;
    use std::vec::Vec;

    /// A machine of this many words. In the last, several words share a bit of the summary.
    const FEW: usize = 2;
    const MANY: usize = 66;

    /// CPUs of all words, or of those that share a bit with others, as numbers below `64 * WORDS`.
    fn cpu<const WORDS: usize>() -> impl Strategy<Value = CpuId> {
        let word = prop_oneof![0..WORDS, Just(0), Just(WORDS - 1), Just(WORDS / 64)];
        (word, 0..4usize).prop_map(|(word, bit)| cpu_at(word, bit))
    }

    /// Four CPUs of each word.
    fn cpu_at(word: usize, bit: usize) -> CpuId {
        CpuId((word * 64 + bit * 21) as u32)
    }

    fn assert_same<const WORDS: usize>(
        set: &CpuSet<Soft<Host, WORDS>>,
        expected: &BTreeSet<CpuId>,
    ) {
        assert_eq!(CpuSet::<Soft<Host, WORDS>>::capacity(), 64 * WORDS);
        let mut members: Vec<_> = set.iter().collect();
        if WORDS <= 64 {
            assert!(members.is_sorted());
        }
        assert_eq!(set.first(), members.first().copied());
        members.sort();
        assert!(members.iter().eq(expected), "{members:?} {expected:?}");
        assert_eq!(set.len(), expected.len());
        assert_eq!(set.is_empty(), expected.is_empty());
        for word in [0, 1, 2, WORDS - 1].into_iter().filter(|&word| word < WORDS) {
            for cpu in (0..4).map(|bit| cpu_at(word, bit)) {
                assert_eq!(set.contains(cpu), expected.contains(&cpu));
            }
        }
        assert!(set.clone().iter().eq(set.iter()));
        let numbers: Vec<_> = set.iter().map(|cpu| cpu.0).collect();
        assert_eq!(format!("{set:?}"), format!("{numbers:?}").replace('[', "{").replace(']', "}"));
    }

    /// Of each pair, the CPU is put in or taken out.
    fn sets_are_sets<const WORDS: usize>(steps: &[(CpuId, bool)], others: &[CpuId]) {
        let engine = Soft::<Host, WORDS>::engine(Config::default());
        let machine = engine.machine();
        let (mut set, shared) = (CpuSet::new(), SharedCpuSet::new());
        let mut expected = BTreeSet::new();
        for (number, &(cpu, is_put_in)) in steps.iter().enumerate() {
            if is_put_in {
                set.insert(cpu);
                if number % 2 == 0 {
                    shared.insert(cpu);
                } else {
                    shared.insert_then_fence(machine, cpu, Rule::RegisterFence);
                }
                expected.insert(cpu);
            } else {
                set.remove(cpu);
                shared.remove(cpu, Relaxed);
                expected.remove(&cpu);
            }
            assert_same(&set, &expected);
            let mut read = CpuSet::new();
            shared.read_into(machine, &mut read);
            assert_same(&read, &expected);
            assert!(expected.contains(&cpu) == shared.contains(cpu));
        }
        let mut other = CpuSet::new();
        for &cpu in others {
            other.insert(cpu);
        }
        shared.read_into(machine, &mut other);
        set.insert_all(&other);
        expected.extend(others);
        assert_same(&set, &expected);
        assert_same(&other, &expected);
        shared.clear(machine);
        let mut read = CpuSet::new();
        shared.read_into(machine, &mut read);
        assert!(read.is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: if cfg!(miri) { 1 } else { 32 },
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn sets_of_one_word_are_sets(
            steps in prop::collection::vec((cpu::<1>(), any::<bool>()), 1..20),
            others in prop::collection::vec(cpu::<1>(), 0..4)
        ) {
            sets_are_sets::<1>(&steps, &others);
        }

        #[test]
        fn sets_of_several_words_are_sets(
            steps in prop::collection::vec((cpu::<FEW>(), any::<bool>()), 1..20),
            others in prop::collection::vec(cpu::<FEW>(), 0..4)
        ) {
            sets_are_sets::<FEW>(&steps, &others);
        }

        #[test]
        fn sets_whose_words_share_bits_of_the_summary_are_sets(
            steps in prop::collection::vec((cpu::<MANY>(), any::<bool>()), 1..20),
            others in prop::collection::vec(cpu::<MANY>(), 0..4)
        ) {
            sets_are_sets::<MANY>(&steps, &others);
        }
    }

    /// Words 2 and 66 share one, words 0 and 64 another.
    #[test]
    fn a_bit_of_the_summary_goes_with_the_last_of_its_words() {
        let mut set = CpuSet::<Soft<Host, 67>>::new();
        let [zero, two, last] = [0, 2, 66].map(|word| CpuId(word * 64));
        for cpu in [zero, two, last] {
            set.insert(cpu);
        }
        set.remove(two);
        assert_eq!(set.iter().collect::<Vec<_>>(), [zero, last]);
        set.remove(last);
        assert_eq!(set.summary, 1);
        set.remove(zero);
        assert!(set.is_empty());
    }

    #[test]
    fn who_is_not_yet_named_by_the_summary_is_no_member() {
        let shared = SharedCpuSet::<Soft<Host, FEW>>::new();
        shared.words()[1].store(1, Relaxed);
        assert!(!shared.contains(CpuId(64)));
        shared.insert(CpuId(65));
        assert!(shared.contains(CpuId(64)));
        assert_eq!(format!("{shared:?}"), "[0, 3]");
    }
}
