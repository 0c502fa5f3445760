//! The processor's half of the second engine's machine.

#![expect(unsafe_code, reason = "implements the contract, and loads roots")]

use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuSet, Entries, Extent, Memory, NotifyCosts, Reach, Refused,
    Root, Tag,
};

use super::{GuestOperation, Stage2};
use crate::aarch64::features::Features;
use crate::aarch64::instruction;
use crate::aarch64::operation::{Domain, Levels, PageOperand, Scope};
use crate::aarch64::sequence::{TAG_SHIFT, base_register};
use crate::aarch64::settings::Aarch64;
use crate::{Processor, VcpuNames, forward, forward_memory, forward_processor};

impl Stage2 {
    /// Starts to drop an extent of the loaded guest. Waits in between, where the manual requires
    /// it.
    fn issue(&self, tag: Tag, extent: Extent, domain: Domain) {
        let mut leaves_combined = false;
        for operation in self.common.operations(Scope::Tag(tag), extent) {
            let operation = GuestOperation::of_guest(operation);
            leaves_combined = operation.leaves_combined();
            instruction::tlbi_el2(operation, domain);
        }
        if leaves_combined {
            Self::complete_in(domain);
            instruction::tlbi_el2(GuestOperation::Combined, domain);
        }
    }

    /// Starts to drop an extent of the hypervisor's own pages.
    fn issue_own(&self, extent: Extent, domain: Domain) {
        for operation in self.common.operations(Scope::AllTags, extent) {
            instruction::tlbi_el2(GuestOperation::of_own(operation), domain);
        }
    }

    fn complete_in(domain: Domain) {
        match domain {
            Domain::Local => instruction::complete_local(),
            Domain::InnerShareable => instruction::complete_shared(),
        }
    }

    fn complete_here() {
        instruction::complete_local();
        instruction::synchronize();
    }

    /// Calls `f` with this VMID loaded.
    ///
    /// Another guest may be loaded. Its table must not be walked under this VMID, and the table of
    /// the guest that has this VMID may be gone. So the empty table is loaded for this time: its
    /// entries are not valid, and are not cached.
    fn under(&self, tag: Tag, f: impl FnOnce()) {
        let loaded = instruction::vttbr();
        if loaded >> TAG_SHIFT == u64::from(tag.0) {
            return f();
        }
        // SAFETY: the empty table stays valid for ever; the other one was loaded before.
        let load = |value| unsafe {
            instruction::set_vttbr(value);
            instruction::synchronize();
        };
        load(base_register(self.empty, tag));
        f();
        load(loaded);
    }
}

/// The operation that repeats a completion: `VALE2` of address 0, which drops at most a translation
/// of the hypervisor. (KVM: `__tlbi_sync_s1ish_hyp`.)
const REPEATED: GuestOperation =
    GuestOperation::OwnPage(Levels::Last, PageOperand { address: 0, level: None });

// SAFETY: all methods are those of the processor's first stage.
unsafe impl Memory for Stage2 {
    forward_memory! { self => self.common, Aarch64 }
}

// SAFETY: each method executes the sequence of the manual, as explained in the module above.
unsafe impl Processor for Stage2 {
    type TagSlots = <Aarch64 as Processor>::TagSlots;
    type TagWords = <Aarch64 as Processor>::TagWords;
    type Broadcaster = Self;

    forward_processor! { self => self.common;
        workarounds, publish, synchronize, interrupts_masked, tagging, tag_count, flush_ceiling,
        traps_stale_writes, spin_hint,
    }

    /// Checks that the processor is right on this CPU.
    ///
    /// # Panics
    ///
    /// If the CPU needs a workaround, or lacks a feature, that the engine's features do not have.
    unsafe fn set_up_cpu(&self) {
        self.common.admit(Features::detect_stage_2());
    }

