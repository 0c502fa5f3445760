//! The processor's half of the engine's machine, by its instructions.
//!
//! Every change follows the manual's sequence (D8.16, "TLB maintenance"). The caller stores the
//! entry:
//!
//! ```text
//! str  entry         this CPU observes that the entry is gone
//! dsb  ishst         publish: no later walk finds the entry. Without it, a walk after the TLBI may
//!                    still read it, and fill the TLB with a translation that is never dropped
//! tlbi …             starts to drop the cached translation
//! dsb  nsh or ish    waits until it is dropped, on this CPU or on all, with all accesses that use
//! it
//! isb                discards instructions that this CPU has fetched by it
//! ```
//!
//! Linux omits the `isb` for user addresses: it returns to user mode before it fetches from there,
//! and that return synchronizes. The engine's contract has no such return.

#![expect(unsafe_code, reason = "implements the contract, and loads roots")]

use core::sync::atomic::{AtomicU64, Ordering, fence};

use crate::Processor;
use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuSet, Entries, Extent, Memory, NotifyCosts, Reach, Refused,
    Root, Tag, TagSlot, Tagging,
};

use crate::aarch64::instruction;
use crate::aarch64::operation::{Domain, Levels, Operation, PageOperand, Scope};
use crate::aarch64::plan::OPERATIONS_MAX;
use crate::aarch64::settings::Aarch64;

/// Position of the ASID in TTBR0.
pub(super) const TAG_SHIFT: u32 = 48;

/// Number of range operations for the pages of one extent: one for each of three scales, and one
/// for an odd page.
const OPERATIONS_OF_RANGE: usize = 4;

/// Linux's `MAX_TLBI_RANGE_PAGES`: the pages that one operation of the largest scale covers, 8 GiB.
const RANGE_PAGES_MAX: usize = 32 << 16;

impl Aarch64 {
    /// Converts ticks of the counter to nanoseconds. Returns 0 if the frequency is unknown.
    fn ns_of(&self, ticks: u64) -> u64 {
        // The product saturates after 10 s at 1 GHz.
        ticks.saturating_mul(1_000_000_000).checked_div(self.features.counter_hz).unwrap_or(0)
    }

    /// Invalidates an extent on this CPU, and waits.
    #[inline]
    fn invalidate_local(&self, scope: Scope, extent: Extent) {
        for operation in self.operations(scope, extent) {
            instruction::tlbi(operation, Domain::Local);
        }
        instruction::complete_local();
        instruction::synchronize();
    }

