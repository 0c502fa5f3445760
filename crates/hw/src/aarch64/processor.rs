//! The half of the engine's contract that is the processor's, by its instructions.
//!
//! Every change goes by the manual's sequence (D8.16, "TLB maintenance"), of which the caller
//! writes the entry:
//!
//! ```text
//! str  entry         the entry is gone, in this CPU's view
//! dsb  ishst         publish: no walker finds it from here on. Without it, one that walks after
//!                    the TLBI may still read it, and fill the TLB again with what nobody drops
//! tlbi …             what was cached of it is going
//! dsb  nsh or ish    is gone, here or everywhere; nobody's access by it is still on its way
//! isb                nor is an instruction that was fetched by it still to be run here
//! ```
//!
//! Linux leaves out the `isb` for user addresses, for it returns to user mode before anything there
//! is fetched, and that synchronizes. The engine's contract has no such return in it.

#![expect(unsafe_code, reason = "fulfils the contract, and loads roots")]

use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::Processor;
use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuSet, Entries, Extent, Memory, NotifyCosts, Reach, Root,
    Tag, TagSlot, Tagging,
};

use crate::aarch64::instruction;
use crate::aarch64::operation::{Domain, Operation, Whose};
use crate::aarch64::plan::OPERATIONS_MAX;
use crate::aarch64::settings::{Aarch64, Issue};

const TAG_SHIFT: u32 = 48;

/// Into how many operations with ranges pages of one extent fall apart: one for each of three
/// scales, and one for an odd page.
const OPERATIONS_OF_RANGE: usize = 4;

/// Linux's `MAX_TLBI_RANGE_PAGES`: what one operation of the largest scale covers, 8 GiB.
const RANGE_PAGES_MAX: usize = 32 << 16;

impl Aarch64 {
    /// How many tags there are besides the kernel's.
    const fn tags(&self) -> usize {
        (1 << self.features().tag_bits) - 1
    }

    /// Linux names up to 511 pages one by one, here or everywhere: see [`OPERATIONS_MAX`]. With
    /// ranges it draws the line at what one operation covers.
    const fn pages_max(&self) -> usize {
        if self.features().has_ranges { RANGE_PAGES_MAX } else { OPERATIONS_MAX }
    }

    const fn broadcasts(&self) -> Broadcast {
        // An extent of all pages that there can be takes as many operations as are counted for it;
        // one of two pages takes as many, too.
        let pages_per_operation = if self.features().has_ranges {
            Extent::MAX_PAGES.div_ceil(OPERATIONS_OF_RANGE)
        } else {
            1
        };
        Broadcast { reach: Reach::Everyone, pages_per_operation, operation_ceiling: OPERATIONS_MAX }
    }

    /// So many turns of the counter, in ns.
    fn ns_of(&self, turns: u64) -> u64 {
        // More than 10 s at 1 GHz would be cut off.
        turns.saturating_mul(1_000_000_000).checked_div(self.features().counter_hz).unwrap_or(0)
    }

    /// Drops an extent on this CPU.
    #[inline]
    fn invalidate_here(&self, whose: Whose, extent: Extent) {
        for operation in self.operations(whose, extent) {
            instruction::tlbi(operation, Domain::Local);
        }
        instruction::complete_local();
        instruction::synchronize();
    }

    /// Begins to drop an extent everywhere.
    fn invalidate_everywhere(&self, whose: Whose, extent: Extent) {
        for operation in self.operations(whose, extent) {
            instruction::tlbi(operation, Domain::InnerShareable);
            if self.issue() == Issue::Twice {
                instruction::complete_shared();
                instruction::tlbi(operation, Domain::InnerShareable);
            }
        }
    }
}

// SAFETY: `dmb ish` is a full barrier.
unsafe impl Memory for Aarch64 {
    type Word = AtomicU64;

    /// `dmb ish`.
    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn prefetch(&self, word: &AtomicU64) {
        instruction::prefetch(word.as_ptr());
    }
}

