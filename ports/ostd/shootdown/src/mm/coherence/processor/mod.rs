//! The processor, without its broadcasts and without tags that all CPUs share.

#[cfg(target_arch = "riscv64")]
mod riscv64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use core::sync::atomic::{AtomicU64, Ordering};

use shootdown::{Entries, Extent, Memory, NoBroadcaster, Root, Tag, TagSlot};
use shootdown_hw::{Processor, forward};

#[cfg(target_arch = "riscv64")]
pub(super) use riscv64::{Detected, detect};
#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::{Detected, detect};

/// A processor that does not invalidate on other CPUs, with at most `TAGS_MAX` tags. Then the
/// compiler knows that tags are per CPU, or that there are none, and each path is shorter.
pub(in crate::mm) struct WithoutBroadcasts<P, const TAGS_MAX: usize>(P);

// SAFETY: all methods are those of the processor.
unsafe impl<P: Processor, const TAGS_MAX: usize> Memory for WithoutBroadcasts<P, TAGS_MAX> {
    type Word = AtomicU64;

    const PREFETCHES: bool = P::PREFETCHES;
    const PREFETCHES_FOR_WRITE: bool = P::PREFETCHES_FOR_WRITE;

    forward! { self => self.0;
        fn fence();
        fn store_then_fence(word: &AtomicU64, value: u64, order: Ordering);
        fn fetch_add_then_fence(word: &AtomicU64, value: u64, order: Ordering) -> u64;
        fn fetch_or_then_fence(word: &AtomicU64, value: u64, order: Ordering) -> u64;
        fn prefetch(word: &AtomicU64);
        fn prefetch_for_write(word: &AtomicU64);
    }
}

// SAFETY: all methods are those of the processor, whose tags are per CPU (the default), or of which
// there are none: see `detect`. It has no broadcaster.
unsafe impl<P: Processor, const TAGS_MAX: usize> Processor for WithoutBroadcasts<P, TAGS_MAX> {
    type TagSlots = [TagSlot; 6];
    type TagWords = [AtomicU64; 0];
    type Broadcaster = NoBroadcaster;

    forward! { self => self.0;
        fn publish();
        fn synchronize();
        fn interrupts_masked() -> bool;
        fn flush_ceiling() -> usize;
        fn invalidate(tag: Tag, extent: Extent);
        fn invalidate_tag(tag: Tag);
        fn invalidate_kernel(extent: Extent);
        fn invalidate_all();
        fn forget_refused(address: u64);
        fn traps_stale_writes() -> bool;
        fn tolerates_mixed_sizes() -> bool;
    }

    #[inline]
    fn tag_count(&self) -> usize {
        self.0.tag_count().min(TAGS_MAX)
    }

    unsafe fn set_up_cpu(&self) {
        // SAFETY: the caller promises the same.
        unsafe { self.0.set_up_cpu() }
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
