//! Kernel page-table isolation (KPTI, PTI): two roots and two tags for each space.
//!
//! User mode runs on a *user half*: a root that maps the user's pages and the little of the kernel
//! that enters and leaves user mode, under a PCID of its own. The kernel runs on the *kernel half*:
//! the root and the tag that the engine knows. The two roots share the tables below them that map
//! user pages, so one change of an entry concerns both PCIDs:
//!
//! | | PCID |
//! |---|---|
//! | kernel half | the engine's tag |
//! | user half | the tag with bit 11 (Linux: `X86_CR3_PTI_PCID_USER_BIT`) |
//!
//! `INVLPG` drops pages of the loaded PCID alone, which is the kernel half's whenever the engine
//! runs. An invalidation therefore [marks](UserMarks) the user half, and the return to user mode
//! drops it: the load of the user half then lacks bit 63 (Linux: `user_pcid_flush_mask`). Between
//! the two, no instruction can use the entries, not even by speculation, because their PCID is not
//! loaded. `INVLPGB` names both PCIDs, and marks nothing.
//!
//! Without PCIDs there are two roots, and each load drops everything that is not global.
//!
//! # Obligations of the kernel
//!
//! - Each way to user mode, the return from an interrupt included, loads the value of
//!   [`Halves::user`], made by [`Kpti::halves`] with interrupts masked since then. Each way back
//!   loads [`Halves::kernel`] before it calls the engine.
//! - The kernel's pages that a user root maps are not changed while CPUs run; or they are global,
//!   or flushed as [`Extent::whole`]. (An address of the kernel is invalidated in the user half
//!   only with everything else.)
//! - An entry of the kernel's root that maps user pages is copied to the user root before user mode
//!   needs it. A copy of an entry whose table is freed is removed before the flush. A user root
//!   stays allocated as long as the space's root.
//! - An NMI or machine check that interrupts the way to user mode restores the CR3 that it found,
//!   with bit 63 if the register held the user half. It calls no engine, so it marks nothing: a
//!   value that was made before it is right after it.

#![expect(unsafe_code, reason = "implements the processor's half of the engine's contract")]

use core::sync::atomic::{AtomicU64, Ordering};

use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuSet, Entries, Extent, Memory, NotifyCosts, Refused, Root,
    Tag,
};

use crate::x86_64::hyperv::PcidProcessor;
#[cfg(not(test))]
use crate::x86_64::instructions;
use crate::x86_64::processor::X86_64;
#[cfg(test)]
use crate::x86_64::recorded as instructions;
use crate::x86_64::{cr3, invlpgb};
use crate::{Processor, forward, forward_memory, forward_processor};

/// A bit for each tag.
const WORDS: usize = cr3::USER_PCID as usize / u64::BITS as usize;

/// The tags of a CPU whose user half must be dropped before user mode uses it. Each CPU has its
/// own, which no other CPU accesses.
///
/// There is therefore no ordering between CPUs to keep: the handler of a flush marks, and the same
/// CPU's return to user mode looks, later in program order. The accesses are read-modify-write
/// operations, so that a handler between two of them loses no mark.
#[derive(Debug)]
pub struct UserMarks {
    words: [AtomicU64; WORDS],
}

impl UserMarks {
    /// Marks of a CPU that has marked nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: [const { AtomicU64::new(0) }; WORDS] }
    }

    const fn position(tag: Tag) -> (usize, u64) {
        let tag = (tag.0 & (cr3::USER_PCID - 1)) as usize;
        (tag / u64::BITS as usize, 1 << (tag % u64::BITS as usize))
    }

    fn mark(&self, tag: Tag) {
        let (word, bit) = Self::position(tag);
        // Relaxed: only this CPU accesses the word.
        self.words[word].fetch_or(bit, Ordering::Relaxed);
    }

    /// Removes the mark of a tag. Returns `true` if there was one.
    pub(crate) fn take(&self, tag: Tag) -> bool {
        let (word, bit) = Self::position(tag);
        // Relaxed: as above. Most returns find no mark, and write nothing.
        self.words[word].load(Ordering::Relaxed) & bit != 0
            && self.words[word].fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }
}

