//! Implements a trait by calls to another value.

/// Implements methods by calling the methods of the same names of another value.
///
/// Use it in a processor that wraps another processor and changes some of its methods:
///
/// ```
/// # use core::sync::atomic::{AtomicU64, Ordering};
/// use shootdown::Memory;
/// use shootdown_hw::forward;
///
/// struct Wrapped<P>(P);
///
/// // SAFETY: all methods are those of the wrapped processor.
/// unsafe impl<P: Memory<Word = AtomicU64>> Memory for Wrapped<P> {
///     type Word = AtomicU64;
///
///     forward! { self => self.0;
///         fn fence();
///         fn fetch_add_then_fence(word: &AtomicU64, value: u64, order: Ordering) -> u64;
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward {
    (
        $self:ident => $to:expr;
        $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*
    ) => {
        $(
            #[inline]
            fn $name(&$self $(, $argument: $type)*) $(-> $result)? {
                $to.$name($($argument),*)
            }
        )*
    };
}

/// Implements all of [`Memory`](shootdown::Memory) by the processor that another one wraps.
///
/// ```
/// use shootdown::Memory;
/// use shootdown_hw::forward_memory;
///
/// struct Wrapped<P>(P);
///
/// // SAFETY: all methods are those of the wrapped processor.
/// unsafe impl<P: Memory<Word = core::sync::atomic::AtomicU64>> Memory for Wrapped<P> {
///     forward_memory! { self => self.0, P }
/// }
/// ```
#[macro_export]
macro_rules! forward_memory {
    ($self:ident => $to:expr, $processor:ty) => {
        type Word = ::core::sync::atomic::AtomicU64;

        const PREFETCHES: bool = <$processor as ::shootdown::Memory>::PREFETCHES;
        const PREFETCHES_FOR_WRITE: bool =
            <$processor as ::shootdown::Memory>::PREFETCHES_FOR_WRITE;

        $crate::forward! { $self => $to;
            fn fence();
            fn store_then_fence(
                word: &::core::sync::atomic::AtomicU64,
                value: u64,
                order: ::core::sync::atomic::Ordering
            );
            fn fetch_add_then_fence(
                word: &::core::sync::atomic::AtomicU64,
                value: u64,
                order: ::core::sync::atomic::Ordering
            ) -> u64;
            fn fetch_or_then_fence(
                word: &::core::sync::atomic::AtomicU64,
                value: u64,
                order: ::core::sync::atomic::Ordering
            ) -> u64;
            fn prefetch(word: &::core::sync::atomic::AtomicU64);
            fn prefetch_for_write(word: &::core::sync::atomic::AtomicU64);
        }
    };
}
