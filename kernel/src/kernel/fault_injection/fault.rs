//! Faults that a kernel may have, injected while it runs: the processor does less than the engine
//! asks for.

#![expect(unsafe_code, reason = "breaks the contract of processors on purpose")]

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuSet, Entries, Extent, Memory, NotifyCosts, Refused, Root,
    Tag, Tagging,
};
use shootdown_hw::{Processor, forward, forward_processor};

use crate::kernel::arch::{Arch, Architecture};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Fault {
    /// No fault.
    None,
    /// CPUs other than the one that changes page tables drop nothing. This stands for a missing
    /// interrupt, a handler that does nothing, and a CPU that does not catch up.
    OthersKeepAll,
    /// The other CPUs drop other pages than those that were changed.
    OtherPages,
    /// The other CPUs drop the right pages of another tag.
    OtherTag,
    /// Entries under a tag stay cached when the tag is given to another space.
    TagIsReused,
    /// The other CPUs drop a guest's pages of stage 2, and keep what was combined from them.
    CombinedIsKept,
    /// The other CPUs drop what was combined from a guest's pages, and keep stage 2.
    Stage2IsKept,
    /// Not a fault of the kernel: broadcasts are refused, and the engine must interrupt instead.
    BroadcastsAreRefused,
    /// A virtual CPU is entered without a comparison with the last CPU on which it ran.
    #[cfg_attr(
        not(any(target_arch = "aarch64", target_arch = "riscv64")),
        expect(dead_code, reason = "the kernel has no guests there")
    )]
    MoveIsIgnored,
}

impl Fault {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::OthersKeepAll => "others-keep-all",
            Self::OtherPages => "other-pages",
            Self::OtherTag => "other-tag",
            Self::TagIsReused => "tag-is-reused",
            Self::CombinedIsKept => "combined-is-kept",
            Self::Stage2IsKept => "stage-2-is-kept",
            Self::BroadcastsAreRefused => "broadcasts-are-refused",
            Self::MoveIsIgnored => "move-is-ignored",
        }
    }
}

/// The fault of the next scenario. Only the first CPU uses it.
static SELECTED: AtomicU8 = AtomicU8::new(0);
/// The fault that is injected now. The first CPU writes it, and all CPUs read it. Relaxed accesses
/// are enough: another CPU drops entries only after a command (`user::COMMAND`) or a ring of its
/// bell, which follows a full fence, and both order this store before. If a CPU observed it late,
/// only the scenario would be wrong.
static INJECTED: AtomicU8 = AtomicU8::new(0);

/// Selects the fault that [`inject`] will inject.
pub(crate) fn select(fault: Fault) {
    SELECTED.store(fault as u8, Ordering::Relaxed);
}

