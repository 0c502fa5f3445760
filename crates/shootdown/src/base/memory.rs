//! The contract with the machine's memory: shared words, full barriers, prefetches.
//!
//! The engine's protocols run on [`Word`]s. A kernel writes `type Word = AtomicU64`. The type is a
//! parameter so that the same source also runs under a model checker, where a load may return any
//! value that the memory model allows, and on a simulated machine, where an access costs as much as
//! the transfer of its cache line.
//!
//! The modules that need only words and barriers (flush log, doorbell, sets of CPUs, presence)
//! depend on [`Memory`], and not on the whole [`Machine`](crate::Machine).

#![expect(unsafe_code, reason = "states a contract that the engine's safety rests on")]

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::base::rules::{Kind, Rule};

/// The seal of the traits for sizes: soundness rests on them, so the engine alone implements them.
pub(crate) mod sealed {
    /// Implemented for arrays.
    pub trait Sealed {}
}

/// A 64-bit word of shared memory, laid out exactly like [`AtomicU64`].
///
/// Each method has the meaning of the method of the same name of [`AtomicU64`].
pub trait Word: Send + Sync {
    /// A word that holds `value`.
    fn new(value: u64) -> Self;
    /// Reads the word.
    fn load(&self, order: Ordering) -> u64;
    /// Writes the word.
    fn store(&self, value: u64, order: Ordering);
    /// Writes the word and returns the previous value.
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// Adds `value`, wrapping around, and returns the previous value.
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    /// Sets the bits of `value` and returns the previous value.
    fn fetch_or(&self, value: u64, order: Ordering) -> u64;
    /// Clears the bits that are 0 in `value` and returns the previous value.
    fn fetch_and(&self, value: u64, order: Ordering) -> u64;
    /// Writes `new` if the word holds `current`, and returns the previous value.
    ///
    /// # Errors
    ///
    /// The value that the word holds, if that is not `current`.
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;
}

/// Implements [`Word`] with the methods of the same names of an atomic type.
///
/// Used for [`AtomicU64`] and for the atomics of model checkers. `$inner` is the expression that
/// reaches the atomic from `self`.
#[macro_export]
macro_rules! word_by_atomic {
    ($word:ty, |$value:ident| $new:expr, |$this:ident| $inner:expr) => {
        $crate::word_by_atomic! {
            $word, |$value| $new, |$this| $inner,
            load(order: ::core::sync::atomic::Ordering) -> u64;
            store(value: u64, order: ::core::sync::atomic::Ordering) -> ();
            swap(value: u64, order: ::core::sync::atomic::Ordering) -> u64;
            fetch_add(value: u64, order: ::core::sync::atomic::Ordering) -> u64;
            fetch_or(value: u64, order: ::core::sync::atomic::Ordering) -> u64;
            fetch_and(value: u64, order: ::core::sync::atomic::Ordering) -> u64;
            compare_exchange(
                current: u64,
                new: u64,
                success: ::core::sync::atomic::Ordering,
                failure: ::core::sync::atomic::Ordering
            ) -> ::core::result::Result<u64, u64>;
        }
    };
    (
        $word:ty, |$value:ident| $new:expr, |$this:ident| $inner:expr,
        $($method:ident($($argument:ident: $type:ty),*) -> $result:ty;)*
    ) => {
        impl $crate::Word for $word {
            #[inline]
            fn new($value: u64) -> Self {
                $new
            }
            $(
                #[inline]
                fn $method(&self, $($argument: $type),*) -> $result {
                    let $this = self;
                    $inner.$method($($argument),*)
                }
            )*
        }
    };
}

word_by_atomic!(AtomicU64, |value| Self::new(value), |this| this);

