//! Guests as spaces on x86-64: extended page tables ([`Ept`], Intel) and nested paging ([`Npt`],
//! AMD). See [`Stage2`](crate::Stage2) for the contract that both implement.
//!
//! "SDM" is Intel's manual, volume 3C, chapter "VMX Support for Address Translation"; "APM" is
//! AMD's, volume 2, chapter "Secure Virtual Machine".
//!
//! | instruction | drops on this CPU |
//! |---|---|
//! | `INVEPT` 1, one EPTP | guest-physical and combined mappings of the EPTP, of every VPID, PCID |
//! | `INVEPT` 2, all | guest-physical and combined mappings of every EPTP |
//! | `INVVPID` 1, one VPID | linear and combined mappings of the VPID, of every PCID, global too |
//! | `INVVPID` 2, all | linear and combined mappings of every VPID except 0 |
//! | `VMRUN`, `TLB_CONTROL` 3 | combined and nested mappings of the guest's ASID, global too |
//! | `VMRUN`, `TLB_CONTROL` 1 | everything of every ASID, the host's too |
//!
//! (SDM, "Operations that Invalidate Cached Mappings"; APM, "TLB Control".) No instruction drops
//! the mappings of one guest-physical page. `INVLPGA` and `INVVPID` 0 name an address of the
//! guest's programs, which a hypervisor does not know where it unmaps guest memory; they emulate a
//! guest's `INVLPG`. So each flush of a guest drops all of it on the CPUs that run the guest, in
//! one instruction for any number of pages.
//!
//! # What is entered
//!
//! The roots of guests are not in a register, but in the structure (VMCS, VMCB) with which a guest
//! is entered. So a load writes a [`GuestEntry`] of the CPU, which the hypervisor copies into that
//! structure:
//!
//! ```text
//! mask interrupts (AMD: CLGI)
//! switch(guest); enter_vcpu(…)
//! Intel: EPT pointer := entry.root()        AMD: N_CR3, ASID, TLB_CONTROL := entry.take()
//! VMLAUNCH, VMRESUME                        VMRUN
//! enter_lazy
//! ```
//!
//! The flush interrupt stays masked from the copy to the entry. An interrupt that arrives in this
//! time stays pending, and the guest exits immediately. If it were handled, the flush would write
//! to an entry that was already copied.
//!
//! Outside of guests, these CPUs do not walk the tables of the second stage. A CPU that has left a
//! guest keeps its mappings, by the tag, until it comes back and catches up.
//!
//! # Limits
//!
//! - Other CPUs are notified by interrupts. (AMD's `INVLPGB` can name the ASID of a guest, if it is
//!   the same on all CPUs.)
//! - Guests with guests, SEV and TDX, whose host flushes by other means.
//! - The sequences were tested on the host, as recorded instructions, and have not run in VMX or
//!   SVM.

mod entry;
mod ept;
mod npt;

pub use entry::{GuestEntries, GuestEntry, NestedEntry, TlbControl};
pub use ept::{Ept, EptFeatures};
pub use npt::{Npt, NptFeatures};