impl Default for UserMarks {
    fn default() -> Self {
        Self::new()
    }
}

/// Values of CR3 for one stay in user mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halves {
    /// Loaded as the last step before user mode.
    pub user: u64,
    /// Loaded as the first step after user mode. Keeps what is cached.
    pub kernel: u64,
}

/// The way to the marks of the CPU that calls: [`UserMarks`], or those that a kernel has already
/// (Linux: `user_pcid_flush_mask`).
pub trait MarkUserHalf: Copy + Send + Sync + 'static {
    /// Makes this CPU drop the user half of `tag` before user mode uses it.
    fn mark(&self, tag: Tag);
}

impl MarkUserHalf for fn() -> &'static UserMarks {
    #[inline]
    fn mark(&self, tag: Tag) {
        self().mark(tag);
    }
}

/// An x86-64 processor whose user mode runs on roots of its own.
#[derive(Clone, Copy, Debug)]
pub struct Kpti<M = fn() -> &'static UserMarks> {
    processor: X86_64,
    marks: M,
}

impl<M: MarkUserHalf> Kpti<M> {
    /// Isolates user mode on `processor`. `marks` leads to the marks of the CPU that calls: a
    /// function that returns them.
    ///
    /// # Safety
    ///
    /// The kernel keeps the [obligations](self#obligations-of-the-kernel). Each CPU has its own
    /// marks, always the same.
    #[must_use]
    pub const unsafe fn new(processor: X86_64, marks: M) -> Self {
        Self { processor, marks }
    }

    /// Defers the invalidation of a user half to this CPU's return to user mode.
    #[inline]
    fn mark(&self, tag: Tag) {
        if self.processor.features().has_pcid {
            self.marks.mark(tag);
        }
    }
}

impl Kpti {
    /// The values of CR3 for the next stay in user mode, in the space that is loaded. `user_root`
    /// is the root of its user half: a page that the kernel keeps beside each root (Linux), or one
    /// for each CPU into which the kernel copies the entries (Xen).
    ///
    /// Removes the mark of the user half: the value [`user`](Halves::user) drops what is cached.
    ///
    /// # Safety
    ///
    /// Call this with interrupts masked, on the kernel half, and load `user` on this CPU before
    /// they are unmasked and without a call of the engine in between.
    #[must_use]
    pub unsafe fn halves(&self, user_root: Root) -> Halves {
        let loaded = instructions::read_cr3();
        if !self.processor.features().has_pcid {
            return Halves { user: cr3::without_pcid(user_root), kernel: loaded };
        }
        let (root, tag) = cr3::parts(loaded);
        debug_assert!(tag.0 & cr3::USER_PCID == 0, "the user half is loaded");
        let entries = if (self.marks)().take(tag) { Entries::Discard } else { Entries::Keep };
        Halves {
            user: cr3::with_pcid(user_root, user_tag(tag), entries),
            kernel: cr3::with_pcid(root, tag, Entries::Keep),
        }
    }
}

const fn user_tag(tag: Tag) -> Tag {
    Tag(tag.0 | cr3::USER_PCID)
}

// SAFETY: the barriers are those of the processor.
unsafe impl<M: MarkUserHalf> Memory for Kpti<M> {
    forward_memory! { self => self.processor, X86_64 }
}

// SAFETY: each method invalidates the kernel half as the processor does, and drops the user half
// before it is used again. Invalidations under all tags include the user halves.
unsafe impl<M: MarkUserHalf> Processor for Kpti<M> {
    type TagSlots = <X86_64 as Processor>::TagSlots;
    type TagWords = <X86_64 as Processor>::TagWords;
    type Broadcaster = Self;