    /// Starts to invalidate an extent on all CPUs.
    fn issue_broadcast(&self, scope: Scope, extent: Extent) {
        for operation in self.operations(scope, extent) {
            instruction::tlbi(operation, Domain::InnerShareable);
            if self.is_repeating {
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

    const PREFETCHES_FOR_WRITE: bool = true;

    #[inline]
    fn prefetch_for_write(&self, word: &AtomicU64) {
        instruction::prefetch_for_write(word.as_ptr());
    }
}

// SAFETY: each method executes the sequence of the manual, as explained there.
unsafe impl Processor for Aarch64 {
    /// Slots for the spaces whose generation a CPU records: 8 KiB for each CPU. The ASID selects
    /// the slot, so a search with more slots is not slower. If two spaces that run on a CPU share a
    /// slot, each switch drops the translations of the loaded space. An exception is a space whose
    /// flushes were all broadcast or found no other CPU.
    type TagSlots = [TagSlot; 256];
    /// For each tag of 16 bits, a bit and a pin bit: 16 KiB.
    type TagWords = [AtomicU64; 2048];
    type Broadcaster = Self;

    #[inline]
    fn publish(&self) {
        instruction::publish();
    }

    /// `dsb ish`. Unlike `dmb ish`, it orders a later `TLBI` after earlier loads. Unlike `dsb
    /// ishst`, it waits for loads.
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
        (1 << self.features.tag_bits) - 1
    }

    /// Linux names up to 511 pages one by one, in local and broadcast flushes: see
    /// [`OPERATIONS_MAX`]. With ranges, its limit is the number of pages that one operation covers.
    #[inline]
    fn flush_ceiling(&self) -> usize {
        if self.features.has_ranges { RANGE_PAGES_MAX } else { OPERATIONS_MAX }
    }

    /// Entries to discard are dropped before the root is loaded, because nothing is cached under a
    /// tag that is not loaded. In the other order, a walk could begin in between at a cached entry
    /// of an upper level whose table has been freed, and could read any address, devices included.
    /// If the tag *is* loaded, its entries are dropped afterwards: until then, they are entries of
    /// a root that is still valid.
    ///
    /// Entries that are kept need no barrier. A register is not written speculatively, so the
    /// engine's loads that decided to keep the entries come first.
    #[inline]
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        let is_loaded = instruction::ttbr0() >> TAG_SHIFT == u64::from(tag.0);
        if entries == Entries::Discard && !is_loaded {
            instruction::tlbi(Operation::Tag(tag), Domain::Local);
            instruction::complete_local();
        }
        // SAFETY: the caller's promise.
        unsafe { instruction::set_ttbr0(root.0 | u64::from(tag.0) << TAG_SHIFT) };
        instruction::synchronize();
        if entries == Entries::Discard && is_loaded {
            self.invalidate_tag(tag);
        }
    }

    /// There are always tags, so the entries under them may stay. Nothing is cached of the empty
    /// table, because invalid entries are not cached.
    #[inline]
    unsafe fn load_kernel(&self, root: Root) {
        // SAFETY: the caller's promise.
        unsafe { instruction::set_ttbr0(root.0) };
        instruction::synchronize();
    }

    #[inline]
    fn invalidate(&self, tag: Tag, extent: Extent) {
        self.invalidate_local(Scope::Tag(tag), extent);
    }

    #[inline]
    fn invalidate_tag(&self, tag: Tag) {
        self.invalidate_local(Scope::Tag(tag), Extent::whole());
    }

    fn invalidate_kernel(&self, extent: Extent) {
        self.invalidate_local(Scope::AllTags, extent);
    }

    fn invalidate_all(&self) {
        self.invalidate_local(Scope::AllTags, Extent::whole());
    }

    /// `TLBI VAAE1` without a level hint, because the size of the cached page is not known.
    fn forget_refused(&self, address: u64) {
        let leaf = PageOperand { address, level: None };
        let operation = Operation::Page(Scope::AllTags, Levels::All, leaf);
        instruction::tlbi(operation, Domain::Local);
        instruction::complete_local();
        instruction::synchronize();
    }

    /// `dsb ishst; isb`: the `isb` ends what this CPU has fetched and translated ahead. (Linux:
    /// `emit_pte_barriers`.)
    #[inline]
    fn publish_kernel(&self, _: Extent) {
        instruction::publish();
        instruction::synchronize();
    }

    /// To clear `AP[2]`, the MMU must find the entry in memory, by an atomic read and write (D8.5,
    /// "Hardware management of the dirty state"). If the entry is not valid any more, the write
    /// faults.
    #[inline]
    fn traps_stale_writes(&self) -> bool {
        self.features.marks_writes
    }

    #[inline]
    fn broadcaster(&self) -> Option<&Self> {
        Some(self)
    }

    /// `yield`, as in Linux (`cpu_relax`). The `isb` of `core::hint::spin_loop` waits longer, but
    /// is no hint for an emulator or a hypervisor.
    #[inline]
    fn spin_hint(&self) {
        instruction::spin_hint();
    }
}

// SAFETY: `TLBI … IS` reaches every CPU of the inner shareable domain, and `dsb ish` waits for all
// such operations of this CPU.
unsafe impl Broadcaster for Aarch64 {
    #[inline]
    fn capabilities(&self) -> Broadcast {
        // The costs are counted in operations. An extent with the largest number of pages needs as
        // many operations as are counted for it; so does an extent of two pages.
        let pages_per_operation = if self.features.has_ranges {
            Extent::MAX_PAGES.div_ceil(OPERATIONS_OF_RANGE)
        } else {
            1
        };
        Broadcast {
            reach: Reach::Everyone,
            pages_per_operation,
            operation_ceiling: OPERATIONS_MAX,
            completes_at_issue: false,
        }
    }

