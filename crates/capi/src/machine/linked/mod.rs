//! A processor whose operations are all functions of the C kernel.

#![expect(unsafe_code, reason = "fulfils the engine's contract by that of the kernel's functions")]

use core::sync::atomic::{AtomicU64, Ordering, fence};

use shootdown::{Entries, Extent, Memory, Root, Tag, TagSlot, Tagging};
use shootdown_hw::Processor;

use super::SLOTS;
use crate::config::{
    Config, SHOOTDOWN_TAGS_ASSIGNED, SHOOTDOWN_TAGS_GLOBAL, SHOOTDOWN_TAGS_PER_CPU,
    SHOOTDOWN_TAGS_RENAMED,
};
use crate::os;

#[cfg(feature = "broadcast")]
mod broadcast;
#[cfg(feature = "broadcast")]
use broadcast::Broadcasts;
#[cfg(not(feature = "broadcast"))]
use shootdown::NoBroadcaster as Broadcasts;

/// Words for global tags of 16 bits: a bit for each tag, and one for each that is pinned.
const TAG_WORDS: usize = (1 << 16) / 64 * 2;

/// The ceiling if the kernel gives none: as in Linux.
const FLUSH_CEILING: u32 = 33;

/// A processor whose operations are all functions `shootdown_mmu_…` of the C kernel.
#[derive(Debug)]
pub(crate) struct Linked {
    tagging: Tagging,
    config: Config,
    #[cfg(feature = "broadcast")]
    broadcasts: Option<Broadcasts>,
}

impl Linked {
    /// The processor that `config` describes.
    pub(super) fn new(config: &Config) -> Self {
        let tagging = match config.tagging {
            SHOOTDOWN_TAGS_PER_CPU => Tagging::PerCpu,
            SHOOTDOWN_TAGS_GLOBAL => Tagging::Global,
            SHOOTDOWN_TAGS_RENAMED => Tagging::Renamed,
            SHOOTDOWN_TAGS_ASSIGNED => Tagging::Assigned,
            other => {
                panic!("shootdown_config.tagging is {other}, which is not a SHOOTDOWN_TAGS_ value")
            }
        };
        assert!(
            config.tag_count < 1 << 16,
            "shootdown_config.tag_count is {}, and tags have 16 bits",
            config.tag_count,
        );
        assert!(
            config.processor == 0,
            "shootdown_config.processor is {:#x}, and the library was built without the feature \
             `processor`",
            config.processor,
        );
        #[cfg(not(feature = "broadcast"))]
        assert!(
            config.broadcast.reach == crate::config::SHOOTDOWN_REACH_NOBODY,
            "shootdown_config.broadcast.reach is {}, and the library was built without the feature \
             `broadcast`",
            config.broadcast.reach,
        );
        let flush_ceiling = match config.flush_ceiling {
            0 => FLUSH_CEILING,
            // C has no long extents.
            pages => pages.min(Extent::MAX_PAGES as u32),
        };
        Self {
            tagging,
            config: Config { flush_ceiling, ..*config },
            #[cfg(feature = "broadcast")]
            broadcasts: Broadcasts::new(config),
        }
    }
}

// SAFETY: the fence is a full barrier, and the words are atomics.
unsafe impl Memory for Linked {
    type Word = AtomicU64;

    const PREFETCHES: bool = false;

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    /// On x86, the exchange is the barrier.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn store_then_fence(&self, word: &AtomicU64, value: u64, _: Ordering) {
        word.swap(value, Ordering::SeqCst);
    }

    /// On x86, the locked addition is the barrier.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn fetch_add_then_fence(&self, word: &AtomicU64, value: u64, _: Ordering) -> u64 {
        word.fetch_add(value, Ordering::SeqCst)
    }

    /// On x86, the locked operation is the barrier.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn fetch_or_then_fence(&self, word: &AtomicU64, value: u64, _: Ordering) -> u64 {
        word.fetch_or(value, Ordering::SeqCst)
    }
}

// SAFETY: the kernel's functions keep the contracts that the header states. They are those of this
// trait.
unsafe impl Processor for Linked {
    type TagSlots = [TagSlot; SLOTS];
    type TagWords = [AtomicU64; TAG_WORDS];
    type Broadcaster = Broadcasts;

    #[inline]
    fn tagging(&self) -> Tagging {
        self.tagging
    }
    #[inline]
    fn tag_count(&self) -> usize {
        self.config.tag_count as usize
    }
    #[inline]
    fn flush_ceiling(&self) -> usize {
        self.config.flush_ceiling as usize
    }
    #[inline]
    fn traps_stale_writes(&self) -> bool {
        self.config.traps_stale_writes
    }
    #[inline]
    fn tolerates_mixed_sizes(&self) -> bool {
        self.config.tolerates_mixed_sizes
    }
    #[cfg(feature = "broadcast")]
    #[inline]
    fn broadcaster(&self) -> Option<&Broadcasts> {
        self.broadcasts.as_ref()
    }

    #[inline]
    fn interrupts_masked(&self) -> bool {
        // SAFETY: the kernel defines this function without preconditions, like all functions below.
        unsafe { os::shootdown_mmu_interrupts_masked() }
    }
    #[inline]
    fn publish(&self) {
        // SAFETY: see `interrupts_masked`.
        unsafe { os::shootdown_mmu_publish() }
    }
    #[inline]
    fn synchronize(&self) {
        // SAFETY: see `interrupts_masked`.
        unsafe { os::shootdown_mmu_synchronize() }
    }
    #[inline]
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        // SAFETY: the caller promises that the root is a valid page table.
        unsafe { os::shootdown_mmu_load(root.0, tag.0, entries == Entries::Keep) }
    }
    /// The kernel has its root itself.
    #[inline]
    unsafe fn load_kernel(&self, _: Root) {
        // SAFETY: see `interrupts_masked`.
        unsafe { os::shootdown_mmu_load_kernel() }
    }
    #[inline]
    fn invalidate(&self, tag: Tag, extent: Extent) {
        let (address, count, shift, frees_tables) = parts(extent);
        // SAFETY: see `interrupts_masked`.
        unsafe { os::shootdown_mmu_invalidate(tag.0, address, count, shift, frees_tables) }
    }
    #[inline]
    fn invalidate_tag(&self, tag: Tag) {
        // SAFETY: see `interrupts_masked`.
        unsafe { os::shootdown_mmu_invalidate_tag(tag.0) }
    }
    #[inline]
    fn invalidate_kernel(&self, extent: Extent) {
        let (address, count, shift, frees_tables) = parts(extent);
        // SAFETY: see `interrupts_masked`.
        unsafe { os::shootdown_mmu_invalidate_kernel(address, count, shift, frees_tables) }
    }
    #[inline]
    fn invalidate_all(&self) {
        // SAFETY: see `interrupts_masked`.
        unsafe { os::shootdown_mmu_invalidate_all() }
    }
}

/// The address, the number of pages (0 for all), the size of a page, and whether tables are freed.
/// The extent must not be long.
#[inline]
fn parts(extent: Extent) -> (u64, usize, u8, bool) {
    (extent.start(), extent.page_count(), extent.page_size().shift(), extent.frees_tables())
}

/// As [`parts`]: a long extent is the whole space, because C has none.
#[cfg(feature = "broadcast")]
fn parts_of_any(extent: Extent) -> (u64, usize, u8, bool) {
    let (address, count, shift, frees_tables) = parts(extent);
    (address, if extent.is_long() { 0 } else { count }, shift, frees_tables)
}