    /// As for spaces, entries to discard are dropped before the table is loaded, unless its VMID is
    /// loaded already.
    #[inline]
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        let is_loaded = instruction::vttbr() >> TAG_SHIFT == u64::from(tag.0);
        if entries == Entries::Discard && !is_loaded {
            // SAFETY: the empty table stays valid for ever.
            unsafe { instruction::set_vttbr(base_register(self.empty, tag)) };
            instruction::synchronize();
            instruction::tlbi_el2(GuestOperation::Guest, Domain::Local);
            instruction::complete_local();
        }
        // SAFETY: the caller's promise.
        unsafe { instruction::set_vttbr(base_register(root, tag)) };
        instruction::synchronize();
        if entries == Entries::Discard && is_loaded {
            self.invalidate_tag(tag);
        }
    }

    #[inline]
    unsafe fn load_kernel(&self, root: Root) {
        // SAFETY: the caller's promise.
        unsafe { instruction::set_vttbr(base_register(root, Tag::KERNEL)) };
        instruction::synchronize();
    }

    fn invalidate(&self, tag: Tag, extent: Extent) {
        self.issue(tag, extent, Domain::Local);
        Self::complete_here();
    }

    fn invalidate_tag(&self, _: Tag) {
        instruction::tlbi_el2(GuestOperation::Guest, Domain::Local);
        Self::complete_here();
    }

    /// The hypervisor's own pages, at EL2.
    fn invalidate_kernel(&self, extent: Extent) {
        self.issue_own(extent, Domain::Local);
        Self::complete_here();
    }

    fn invalidate_all(&self) {
        instruction::tlbi_el2(GuestOperation::AllGuests, Domain::Local);
        instruction::tlbi_el2(GuestOperation::Own, Domain::Local);
        Self::complete_here();
    }

    /// Publishes new entries of the hypervisor's own pages.
    #[inline]
    fn publish_kernel(&self, extent: Extent) {
        self.common.publish_kernel(extent);
    }

    #[inline]
    fn broadcaster(&self) -> Option<&Self> {
        self.common.broadcaster().map(|_| self)
    }
}

// SAFETY: operations on stage 2 are followed by one on what was combined from it; `VMALLS12E1` and
// `ALLE1` name both stages.
unsafe impl crate::Stage2 for Stage2 {
    /// The virtual CPUs of a guest may use one ASID of the guest's for different tables.
    const VCPU_NAMES: VcpuNames = VcpuNames::Shared;

    /// `VMALLE1`, for the guest whose VMID is loaded.
    fn invalidate_vcpu(&self, _: u16) {
        instruction::tlbi_el2(GuestOperation::Combined, Domain::Local);
        Self::complete_here();
    }
}

// SAFETY: `TLBI … IS` reaches every CPU of the inner shareable domain, and `dsb ish` waits for all
// such operations of this CPU.
unsafe impl Broadcaster for Stage2 {
    /// Guests are flushed in no domain, because `VMALLS12E1IS` has another operand.
    #[inline]
    fn capabilities(&self) -> Broadcast {
        Broadcast { reach: Reach::Everyone, ..self.common.capabilities() }
    }

    /// Reaches all CPUs, whatever `cpus` contains.
    fn broadcast<B: CpuBits>(
        &self,
        _: &CpuSet<B>,
        tag: Tag,
        extent: Extent,
    ) -> Result<(), Refused> {
        self.under(tag, || self.issue(tag, extent, Domain::InnerShareable));
        Ok(())
    }

    fn broadcast_kernel(&self, extent: Extent) -> Result<(), Refused> {
        self.issue_own(extent, Domain::InnerShareable);
        if extent.is_whole() {
            instruction::tlbi_el2(GuestOperation::AllGuests, Domain::InnerShareable);
        }
        Ok(())
    }

    fn complete(&self) -> u64 {
        self.common.complete_broadcasts(|| instruction::tlbi_el2(REPEATED, Domain::InnerShareable))
    }

    forward! { self => self.common;
        fn costs() -> NotifyCosts;
        fn clock_ns() -> u64;
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
