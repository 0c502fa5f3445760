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
