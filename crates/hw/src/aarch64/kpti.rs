//! Kernel page-table isolation (KPTI): two ASIDs for each space.
//!
//! TTBR1 has the kernel's pages, and a kernel with KPTI puts a table of little more than the
//! exception vectors there while user mode runs. The user's table in TTBR0 is the same in both
//! modes, and its entries are cached under two ASIDs, a pair that differs in the lowest bit (Linux:
//! `USER_ASID_FLAG`):
//!
//! | | ASID |
//! |---|---|
//! | kernel half | the engine's tag, doubled |
//! | user half | the next ASID |
//!
//! So what the kernel caches, for instance while it copies to user memory, is not used by user
//! mode, and the reverse. Each invalidation names both ASIDs, on this CPU or by broadcast. Nothing
//! is deferred, because `TLBI` names any ASID.
//!
//! # Obligations of the kernel
//!
//! - Each way to user mode loads [`Halves::user`] into TTBR0, and each way back loads
//!   [`Halves::kernel`] before it calls the engine, both with an `isb` (or the `eret`) after it.
//! - The pages of the table that TTBR1 has in user mode are global and do not change; or they have
//!   an ASID of their own, which the kernel invalidates itself.

#![expect(unsafe_code, reason = "implements the processor's half of the engine's contract")]

use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuSet, DomainCosts, Entries, Extent, Memory, NotifyCosts,
    Refused, Root, Tag,
};

use crate::aarch64::instruction;
use crate::aarch64::operation::{Domain, Operation, Scope};
use crate::aarch64::sequence::TAG_SHIFT;
use crate::aarch64::settings::Aarch64;
use crate::errata::Workarounds;
use crate::{Processor, forward, forward_memory, forward_processor};

/// Values of `TTBR0_EL1` for one stay in user mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Halves {
    /// Loaded as the last step before user mode.
    pub user: u64,
    /// Loaded as the first step after user mode.
    pub kernel: u64,
}

/// An `AArch64` processor whose user mode runs under ASIDs of its own.
#[derive(Clone, Copy, Debug)]
pub struct Kpti {
    processor: Aarch64,
}

impl Kpti {
    /// Gives each space a pair of ASIDs.
    ///
    /// # Safety
    ///
    /// The kernel keeps the [obligations](self#obligations-of-the-kernel).
    ///
    /// # Panics
    ///
    /// If the processor needs [`Workarounds::ICACHE_AT_SWITCH`]: each way to user mode and back
    /// would also have to invalidate the instruction cache. (Linux does not isolate the kernel's
    /// tables there either.)
    #[must_use]
    pub const unsafe fn new(processor: Aarch64) -> Self {
        assert!(
            !processor.needs(Workarounds::ICACHE_AT_SWITCH),
            "KPTI changes ASIDs outside of the engine, so it cannot be used with Cavium's erratum \
             27456",
        );
        Self { processor }
    }

    /// The values of `TTBR0_EL1` for the next stay in user mode, in the space that is loaded. Call
    /// this on the kernel half.
    #[must_use]
    #[inline]
    pub fn halves() -> Halves {
        let kernel = instruction::ttbr0();
        debug_assert!(kernel >> TAG_SHIFT & 1 == 0, "the user half is loaded");
        Halves { user: kernel | 1 << TAG_SHIFT, kernel }
    }

    /// Invalidates an extent under both ASIDs on this CPU, and waits once.
    #[inline]
    fn invalidate_pair(&self, tag: Tag, extent: Extent) {
        for asid in pair(tag) {
            self.processor.plan(Scope::Tag(asid), extent).execute_by(Domain::Local);
        }
        instruction::complete_local();
        instruction::synchronize();
    }
}

/// The ASIDs of the kernel half and of the user half.
const fn pair(tag: Tag) -> [Tag; 2] {
    [Tag(tag.0 << 1), Tag(tag.0 << 1 | 1)]
}

// SAFETY: the barriers are those of the processor.
unsafe impl Memory for Kpti {
    forward_memory! { self => self.processor, Aarch64 }
}

