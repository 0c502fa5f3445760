//! The engine's [`Processor`](crate::Processor) on RISC-V with 64 bits, for kernels in S-mode.
//!
//! "Manual" is volume II of the RISC-V manual, with the names of its sections. "SBI" is the
//! Supervisor Binary Interface, the calls of firmware.
//!
//! In reading order: [`encoding`], the fields of `satp` and the addresses to name; [`errata`], the
//! harts with their errata; [`features`], the processor's features; [`sbi`], the firmware calls;
//! `clint`, interrupts without firmware; `detection`, which asks the CPU for its features; and
//! `processor`, the implementation of [`Processor`](crate::Processor). All is tested on any host,
//! where instructions are recorded instead of executed.
//!
//! # Invalidation
//!
//! `SFENCE.VMA` acts on the CPU (*hart*) that executes it. It names an address or all, and an ASID
//! or all:
//!
//! | address | ASID | drops |
//! |---|---|---|
//! | all | all | everything |
//! | all | one | everything under the ASID that is not global |
//! | one | all | the leaf at the address, global or not |
//! | one | one | the leaf at the address, under the ASID, if it is not global |
//!
//! - With an address, it drops leaves alone. An extent that [frees
//!   tables](shootdown::Extent::frees_tables) therefore drops the whole tag.
//! - With Svinval, several addresses take one pair of barriers instead of one for each.
//! - A page of Svnapot (64 KiB) may be cached as sixteen entries of 4 KiB. Each of these addresses
//!   is named. (Linux: `__flush_tlb_range`.)
//! - **A write of `satp` drops nothing**, whether it changes the root or the ASID.
//!
//! # Other CPUs
//!
//! There is no broadcast in hardware. The firmware has one, SBI's *remote fence*: it interrupts the
//! CPUs that the call names in M-mode, which the kernel cannot mask, and returns when they have
//! executed `SFENCE.VMA`. See `RiscV64::with_remote_fences`. Tags are therefore
//! [global](shootdown::Tagging::Global), as in Linux.
//!
//! # Guests
//!
//! For a hypervisor, `Stage2` has the second stage of the extension H: `hgatp` and `HFENCE.GVMA`
//! instead of `satp` and `SFENCE.VMA`.
//!
//! # Refused accesses
//!
//! A CPU may cache that an entry was *not* valid, and the translation that refused a write (manual,
//! "Supervisor Memory-Management Fence Instruction"). A page that becomes valid, or writable, needs
//! no flush of other CPUs; but the handler of page faults calls `Processor::forget_refused` for the
//! address before the access is tried again. With Svvptc, a valid entry is found after a bounded
//! time; the call is still right, and is still needed for permissions.
//!
//! # Limits
//!
//! - The processor does not look at A and D. Hardware that sets them (Svadu) does so by an atomic
//!   access to the entry in memory, and hardware that does not (Svade) refuses the access. Both
//!   satisfy [`traps_stale_writes`](crate::Processor::traps_stale_writes). A handler that sets them
//!   by software walks page tables, so it must not run on a CPU that others notify by remote
//!   fences: its masked interrupts do not delay those.
//! - `FENCE.I` is not executed: a kernel that writes code makes it visible itself.
//! - Interrupts by an IMSIC (AIA) are not here: a kernel with one sends them by its own driver.

pub mod encoding;
pub mod errata;
pub mod features;
pub mod sbi;

#[cfg(all(target_arch = "riscv64", not(test)))]
mod instructions;
#[cfg(test)]
#[path = "tests/instructions.rs"]
pub(crate) mod instructions;
#[cfg(any(target_arch = "riscv64", test))]
mod detection;
#[cfg(any(target_arch = "riscv64", test))]
mod clint;
#[cfg(any(target_arch = "riscv64", test))]
mod processor;
#[cfg(any(target_arch = "riscv64", test))]
mod stage2;

#[cfg(any(target_arch = "riscv64", test))]
pub use clint::ClintIpi;
pub use features::Features;
#[cfg(any(target_arch = "riscv64", test))]
pub use processor::RiscV64;
#[cfg(any(target_arch = "riscv64", test))]
pub use sbi::SbiIpi;
#[cfg(any(target_arch = "riscv64", test))]
pub use stage2::Stage2;
