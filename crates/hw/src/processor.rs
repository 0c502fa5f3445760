//! What a processor can do: the half of the machine that is the same for every kernel on it.

#![expect(unsafe_code, reason = "the half of the engine's contract that is the processor's")]

use core::sync::atomic::{AtomicU64, Ordering};

use shootdown::{
    Broadcast, CpuId, Entries, Extent, FlushCosts, Root, Tag, TagSlots, TagWords, Tagging,
    TellingCosts,
};

/// The CPUs that a broadcast is for, where it [names](shootdown::Reach::Targets) them.
pub type Targets<'a> = &'a mut dyn Iterator<Item = CpuId>;

/// A processor's translation caches and barriers. Each method is what the method of the same name
/// of [`Machine`](shootdown::Machine) is, with what the kernel knows as an argument.
///
/// # Safety
///
/// What [`Machine`](shootdown::Machine) asks of these methods.
pub unsafe trait Processor: Sync {
    /// See [`Machine::TagSlots`](shootdown::Machine::TagSlots).
    type TagSlots: TagSlots;
    /// See [`Machine::TagWords`](shootdown::Machine::TagWords).
    type TagWords: TagWords<AtomicU64>;

    /// A full barrier.
    fn fence(&self);

    /// Stores, then a full barrier.
    #[inline]
    fn store_then_fence(&self, word: &AtomicU64, value: u64, order: Ordering) {
        word.store(value, order);
        self.fence();
    }

    /// Adds, then a full barrier.
    #[inline]
    fn fetch_add_then_fence(&self, word: &AtomicU64, value: u64, order: Ordering) -> u64 {
        let held = word.fetch_add(value, order);
        self.fence();
        held
    }

    /// Sets bits, then a full barrier.
    #[inline]
    fn fetch_or_then_fence(&self, word: &AtomicU64, value: u64, order: Ordering) -> u64 {
        let held = word.fetch_or(value, order);
        self.fence();
        held
    }

    /// Whether `prefetch` does anything.
    const PREFETCHES: bool = true;

    /// Begins to fetch a word that is about to be read.
    #[inline]
    fn prefetch(&self, word: &AtomicU64) {
        let _ = word;
    }

    /// Makes page-table writes visible to every walker.
    fn publish(&self);

    /// Completes every earlier load and store before any later invalidation.
    #[inline]
    fn synchronize(&self) {
        self.fence();
        self.publish();
    }

    /// A clock of this CPU's in ns; 0 where there is none.
    #[inline]
    fn clock_ns(&self) -> u64 {
        0
    }

    /// Whether interrupts are masked on this CPU.
    fn interrupts_masked(&self) -> bool;

    /// How tags are given to spaces.
    #[inline]
    fn tagging(&self) -> Tagging {
        Tagging::PerCpu
    }

    /// How many tags there are.
    fn tag_count(&self) -> usize;

    /// Above how many invalidations of pages the whole tag is dropped.
    #[inline]
    fn flush_ceiling(&self) -> usize {
        33
    }

    /// The costs of invalidation: see [`Machine::flush_costs`](shootdown::Machine::flush_costs).
    #[inline]
    fn flush_costs(&self) -> FlushCosts {
        FlushCosts::default()
    }

    /// Makes `root` current under `tag`.
    ///
    /// # Safety
    ///
    /// `root` must be a valid page table that maps the kernel, and stay one while it is loaded.
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries);

    /// Makes the kernel's root current, under [`Tag::KERNEL`].
    ///
    /// # Safety
    ///
    /// `root` must be a valid page table that maps the kernel, for ever.
    unsafe fn load_kernel(&self, root: Root);

    /// Drops pages under the loaded tag.
    fn invalidate(&self, tag: Tag, extent: Extent);

    /// Drops all under the loaded tag.
    fn invalidate_tag(&self, tag: Tag);

    /// Drops pages of the kernel's.
    fn invalidate_kernel(&self, extent: Extent);

    /// Drops everything.
    fn invalidate_all(&self);

    /// Whether the first write to a page that is not marked as written walks the page tables.
    #[inline]
    fn traps_stale_writes(&self) -> bool {
        false
    }

    /// Whether a CPU may have translations of two sizes for one address.
    #[inline]
    fn tolerates_mixed_sizes(&self) -> bool {
        false
    }

    /// How others are told without an interrupt.
    #[inline]
    fn broadcast(&self) -> Option<Broadcast> {
        None
    }

    /// What telling costs.
    #[inline]
    fn telling_costs(&self) -> TellingCosts {
        TellingCosts::default()
    }

    /// Begins to drop pages, or all of a tag, elsewhere, too.
    fn issue_broadcast(&self, targets: Targets<'_>, tag: Tag, extent: Extent) {
        let _ = (targets, tag, extent);
        unreachable!("this processor said that it cannot broadcast");
    }

    /// Begins to drop pages of the kernel's, or everything, elsewhere, too.
    fn issue_kernel_broadcast(&self, extent: Extent) {
        let _ = extent;
        unreachable!("this processor said that it cannot broadcast");
    }

    /// Waits for what this CPU has issued; how long, in ns, or 0 if that is not measured.
    fn complete_broadcasts(&self) -> u64 {
        0
    }

    /// Called while waiting for other CPUs.
    #[inline]
    fn relax(&self) {
        core::hint::spin_loop();
    }
}