    forward_processor! { self => self.processor;
        set_up_cpu, workarounds, publish, interrupts_masked, tagging, flush_ceiling, flush_costs,
        load_kernel, invalidate_kernel, invalidate_all, traps_stale_writes, tolerates_mixed_sizes,
    }

    /// Half of the PCIDs are those of user halves.
    #[inline]
    fn tag_count(&self) -> usize {
        self.processor.tag_count().min(usize::from(cr3::USER_PCID) - 1)
    }

    #[inline]
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        if entries == Entries::Discard {
            self.mark(tag);
        }
        // SAFETY: the caller's promise.
        unsafe { self.processor.load(root, tag, entries) };
    }

    #[inline]
    fn invalidate(&self, tag: Tag, extent: Extent) {
        self.processor.invalidate(tag, extent);
        self.mark(tag);
    }

    #[inline]
    fn invalidate_tag(&self, tag: Tag) {
        self.processor.invalidate_tag(tag);
        self.mark(tag);
    }

    #[inline]
    fn broadcaster(&self) -> Option<&Self> {
        self.processor.broadcaster().map(|_| self)
    }
}

// SAFETY: the PCIDs from `USER_PCID` on are those of user halves, and no tags.
unsafe impl<M: MarkUserHalf> PcidProcessor for Kpti<M> {
    #[inline]
    fn pcid_max(&self) -> usize {
        if self.tag_count() == 0 { 0 } else { usize::from(cr3::USER_PCID) - 1 }
    }
}

// SAFETY: as for `X86_64`, under both tags.
unsafe impl<M: MarkUserHalf> Broadcaster for Kpti<M> {
    /// Each operation is executed once for each half.
    #[inline]
    fn costs(&self) -> NotifyCosts {
        let costs = self.processor.costs();
        NotifyCosts { operation_ns: costs.operation_ns * 2, ..costs }
    }

    fn broadcast<B: CpuBits>(
        &self,
        _: &CpuSet<B>,
        tag: Tag,
        extent: Extent,
    ) -> Result<(), Refused> {
        let pages = self.processor.broadcast_pages();
        // See `X86_64`: `INVLPGB` could overtake earlier stores to page tables.
        self.fence();
        for half in [tag, user_tag(tag)] {
            invlpgb::in_space(half, extent, pages).for_each(instructions::invlpgb);
        }
        Ok(())
    }

    forward! { self => self.processor;
        fn capabilities() -> Broadcast;
        fn broadcast_kernel(extent: Extent) -> Result<(), Refused>;
        fn complete() -> u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errata::Workarounds;
    use crate::x86_64::Features;
    use crate::x86_64::processor::KernelPages;
    use crate::x86_64::recorded::Step::{Fence, Invlpg, Invlpgb, InvpcidAll, ReloadCr3, WriteCr3};
    use crate::x86_64::recorded::{set_cr3, steps_of};
    use shootdown::PageSize;

    const KEEP: u64 = 1 << 63;
    const USER_ROOT: Root = Root(0x9000);

    fn marks() -> &'static UserMarks {
        // Each thread is a CPU.
        std::thread_local! {
            static MARKS: &'static UserMarks = std::boxed::Box::leak(std::boxed::Box::default());
        }
        MARKS.with(|marks| *marks)
    }

    fn kpti(features: Features) -> Kpti {
        // SAFETY: instructions are only recorded.
        unsafe { Kpti::new(X86_64::new(features, KernelPages::PerTag), marks as fn() -> _) }
    }

    const PCID: Features = Features { has_pcid: true, has_invpcid: true, ..Features::NONE };

    fn user(kpti: &Kpti) -> u64 {
        // SAFETY: instructions are only recorded.
        unsafe { kpti.halves(USER_ROOT) }.user
    }

    #[test]
    fn halves_differ_in_root_and_bit_11() {
        let kpti = kpti(PCID);
        set_cr3(0x5003);
        // SAFETY: instructions are only recorded.
        let halves = unsafe { kpti.halves(USER_ROOT) };
        assert_eq!(halves, Halves { user: KEEP | 0x9803, kernel: KEEP | 0x5003 });
    }