/// A value that consists of `AtomicU64`s only, each of them 0.
///
/// # Safety
///
/// `T` must have no other fields.
pub(crate) const unsafe fn zero_words<T>() -> T {
    // SAFETY: all bits of an `AtomicU64` may be 0; the caller promises that `T` has no other
    // fields.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Room for the allocator of global tags. Implemented for arrays of words only.
pub trait TagWords<W>: sealed::Sealed + Send + Sync {
    /// Words that are all zero.
    fn zero() -> Self;
    /// The words as a slice.
    fn words(&self) -> &[W];
}

impl<W: Word, const N: usize> sealed::Sealed for [W; N] {}
impl<W: Word, const N: usize> TagWords<W> for [W; N] {
    fn zero() -> Self {
        core::array::from_fn(|_| W::new(0))
    }
    #[inline]
    fn words(&self) -> &[W] {
        self
    }
}

/// The memory of a machine: its words and its barriers.
///
/// The engine also calls every method from the flush interrupt's handler. So no method may block,
/// allocate, or take a lock that this CPU may already hold.
///
/// # Safety
///
/// An implementation guarantees:
///
/// - [`fence`](Self::fence) orders every earlier load and store of this CPU before every later one,
///   as all CPUs observe them. Each of the three combined operations does the same after its
///   access;
/// - each method of [`Word`](Self::Word) does the same as the method of that name of `AtomicU64`.
pub unsafe trait Memory: Sync + Sized {
    /// The engine's shared words: `AtomicU64` on hardware.
    type Word: Word;

    /// `true` if [`prefetch`](Self::prefetch) has an effect. If `false`, the compiler removes the
    /// loops that call it.
    const PREFETCHES: bool = true;

    /// `true` if [`prefetch_for_write`](Self::prefetch_for_write) has an effect. If `false`, the
    /// compiler removes the loops that call it.
    const PREFETCHES_FOR_WRITE: bool = false;

    /// A full barrier: no load passes an earlier store (`mfence`, `dmb ish`, `fence rw,rw`).
    fn fence(&self);

    /// Stores `value`, and then fences. On x86, override this with one `xchg`.
    #[inline]
    fn store_then_fence(&self, word: &Self::Word, value: u64, order: Ordering) {
        word.store(value, order);
        self.fence();
    }

    /// Adds `value`, and then fences. Returns the previous value. On x86, override this with one
    /// `lock xadd`.
    #[inline]
    fn fetch_add_then_fence(&self, word: &Self::Word, value: u64, order: Ordering) -> u64 {
        let previous = word.fetch_add(value, order);
        self.fence();
        previous
    }

    /// Sets the bits of `value`, and then fences. Returns the previous value. On x86, override this
    /// with one locked operation.
    #[inline]
    fn fetch_or_then_fence(&self, word: &Self::Word, value: u64, order: Ordering) -> u64 {
        let previous = word.fetch_or(value, order);
        self.fence();
        previous
    }

    /// Hints that the caller will soon read `word`, so that the hardware can fetch its cache line.
    ///
    /// A flush prefetches the state of every CPU that it is going to read, so that the cache misses
    /// overlap. On x86 the misses overlap without a hint, as far ahead as the CPU speculates. Where
    /// the hardware keeps acquiring loads in order (Arm's `ldar`), they do not.
    #[inline]
    fn prefetch(&self, word: &Self::Word) {
        let _ = word;
    }

    /// Hints that the caller will soon write `word`, so that the hardware can fetch its cache line
    /// for writing (x86: `prefetchw`; Arm: `prfm pstl1keep`).
    ///
    /// A flush prefetches the bell of every CPU that it is going to ring. A ring is a locked
    /// operation, and on x86 no access passes it: without the hint, the misses of 64 rings add up
    /// to several microseconds.
    #[inline]
    fn prefetch_for_write(&self, word: &Self::Word) {
        let _ = word;
    }

    /// Test hook: returns `true` if the engine breaks `rule` at the caller's location. Outside of
    /// the engine's own tests, it must return `false`.
    #[doc(hidden)]
    #[inline]
    #[track_caller]
    fn breaks(&self, rule: Rule) -> bool {
        let _ = rule;
        false
    }
}

/// Returns the ordering that `rule` demands, or relaxed where the memory breaks the rule.
///
/// # Panics
///
/// If the rule's kind is not an ordering.
#[inline]
#[track_caller]
pub(crate) fn order<M: Memory>(memory: &M, rule: Rule) -> Ordering {
    let Kind::Ordering(ordering) = rule.kind() else { unreachable!("{rule:?} is not an ordering") };
    if memory.breaks(rule) { Ordering::Relaxed } else { ordering }
}

/// Executes the full barrier that `rule` demands.
#[inline]
#[track_caller]
pub(crate) fn fence<M: Memory>(memory: &M, rule: Rule) {
    if !memory.breaks(rule) {
        memory.fence();
    }
}

/// Stores `value` with the ordering that the rule `ordering` demands, and then executes the full
/// barrier that `rule` demands.
#[inline]
#[track_caller]
pub(crate) fn store_then_fence<M: Memory>(
    memory: &M,
    word: &M::Word,
    value: u64,
    ordering: Rule,
    rule: Rule,
) {
    if memory.breaks(rule) {
        word.store(value, order(memory, ordering));
    } else {
        memory.store_then_fence(word, value, order(memory, ordering));
    }
}
