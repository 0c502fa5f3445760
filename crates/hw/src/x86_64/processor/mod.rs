//! The processor, as the engine is told of it.

#![expect(unsafe_code, reason = "fulfils the contract of the processor's half")]

use core::sync::atomic::{AtomicU64, Ordering};

use crate::Processor;
use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuSet, Entries, Extent, Memory, NotifyCosts, Reach, Root,
    Tag, TagSlot, Tagging,
};

use crate::x86_64::features::Features;
#[cfg(not(test))]
use crate::x86_64::instructions;
#[cfg(test)]
use crate::x86_64::recorded as instructions;
use crate::x86_64::{cr3, invlpgb, invpcid};

/// How the kernel maps its own pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelPages {
    /// All with bit 8 of their entries set: cached once, under every tag.
    Global,
    /// Some without it: cached under each tag anew. `INVLPG` finds them under the loaded tag
    /// alone, so with tags each flush of the kernel's pages drops everything.
    ByTag,
}

/// An x86-64 processor.
#[derive(Clone, Copy, Debug)]
pub struct X86_64 {
    features: Features,
    kernel_pages: KernelPages,
    notify_costs: NotifyCosts,
}

/// How many PCIDs a CPU gives to spaces where they are its own: as many as Linux uses. The programs
/// that take turns on a CPU are few, and a switch searches these.
const OWN_TAGS: usize = 6;
/// For how many spaces a CPU remembers up to which generation its TLB is clean, where all CPUs
/// share PCIDs, and the PCID names the slot: 2 KiB for each CPU.
const SLOTS: usize = 64;
/// A bit for each PCID, and as many for those that are pinned.
const TAG_WORDS: usize = cr3::PCID_COUNT / 64 * 2;

/// Linux's, for all processors: at about 100 ns for each `INVLPG`.
const FLUSH_CEILING: usize = 33;

/// What is assumed where the kernel has measured nothing: of an EPYC with `INVLPGB`, which
/// interrupts in some 2 µs for the first and 500 ns for each one more, and completes a broadcast in
/// half a microsecond. Nobody has published such a measurement; a kernel that has made one tells it
/// by [`X86_64::with_notify_costs`].
const ASSUMED_COSTS: NotifyCosts = NotifyCosts {
    interrupt_ns: 2000,
    interrupt_each_ns: 500,
    broadcast_ns: 560,
    broadcast_each_ns: 0,
    operation_ns: 60,
};

impl X86_64 {
    /// A processor that can do so much.
    ///
    /// # Safety
    ///
    /// Every CPU on which it is used has these features, and [`enable`](super::enable) has been
    /// called there with them, in ring 0. The kernel maps its pages as it says.
    #[must_use]
    pub const unsafe fn new(features: Features, kernel_pages: KernelPages) -> Self {
        Self { features, kernel_pages, notify_costs: ASSUMED_COSTS }
    }

    /// The same, with what has been measured.
    #[must_use]
    pub const fn with_notify_costs(self, notify_costs: NotifyCosts) -> Self {
        Self { notify_costs, ..self }
    }

    /// What it can do.
    #[must_use]
    pub const fn features(&self) -> Features {
        self.features
    }

    /// Number of pages that one `INVLPGB` names. Ask only a processor that has the instruction.
    fn broadcast_pages(&self) -> u32 {
        self.features.invlpgb_pages().expect("the processor has a broadcaster")
    }

    /// Whether `INVLPG` of one page of the kernel's does not drop all that is asked for.
    ///
    /// With tags, pages that are not global are cached under each, and so are upper levels,
    /// *whatever* their leaves say: `INVLPG` drops those of the loaded tag. No other instruction
    /// names one address under all tags, either.
    const fn must_drop_everything(&self, extent: Extent) -> bool {
        extent.is_whole()
            || self.features.has_pcid()
                && (extent.frees_tables() || matches!(self.kernel_pages, KernelPages::ByTag))
    }
}

// SAFETY: locked operations are full barriers (SDM 3A, "Loads and Stores Are Not Reordered with
// Locked Instructions"), and so are the three that are built on them. The compiler moves nothing
// across a read-modify-write that acquires and releases.
unsafe impl Memory for X86_64 {
    type Word = AtomicU64;

    #[inline]
    fn fence(&self) {
        instructions::fence();
    }