    #[inline]
    fn costs(&self) -> NotifyCosts {
        self.costs
    }

    /// Reaches all CPUs, whatever `cpus` contains.
    fn broadcast<B: CpuBits>(
        &self,
        _: &CpuSet<B>,
        tag: Tag,
        extent: Extent,
    ) -> Result<(), Refused> {
        self.issue_broadcast(Scope::Tag(tag), extent);
        Ok(())
    }

    fn broadcast_kernel(&self, extent: Extent) -> Result<(), Refused> {
        self.issue_broadcast(Scope::AllTags, extent);
        Ok(())
    }

    /// `dsb` waits only for the operations of its own CPU, on all CPUs. Another CPU cannot execute
    /// it instead.
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
        // SAFETY: the instructions are only recorded.
        steps_of(|| unsafe { PROCESSOR.load(Root(root), Tag(tag), entries) })
    }

    fn pages(scope: Scope, levels: Levels, addresses: &[u64], domain: Domain) -> Vec<Step> {
        let page = |address: &u64| PageOperand { address: *address, level: None };
        let step = |address| Tlbi(Operation::Page(scope, levels, page(address)), domain);
        addresses.iter().map(step).collect()
    }

    #[test]
    fn root_and_tag_are_loaded_together() {
        let loaded = SetTtbr0(0x0123_0000_4567_8000);
        assert_eq!(load(0x4567_8000, 0x123, Entries::Keep), [loaded, Synchronize]);
    }

    /// In the other order, a walk could begin at an entry that will be dropped.
    #[test]
    fn entries_are_discarded_before_root_is_loaded() {
        load(0x1000, 1, Entries::Keep);
        let gone = Tlbi(Operation::Tag(Tag(2)), LOCAL);
        let loaded = SetTtbr0(2 << 48 | 0x2000);
        assert_eq!(load(0x2000, 2, Entries::Discard), [gone, CompleteLocal, loaded, Synchronize]);
        // The loaded tag is discarded afterwards, because walks would fill the TLB again.
        let loaded = SetTtbr0(2 << 48 | 0x3000);
        assert_eq!(
            load(0x3000, 2, Entries::Discard),
            [loaded, Synchronize, gone, CompleteLocal, Synchronize]
        );
    }

    #[test]
    fn kernel_root_is_loaded_with_its_tag() {
        load(0x1000, 1, Entries::Keep);
        // SAFETY: the instructions are only recorded.
        let steps = steps_of(|| unsafe { PROCESSOR.load_kernel(Root(0x9000)) });
        assert_eq!(steps, [SetTtbr0(0x9000), Synchronize]);
    }

