//! Faults that a kernel may have, put in while it runs: the processor does less than it is told to.

#![expect(unsafe_code, reason = "breaks the contract of processors, which is what it is for")]

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuSet, Entries, Extent, FlushCosts, Memory, NotifyCosts,
    Root, Tag, Tagging,
};
use shootdown_hw::{Processor, forward};

use crate::kernel::arch::{Arch, Architecture};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// CPUs other than the one that changes page tables drop nothing: it tells nobody, or who is
    /// told does nothing, or who comes back does not make up for what it missed.
    OthersKeepAll,
    /// They drop other pages than those that were changed.
    OtherPages,
    /// They drop the right pages of another tag.
    OtherTag,
    /// What is cached under a tag stays there when the tag becomes another space's.
    TagIsReused,
}

impl Fault {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::OthersKeepAll => "others-keep-all",
            Self::OtherPages => "other-pages",
            Self::OtherTag => "other-tag",
            Self::TagIsReused => "tag-is-reused",
        }
    }
}

/// The first CPU's alone.
static CHOSEN: AtomicU8 = AtomicU8::new(0);
/// Written by the first CPU, read by all, and ordered by what makes another CPU drop anything: an
/// order to it (`user::ORDER`), or a flush, whose ring comes after a full fence. Nothing is wrong
/// with a CPU that sees it late but the trial.
static PRESENT: AtomicU8 = AtomicU8::new(0);

/// Which fault is to be tried.
pub(crate) fn choose(fault: Fault) {
    CHOSEN.store(fault as u8, Ordering::Relaxed);
}

/// From here on it is in.
pub(crate) fn inject() {
    PRESENT.store(CHOSEN.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// From here on all is well.
pub(crate) fn remove() {
    PRESENT.store(Fault::None as u8, Ordering::Relaxed);
}

/// Whether this fault is in.
fn acts(fault: Fault) -> bool {
    PRESENT.load(Ordering::Relaxed) == fault as u8
}

/// Whether this is not the CPU that changes page tables. What that one drops of its own is dropped
/// in any case: what is tried is whether others are told.
fn is_other() -> bool {
    Arch::cpu() != 0
}

/// As many tags as it takes for them to be used up within a trial. Where they are all CPUs', there
/// must be one for each.
const fn tags_max(tagging: Tagging) -> usize {
    match tagging {
        Tagging::PerCpu | Tagging::Renamed => 3,
        Tagging::Global => 8,
    }
}

/// So far off are other pages: in another pair, and within the same table.
const OFF: u64 = 8 << 12;

/// A processor, with the fault that is in.
#[derive(Debug)]
pub(crate) struct Faulty<P>(pub(crate) P);

impl<P: Processor> Faulty<P> {
    /// Drops an extent under a tag, or what the injected fault makes of the two.
    fn drop(tag: Tag, extent: Extent, drop: impl FnOnce(Tag, Extent)) {
        if acts(Fault::OthersKeepAll) {
            return;
        }
        let tag = if acts(Fault::OtherTag) { Tag(tag.0 ^ 1) } else { tag };
        let extent = if acts(Fault::OtherPages) && !extent.is_whole() {
            Extent::pages(extent.start() + OFF, extent.page_count(), extent.page_size())
        } else {
            extent
        };
        drop(tag, extent);
    }

    /// The same on this CPU. The CPU that changes page tables drops what it must.
    fn drop_here(tag: Tag, extent: Extent, drop: impl FnOnce(Tag, Extent)) {
        if is_other() { Self::drop(tag, extent, drop) } else { drop(tag, extent) }
    }

    /// The processor's broadcaster. The engine asks only where there is one.
    fn real_broadcaster(&self) -> &P::Broadcaster {
        self.0.broadcaster().expect("the processor has a broadcaster")
    }
}

// SAFETY: the memory is the processor's.
unsafe impl<P: Processor> Memory for Faulty<P> {
    type Word = AtomicU64;

    forward! { self => self.0;
        fn fence();
        fn store_then_fence(word: &AtomicU64, value: u64, order: Ordering);
        fn fetch_add_then_fence(word: &AtomicU64, value: u64, order: Ordering) -> u64;
        fn fetch_or_then_fence(word: &AtomicU64, value: u64, order: Ordering) -> u64;
        fn prefetch(word: &AtomicU64);
    }
}

// SAFETY: with no fault injected, that of the processor. With one, none: then the kernel runs
// scenarios alone, whose spaces stay, and in which nobody relies on what user mode finds.
unsafe impl<P: Processor> Processor for Faulty<P> {
    type TagSlots = P::TagSlots;
    type TagWords = P::TagWords;
    type Broadcaster = Self;

    forward! { self => self.0;
        fn publish();
        fn synchronize();
        fn interrupts_masked() -> bool;
        fn tagging() -> Tagging;
        fn flush_ceiling() -> usize;
        fn flush_costs() -> FlushCosts;
        fn traps_stale_writes() -> bool;
        fn spin_hint();
    }

    fn tag_count(&self) -> usize {
        self.0.tag_count().min(tags_max(self.tagging()))
    }
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        let keeps = acts(Fault::OthersKeepAll) || acts(Fault::TagIsReused);
        // Without tags, to load is to discard: that cannot be left out.
        let entries =
            if keeps && is_other() && tag != Tag::KERNEL { Entries::Keep } else { entries };
        // SAFETY: as our caller promises.
        unsafe { self.0.load(root, tag, entries) }
    }
    unsafe fn load_kernel(&self, root: Root) {
        // SAFETY: as our caller promises.
        unsafe { self.0.load_kernel(root) }
    }
    fn invalidate(&self, tag: Tag, extent: Extent) {
        Self::drop_here(tag, extent, |tag, extent| self.0.invalidate(tag, extent));
    }
    fn invalidate_tag(&self, tag: Tag) {
        Self::drop_here(tag, Extent::whole(), |tag, _| self.0.invalidate_tag(tag));
    }
    fn invalidate_kernel(&self, extent: Extent) {
        Self::drop_here(Tag::KERNEL, extent, |_, extent| self.0.invalidate_kernel(extent));
    }
    fn invalidate_all(&self) {
        let keeps = acts(Fault::OthersKeepAll) || acts(Fault::TagIsReused);
        if !(keeps && is_other()) {
            self.0.invalidate_all();
        }
    }
    fn broadcaster(&self) -> Option<&Self> {
        self.0.broadcaster().map(|_| self)
    }
}

// SAFETY: as above.
unsafe impl<P: Processor> Broadcaster for Faulty<P> {
    forward! { self => self.real_broadcaster();
        fn capabilities() -> Broadcast;
        fn costs() -> NotifyCosts;
        fn complete() -> u64;
    }

    fn broadcast<B: CpuBits>(&self, cpus: &CpuSet<B>, tag: Tag, extent: Extent) {
        let broadcaster = self.real_broadcaster();
        Self::drop(tag, extent, |tag, extent| broadcaster.broadcast(cpus, tag, extent));
    }
    fn broadcast_kernel(&self, extent: Extent) {
        let broadcaster = self.real_broadcaster();
        Self::drop(Tag::KERNEL, extent, |_, extent| broadcaster.broadcast_kernel(extent));
    }
}
