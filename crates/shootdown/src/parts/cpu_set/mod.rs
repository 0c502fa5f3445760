//! Sets of CPUs: [`CpuSet`], which has one owner, and [`SharedCpuSet`], which all CPUs share.
//!
//! Both have two levels: each bit of a top word stands for a word below that has members. So the
//! cost of walking a set depends on its members, and not on the size of the machine: at 4096 CPUs,
//! a set of one CPU takes two words, not 64. The words of an owned set that have no members are
//! never written or copied. (The top word of a shared set keeps its bits: a shared set that once
//! had CPUs of every word names every word from then on.)

#![expect(unsafe_code, reason = "a word of a set is initialised only if the top word names it")]

mod shared;

use core::fmt;
use core::mem::MaybeUninit;

use crate::base::ids::CpuId;
use crate::base::memory::Word;
use crate::base::memory::sealed::Sealed;

pub(crate) use shared::SharedCpuSet;

/// Room for one bit per possible CPU. Implemented for `[u64; N]` only, which is for `64 * N` CPUs.
pub trait CpuBits: Copy + Sealed {
    /// Room of this size in shared words.
    type Shared<W: Word>: Send + Sync;
    /// Number of words.
    const WORDS: usize;
    /// The words.
    fn words(words: &MaybeUninit<Self>) -> &[MaybeUninit<u64>];
    /// The words, for writing.
    fn words_mut(words: &mut MaybeUninit<Self>) -> &mut [MaybeUninit<u64>];
    /// Shared words, all of them 0.
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
        // SAFETY: an array of words that may be uninitialised has the layout of a possibly
        // uninitialised array of words. The reference is exclusive, as `words` is.
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

/// Index of the word that has a CPU's bit, and the bit.
#[inline]
const fn place(cpu: CpuId) -> (usize, u64) {
    (cpu.index() / 64, 1 << (cpu.index() % 64))
}

/// The bit of the top word that stands for a word. Beyond 4096 CPUs several words share one.
#[inline]
const fn top_bit(word: usize) -> u64 {
    1 << (word % 64)
}

/// Indices of the words that a top word names, in ascending order for up to 4096 CPUs.
#[inline]
fn named_words<B: CpuBits>(mut top: u64) -> impl Iterator<Item = usize> {
    let mut next = B::WORDS;
    core::iter::from_fn(move || {
        // The next word of the same bit, beyond 4096 CPUs.
        let word = if B::WORDS > 64 && next < B::WORDS {
            next
        } else {
            let bit = (top != 0).then(|| top.trailing_zeros() as usize)?;
            top &= top - 1;
            bit
        };
        next = word + 64;
        Some(word)
    })
}

/// Indices of the bits that are set, in ascending order.
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

/// A set of CPUs with one owner. Its size is 8 bytes plus a bit for each possible CPU.
pub struct CpuSet<B: CpuBits> {
    /// If the set has one word, this word. Otherwise a bit for each word that has members.
    top: u64,
    /// If the set has several words, the words. Only those that `top` names are initialised.
    words: MaybeUninit<B>,
}

impl<B: CpuBits> CpuSet<B> {
    /// Whether one word holds all CPUs.
    pub(crate) const ONE_WORD: bool = B::WORDS == 1;
    /// Whether several words share a bit of the top word.
    const SHARES_BITS: bool = B::WORDS > 64;

    /// The empty set.
    #[must_use]
    #[inline]
    pub const fn new() -> Self {
        Self { top: 0, words: MaybeUninit::uninit() }
    }

    /// Number of possible CPUs.
    #[must_use]
    #[inline]
    pub const fn capacity() -> usize {
        B::WORDS * 64
    }

    /// Removes every CPU.
    #[inline]
    pub fn clear(&mut self) {
        self.top = 0;
    }

    /// Returns `true` if no CPU is in the set.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.top == 0
    }

    /// Returns `true` if `cpu` is in the set.
    ///
    /// # Panics
    ///
    /// If `cpu` is not below [`capacity`](Self::capacity).
    #[must_use]
    #[inline]
    pub fn contains(&self, cpu: CpuId) -> bool {
        let (word, bit) = place(cpu);
        assert!(word < B::WORDS, "{cpu:?} is beyond the machine's CpuBits");
        self.word(word) & bit != 0
    }

