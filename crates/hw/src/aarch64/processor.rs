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
    Broadcast, Broadcaster, CpuBits, CpuSet, DomainCosts, Entries, Extent, Memory, NotifyCosts,
    Reach, Refused, Root, Tag, TagSlot, Tagging,
};

use crate::aarch64::features::Features;
use crate::aarch64::instruction;
use crate::aarch64::operation::{Domain, Levels, Operation, PageOperand, Scope};
use crate::aarch64::plan::{Execute, OPERATIONS_MAX};
use crate::aarch64::sequence::{REPEATED, TAG_SHIFT};
use crate::aarch64::settings::Aarch64;
use crate::errata::Workarounds;

/// Number of range operations for the pages of one extent: one for each of three scales, and one
/// for an odd page.
const OPERATIONS_OF_RANGE: usize = 4;

/// Linux's `MAX_TLBI_RANGE_PAGES`: the pages that one operation of the largest scale covers, 8 GiB.
const RANGE_PAGES_MAX: usize = 32 << 16;

impl Aarch64 {
    /// Invalidates an extent on this CPU, and waits.
    #[inline]
    fn invalidate_local(&self, scope: Scope, extent: Extent) {
        self.plan(scope, extent).execute_by(Domain::Local);
        instruction::complete_local();
        instruction::synchronize();
    }

    /// Starts to invalidate an extent on all CPUs.
    fn issue_broadcast(&self, scope: Scope, extent: Extent) {
        self.plan(scope, extent).execute_by(Domain::InnerShareable);
    }
}

impl Execute for Domain {
    #[inline(always)]
    fn execute(self, operation: Operation) {
        instruction::tlbi(operation, self);
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

    /// Checks that the processor is right on this CPU.
    ///
    /// # Panics
    ///
    /// If the CPU needs a workaround, or lacks a feature, that the engine's features do not have.
    unsafe fn set_up_cpu(&self) {
        self.admit(Features::detect());
    }

    #[inline]
    fn workarounds(&self) -> Workarounds {
        self.features.workarounds
    }

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
        instruction::interrupts_masked(self.flush_interrupt)
    }

    #[inline]
    fn tagging(&self) -> Tagging {
        Tagging::Global
    }

    #[inline]
    fn tag_count(&self) -> usize {
        (1 << self.features.tag_bits) - 1 - usize::from(self.passage().is_some())
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
        unsafe { self.set_ttbr0(root, tag) };
        if entries == Entries::Discard && is_loaded {
            self.invalidate_tag(tag);
        }
    }

    /// There are always tags, so the entries under them may stay. Nothing is cached of the empty
    /// table, because invalid entries are not cached.
    #[inline]
    unsafe fn load_kernel(&self, root: Root) {
        // SAFETY: the caller's promise.
        unsafe { self.set_ttbr0(root, Tag::KERNEL) };
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
        self.has_broadcasts().then_some(self)
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
            reach: if self.domains.is_some() { Reach::Domains } else { Reach::Everyone },
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

    fn costs_in_domains<B: CpuBits>(&self, cpus: &CpuSet<B>) -> Option<DomainCosts> {
        self.domains.as_ref()?.costs(cpus)
    }

    fn broadcast_in_domains<B: CpuBits>(&self, cpus: &CpuSet<B>, tag: Tag) -> Result<(), Refused> {
        let domains = self.domains.as_ref().and_then(|map| map.of(cpus)).ok_or(Refused)?;
        for domain in domains {
            instruction::tlbi(Operation::TagInDomain(tag, domain), Domain::InnerShareable);
        }
        Ok(())
    }

    /// `dsb` waits only for the operations of its own CPU, on all CPUs. Another CPU cannot execute
    /// it instead.
    fn complete(&self) -> u64 {
        self.complete_broadcasts(|| instruction::tlbi(REPEATED, Domain::InnerShareable))
    }

    #[inline]
    fn clock_ns(&self) -> u64 {
        self.ns_of(instruction::counter())
    }
}

#[cfg(test)]
#[path = "tests/processor.rs"]
mod tests;
