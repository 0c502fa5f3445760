//! Sets of CPUs: one that its owner alone uses, and one that all CPUs share.
//!
//! Both have two levels: a top word says which of the words below have members. Walking a set
//! therefore costs in proportion to its members and not to the size of the machine: at 4096 CPUs, a
//! set of one CPU is two words, not 64. The words of an owned set that have no members are never
//! written or copied. (A shared set that once had CPUs of every word names every word for good.)

#![expect(unsafe_code, reason = "reads words of a set that are initialised only if they are named")]

use core::fmt;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::{self, Relaxed};

use crate::ids::CpuId;
use crate::memory::sealed::Sealed;
use crate::memory::{Memory, Word, fence, order};
use crate::rules::Rule;

/// Room for one bit per possible CPU. Implemented for `[u64; N]`, which holds `64 * N` CPUs, and
/// for nothing else.
pub trait CpuBits: Copy + Sealed {
    /// The same room in shared words.
    type Shared<W: Word>: Send + Sync;
    /// Number of words.
    const WORDS: usize;
    /// The words.
    fn words(words: &MaybeUninit<Self>) -> &[MaybeUninit<u64>];
    /// The words, for writing.
    fn words_mut(words: &mut MaybeUninit<Self>) -> &mut [MaybeUninit<u64>];
    /// Shared words, none of them set.
    fn shared<W: Word>() -> Self::Shared<W>;
    /// The shared words.
    fn shared_words<W: Word>(shared: &Self::Shared<W>) -> &[W];
}

impl<const N: usize> Sealed for [u64; N] {}
impl<const N: usize> CpuBits for [u64; N] {
    type Shared<W: Word> = [W; N];
    const WORDS: usize = N;
    #[inline]
    fn words(words: &MaybeUninit<Self>) -> &[MaybeUninit<u64>] {
        // SAFETY: an array of words that may be uninitialised has the layout of a possibly
        // uninitialised array of words.
        unsafe { &*words.as_ptr().cast::<[MaybeUninit<u64>; N]>() }
    }
    #[inline]
    fn words_mut(words: &mut MaybeUninit<Self>) -> &mut [MaybeUninit<u64>] {
        // SAFETY: as above.
        unsafe { &mut *words.as_mut_ptr().cast::<[MaybeUninit<u64>; N]>() }
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

/// The bit of the top word that stands for a word. Beyond 4096 CPUs several words share one.
#[inline]
const fn top_bit(word: usize) -> u64 {
    1 << (word % 64)
}

/// The words that a top word names, in ascending order for up to 4096 CPUs.
#[inline]
fn named_words<B: CpuBits>(top: u64) -> impl Iterator<Item = usize> {
    bits(top).flat_map(|first| (first..B::WORDS).step_by(64))
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

/// The CPUs of one word of a set.
#[inline]
pub(crate) fn cpus_of_word(word: usize, members: u64) -> impl Iterator<Item = CpuId> {
    bits(members).map(move |bit| CpuId((word * 64 + bit) as u32))
}

/// A set of CPUs, as large as the machine: 8 bytes and a bit per CPU.
pub struct CpuSet<B: CpuBits> {
    /// With one word in all, that word. With more, a bit for each word that has members.
    top: u64,
    /// With more than one word: those that `top` names are initialised, and no others.
    words: MaybeUninit<B>,
}

impl<B: CpuBits> CpuSet<B> {
    const ONE_WORD: bool = B::WORDS == 1;

    /// No CPU.
    #[must_use]
    #[inline]
    pub const fn new() -> Self {
        Self { top: 0, words: MaybeUninit::uninit() }
    }

    /// How many CPUs a set can hold.
    #[must_use]
    #[inline]
    pub const fn capacity() -> usize {
        B::WORDS * 64
    }

    /// Takes every CPU out of the set.
    #[inline]
    pub fn clear(&mut self) {
        self.top = 0;
    }

    /// Whether no CPU is in the set.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.top == 0
    }

    /// Whether `cpu` is in the set.
    #[must_use]
    #[inline]
    pub fn contains(&self, cpu: CpuId) -> bool {
        let (word, bit) = place(cpu);
        assert!(word < B::WORDS, "{cpu:?} is beyond the machine's CpuBits");
        self.word(word) & bit != 0
    }

    /// Puts `cpu` into the set.
    ///
    /// # Panics
    ///
    /// If `cpu` is not below [`capacity`](Self::capacity).
    #[inline]
    pub fn insert(&mut self, cpu: CpuId) {
        let (word, bit) = place(cpu);
        assert!(word < B::WORDS, "{cpu:?} is beyond the machine's CpuBits");
        self.insert_word(word, bit);
    }

    /// Takes `cpu` out of the set.
    #[inline]
    pub fn remove(&mut self, cpu: CpuId) {
        let (word, bit) = place(cpu);
        if Self::ONE_WORD {
            self.top &= !bit;
        } else if self.top & top_bit(word) != 0 {
            self.set_word(word, self.word(word) & !bit);
        }
    }

    /// Puts in every CPU of `other`.
    pub fn insert_all(&mut self, other: &Self) {
        for word in other.word_indices() {
            self.insert_word(word, other.word(word));
        }
    }

    /// The CPUs in the set, in ascending order for up to 4096 CPUs.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.word_indices().flat_map(|word| cpus_of_word(word, self.word(word)))
    }

    /// The first CPU in the set.
    #[inline]
    pub(crate) fn first(&self) -> Option<CpuId> {
        self.iter().next()
    }

    /// How many CPUs are in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.word_indices().map(|word| self.word(word).count_ones() as usize).sum()
    }

