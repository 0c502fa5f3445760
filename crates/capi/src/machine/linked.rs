//! A machine whose operations are all functions of the C kernel.

#![expect(unsafe_code, reason = "fulfils the engine's contract by that of the kernel's functions")]

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use shootdown::{
    CpuBits, CpuId, CpuSet, CpuState, Entries, Extent, Machine, Memory, NoBroadcaster, Root, Space,
    Tag, TagSlot, Tagging,
};

use super::kernel;
use crate::config::{
    Config, SHOOTDOWN_TAGS_GLOBAL, SHOOTDOWN_TAGS_PER_CPU, SHOOTDOWN_TAGS_RENAMED,
};
use crate::os;

/// Number of slots for the spaces that a CPU ran last: see `Machine::TagSlots`.
pub(super) const SLOTS: usize = 16;

/// Words for global tags of 16 bits: a bit for each tag, and one for each that is pinned.
const TAG_WORDS: usize = (1 << 16) / 64 * 2;

/// The ceiling if the kernel gives none: as in Linux.
const FLUSH_CEILING: u32 = 33;

/// A machine whose operations are all functions of the C kernel.
#[derive(Debug)]
pub(crate) struct Linked<B, const SLOTS: usize> {
    tagging: Tagging,
    config: Config,
    cpus: PhantomData<B>,
}

/// The machine that `config` describes.
pub(crate) fn machine(config: &Config) -> super::Machine {
    let tagging = match config.tagging {
        SHOOTDOWN_TAGS_PER_CPU => Tagging::PerCpu,
        SHOOTDOWN_TAGS_GLOBAL => Tagging::Global,
        SHOOTDOWN_TAGS_RENAMED => Tagging::Renamed,
        other => {
            panic!("shootdown_config.tagging is {other}, which is not a SHOOTDOWN_TAGS_ value")
        }
    };
    assert!(
        config.tag_count < 1 << 16,
        "shootdown_config.tag_count is {}, and tags have 16 bits",
        config.tag_count,
    );
    let flush_ceiling = match config.flush_ceiling {
        0 => FLUSH_CEILING,
        pages => pages,
    };
    Linked { tagging, config: Config { flush_ceiling, ..*config }, cpus: PhantomData }
}

// SAFETY: the fence is a full barrier, and the words are atomics.
unsafe impl<B: CpuBits + Sync + 'static, const SLOTS: usize> Memory for Linked<B, SLOTS> {
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
unsafe impl<B: CpuBits + Sync + 'static, const SLOTS: usize> Machine for Linked<B, SLOTS> {
    type CpuBits = B;
    type TagSlots = [TagSlot; SLOTS];
    type TagWords = [AtomicU64; TAG_WORDS];
    type Broadcaster = NoBroadcaster;

    #[inline]
    fn state(&self, cpu: CpuId) -> &CpuState<Self> {
        kernel::state(cpu)
    }
    #[inline]
    fn cpu(&self) -> CpuId {
        kernel::cpu()
    }
    #[inline]
    fn cpu_limit(&self) -> usize {
        kernel::cpu_limit::<B>(&self.config)
    }
    fn ring(&self, cpus: &CpuSet<B>) {
        kernel::ring(cpus);
    }
    fn reclaim(&self, space: NonNull<Space<Self>>) {
        kernel::reclaim(space);
    }
    #[inline]
    fn wait_hint(&self, waiting: &CpuSet<B>) {
        kernel::wait_hint(waiting);
        core::hint::spin_loop();
    }

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
    #[inline]
    fn load_kernel(&self) {
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

/// The address, the number of pages, the size of a page, and whether tables are freed.
#[inline]
fn parts(extent: Extent) -> (u64, usize, u8, bool) {
    (extent.start(), extent.page_count(), extent.page_size().shift(), extent.frees_tables())
}