    #[test]
    fn kpti_has_workarounds_of_the_processor() {
        let workarounds = Workarounds::LATE_MARKS;
        let kpti = kpti(Features { workarounds, ..PCID });
        assert_eq!((kpti.workarounds(), kpti.traps_stale_writes()), (workarounds, false));
    }

    #[test]
    fn invalidations_drop_kernel_half_now_and_user_half_once() {
        let kpti = kpti(PCID);
        let two = Extent::pages(0x1000, 2, PageSize::SIZE_4K);
        set_cr3(0x5003);
        let steps = steps_of(|| kpti.invalidate(Tag(3), two));
        assert_eq!(steps, [Invlpg(0x1000), Invlpg(0x2000)]);
        assert_eq!((user(&kpti), user(&kpti)), (0x9803, KEEP | 0x9803));
        assert_eq!(steps_of(|| kpti.invalidate_tag(Tag(3))), [ReloadCr3]);
        assert_eq!((user(&kpti), user(&kpti)), (0x9803, KEEP | 0x9803));
    }

    #[test]
    fn mark_waits_until_its_tag_is_loaded_again() {
        let kpti = kpti(PCID);
        set_cr3(0x5003);
        kpti.invalidate(Tag(3), Extent::page(0x1000));
        // SAFETY: instructions are only recorded.
        let load = |root, tag, entries| steps_of(|| unsafe { kpti.load(Root(root), tag, entries) });
        assert_eq!(load(0x6000, Tag(4), Entries::Keep), [WriteCr3(KEEP | 0x6004)]);
        assert_eq!(user(&kpti), KEEP | 0x9804);
        assert_eq!(load(0x5000, Tag(3), Entries::Keep), [WriteCr3(KEEP | 0x5003)]);
        assert_eq!(user(&kpti), 0x9803);
    }

    /// Another space gets the tag.
    #[test]
    fn discarding_load_discards_both_halves() {
        let kpti = kpti(PCID);
        // SAFETY: instructions are only recorded.
        let steps = steps_of(|| unsafe { kpti.load(Root(0x7000), Tag(70), Entries::Discard) });
        assert_eq!(steps, [WriteCr3(0x7046)]);
        assert_eq!((user(&kpti), user(&kpti)), (0x9846, KEEP | 0x9846));
    }

    #[test]
    fn kernel_pages_are_dropped_under_all_tags() {
        let page = Extent::page(0xffff_8000_0000_0000);
        assert_eq!(steps_of(|| kpti(PCID).invalidate_kernel(page)), [InvpcidAll]);
    }

    #[test]
    fn broadcast_names_both_halves_and_marks_nothing() {
        let kpti = kpti(Features { invlpgb_pages: Some(8), ..PCID });
        assert_eq!(kpti.tag_count(), 2047);
        set_cr3(0x5003);
        let page = Extent::page(0x1000);
        let steps = steps_of(|| kpti.broadcast(&CpuSet::<[u64; 1]>::new(), Tag(3), page));
        let named = |tag| Invlpgb(invlpgb::in_space(tag, page, 8).next().expect("one page"));
        assert_eq!(steps, [Fence, named(Tag(3)), named(Tag(0x803))]);
        assert_eq!(user(&kpti), KEEP | 0x9803);
    }

    /// Bit 63 is reserved then, and each load drops the other half.
    #[test]
    fn halves_without_pcids_are_roots() {
        let kpti = kpti(Features::NONE);
        assert_eq!(kpti.tag_count(), 0);
        set_cr3(0x5000);
        kpti.invalidate(Tag::KERNEL, Extent::page(0x1000));
        // SAFETY: instructions are only recorded.
        let halves = unsafe { kpti.halves(USER_ROOT) };
        assert_eq!(halves, Halves { user: 0x9000, kernel: 0x5000 });
    }
}