/// Injects the selected fault.
pub(crate) fn inject() {
    INJECTED.store(SELECTED.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Removes the fault.
pub(crate) fn remove() {
    INJECTED.store(Fault::None as u8, Ordering::Relaxed);
}

/// Returns `true` if `fault` is injected.
pub(super) fn is_injected(fault: Fault) -> bool {
    INJECTED.load(Ordering::Relaxed) == fault as u8
}

/// Returns `true` on CPUs other than the one that changes page tables. That CPU always drops its
/// own entries: the scenarios test whether other CPUs are notified.
fn is_other() -> bool {
    Arch::cpu() != 0
}

/// Returns `true` if the injected fault makes this CPU keep entries that it should discard when a
/// tag is reused.
fn keeps_tag() -> bool {
    is_other() && (is_injected(Fault::OthersKeepAll) || is_injected(Fault::TagIsReused))
}

/// A number of tags that a scenario can use up. Where all CPUs share tags, each CPU needs one.
const fn tags_max(tagging: Tagging) -> usize {
    match tagging {
        Tagging::PerCpu | Tagging::Renamed | Tagging::Assigned => 3,
        Tagging::Global => 8,
    }
}

/// Distance of the wrong pages: in another pair of pages, and within the same table.
const OFFSET_BYTES: u64 = 8 << 12;

/// A processor with the fault that is injected.
#[derive(Debug)]
pub(crate) struct Faulty<P> {
    pub(crate) processor: P,
    /// Drops less than an extent, if the injected fault is one of a guest's, and returns `true`.
    pub(crate) drop_in_part: fn(&P, Extent) -> bool,
}

impl<P: Processor> Faulty<P> {
    /// The tag and the extent that the injected fault leaves of these two; `None` if it leaves
    /// nothing to drop.
    fn altered(tag: Tag, extent: Extent) -> Option<(Tag, Extent)> {
        if is_injected(Fault::OthersKeepAll) {
            return None;
        }
        let tag = if is_injected(Fault::OtherTag) { Tag(tag.0 ^ 1) } else { tag };
        let extent = if is_injected(Fault::OtherPages) && !extent.is_whole() {
            Extent::pages(extent.start() + OFFSET_BYTES, extent.page_count(), extent.page_size())
        } else {
            extent
        };
        Some((tag, extent))
    }

    /// Drops an extent on this CPU. The CPU that changes page tables has no fault.
    fn drop_local(&self, tag: Tag, extent: Extent, drop: impl FnOnce(Tag, Extent)) {
        if is_other() && (self.drop_in_part)(&self.processor, extent) {
            return;
        }
        let altered = if is_other() { Self::altered(tag, extent) } else { Some((tag, extent)) };
        if let Some((tag, extent)) = altered {
            drop(tag, extent);
        }
    }

    /// The processor's broadcaster. The engine calls its methods only if there is one.
    fn real_broadcaster(&self) -> &P::Broadcaster {
        self.processor.broadcaster().expect("the processor has a broadcaster")
    }
}

// SAFETY: all methods are those of the processor.
unsafe impl<P: Processor> Memory for Faulty<P> {
    type Word = AtomicU64;

    forward! { self => self.processor;
        fn fence();
        fn store_then_fence(word: &AtomicU64, value: u64, order: Ordering);
        fn fetch_add_then_fence(word: &AtomicU64, value: u64, order: Ordering) -> u64;
        fn fetch_or_then_fence(word: &AtomicU64, value: u64, order: Ordering) -> u64;
        fn prefetch(word: &AtomicU64);
        fn prefetch_for_write(word: &AtomicU64);
    }
}

// SAFETY: with no fault injected, the methods are those of the processor. With a fault, the
// contract is broken on purpose. The kernel then runs only scenarios. Their spaces and page tables
// stay allocated, and the kernel does not rely on what user mode reads.
unsafe impl<P: Processor> Processor for Faulty<P> {
    type TagSlots = P::TagSlots;
    type TagWords = P::TagWords;
    type Broadcaster = Self;

    forward_processor! { self => self.processor;
        workarounds, publish, synchronize, interrupts_masked, tagging, flush_ceiling, flush_costs,
        load_kernel, traps_stale_writes, spin_hint,
    }

    fn tag_count(&self) -> usize {
        self.processor.tag_count().min(tags_max(self.tagging()))
    }
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        // Without tags, loading a root discards all entries, which the fault cannot prevent.
        let entries = if keeps_tag() && tag != Tag::KERNEL { Entries::Keep } else { entries };
        // SAFETY: the caller's promise.
        unsafe { self.processor.load(root, tag, entries) }
    }
    fn invalidate(&self, tag: Tag, extent: Extent) {
        self.drop_local(tag, extent, |tag, extent| self.processor.invalidate(tag, extent));
    }
    fn invalidate_tag(&self, tag: Tag) {
        self.drop_local(tag, Extent::whole(), |tag, _| self.processor.invalidate_tag(tag));
    }
    fn invalidate_kernel(&self, extent: Extent) {
        self.drop_local(Tag::KERNEL, extent, |_, extent| self.processor.invalidate_kernel(extent));
    }
    fn invalidate_all(&self) {
        if !keeps_tag() {
            self.processor.invalidate_all();
        }
    }
    fn broadcaster(&self) -> Option<&Self> {
        self.processor.broadcaster().map(|_| self)
    }
}

// SAFETY: see the implementation of `Processor`.
unsafe impl<P: Processor> Broadcaster for Faulty<P> {
    forward! { self => self.real_broadcaster();
        fn capabilities() -> Broadcast;
        fn costs() -> NotifyCosts;
        fn complete() -> u64;
    }

    fn broadcast<B: CpuBits>(
        &self,
        cpus: &CpuSet<B>,
        tag: Tag,
        extent: Extent,
    ) -> Result<(), Refused> {
        // Parts are kept by the handlers of interrupts.
        let refused = [Fault::BroadcastsAreRefused, Fault::CombinedIsKept, Fault::Stage2IsKept];
        if refused.into_iter().any(is_injected) {
            return Err(Refused);
        }
        let broadcaster = self.real_broadcaster();
        let issue = |tag, extent| broadcaster.broadcast(cpus, tag, extent);
        Self::altered(tag, extent).map_or(Ok(()), |(tag, extent)| issue(tag, extent))
    }
    fn broadcast_kernel(&self, extent: Extent) -> Result<(), Refused> {
        let broadcaster = self.real_broadcaster();
        let altered = Self::altered(Tag::KERNEL, extent);
        altered.map_or(Ok(()), |(_, extent)| broadcaster.broadcast_kernel(extent))
    }
}
