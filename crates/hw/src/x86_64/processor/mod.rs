//! The processor's half of the engine's machine.

#![expect(unsafe_code, reason = "implements the processor's half of the engine's contract")]

use core::sync::atomic::{AtomicU64, Ordering};

use crate::Processor;
use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuSet, Entries, Extent, Memory, NotifyCosts, Reach, Refused,
    Root, Tag, TagSlot, Tagging,
};

use crate::errata::Workarounds;
use crate::x86_64::features::Features;
use crate::x86_64::hyperv::PcidProcessor;
#[cfg(not(test))]
use crate::x86_64::instructions;
#[cfg(test)]
use crate::x86_64::recorded as instructions;
use crate::x86_64::{cr3, invlpgb};

/// How the kernel maps its own pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelPages {
    /// All entries have bit 8 set: a page is cached once, under every tag.
    Global,
    /// Some entries have bit 8 clear: a page is cached under each tag separately. `INVLPG` drops it
    /// only under the loaded tag. So with tags, each flush of kernel pages drops all entries.
    PerTag,
}

/// An x86-64 processor.
#[derive(Clone, Copy, Debug)]
pub struct X86_64 {
    features: Features,
    kernel_pages: KernelPages,
    notify_costs: NotifyCosts,
    /// The kernel sets `CR4.PGE` and `CR4.PCIDE`, and this processor does not.
    leaves_cr4: bool,
}

/// Number of PCIDs for spaces on a CPU if PCIDs are per CPU: six, as in Linux. Few programs take
/// turns on a CPU, and a switch searches these slots.
const OWN_TAGS: usize = 6;
/// Number of slots for the generations of spaces on a CPU if all CPUs share PCIDs. The PCID selects
/// the slot. They take 2 KiB for each CPU.
const SLOTS: usize = 64;
/// A bit for each PCID, and a bit for each PCID that is pinned.
const TAG_WORDS: usize = cr3::PCID_COUNT / 64 * 2;

/// Linux's limit for all processors, at about 100 ns for each `INVLPG`.
const FLUSH_CEILING: usize = 33;

/// The assumed costs if the kernel has not measured any: an EPYC with `INVLPGB` interrupts the
/// first CPU in about 2 µs and each further CPU in 500 ns, and completes a broadcast in about half
/// a microsecond. No such measurement has been published. A kernel that has measured the costs sets
/// them by [`X86_64::with_notify_costs`].
const ASSUMED_COSTS: NotifyCosts = NotifyCosts {
    interrupt_ns: 2000,
    interrupt_each_ns: 500,
    broadcast_ns: 560,
    broadcast_each_ns: 0,
    operation_ns: 60,
};

impl X86_64 {
    /// A processor with these features.
    ///
    /// # Safety
    ///
    /// Every CPU that uses the processor must have these features, and must have called
    /// [`set_up_cpu`](Processor::set_up_cpu), or [`enable`](super::enable) with them, in ring 0.
    /// The features must have the workarounds that each CPU needs, which `set_up_cpu` checks.
    /// Features with `invlpgb_pages` must have tags. The kernel must map its pages as
    /// `kernel_pages` declares.
    #[must_use]
    pub const unsafe fn new(features: Features, kernel_pages: KernelPages) -> Self {
        Self { features, kernel_pages, notify_costs: ASSUMED_COSTS, leaves_cr4: false }
    }

    /// Sets the measured costs of notification.
    #[must_use]
    pub const fn with_notify_costs(self, notify_costs: NotifyCosts) -> Self {
        Self { notify_costs, ..self }
    }

    /// Leaves CR4 to a kernel that has a copy of the register, and may know of a reason to do
    /// without tags. [`set_up_cpu`](Processor::set_up_cpu) then panics on a CPU on which tags are
    /// [enabled](super::tags_are_enabled) and the features have none, or the reverse.
    #[must_use]
    pub const fn with_cr4_of_kernel(self) -> Self {
        Self { leaves_cr4: true, ..self }
    }

    /// Switches broadcasts off: every flush, of kernel pages too, notifies by interrupts, and tags
    /// are per CPU.
    #[must_use]
    pub const fn without_broadcasts(self) -> Self {
        Self { features: Features { invlpgb_pages: None, ..self.features }, ..self }
    }

    pub(super) const fn features(&self) -> Features {
        self.features
    }