    #[test]
    fn local_invalidation_is_complete_on_return() {
        let tag = Scope::Tag(Tag(1));
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
            pages(Scope::AllTags, Levels::Last, addresses, LOCAL),
        );
        let whole = |operation| [Tlbi(operation, LOCAL)].to_vec();
        check(&|| PROCESSOR.invalidate_tag(Tag(1)), whole(Operation::Tag(Tag(1))));
        check(&|| PROCESSOR.invalidate_all(), whole(Operation::All));
        check(&|| PROCESSOR.invalidate_kernel(Extent::whole()), whole(Operation::All));
    }

    /// A level hint that is wrong would remove nothing.
    #[test]
    fn refused_access_is_forgotten_at_any_level() {
        let leaf = PageOperand { address: 0x5123, level: None };
        let dropped = Tlbi(Operation::Page(Scope::AllTags, Levels::All, leaf), LOCAL);
        let steps = steps_of(|| PROCESSOR.forget_refused(0x5123));
        assert_eq!(steps, [dropped, CompleteLocal, Synchronize]);
    }

    /// A broadcast is issued without a wait: one `complete` waits for several broadcasts.
    #[test]
    fn broadcast_is_completed_later() {
        let tag = Scope::Tag(Tag(1));
        let two = Extent::pages(0x1000, 2, PageSize::SIZE_4K);
        let no_cpus = &CpuSet::<[u64; 1]>::new();
        let issued = steps_of(|| PROCESSOR.broadcast(no_cpus, Tag(1), two));
        assert_eq!(issued, pages(tag, Levels::Last, &[0x1000, 0x2000], SHARED));
        let issued = steps_of(|| PROCESSOR.broadcast_kernel(Extent::whole()));
        assert_eq!(issued, [Tlbi(Operation::All, SHARED)]);
        let completed = steps_of(|| assert_eq!(PROCESSOR.complete(), 1_000_000));
        assert_eq!(completed, [Synchronize, CompleteShared, Synchronize]);
        assert_eq!(steps_of(|| PROCESSOR.publish()), [Publish]);
        let page = Extent::page(0x1000);
        assert_eq!(steps_of(|| PROCESSOR.publish_kernel(page)), [Publish, Synchronize]);
        assert_eq!(steps_of(|| PROCESSOR.synchronize()), [CompleteShared]);
    }

    #[test]
    fn repeating_processor_issues_broadcasts_twice() {
        let repeating = PROCESSOR.repeating();
        let issued = steps_of(|| repeating.broadcast_kernel(Extent::whole()));
        let all = Tlbi(Operation::All, SHARED);
        assert_eq!(issued, [all, CompleteShared, all]);
        // The erratum does not affect operations of one CPU.
        assert_eq!(steps_of(|| repeating.invalidate_all()).len(), 3);
    }

    /// The engine counts one operation for a number of pages. The processor issues at most that
    /// many, or more by the scales of one range.
    #[test]
    fn operations_do_not_exceed_engines_count() {
        for (features, beyond) in [(V8_0, 0), (V8_4, OPERATIONS_OF_RANGE - 1)] {
            let processor = Aarch64::new(features);
            let broadcast = processor.capabilities();
            for count in (1..=Extent::MAX_PAGES).filter(|count| *count <= processor.flush_ceiling())
            {
                let extent = Extent::pages(1 << 30, count, PageSize::SIZE_4K);
                let counted = count.div_ceil(broadcast.pages_per_operation);
                let issued = processor.operations(Scope::AllTags, extent).count();
                assert!(issued <= counted + beyond, "{count}: {issued} for {counted}");
                assert!(counted <= broadcast.operation_ceiling);
            }
        }
    }

    #[test]
    fn ranges_cover_the_longest_extent() {
        let processor = Aarch64::new(V8_4);
        let most = Extent::pages(1 << 30, Extent::MAX_PAGES, PageSize::SIZE_4K);
        assert!(processor.flush_ceiling() >= Extent::MAX_PAGES);
        let counted = Extent::MAX_PAGES.div_ceil(processor.capabilities().pages_per_operation);
        assert_eq!(processor.operations(Scope::AllTags, most).count(), counted);
    }

    #[test]
    fn kernel_tag_is_not_counted() {
        assert_eq!(Aarch64::new(V8_0).tag_count(), 65535);
        assert_eq!(Aarch64::new(Features { tag_bits: 8, ..V8_0 }).tag_count(), 255);
    }

    #[test]
    fn counter_ticks_convert_to_ns() {
        let processor = Aarch64::new(V8_0);
        assert_eq!(processor.ns_of(62_500), 1_000_000);
        assert_eq!(processor.ns_of(1), 16);
        let unknown = Aarch64::new(Features { counter_hz: 0, ..V8_0 });
        assert_eq!(unknown.ns_of(1_000), 0);
    }
}
