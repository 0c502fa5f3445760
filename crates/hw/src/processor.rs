//! What a processor can do: the half of the machine that is the same for every kernel on it.

#![expect(unsafe_code, reason = "the half of the engine's contract that is the processor's")]

use core::sync::atomic::AtomicU64;

use shootdown::{
    Broadcaster, Entries, Extent, FlushCosts, Memory, Root, Tag, TagSlots, TagWords, Tagging,
};

/// A processor's translation caches. Its barriers are its [`Memory`].
///
/// Each method is the method of the same name of [`Machine`](shootdown::Machine), with what the
/// kernel knows as an argument.
///
/// # Safety
///
/// The obligations of [`Machine`](shootdown::Machine) for these methods.
pub unsafe trait Processor: Memory<Word = AtomicU64> {
    /// See [`Machine::TagSlots`](shootdown::Machine::TagSlots).
    type TagSlots: TagSlots;
    /// See [`Machine::TagWords`](shootdown::Machine::TagWords).
    type TagWords: TagWords<AtomicU64>;
    /// See [`Machine::Broadcaster`](shootdown::Machine::Broadcaster).
    type Broadcaster: Broadcaster;

    /// Makes page-table writes visible to every walker.
    fn publish(&self);

    /// Completes every earlier load and store before any later invalidation.
    #[inline]
    fn synchronize(&self) {
        self.fence();
        self.publish();
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

    /// The hardware's way to invalidate on other CPUs: see
    /// [`Machine::broadcaster`](shootdown::Machine::broadcaster).
    #[inline]
    fn broadcaster(&self) -> Option<&Self::Broadcaster> {
        None
    }

    /// Called while waiting for other CPUs.
    #[inline]
    fn spin_hint(&self) {
        core::hint::spin_loop();
    }
}