    /// The words that may have members, as they are now: the set can be changed meanwhile.
    #[inline]
    pub(crate) fn word_indices(&self) -> impl Iterator<Item = usize> + use<B> {
        named_words::<B>(if Self::ONE_WORD { 1 } else { self.top })
    }

    /// The members in one word.
    #[inline]
    pub(crate) fn word(&self, word: usize) -> u64 {
        if Self::ONE_WORD {
            self.top
        } else if self.top & top_bit(word) == 0 {
            0
        } else {
            // SAFETY: `name` initialises every word of a bit before it sets the bit.
            unsafe { B::words(&self.words)[word].assume_init() }
        }
    }

    /// Puts members into one word.
    #[inline]
    pub(crate) fn insert_word(&mut self, word: usize, members: u64) {
        if Self::ONE_WORD {
            self.top |= members;
        } else if members != 0 {
            self.name(word);
            let all = self.word(word) | members;
            B::words_mut(&mut self.words)[word] = MaybeUninit::new(all);
        }
    }

    /// Replaces the members of one word, which has members, or shares its bit with one that has.
    #[inline]
    pub(crate) fn set_word(&mut self, word: usize, members: u64) {
        if Self::ONE_WORD {
            self.top = members;
            return;
        }
        debug_assert!(self.top & top_bit(word) != 0, "a word without members is not initialised");
        B::words_mut(&mut self.words)[word] = MaybeUninit::new(members);
        if members == 0 && Self::words_of_bit(word).all(|word| self.word(word) == 0) {
            self.top &= !top_bit(word);
        }
    }

    /// Calls `f` with the set of these members of one word alone.
    ///
    /// Up to 4096 CPUs that takes no second set: this one stands in for it, and has these members
    /// of the word afterwards.
    #[inline]
    pub(crate) fn lend_word(&mut self, word: usize, members: u64, f: impl FnOnce(&Self)) {
        if B::WORDS > 64 {
            let mut lent = Self::new();
            lent.insert_word(word, members);
            return f(&lent);
        }
        self.set_word(word, members);
        let all = self.top;
        if !Self::ONE_WORD {
            self.top = top_bit(word);
        }
        f(self);
        self.top = all;
    }

    /// Initialises the words that share a word's bit, and sets the bit.
    #[inline]
    fn name(&mut self, word: usize) {
        if self.top & top_bit(word) == 0 {
            for sharing in Self::words_of_bit(word) {
                B::words_mut(&mut self.words)[sharing] = MaybeUninit::new(0);
            }
            self.top |= top_bit(word);
        }
    }

    /// The words that share a bit of the top word with `word`: itself alone up to 4096 CPUs.
    #[inline]
    fn words_of_bit(word: usize) -> impl Iterator<Item = usize> {
        let shares = B::WORDS > 64;
        let first = if shares { word % 64 } else { word };
        (first..B::WORDS).step_by(64).take(if shares { usize::MAX } else { 1 })
    }
}

impl<B: CpuBits> Default for CpuSet<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B: CpuBits> Clone for CpuSet<B> {
    fn clone(&self) -> Self {
        let mut clone = Self::new();
        clone.insert_all(self);
        clone
    }
}

impl<B: CpuBits> fmt::Debug for CpuSet<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|cpu| cpu.0)).finish()
    }
}

/// A set of CPUs that any CPU may read and write at any time.
///
/// A CPU counts as a member when both its bit and its word's bit of the top word are set, in that
/// order. A reader that sees only one of them came before the insertion, and the inserting CPU
/// fences before it relies on having been seen. Bits of the top word are never cleared: they may
/// name an empty word, but if they could be cleared, a late insertion could leave its bit set in a
/// word that is not named.
pub(crate) struct SharedCpuSet<M: Memory, B: CpuBits> {
    top: M::Word,
    words: B::Shared<M::Word>,
}

