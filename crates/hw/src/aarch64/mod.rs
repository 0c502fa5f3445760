//! The engine's [`Processor`](crate::Processor) on `AArch64`.
//!
//! It runs at EL1, on stage 1 of the EL1&0 regime, with user space in TTBR0 and the kernel in
//! TTBR1. A space has the same ASID on all CPUs ([`Tagging::Global`](shootdown::Tagging)), so that
//! a `TLBI` of the inner shareable domain can drop it everywhere. If no other CPU uses the space,
//! the engine drops it on this CPU alone, which Linux does not do.
//!
//! In reading order: [`errata`], the cores with their errata; [`features`], the processor's
//! features; [`domains`], the CPUs that an operation can name; [`granule`], page sizes;
//! [`operation`], the operands of an instruction; [`plan`], the instructions for an extent; and,
//! where they can be executed, `instruction`, `sequence` and `processor`, the implementation of
//! [`Processor`](crate::Processor). [`stage2`] is another processor, whose spaces are guests. All
//! but `instruction` is tested on any host, where instructions are recorded instead of executed.
//!
//! # Requirements for the kernel's set-up
//!
//! On every CPU, before it enters the engine, and the same on all:
//!
//! - `TCR_EL1.A1` is 0: the ASID is that of TTBR0, so that one write changes both ASID and table.
//!   (Linux has had the ASID in TTBR1 since KPTI. To switch spaces, it loads an empty table in
//!   between; otherwise one space's table would be walked under the other's ASID.)
//! - `TCR_EL1.AS` is 1 if ASIDs are to have 16 bits. With 8 bits, a rollover comes after 255
//!   spaces.
//! - The kernel's pages are global (nG is 0), and user pages are not (nG is 1).
//! - The [kernel's root](crate::Kernel::root) is an empty table, because TTBR1 maps the kernel. So
//!   nothing is ever cached under ASID 0.
//! - `TTBR0_EL1.CnP` stays 0, as roots are written: CPUs share no TLB entries. With CnP, a stale
//!   entry of one CPU would be visible to another, which the engine does not model.
//! - Interrupts are masked by `PSTATE.I`, or by `PSTATE.F` if the flush interrupt is an
//!   [FIQ](FlushInterrupt::Fiq). A kernel that masks them by priority (Linux: pseudo-NMI) wraps
//!   this type and implements [`interrupts_masked`][masked] itself.
//! - `TCR_EL1.HD` is 0 if a CPU needs [`NO_DIRTY_MARKS`](crate::errata::Workarounds).
//!
//! [masked]: crate::Processor::interrupts_masked
//!
//! # Limits
//!
//! - The kernel's tables are not hidden from user mode. A kernel that does so by a second TTBR1
//!   (KPTI) uses `Kpti`, with two ASIDs for each space. E0PD needs nothing of the processor.
//! - Errata are worked around as [`errata`] lists, which is also a page of the book.
//! - The outer shareable domain, and user space at EL2. A hypervisor may make a
//!   local operation affect more CPUs (`HCR_EL2.FB`), never fewer.

#![allow(
    clippy::inline_always,
    reason = "a page is one instruction, and calls on the way to it would take 250"
)]

pub mod domains;
pub mod errata;
pub mod features;
pub mod granule;
pub mod operation;
pub mod plan;
mod settings;
pub mod stage2;

#[cfg(any(target_arch = "aarch64", test))]
mod gic;
#[cfg(all(target_arch = "aarch64", not(test)))]
mod instruction;
#[cfg(test)]
#[path = "tests/instruction.rs"]
pub(crate) mod instruction;
#[cfg(any(target_arch = "aarch64", test))]
mod sequence;
#[cfg(any(target_arch = "aarch64", test))]
mod processor;
#[cfg(any(target_arch = "aarch64", test))]
pub mod kpti;

pub use domains::DomainMap;
pub use features::Features;
#[cfg(any(target_arch = "aarch64", test))]
pub use gic::GicIpi;
#[cfg(any(target_arch = "aarch64", test))]
pub use kpti::Kpti;
pub use settings::{Aarch64, FlushInterrupt};
pub use stage2::Stage2;
