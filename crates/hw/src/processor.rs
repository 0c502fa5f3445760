//! The processor's half of the engine's machine, which is the same for every kernel.

#![expect(unsafe_code, reason = "declares the processor's half of the engine's contract")]

use core::sync::atomic::AtomicU64;

use crate::errata::Workarounds;
use shootdown::{
    Broadcaster, Entries, Extent, FlushCosts, Memory, Root, Tag, TagSlots, TagWords, Tagging,
};

/// A processor's translation caches. Its barriers are its [`Memory`].
///
/// Each method is the method of [`Machine`](shootdown::Machine) with the same name. Values that
/// only the kernel has, such as its root, are arguments.
///
/// # Safety
///
/// The requirements of [`Machine`](shootdown::Machine) for these methods.
pub unsafe trait Processor: Memory<Word = AtomicU64> {
    /// See [`Machine::TagSlots`](shootdown::Machine::TagSlots).
    type TagSlots: TagSlots;
    /// See [`Machine::TagWords`](shootdown::Machine::TagWords).
    type TagWords: TagWords<AtomicU64>;
    /// See [`Machine::Broadcaster`](shootdown::Machine::Broadcaster).
    type Broadcaster: Broadcaster;

    /// Checks that this processor is right on the CPU: that the CPU has the features, and needs no
    /// [workaround](crate::errata) that the processor does not have. Enables the features that the
    /// CPU can switch off. A processor that wraps another one calls the other's method.
    ///
    /// # Safety
    ///
    /// Call this on each CPU, with interrupts masked, before it comes online and again if it lost
    /// its registers in a sleep state. The requirements of the processor hold: see
    /// [`x86_64::enable`](crate::x86_64). On RISC-V, a root is loaded.
    ///
    /// # Panics
    ///
    /// If the processor is not right on the CPU.
    #[inline]
    unsafe fn set_up_cpu(&self) {}

    /// The workarounds that are in use, and those that [the kernel owes](Workarounds). A processor
    /// that wraps another one calls the other's method.
    #[inline]
    fn workarounds(&self) -> Workarounds {
        Workarounds::NONE
    }

    /// Makes earlier page-table stores visible to every walker.
    fn publish(&self);

    /// Completes every earlier load and store before any later invalidation.
    #[inline]
    fn synchronize(&self) {
        self.fence();
        self.publish();
    }

    /// Returns `true` if interrupts are masked on this CPU.
    fn interrupts_masked(&self) -> bool;

    /// How the engine assigns tags to spaces.
    #[inline]
    fn tagging(&self) -> Tagging {
        Tagging::PerCpu
    }

    /// Number of tags for spaces; 0 if the TLB has no tags.
    fn tag_count(&self) -> usize;

    /// Number of page invalidations above which the engine invalidates the whole tag instead.
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
    /// `root` must be a valid page table that maps the kernel, and stay valid while it is loaded.
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries);

    /// Makes the kernel's root current, under [`Tag::KERNEL`].
    ///
    /// # Safety
    ///
    /// `root` must be a valid page table that maps the kernel, and stay valid for ever.
    unsafe fn load_kernel(&self, root: Root);

    /// Invalidates the pages of `extent` under the loaded tag, on this CPU.
    fn invalidate(&self, tag: Tag, extent: Extent);

    /// Invalidates all entries under the loaded tag, on this CPU.
    fn invalidate_tag(&self, tag: Tag);

    /// Invalidates kernel pages, under all tags, on this CPU.
    fn invalidate_kernel(&self, extent: Extent);

    /// Invalidates all entries of this CPU, global ones included.
    fn invalidate_all(&self);

    /// Drops what this CPU has cached of `address`, so that the next access finds an entry that has
    /// become valid or more permissive, under every tag or the loaded one. A *local relaxation*: no
    /// other CPU is notified, and each that still has the old entry takes a fault of its own. Call
    /// this as the last step of the handler of page faults, on the CPU that tries the access again.
    /// (Linux: `flush_tlb_fix_spurious_fault`.)
    ///
    /// No flush follows a change that only makes more accesses valid. So a CPU that caches refused
    /// accesses (Arm: missing permissions; RISC-V and LoongArch: missing pages) would fault again
    /// and again. Does nothing on x86-64, which caches none.
    #[inline]
    fn forget_refused(&self, address: u64) {
        let _ = address;
    }

    /// Makes new entries for the kernel's pages of `extent` usable by the next access of this CPU.
    /// The entries must not have been valid before; otherwise, flush.
    ///
    /// An access to a kernel page must not be refused, because most kernels cannot handle the
    /// fault. This method therefore also waits until the entries are visible to this CPU's walks,
    /// and drops refused accesses to the pages. Before another CPU uses the pages, it must observe
    /// that they are mapped, by an acquiring load for instance. If the processor caches missing
    /// pages (RISC-V, LoongArch), that CPU must also call this method; or flush the pages on all
    /// CPUs.
    #[inline]
    fn publish_kernel(&self, extent: Extent) {
        let _ = extent;
        self.publish();
    }

    /// Returns `true` if the first write to a page whose entry is not marked as written walks the
    /// page tables, even if the TLB holds the entry.
    #[inline]
    fn traps_stale_writes(&self) -> bool {
        false
    }

    /// Returns `true` if a CPU may cache translations of two page sizes for one address.
    #[inline]
    fn tolerates_mixed_sizes(&self) -> bool {
        false
    }

    /// The hardware's mechanism to invalidate on other CPUs; `None` if there is none. See
    /// [`Machine::broadcaster`](shootdown::Machine::broadcaster).
    #[inline]
    fn broadcaster(&self) -> Option<&Self::Broadcaster> {
        None
    }

    /// Called repeatedly while this CPU waits for other CPUs.
    #[inline]
    fn spin_hint(&self) {
        core::hint::spin_loop();
    }
}