    /// Inserts `cpu`.
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

    /// Removes `cpu`, if it is in the set.
    #[inline]
    pub fn remove(&mut self, cpu: CpuId) {
        let (word, bit) = place(cpu);
        if Self::ONE_WORD {
            self.top &= !bit;
        } else if self.top & top_bit(word) != 0 {
            self.set_word(word, self.word(word) & !bit);
        }
    }

    /// Inserts every CPU of `other`.
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

    /// Removes each CPU for which `keeps` returns `false`.
    #[inline]
    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(CpuId) -> bool) {
        for word in self.word_indices() {
            let members = self.word(word);
            let removed = cpus_of_word(word, members).filter(|&cpu| !keeps(cpu));
            let kept = removed.fold(members, |kept, cpu| kept & !place(cpu).1);
            if kept != members {
                self.set_word(word, kept);
            }
        }
    }

    /// The first CPU in the set; `None` if the set is empty.
    #[inline]
    pub(crate) fn first(&self) -> Option<CpuId> {
        self.iter().next()
    }

    /// Number of CPUs in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.word_indices().map(|word| self.word(word).count_ones() as usize).sum()
    }

    /// Indices of the words that may have members at the time of the call. The set can be changed
    /// while the result is iterated.
    #[inline]
    pub(crate) fn word_indices(&self) -> impl Iterator<Item = usize> + use<B> {
        named_words::<B>(if Self::ONE_WORD { 1 } else { self.top })
    }

    /// The members in one word, as a bit mask.
    #[inline]
    pub(crate) fn word(&self, word: usize) -> u64 {
        if Self::ONE_WORD {
            self.top
        } else if self.top & top_bit(word) == 0 {
            0
        } else {
            // SAFETY: `insert_word` initialises every word of a bit before it sets the bit.
            unsafe { B::words(&self.words)[word].assume_init() }
        }
    }

    /// Inserts members into one word.
    #[inline]
    pub(crate) fn insert_word(&mut self, word: usize, members: u64) {
        if Self::ONE_WORD {
            self.top |= members;
        } else if members != 0 {
            if Self::SHARES_BITS {
                self.initialise_sharing(word);
            }
            let all = self.word(word) | members;
            B::words_mut(&mut self.words)[word] = MaybeUninit::new(all);
            self.top |= top_bit(word);
        }
    }

    /// Replaces the members of one word. The word, or one that shares its bit of the top word, must
    /// have members.
    #[inline]
    pub(crate) fn set_word(&mut self, word: usize, members: u64) {
        if Self::ONE_WORD {
            self.top = members;
            return;
        }
        debug_assert!(self.top & top_bit(word) != 0, "a word without members is not initialised");
        B::words_mut(&mut self.words)[word] = MaybeUninit::new(members);
        let is_last = || Self::words_of_bit(word).all(|word| self.word(word) == 0);
        if members == 0 && (!Self::SHARES_BITS || is_last()) {
            self.top &= !top_bit(word);
        }
    }

    /// Calls `f` with a set that has only these members of one word.
    ///
    /// Up to 4096 CPUs, `f` gets this set itself, whose other words are hidden during the call.
    /// After the call, the word has these members.
    #[inline]
    pub(crate) fn lend_word(&mut self, word: usize, members: u64, f: impl FnOnce(&Self)) {
        if Self::SHARES_BITS {
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

    /// Initialises the words that share a word's bit, unless the bit is set.
    #[inline]
    fn initialise_sharing(&mut self, word: usize) {
        if self.top & top_bit(word) == 0 {
            for sharing in Self::words_of_bit(word) {
                B::words_mut(&mut self.words)[sharing] = MaybeUninit::new(0);
            }
        }
    }

    /// Indices of the words that share a bit of the top word with `word`.
    fn words_of_bit(word: usize) -> impl Iterator<Item = usize> {
        (word % 64..B::WORDS).step_by(64)
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

#[cfg(all(test, feature = "soft"))]
mod tests;