// SAFETY: each method is what the manual asks for, as said there.
unsafe impl Processor for Aarch64 {
    /// For how many spaces a CPU knows up to which generation its TLB is clean: 8 KiB for each CPU.
    /// The ASID names the slot, so more slots take no longer to find. A space that shares its slot
    /// with another that runs here drops its translations at each switch, unless every flush of it
    /// was broadcast or found no other CPU.
    type TagSlots = [TagSlot; 256];
    /// 16 bits of tags, each with its pin: 16 KiB.
    type TagWords = [AtomicU64; 2048];
    type Broadcaster = Self;

    #[inline]
    fn publish(&self) {
        instruction::publish();
    }

    /// `dsb ish`: unlike `dmb ish`, it orders a later `TLBI` after earlier loads; unlike
    /// `dsb ishst`, it waits for loads.
    #[inline]
    fn synchronize(&self) {
        instruction::complete_shared();
    }

    #[inline]
    fn interrupts_masked(&self) -> bool {
        instruction::interrupts_masked()
    }

    #[inline]
    fn tagging(&self) -> Tagging {
        Tagging::Global
    }

    #[inline]
    fn tag_count(&self) -> usize {
        self.tags()
    }

    #[inline]
    fn flush_ceiling(&self) -> usize {
        self.pages_max()
    }

    /// What is discarded is gone before the root is loaded, for while its tag is not loaded,
    /// nothing is cached under it. The other way round, a walk could begin in between from an entry
    /// of an upper level whose table has been freed, and could read anything, devices included.
    /// Only where the tag *is* loaded does it come after: what is cached under it then is of a root
    /// that was valid until now.
    ///
    /// What is kept needs no barrier: a register is not written speculatively, so that what the
    /// engine read to decide so was read before.
    #[inline]
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        let is_loaded = instruction::ttbr0() >> TAG_SHIFT == u64::from(tag.0);
        if entries == Entries::Discard && !is_loaded {
            instruction::tlbi(Operation::Tag(tag), Domain::Local);
            instruction::complete_local();
        }
        // SAFETY: as our caller promises.
        unsafe { instruction::set_ttbr0(root.0 | u64::from(tag.0) << TAG_SHIFT) };
        instruction::synchronize();
        if entries == Entries::Discard && is_loaded {
            self.invalidate_tag(tag);
        }
    }

    /// There are always tags, so that what is cached under them may stay. Of the empty table itself
    /// nothing is: entries that are not valid are not cached.
    #[inline]
    unsafe fn load_kernel(&self, root: Root) {
        // SAFETY: as our caller promises.
        unsafe { instruction::set_ttbr0(root.0) };
        instruction::synchronize();
    }

    #[inline]
    fn invalidate(&self, tag: Tag, extent: Extent) {
        self.invalidate_here(Whose::Tag(tag), extent);
    }

    #[inline]
    fn invalidate_tag(&self, tag: Tag) {
        self.invalidate_here(Whose::Tag(tag), Extent::whole());
    }

    fn invalidate_kernel(&self, extent: Extent) {
        self.invalidate_here(Whose::Everyone, extent);
    }

    fn invalidate_all(&self) {
        self.invalidate_here(Whose::Everyone, Extent::whole());
    }

    /// To clear `AP[2]`, the MMU must find the entry in memory, by an atomic read and write (D8.5,
    /// "Hardware management of the dirty state"); if it is not valid any more, that is a fault.
    #[inline]
    fn traps_stale_writes(&self) -> bool {
        self.features().marks_writes
    }

    #[inline]
    fn broadcaster(&self) -> Option<&Self> {
        Some(self)
    }

    /// `yield`, as Linux has it (`cpu_relax`). The `isb` of `core::hint::spin_loop` is a longer
    /// wait, but tells nobody that this CPU has nothing to do.
    #[inline]
    fn spin_hint(&self) {
        instruction::spin_hint();
    }
}

// SAFETY: `TLBI … IS` reaches every CPU of the inner shareable domain, and `dsb ish` waits for all
// that this CPU has issued.
unsafe impl Broadcaster for Aarch64 {
    #[inline]
    fn capabilities(&self) -> Broadcast {
        self.broadcasts()
    }

    #[inline]
    fn costs(&self) -> NotifyCosts {
        self.costs()
    }

