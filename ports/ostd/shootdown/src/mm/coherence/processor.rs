//! The processor, without its broadcasts.

use core::sync::atomic::{AtomicU64, Ordering};

use shootdown::{Entries, Extent, Memory, NoBroadcaster, Root, Tag, TagSlot};
use shootdown_hw::{
    Processor, forward,
    x86_64::{Features, KernelPages, X86_64},
};

/// An x86-64 processor whose `INVLPGB` is not used: no machine that has the instruction has run
/// this code. Then the compiler knows that tags are per CPU, and each path is shorter.
pub(in crate::mm) struct WithoutBroadcasts(X86_64);

/// The features that every CPU enables.
pub(super) fn features() -> Features {
    Features { invlpgb_pages: None, ..shootdown_hw::x86_64::detect() }
}

impl WithoutBroadcasts {
    /// # Safety
    ///
    /// Every CPU must have enabled the [`features`]. All kernel pages must be global.
    pub(super) unsafe fn new() -> Self {
        // SAFETY: the caller promises the same.
        Self(unsafe { X86_64::new(features(), KernelPages::Global) })
    }
}

// SAFETY: all methods are those of the processor.
unsafe impl Memory for WithoutBroadcasts {
    type Word = AtomicU64;

    const PREFETCHES: bool = X86_64::PREFETCHES;

    forward! { self => self.0;
        fn fence();
        fn store_then_fence(word: &AtomicU64, value: u64, order: Ordering);
        fn fetch_add_then_fence(word: &AtomicU64, value: u64, order: Ordering) -> u64;
        fn fetch_or_then_fence(word: &AtomicU64, value: u64, order: Ordering) -> u64;
    }
}

// SAFETY: all methods are those of the processor. Without `INVLPGB`, its tags are per CPU, which is
// the default, and it has no broadcaster.
unsafe impl Processor for WithoutBroadcasts {
    type TagSlots = [TagSlot; 6];
    type TagWords = [AtomicU64; 0];
    type Broadcaster = NoBroadcaster;

    forward! { self => self.0;
        fn publish();
        fn interrupts_masked() -> bool;
        fn tag_count() -> usize;
        fn flush_ceiling() -> usize;
        fn invalidate(tag: Tag, extent: Extent);
        fn invalidate_tag(tag: Tag);
        fn invalidate_kernel(extent: Extent);
        fn invalidate_all();
        fn traps_stale_writes() -> bool;
        fn tolerates_mixed_sizes() -> bool;
    }

    #[inline]
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        // SAFETY: the caller promises the same.
        unsafe { self.0.load(root, tag, entries) }
    }

    #[inline]
    unsafe fn load_kernel(&self, root: Root) {
        // SAFETY: the caller promises the same.
        unsafe { self.0.load_kernel(root) }
    }
}
