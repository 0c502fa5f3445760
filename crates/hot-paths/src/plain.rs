//! Hardware that does nothing except atomic operations.
//!
//! The remaining cost is the engine's: the cost of an operation without the root loads,
//! invalidations and interrupts that every design needs.

#![expect(unsafe_code, reason = "implements `Processor`")]

use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use shootdown::{Entries, Extent, Memory, NoBroadcaster, Root, Tag, TagSlot, Tagging};
use shootdown_hw::Processor;

/// A processor with no TLB and six tags, as many as Linux uses on x86. Each CPU has its own tags,
/// unless there are `TAG_WORDS` for the [allocator](Tagging::Global) of tags that all CPUs share.
#[derive(Clone, Copy, Debug)]
pub struct Plain<const TAG_WORDS: usize = 0>;

/// A processor of which all CPUs share their tags, with room for 65,535 of them, as on Arm. Six of
/// them exist.
pub type SharedTags = Plain<2048>;

// SAFETY: sequentially consistent operations are full barriers.
unsafe impl<const TAG_WORDS: usize> Memory for Plain<TAG_WORDS> {
    type Word = AtomicU64;

    const PREFETCHES: bool = false;
    const PREFETCHES_FOR_WRITE: bool = true;

    /// One `prefetchw`, as in a kernel for x86.
    #[inline]
    fn prefetch_for_write(&self, word: &AtomicU64) {
        // SAFETY: a prefetch never faults.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            core::arch::asm!(
                "prefetchw [{}]",
                in(reg) word.as_ptr(),
                options(readonly, nostack, preserves_flags),
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = word;
    }

    #[inline]
    fn fence(&self) {
        fence(SeqCst);
    }
    /// One `xchg`, as in a kernel for x86.
    #[inline]
    fn store_then_fence(&self, word: &AtomicU64, value: u64, _: Ordering) {
        word.swap(value, SeqCst);
    }
    /// One `lock xadd`, as in a kernel for x86.
    #[inline]
    fn fetch_add_then_fence(&self, word: &AtomicU64, value: u64, _: Ordering) -> u64 {
        word.fetch_add(value, SeqCst)
    }
}

// SAFETY: there is one thread, a TLB that is always empty, and no interrupt.
unsafe impl<const TAG_WORDS: usize> Processor for Plain<TAG_WORDS> {
    type TagSlots = [TagSlot; 6];
    type TagWords = [AtomicU64; TAG_WORDS];
    type Broadcaster = NoBroadcaster;

    #[inline]
    fn publish(&self) {}
    #[inline]
    fn interrupts_masked(&self) -> bool {
        true
    }
    #[inline]
    fn tagging(&self) -> Tagging {
        if TAG_WORDS == 0 { Tagging::PerCpu } else { Tagging::Global }
    }
    #[inline]
    fn tag_count(&self) -> usize {
        6
    }
    #[inline]
    unsafe fn load(&self, _: Root, _: Tag, _: Entries) {}
    #[inline]
    unsafe fn load_kernel(&self, _: Root) {}
    #[inline]
    fn invalidate(&self, _: Tag, _: Extent) {}
    #[inline]
    fn invalidate_tag(&self, _: Tag) {}
    #[inline]
    fn invalidate_kernel(&self, _: Extent) {}
    #[inline]
    fn invalidate_all(&self) {}
    #[inline]
    fn spin_hint(&self) {}
}