// SAFETY: each method does what the processor does, under both ASIDs.
unsafe impl Processor for Kpti {
    type TagSlots = <Aarch64 as Processor>::TagSlots;
    type TagWords = <Aarch64 as Processor>::TagWords;
    type Broadcaster = Self;

    forward_processor! { self => self.processor;
        set_up_cpu, workarounds, publish, synchronize, interrupts_masked, tagging, flush_ceiling,
        flush_costs, load_kernel, invalidate_kernel, invalidate_all, forget_refused, publish_kernel,
        traps_stale_writes, tolerates_mixed_sizes, spin_hint,
    }

    /// A tag for each pair of ASIDs, except that of the kernel.
    #[inline]
    fn tag_count(&self) -> usize {
        (self.processor.tag_count() - 1) / 2
    }

    /// The user's ASID is not loaded, so its entries are dropped before the root is. The processor
    /// then waits for both operations, before or after it loads the root.
    #[inline]
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        let [kernel, user] = pair(tag);
        if entries == Entries::Discard {
            instruction::tlbi(Operation::Tag(user), Domain::Local);
        }
        // SAFETY: the caller's promise.
        unsafe { self.processor.load(root, kernel, entries) };
    }

    #[inline]
    fn invalidate(&self, tag: Tag, extent: Extent) {
        self.invalidate_pair(tag, extent);
    }

    #[inline]
    fn invalidate_tag(&self, tag: Tag) {
        self.invalidate_pair(tag, Extent::whole());
    }

    #[inline]
    fn broadcaster(&self) -> Option<&Self> {
        self.processor.broadcaster().map(|_| self)
    }
}

// SAFETY: as for `Aarch64`, under both ASIDs.
unsafe impl Broadcaster for Kpti {
    /// Each operation is executed once for each half.
    #[inline]
    fn costs(&self) -> NotifyCosts {
        let costs = self.processor.costs();
        NotifyCosts { operation_ns: costs.operation_ns * 2, ..costs }
    }

    fn broadcast<B: CpuBits>(
        &self,
        cpus: &CpuSet<B>,
        tag: Tag,
        extent: Extent,
    ) -> Result<(), Refused> {
        pair(tag).into_iter().try_for_each(|asid| self.processor.broadcast(cpus, asid, extent))
    }

    /// Each domain is named once for each half.
    fn costs_in_domains<B: CpuBits>(&self, cpus: &CpuSet<B>) -> Option<DomainCosts> {
        let map = self.processor.domains.as_ref()?;
        let (once, domains) = (map.costs(cpus)?, map.of(cpus)?.count() as u64);
        Some(DomainCosts { broadcast_ns: once.broadcast_ns + map.operation_ns * domains, ..once })
    }

    fn broadcast_in_domains<B: CpuBits>(&self, cpus: &CpuSet<B>, tag: Tag) -> Result<(), Refused> {
        pair(tag).into_iter().try_for_each(|asid| self.processor.broadcast_in_domains(cpus, asid))
    }