impl<M: Memory, B: CpuBits> SharedCpuSet<M, B> {
    /// With one word there is nothing to summarise; the compiler drops the top word's code.
    const HAS_TOP: bool = B::WORDS > 1;

    pub(crate) fn new() -> Self {
        Self { top: M::Word::new(0), words: B::shared() }
    }

    #[inline]
    fn words(&self) -> &[M::Word] {
        B::shared_words(&self.words)
    }

    #[inline]
    pub(crate) fn contains(&self, cpu: CpuId) -> bool {
        let (word, bit) = place(cpu);
        // Relaxed: a CPU asks for its own bit, or asks under the lock that guards the set.
        self.words()[word].load(Relaxed) & bit != 0
            // Relaxed: as above.
            && (!Self::HAS_TOP || self.top.load(Relaxed) & top_bit(word) != 0)
    }

    /// Not ordered with anything: the caller fences before it relies on being seen.
    pub(crate) fn insert(&self, cpu: CpuId) {
        let (word, bit) = place(cpu);
        // Relaxed: the caller's fence, or the lock that guards the set, orders both.
        self.words()[word].fetch_or(bit, Relaxed);
        if Self::HAS_TOP {
            // Relaxed: as above.
            self.top.fetch_or(top_bit(word), Relaxed);
        }
    }

    /// Inserts, and then the full barrier that `rule` asks for.
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

    /// Removes a CPU, ordered after what it did as a member if `ordering` is a release.
    pub(crate) fn remove(&self, cpu: CpuId, ordering: Ordering) {
        let (word, bit) = place(cpu);
        self.words()[word].fetch_and(!bit, ordering);
    }

    /// Empties the set while others may read it: see [`Rule::ClearRelease`].
    pub(crate) fn clear(&self, machine: &M) {
        let release = order(machine, Rule::ClearRelease);
        for word in self.word_indices() {
            self.words()[word].store(0, release);
        }
    }

    /// Whether there is no other member than `cpu`.
    #[inline]
    pub(crate) fn has_only(&self, machine: &M, cpu: CpuId) -> bool {
        let (own_word, bit) = place(cpu);
        if !Self::HAS_TOP {
            return self.members(machine, 0) & !bit == 0;
        }
        self.word_indices().all(|word| {
            let members = self.members(machine, word);
            members == 0 || word == own_word && members & !bit == 0
        })
    }

    /// Adds the members to `into`.
    #[inline]
    pub(crate) fn read_into(&self, machine: &M, into: &mut CpuSet<B>) {
        for word in self.word_indices() {
            into.insert_word(word, self.members(machine, word));
        }
    }

    /// The members in one word. See [`Rule::ScanAcquire`].
    #[inline]
    fn members(&self, machine: &M, word: usize) -> u64 {
        self.words()[word].load(order(machine, Rule::ScanAcquire))
    }

    /// The words that may have members.
    #[inline]
    fn word_indices(&self) -> impl Iterator<Item = usize> + use<M, B> {
        // Relaxed: a word that is not named yet has no member that a reader must see.
        named_words::<B>(if Self::HAS_TOP { self.top.load(Relaxed) } else { 1 })
    }
}

impl<M: Memory, B: CpuBits> fmt::Debug for SharedCpuSet<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Relaxed: for people to read.
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

    fn assert_same<const WORDS: usize>(set: &CpuSet<[u64; WORDS]>, expected: &BTreeSet<CpuId>) {
        assert_eq!(CpuSet::<[u64; WORDS]>::capacity(), 64 * WORDS);
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
        let engine = Soft::<Host>::engine(Config::default());
        let machine = engine.machine();
        let mut set = CpuSet::<[u64; WORDS]>::new();
        let shared = SharedCpuSet::<Soft<Host>, [u64; WORDS]>::new();
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
        let mut set = CpuSet::<[u64; 67]>::new();
        let [zero, two, last] = [0, 2, 66].map(|word| CpuId(word * 64));
        for cpu in [zero, two, last] {
            set.insert(cpu);
        }
        set.remove(two);
        assert_eq!(set.iter().collect::<Vec<_>>(), [zero, last]);
        set.remove(last);
        assert_eq!(set.top, 1);
        set.remove(zero);
        assert!(set.is_empty());
    }

    #[test]
    fn who_is_not_yet_named_by_the_summary_is_no_member() {
        let shared = SharedCpuSet::<Soft<Host>, [u64; FEW]>::new();
        shared.words()[1].store(1, Relaxed);
        assert!(!shared.contains(CpuId(64)));
        shared.insert(CpuId(65));
        assert!(shared.contains(CpuId(64)));
        assert_eq!(format!("{shared:?}"), "[0, 3]");
    }
}
