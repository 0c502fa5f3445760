//! The engine's processor on `AArch64`: one of the two halves of
//! [`Machine`](crate::Machine).
//!
//! It runs at EL1, on stage 1 of the EL1&0 regime, with user space in TTBR0 and the kernel in
//! TTBR1. A space has the same ASID on all CPUs ([`Tagging::Global`](shootdown::Tagging)), so that
//! a `TLBI` of the inner shareable domain can drop it everywhere; where nobody else is present, the
//! engine has it dropped here alone, which Linux does not do.
//!
//! In reading order: [`features`], what there is; [`granule`], how long pages are; [`operation`],
//! what an instruction is told; [`plan`], which of them an extent takes; and, where they can be
//! run, `instruction` and `processor`, the implementation of
//! [`Processor`](crate::Processor). All but `instruction` is tested on any host: there,
//! instructions are not run, but written down.
//!
//! # What the kernel must have set up
//!
//! On every CPU, the same, before it enters the engine:
//!
//! - `TCR_EL1.A1` is 0: the ASID is that in TTBR0, so that one write changes it and the table at
//!   once. (Linux has it in TTBR1 since it has KPTI, and on the way from one space to another loads
//!   an empty table, for otherwise one space's table would be walked under the other's ASID.)
//! - `TCR_EL1.AS` is 1, if ASIDs are to have 16 bits. With 8, a rollover comes after 255 spaces.
//! - The kernel's pages are global (nG is 0), and user pages are not (nG is 1).
//! - The [kernel's root](crate::Kernel::root) is an empty table, for what the kernel
//!   itself needs is in TTBR1: under ASID 0 nothing is ever cached.
//! - `TTBR0_EL1.CnP` stays 0, as roots are written: CPUs share no TLB entries. With it, one CPU's
//!   stale entries would be another's, which the engine does not know of.
//! - Masking interrupts is masking them in `PSTATE.I`. A kernel that masks them by priority (Linux:
//!   pseudo-NMI) wraps this type, and answers [`interrupts_masked`][masked] by what it does.
//!
//! [masked]: crate::Processor::interrupts_masked
//!
//! # What is not here
//!
//! - KPTI, which needs two ASIDs a space, and E0PD: the kernel's tables are not hidden from user
//!   mode. `TLBI` of both, and the trampoline, are a kernel's to add.
//! - Errata. One kind is known that breaks broadcasts: on Cortex-A76 (1286807), Cortex-A55
//!   (2441007), Cortex-A510 (2441009) and Falkor (1009), accesses by a translation that is gone may
//!   be completed after the `DSB` (Linux: `ARM64_WORKAROUND_REPEAT_TLBI`). A kernel that finds
//!   itself on one of these calls [`Aarch64::repeating`]; which CPU it is on, it must find out
//!   itself.
//! - The outer shareable domain, EL2, and other stages of translation. A hypervisor may make more
//!   of a local operation than it is (`HCR_EL2.FB`), never less.

pub mod features;
pub mod granule;
pub mod operation;
pub mod plan;
mod settings;

#[cfg(all(target_arch = "aarch64", not(test)))]
mod instruction;
#[cfg(test)]
#[path = "tests/instruction.rs"]
mod instruction;
#[cfg(any(target_arch = "aarch64", test))]
mod processor;

pub use features::Features;
pub use settings::{Aarch64, Issue};