    /// Number of pages that one `INVLPGB` names. Call this only if the processor has the
    /// instruction.
    pub(super) fn broadcast_pages(&self) -> u32 {
        self.features.invlpgb_pages.expect("the processor has a broadcaster")
    }

    /// Returns `true` if `INVLPG` of the pages of a kernel extent is not enough.
    ///
    /// With tags, pages that are not global are cached under each tag, and so are entries of upper
    /// levels, *whatever* their leaves are. `INVLPG` drops those of the loaded tag, and no other
    /// instruction names one address under all tags.
    const fn must_drop_everything(&self, extent: Extent) -> bool {
        extent.is_whole()
            || self.features.has_pcid
                && (extent.frees_tables() || matches!(self.kernel_pages, KernelPages::PerTag))
    }
}

// SAFETY: locked operations are full barriers (SDM 3A, "Loads and Stores Are Not Reordered with
// Locked Instructions"), and so are the three combined operations. The compiler moves no access
// across a read-modify-write operation that acquires and releases.
unsafe impl Memory for X86_64 {
    type Word = AtomicU64;

    #[inline]
    fn fence(&self) {
        instructions::fence();
    }

    /// Loads already overlap, as far ahead as the CPU executes.
    const PREFETCHES: bool = false;
    /// Locked operations do not overlap.
    const PREFETCHES_FOR_WRITE: bool = true;

    /// `prefetchw`.
    #[inline]
    fn prefetch_for_write(&self, word: &AtomicU64) {
        instructions::prefetch_for_write(word.as_ptr());
    }

    /// One `xchg`.
    #[inline]
    fn store_then_fence(&self, word: &AtomicU64, value: u64, _: Ordering) {
        word.swap(value, Ordering::SeqCst);
    }

    /// One `lock xadd`.
    #[inline]
    fn fetch_add_then_fence(&self, word: &AtomicU64, value: u64, _: Ordering) -> u64 {
        word.fetch_add(value, Ordering::SeqCst)
    }

    /// `lock or`, or `lock cmpxchg` if the result is used.
    #[inline]
    fn fetch_or_then_fence(&self, word: &AtomicU64, value: u64, _: Ordering) -> u64 {
        word.fetch_or(value, Ordering::SeqCst)
    }
}

// SAFETY:
// - MOV to CR3 and CR4 and INVLPG are serialising. INVPCID has dropped its entries before later
//   accesses are translated. TLBSYNC waits for all CPUs. Each function documents the entries that
//   it drops.
// - Walkers read page tables coherently, as loads do, and each CPU's stores become visible in
//   order.
//   So publishing an entry needs no instruction.
// - The results of methods depend only on values that never change.
unsafe impl Processor for X86_64 {
    type TagSlots = [TagSlot; SLOTS];
    type TagWords = [AtomicU64; TAG_WORDS];
    type Broadcaster = Self;

    /// See [`enable`](super::enable).
    ///
    /// # Panics
    ///
    /// If the CPU needs a workaround, or lacks a feature, that the engine's features do not have.
    unsafe fn set_up_cpu(&self) {
        self.features.admit(instructions::detect());
        if self.leaves_cr4 && !self.workarounds().contains(Workarounds::NO_FLUSH_FILTER) {
            let is_right = instructions::tags_are_enabled() == self.features.has_pcid;
            assert!(is_right, "CR4.PCIDE of this CPU differs from that of the first");
            return;
        }
        // SAFETY: the caller's promise. `new` promises the features.
        unsafe { instructions::enable(self.features) };
    }

    #[inline]
    fn workarounds(&self) -> Workarounds {
        self.features.workarounds
    }

    #[inline]
    fn publish(&self) {}

    #[inline]
    fn interrupts_masked(&self) -> bool {
        instructions::interrupts_masked()
    }

    /// Global with `INVLPGB`, which names one tag on all CPUs.
    #[inline]
    fn tagging(&self) -> Tagging {
        if self.features.invlpgb_pages.is_some() { Tagging::Global } else { Tagging::PerCpu }
    }

    #[inline]
    fn tag_count(&self) -> usize {
        match self.tagging() {
            _ if !self.features.has_pcid => 0,
            Tagging::Global => cr3::PCID_COUNT - 1,
            _ => OWN_TAGS,
        }
    }

    #[inline]
    fn flush_ceiling(&self) -> usize {
        FLUSH_CEILING
    }

