//! Guests as spaces: the second stage of translation, at EL2.
//!
//! A hypervisor has two engines. The first is for its own spaces, if it has any. In the second, a
//! *space* is a guest: its root is the guest's stage-2 table, its tag the guest's VMID, and a CPU
//! uses it while a virtual CPU of the guest runs there. [`Stage2`] is the processor of the second
//! engine. The hypervisor calls [`switch`] before it enters the guest, [`enter_lazy`] after the
//! guest has exited, and [`flush`] where it unmaps or write-protects guest memory (page migration,
//! dirty logging, balloons). A guest that does not run is not interrupted.
//!
//! TLBs hold three kinds of entries of a guest: of stage 1, of stage 2, and of both combined. An
//! operation that names an address of the guest's memory (`IPAS2E1`) drops entries of stage 2
//! alone. The entries of stage 1 and the combined entries have the addresses of the guest's
//! programs, which the hypervisor does not know. They are dropped all together (`VMALLE1`), and
//! only after the former operation is complete. In between, the walker could combine an old entry
//! of stage 2 once more:
//!
//! ```text
//! dsb  ishst         publish
//! tlbi ipas2e1is …   starts to drop the entry of stage 2
//! dsb  ish           waits until it is dropped
//! tlbi vmalle1is     starts to drop what was combined from it
//! dsb  ish
//! isb
//! ```
//!
//! The section is "TLB maintenance" of chapter D8 in Arm's manual, DDI 0487; KVM uses the same
//! sequence (`__kvm_tlb_flush_vmid_ipa`). Where a completed broadcast must be
//! [repeated](crate::errata), only the last `dsb` is, with a `TLBI VALE2IS`, as in KVM.
//!
//! These operations name no VMID. They act on the guest whose VMID is in `VTTBR_EL2`. A broadcast
//! for another guest loads that VMID for the moment, with an empty table.
//!
//! # Requirements for the hypervisor's set-up
//!
//! On every CPU, before it enters the second engine, and the same on all:
//!
//! - The CPU is at EL2, and `HCR_EL2.TGE` is 0: otherwise `VMALLE1` acts on the hypervisor's own
//!   translations. A hypervisor that runs with E2H and TGE set (VHE) clears TGE around its calls of
//!   this engine, as KVM does.
//! - `VTCR_EL2` is written; `VTCR_EL2.VS` is 1 if VMIDs are to have 16 bits.
//! - The [kernel's root](crate::Kernel::root) is an empty stage-2 table, with VMID 0, which no
//!   guest has. Nothing is ever cached under VMID 0.
//! - `VTTBR_EL2.CnP` stays 0, as for [`Aarch64`].
//! - The page tables of EL2 itself have the granule of stage 2.
//!
//! # Limits
//!
//! - Guests with guests (nested virtualization, `FEAT_NV`), the secure state, and realms.
//! - Errata of speculative address translation at EL2 (KVM: `ARM64_WORKAROUND_SPECULATIVE_AT`):
//!   the hypervisor must keep stage 1 of the guest out of reach while the engine runs.
//! - The sequences were tested on the host, as recorded instructions, and run at EL2 under QEMU.
//!
//! [`switch`]: shootdown::PinnedCpu::switch
//! [`enter_lazy`]: shootdown::PinnedCpu::enter_lazy
//! [`flush`]: shootdown::PinnedCpu::flush

#![expect(unsafe_code, reason = "declares a constructor with promises")]

pub mod operation;
#[cfg(any(target_arch = "aarch64", test))]
mod processor;

pub use operation::GuestOperation;

use shootdown::Root;

use super::settings::Aarch64;

/// An `AArch64` processor whose spaces are guests.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(any(target_arch = "aarch64", test)),
    expect(dead_code, reason = "only the instructions read the fields")
)]
pub struct Stage2 {
    /// The properties that both stages have in common. The tags are VMIDs.
    common: Aarch64,
    empty: Root,
}

impl Stage2 {
    /// The second stage of a processor with these settings. `empty` is the root of an empty stage-2
    /// table.
    ///
    /// # Safety
    ///
    /// The processor has the features of stage 2 ([`detect_stage_2`][detect]) that all CPUs have in
    /// common. The table stays valid and empty for ever. The hypervisor keeps the
    /// [requirements](self#requirements-for-the-hypervisors-set-up).
    ///
    /// [detect]: super::Features::of_stage_2
    #[must_use]
    pub const unsafe fn new(common: Aarch64, empty: Root) -> Self {
        Self { common, empty }
    }
}