    /// Loads overlap by themselves, as far ahead as the CPU looks.
    const PREFETCHES: bool = false;

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
// - MOV to CR3 and CR4 and INVLPG are serialising; INVPCID has dropped what it is to drop before
//   what follows is translated; TLBSYNC waits for all CPUs. What each drops is said where it is.
// - Walkers read page tables as loads do, coherently; and no CPU's stores are seen out of order. So
//   nothing is needed to publish an entry.
// - What is answered depends on what never changes.
unsafe impl Processor for X86_64 {
    type TagSlots = [TagSlot; SLOTS];
    type TagWords = [AtomicU64; TAG_WORDS];
    type Broadcaster = Self;

    #[inline]
    fn publish(&self) {}

    #[inline]
    fn interrupts_masked(&self) -> bool {
        instructions::interrupts_masked()
    }

    /// Global with `INVLPGB`, which names a tag on all CPUs at once.
    #[inline]
    fn tagging(&self) -> Tagging {
        if self.features.invlpgb_pages().is_some() { Tagging::Global } else { Tagging::PerCpu }
    }

    #[inline]
    fn tag_count(&self) -> usize {
        match self.tagging() {
            _ if !self.features.has_pcid() => 0,
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
        let value = if self.features.has_pcid() {
            cr3::with_pcid(root, tag, entries)
        } else {
            cr3::without_pcid(root)
        };
        // SAFETY: as our caller promises.
        unsafe { instructions::write_cr3(value) }
    }

    /// With tags, what the kernel has cached under its own stays; without, nothing does.
    #[inline]
    unsafe fn load_kernel(&self, root: Root) {
        // SAFETY: as our caller promises.
        unsafe { self.load(root, Tag::KERNEL, Entries::Keep) }
    }

    #[inline]
    fn invalidate(&self, _: Tag, extent: Extent) {
        debug_assert!(!extent.is_whole(), "it names no pages");
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
        if self.features.has_invpcid() {
            instructions::invpcid(invpcid::Scope::Everything);
        } else {
            instructions::toggle_global_pages();
        }
    }

    /// Before it first writes through an entry that it has cached as not yet written, the processor
    /// walks again and sets bit 6, in one locked operation; where the entry is not present by then,
    /// it faults (SDM 3A, section 4.8).
    #[inline]
    fn traps_stale_writes(&self) -> bool {
        true
    }

    /// The processor may cache both, and use either (SDM 3A, section 4.10.2.3): what is used after
    /// the flush is the new one, for the flush drops what is cached of any size. A lazy CPU, which
    /// uses neither, is not interrupted by Linux either when a large page is split.
    #[inline]
    fn tolerates_mixed_sizes(&self) -> bool {
        true
    }

    /// Only with `INVLPGB`.
    #[inline]
    fn broadcaster(&self) -> Option<&Self> {
        self.features.invlpgb_pages().map(|_| self)
    }
}

// SAFETY: `INVLPGB` drops on all CPUs what it names, and `TLBSYNC` waits until they have done so
// (AMD's manual, volume 3).
unsafe impl Broadcaster for X86_64 {
    #[inline]
    fn capabilities(&self) -> Broadcast {
        let pages_per_operation = self.broadcast_pages() as usize;
        let operation_ceiling = FLUSH_CEILING.div_ceil(pages_per_operation);
        Broadcast { reach: Reach::Everyone, pages_per_operation, operation_ceiling }
    }

    #[inline]
    fn costs(&self) -> NotifyCosts {
        self.notify_costs
    }

    fn broadcast<B: CpuBits>(&self, _: &CpuSet<B>, tag: Tag, extent: Extent) {
        let pages = self.broadcast_pages();
        // `INVLPGB` is weakly ordered: it must not overtake the stores to the page tables that it
        // is for, else another CPU drops an entry, and walks to the old one.
        self.fence();
        if extent.is_whole() {
            instructions::invlpgb(invlpgb::tag(tag));
        } else {
            invlpgb::pages(tag, extent, pages).for_each(instructions::invlpgb);
        }
    }

    fn broadcast_kernel(&self, extent: Extent) {
        let pages = self.broadcast_pages();
        // As above.
        self.fence();
        if extent.is_whole() {
            instructions::invlpgb(invlpgb::everything());
        } else {
            invlpgb::kernel_pages(extent, pages).for_each(instructions::invlpgb);
        }
    }

    fn complete(&self) -> u64 {
        instructions::tlbsync();
        0
    }
}

#[cfg(test)]
mod tests;