    #[inline]
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        let value = if self.features.has_pcid {
            cr3::with_pcid(root, tag, entries)
        } else {
            cr3::without_pcid(root)
        };
        // SAFETY: the caller's promise.
        unsafe { instructions::write_cr3(value) }
    }

    /// With tags, entries under the kernel's tag stay cached. Without tags, no entry does.
    #[inline]
    unsafe fn load_kernel(&self, root: Root) {
        // SAFETY: the caller's promise.
        unsafe { self.load(root, Tag::KERNEL, Entries::Keep) }
    }

    #[inline]
    fn invalidate(&self, _: Tag, extent: Extent) {
        debug_assert!(!extent.is_whole(), "a whole extent names no pages");
        extent.addresses().for_each(instructions::invlpg);
    }

    #[inline]
    fn invalidate_tag(&self, _: Tag) {
        instructions::reload_cr3();
    }

    #[inline]
    fn invalidate_kernel(&self, extent: Extent) {
        if self.must_drop_everything(extent) {
            self.invalidate_all();
        } else {
            extent.addresses().for_each(instructions::invlpg);
        }
    }

    #[inline]
    fn invalidate_all(&self) {
        if self.features.has_invpcid {
            instructions::invpcid_all();
        } else {
            instructions::toggle_global_pages();
        }
    }

    /// Before the first write by an entry that is cached as not written, the processor walks again
    /// and sets bit 6 in one locked operation. If the entry is not present by then, the write
    /// faults (SDM 3A, section 4.8). With [`Workarounds::LATE_MARKS`], the bit may be set in an
    /// entry that is not present.
    #[inline]
    fn traps_stale_writes(&self) -> bool {
        !self.workarounds().contains(Workarounds::LATE_MARKS)
    }

    /// The processor may cache both sizes and use either (SDM 3A, section 4.10.2.3). The flush
    /// drops the entries of any size, so the new page is used after it. Linux does not interrupt a
    /// lazy CPU either, which uses neither size, when a large page is split. With
    /// [`Workarounds::ONE_PAGE_SIZE`], both sizes are a machine check.
    #[inline]
    fn tolerates_mixed_sizes(&self) -> bool {
        !self.workarounds().contains(Workarounds::ONE_PAGE_SIZE)
    }

    /// Returns a broadcaster only with `INVLPGB`.
    #[inline]
    fn broadcaster(&self) -> Option<&Self> {
        self.features.invlpgb_pages.map(|_| self)
    }
}

// SAFETY: PCIDs are tags.
unsafe impl PcidProcessor for X86_64 {
    #[inline]
    fn pcid_max(&self) -> usize {
        if self.tag_count() == 0 { 0 } else { cr3::PCID_COUNT - 1 }
    }
}

// SAFETY: `INVLPGB` drops the named entries on all CPUs, and `TLBSYNC` waits until they have done
// so (AMD's manual, volume 3).
unsafe impl Broadcaster for X86_64 {
    #[inline]
    fn capabilities(&self) -> Broadcast {
        let pages_per_operation = self.broadcast_pages() as usize;
        let operation_ceiling = FLUSH_CEILING.div_ceil(pages_per_operation);
        let (reach, completes_at_issue) = (Reach::Everyone, false);
        Broadcast { reach, pages_per_operation, operation_ceiling, completes_at_issue }
    }

    #[inline]
    fn costs(&self) -> NotifyCosts {
        self.notify_costs
    }

    fn broadcast<B: CpuBits>(
        &self,
        _: &CpuSet<B>,
        tag: Tag,
        extent: Extent,
    ) -> Result<(), Refused> {
        let pages = self.broadcast_pages();
        // `INVLPGB` is weakly ordered. Without the fence, it could overtake earlier stores to page
        // tables: another CPU would drop an entry, and then walk to the old one.
        self.fence();
        invlpgb::in_space(tag, extent, pages).for_each(instructions::invlpgb);
        Ok(())
    }

    fn broadcast_kernel(&self, extent: Extent) -> Result<(), Refused> {
        let pages = self.broadcast_pages();
        // See `broadcast`.
        self.fence();
        invlpgb::everywhere(extent, pages).for_each(instructions::invlpgb);
        Ok(())
    }

    fn complete(&self) -> u64 {
        instructions::tlbsync();
        if self.workarounds().contains(Workarounds::SECOND_TLBSYNC) {
            instructions::tlbsync();
        }
        0
    }
}

#[cfg(test)]
mod tests;