    /// It reaches everyone, whoever the targets are.
    fn broadcast<B: CpuBits>(&self, _: &CpuSet<B>, tag: Tag, extent: Extent) {
        self.invalidate_everywhere(Whose::Tag(tag), extent);
    }

    fn broadcast_kernel(&self, extent: Extent) {
        self.invalidate_everywhere(Whose::Everyone, extent);
    }

    /// `dsb` waits for the operations of its own CPU alone, wherever they take effect; it cannot be
    /// done by another.
    fn complete(&self) -> u64 {
        let start = instruction::counter();
        instruction::complete_shared();
        self.ns_of(instruction::counter() - start)
    }

    #[inline]
    fn clock_ns(&self) -> u64 {
        self.ns_of(instruction::counter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aarch64::features::Features;
    use crate::aarch64::features::tests::{V8_0, V8_4};
    use crate::aarch64::instruction::Step::{
        CompleteLocal, CompleteShared, Publish, SetTtbr0, Synchronize, Tlbi,
    };
    use crate::aarch64::instruction::{Step, steps_of};
    use crate::aarch64::operation::{Levels, PageOperand};
    use shootdown::PageSize;
    use std::vec::Vec;

    const PROCESSOR: Aarch64 = Aarch64::new(V8_0);
    const LOCAL: Domain = Domain::Local;
    const SHARED: Domain = Domain::InnerShareable;

    fn load(root: u64, tag: u16, entries: Entries) -> Vec<Step> {
        // SAFETY: nothing is run.
        steps_of(|| unsafe { PROCESSOR.load(Root(root), Tag(tag), entries) })
    }

    fn pages(whose: Whose, levels: Levels, addresses: &[u64], domain: Domain) -> Vec<Step> {
        let page = |address: &u64| PageOperand { address: *address, level: None };
        let step = |address| Tlbi(Operation::Page(whose, levels, page(address)), domain);
        addresses.iter().map(step).collect()
    }

    #[test]
    fn a_root_is_loaded_with_its_tag_at_once() {
        let loaded = SetTtbr0(0x0123_0000_4567_8000);
        assert_eq!(load(0x4567_8000, 0x123, Entries::Keep), [loaded, Synchronize]);
    }

    /// Between the two, walks could begin from what is to go.
    #[test]
    fn what_is_discarded_is_gone_before_the_root_is_loaded() {
        load(0x1000, 1, Entries::Keep);
        let gone = Tlbi(Operation::Tag(Tag(2)), LOCAL);
        let loaded = SetTtbr0(2 << 48 | 0x2000);
        assert_eq!(load(0x2000, 2, Entries::Discard), [gone, CompleteLocal, loaded, Synchronize]);
        // What is loaded already would fill the TLB again.
        let loaded = SetTtbr0(2 << 48 | 0x3000);
        assert_eq!(
            load(0x3000, 2, Entries::Discard),
            [loaded, Synchronize, gone, CompleteLocal, Synchronize]
        );
    }

    #[test]
    fn the_kernels_root_has_its_tag() {
        load(0x1000, 1, Entries::Keep);
        // SAFETY: nothing is run.
        let steps = steps_of(|| unsafe { PROCESSOR.load_kernel(Root(0x9000)) });
        assert_eq!(steps, [SetTtbr0(0x9000), Synchronize]);
    }

    #[test]
    fn what_is_dropped_here_is_complete_here() {
        let tag = Whose::Tag(Tag(1));
        let two = Extent::pages(0x1000, 2, PageSize::SIZE_4K);
        let complete = [CompleteLocal, Synchronize];
        let check = |f: &dyn Fn(), dropped: Vec<Step>| {
            assert_eq!(steps_of(f), [&dropped[..], &complete].concat());
        };
        let addresses = &[0x1000, 0x2000];
        check(&|| PROCESSOR.invalidate(Tag(1), two), pages(tag, Levels::Last, addresses, LOCAL));
        check(
            &|| PROCESSOR.invalidate(Tag(1), two.freeing_tables()),
            pages(tag, Levels::All, addresses, LOCAL),
        );
        check(
            &|| PROCESSOR.invalidate_kernel(two),
            pages(Whose::Everyone, Levels::Last, addresses, LOCAL),
        );
        let whole = |operation| [Tlbi(operation, LOCAL)].to_vec();
        check(&|| PROCESSOR.invalidate_tag(Tag(1)), whole(Operation::Tag(Tag(1))));
        check(&|| PROCESSOR.invalidate_all(), whole(Operation::All));
        check(&|| PROCESSOR.invalidate_kernel(Extent::whole()), whole(Operation::All));
    }

    /// Issued, and not waited for: that is asked for once for all of them.
    #[test]
    fn what_is_broadcast_is_completed_later() {
        let tag = Whose::Tag(Tag(1));
        let two = Extent::pages(0x1000, 2, PageSize::SIZE_4K);
        let nobody = &CpuSet::<[u64; 1]>::new();
        let issued = steps_of(|| PROCESSOR.broadcast(nobody, Tag(1), two));
        assert_eq!(issued, pages(tag, Levels::Last, &[0x1000, 0x2000], SHARED));
        let issued = steps_of(|| PROCESSOR.broadcast_kernel(Extent::whole()));
        assert_eq!(issued, [Tlbi(Operation::All, SHARED)]);
        let completed = steps_of(|| assert_eq!(PROCESSOR.complete(), 1_000_000));
        assert_eq!(completed, [Synchronize, CompleteShared, Synchronize]);
        assert_eq!(steps_of(|| PROCESSOR.publish()), [Publish]);
        assert_eq!(steps_of(|| PROCESSOR.synchronize()), [CompleteShared]);
    }

    #[test]
    fn who_must_be_told_twice_is() {
        let repeating = PROCESSOR.repeating();
        let issued = steps_of(|| repeating.broadcast_kernel(Extent::whole()));
        let all = Tlbi(Operation::All, SHARED);
        assert_eq!(issued, [all, CompleteShared, all]);
        // Not here: an operation of one CPU is not affected.
        assert_eq!(steps_of(|| repeating.invalidate_all()).len(), 3);
    }

    /// The engine counts operations by pages; what it counts is what is issued, or less by the
    /// scales of one range.
    #[test]
    fn operations_are_as_many_as_the_engine_counts() {
        for (features, beyond) in [(V8_0, 0), (V8_4, OPERATIONS_OF_RANGE - 1)] {
            let processor = Aarch64::new(features);
            let broadcast = processor.broadcasts();
            for count in (1..=Extent::MAX_PAGES).filter(|count| *count <= processor.pages_max()) {
                let extent = Extent::pages(1 << 30, count, PageSize::SIZE_4K);
                let counted = count.div_ceil(broadcast.pages_per_operation);
                let issued = processor.operations(Whose::Everyone, extent).count();
                assert!(issued <= counted + beyond, "{count}: {issued} for {counted}");
                assert!(counted <= broadcast.operation_ceiling);
            }
        }
    }

    #[test]
    fn with_ranges_no_extent_is_too_long() {
        let processor = Aarch64::new(V8_4);
        let most = Extent::pages(1 << 30, Extent::MAX_PAGES, PageSize::SIZE_4K);
        assert!(processor.pages_max() >= Extent::MAX_PAGES);
        let counted = Extent::MAX_PAGES.div_ceil(processor.broadcasts().pages_per_operation);
        assert_eq!(processor.operations(Whose::Everyone, most).count(), counted);
    }

    #[test]
    fn tags_are_all_but_the_kernels() {
        assert_eq!(Aarch64::new(V8_0).tags(), 65535);
        assert_eq!(Aarch64::new(Features { tag_bits: 8, ..V8_0 }).tags(), 255);
    }

    #[test]
    fn turns_are_time() {
        let processor = Aarch64::new(V8_0);
        assert_eq!(processor.ns_of(62_500), 1_000_000);
        assert_eq!(processor.ns_of(1), 16);
        let silent = Aarch64::new(Features { counter_hz: 0, ..V8_0 });
        assert_eq!(silent.ns_of(1_000), 0);
    }
}