    forward! { self => self.processor;
        fn capabilities() -> Broadcast;
        fn broadcast_kernel(extent: Extent) -> Result<(), Refused>;
        fn complete() -> u64;
        fn clock_ns() -> u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aarch64::features::Features;
    use crate::aarch64::features::tests::V8_0;
    use crate::aarch64::instruction::Step::{CompleteLocal, SetTtbr0, Synchronize, Tlbi};
    use crate::aarch64::instruction::steps_of;
    use crate::aarch64::operation::{Levels, PageOperand};

    // SAFETY: instructions are only recorded.
    const KPTI: Kpti = unsafe { Kpti::new(Aarch64::new(V8_0)) };

    fn page(asid: u16, domain: Domain) -> crate::aarch64::instruction::Step {
        let leaf = PageOperand { address: 0x1000, level: None };
        Tlbi(Operation::Page(Scope::Tag(Tag(asid)), Levels::Last, leaf), domain)
    }

    #[test]
    fn halves_differ_in_the_lowest_bit_of_the_asid() {
        // SAFETY: instructions are only recorded.
        let steps = steps_of(|| unsafe { KPTI.load(Root(0x5000), Tag(3), Entries::Keep) });
        assert_eq!(steps, [SetTtbr0(6 << 48 | 0x5000), Synchronize]);
        let halves = Halves { user: 7 << 48 | 0x5000, kernel: 6 << 48 | 0x5000 };
        assert_eq!(Kpti::halves(), halves);
    }

    #[test]
    fn invalidations_name_both_halves() {
        let extent = Extent::page(0x1000);
        let local = [6, 7].map(|asid| page(asid, Domain::Local));
        let steps = steps_of(|| KPTI.invalidate(Tag(3), extent));
        assert_eq!(steps, [&local[..], &[CompleteLocal, Synchronize]].concat());
        let shared = [6, 7].map(|asid| page(asid, Domain::InnerShareable));
        let no_cpus = &CpuSet::<[u64; 1]>::new();
        assert_eq!(steps_of(|| KPTI.broadcast(no_cpus, Tag(3), extent)), shared);
        let whole = [6, 7].map(|asid| Tlbi(Operation::Tag(Tag(asid)), Domain::Local));
        let steps = steps_of(|| KPTI.invalidate_tag(Tag(3)));
        assert_eq!(steps, [&whole[..], &[CompleteLocal, Synchronize]].concat());
    }

    #[test]
    fn discarding_load_waits_for_both_halves() {
        // SAFETY: instructions are only recorded.
        let load = || unsafe { KPTI.load(Root(0x5000), Tag(3), Entries::Discard) };
        // SAFETY: as above.
        unsafe { KPTI.load_kernel(Root(0x9000)) };
        let [kernel, user] = [6, 7].map(|asid| Tlbi(Operation::Tag(Tag(asid)), Domain::Local));
        let loaded = SetTtbr0(6 << 48 | 0x5000);
        assert_eq!(steps_of(load), [user, kernel, CompleteLocal, loaded, Synchronize]);
        // The kernel half is loaded already.
        let steps = steps_of(load);
        assert_eq!(steps, [user, loaded, Synchronize, kernel, CompleteLocal, Synchronize]);
    }

    #[test]
    fn kpti_follows_the_processor() {
        let with = |workarounds| {
            // SAFETY: instructions are only recorded.
            unsafe { Kpti::new(Aarch64::new(Features { workarounds, ..V8_0 })) }
        };
        let repeating = with(Workarounds::REPEATED_COMPLETION);
        let steps = steps_of(|| _ = repeating.complete());
        assert_eq!(steps.len(), steps_of(|| _ = KPTI.complete()).len() + 2);
        // The last pair is free for the passage between ASIDs.
        assert_eq!(with(Workarounds::ASID_APART).tag_count(), 32766);
        assert_eq!(with(Workarounds::ASID_APART).workarounds(), Workarounds::ASID_APART);
        // SAFETY: instructions are only recorded.
        let silent = unsafe { Kpti::new(Aarch64::new(V8_0).without_broadcasts()) };
        assert!(silent.broadcaster().is_none() && KPTI.broadcaster().is_some());
        let late = Features { workarounds: Workarounds::ASID_APART, ..V8_0 };
        crate::aarch64::instruction::set_cpu(late);
        // SAFETY: nothing is executed.
        assert!(std::panic::catch_unwind(|| unsafe { KPTI.set_up_cpu() }).is_err());
        assert!(std::panic::catch_unwind(|| with(Workarounds::ICACHE_AT_SWITCH)).is_err());
    }

    #[test]
    fn each_tag_has_two_asids() {
        assert_eq!(KPTI.tag_count(), 32767);
        // SAFETY: instructions are only recorded.
        let small = unsafe { Kpti::new(Aarch64::new(Features { tag_bits: 8, ..V8_0 })) };
        assert_eq!(small.tag_count(), 127);
        assert_eq!(pair(Tag(127)), [Tag(254), Tag(255)]);
    }
}
