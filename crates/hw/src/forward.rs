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

/// Implements methods of [`Processor`](crate::Processor) by those of the processor that another one
/// wraps. List the methods that the wrapper does not change.
///
/// ```
/// use shootdown::{Memory, NoBroadcaster};
/// use shootdown_hw::{Processor, forward_memory, forward_processor};
///
/// struct WithoutBroadcasts<P>(P);
///
/// // SAFETY: all methods are those of the wrapped processor.
/// unsafe impl<P: Processor> Memory for WithoutBroadcasts<P> {
///     forward_memory! { self => self.0, P }
/// }
///
/// // SAFETY: as above.
/// unsafe impl<P: Processor> Processor for WithoutBroadcasts<P> {
///     type TagSlots = P::TagSlots;
///     type TagWords = P::TagWords;
///     type Broadcaster = NoBroadcaster;
///
///     forward_processor! { self => self.0;
///         set_up_cpu, workarounds, publish, synchronize, interrupts_masked, tagging, tag_count,
///         flush_ceiling, flush_costs, load, load_kernel, invalidate, invalidate_tag,
///         invalidate_kernel, invalidate_all, forget_refused, publish_kernel, traps_stale_writes,
///         tolerates_mixed_sizes, spin_hint,
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_processor {
    ($self:ident => $to:expr; $($name:ident),* $(,)?) => {
        $($crate::forward_processor! { @$name $self $to })*
    };
    (@set_up_cpu $self:ident $to:expr) => {
        #[inline]
        unsafe fn set_up_cpu(&$self) {
            // SAFETY: the caller promises what the wrapped processor requires.
            unsafe { $to.set_up_cpu() }
        }
    };
    (@load $self:ident $to:expr) => {
        #[inline]
        unsafe fn load(
            &$self,
            root: ::shootdown::Root,
            tag: ::shootdown::Tag,
            entries: ::shootdown::Entries,
        ) {
            // SAFETY: the caller promises what the wrapped processor requires.
            unsafe { $to.load(root, tag, entries) }
        }
    };
    (@load_kernel $self:ident $to:expr) => {
        #[inline]
        unsafe fn load_kernel(&$self, root: ::shootdown::Root) {
            // SAFETY: the caller promises what the wrapped processor requires.
            unsafe { $to.load_kernel(root) }
        }
    };
    (@invalidate $self:ident $to:expr) => {
        $crate::forward! { $self => $to;
            fn invalidate(tag: ::shootdown::Tag, extent: ::shootdown::Extent);
        }
    };
    (@invalidate_tag $self:ident $to:expr) => {
        $crate::forward! { $self => $to; fn invalidate_tag(tag: ::shootdown::Tag); }
    };
    (@invalidate_kernel $self:ident $to:expr) => {
        $crate::forward! { $self => $to; fn invalidate_kernel(extent: ::shootdown::Extent); }
    };
    (@publish_kernel $self:ident $to:expr) => {
        $crate::forward! { $self => $to; fn publish_kernel(extent: ::shootdown::Extent); }
    };
    (@forget_refused $self:ident $to:expr) => {
        $crate::forward! { $self => $to; fn forget_refused(address: u64); }
    };
    (@workarounds $self:ident $to:expr) => {
        $crate::forward! { $self => $to; fn workarounds() -> $crate::errata::Workarounds; }
    };
    (@tagging $self:ident $to:expr) => {
        $crate::forward! { $self => $to; fn tagging() -> ::shootdown::Tagging; }
    };
    (@flush_costs $self:ident $to:expr) => {
        $crate::forward! { $self => $to; fn flush_costs() -> ::shootdown::FlushCosts; }
    };
    (@broadcaster $self:ident $to:expr) => {
        $crate::forward! { $self => $to; fn broadcaster() -> Option<&Self::Broadcaster>; }
    };
    (@tag_count $self:ident $to:expr) => {
        $crate::forward! { $self => $to; fn tag_count() -> usize; }
    };
    (@flush_ceiling $self:ident $to:expr) => {
        $crate::forward! { $self => $to; fn flush_ceiling() -> usize; }
    };
    (@interrupts_masked $self:ident $to:expr) => {
        $crate::forward! { $self => $to; fn interrupts_masked() -> bool; }
    };
    (@traps_stale_writes $self:ident $to:expr) => {
        $crate::forward! { $self => $to; fn traps_stale_writes() -> bool; }
    };
    (@tolerates_mixed_sizes $self:ident $to:expr) => {
        $crate::forward! { $self => $to; fn tolerates_mixed_sizes() -> bool; }
    };
    // `publish`, `synchronize`, `invalidate_all` and `spin_hint`.
    (@$name:ident $self:ident $to:expr) => {
        $crate::forward! { $self => $to; fn $name(); }
    };
}
