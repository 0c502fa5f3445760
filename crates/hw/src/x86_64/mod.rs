//! The engine's [`Processor`](crate::Processor) on x86-64, for any kernel.
//!
//! [`X86_64`] loads roots, drops translations and orders memory with the instructions that the
//! processor [has](Features):
//!
//! | features | tags | local invalidation | other CPUs |
//! |---|---|---|---|
//! | none | none: each load discards | `INVLPG`, MOV to CR3, CR4.PGE | interrupt |
//! | PCID | per CPU, six as in Linux | `INVLPG`, MOV to CR3, CR4.PGE | interrupt |
//! | PCID, `INVPCID` | per CPU, six as in Linux | `INVLPG`, MOV to CR3, `INVPCID` | interrupt |
//! | PCID, `INVLPGB` | global, 4095 | `INVLPG`, MOV to CR3, `INVPCID` | broadcast or interrupt |
//!
//! [`detect`] executes CPUID. Then each CPU is [enabled](enable) once. Encodings are functions that
//! are tested on any host ([`cr3`], [`invlpgb`]). The instructions are compiled for x86-64 alone.
//! As a guest, [`kvm`] skips virtual CPUs that do not run, and [`hyperv`] flushes on other virtual
//! CPUs by a hypercall. For a hypervisor, `guest` has the second stage of Intel and AMD.
//!
//! Processors with errata are worked around as [`errata`] lists, which is also a page of the book.
//!
//! # Limits
//!
//! - *Kernel page-table isolation* (KPTI, PTI): [`X86_64`] gives each space one root and one tag.
//!   On processors whose leaks require KPTI, each space has two: use `Kpti`.
//! - *Shadow stacks, LAM, five levels of tables*: nothing depends on them. The root of a space may
//!   have the bits of CR3 for LAM ([`Space::set_root`](shootdown::Space::set_root)).

pub mod cr3;
pub mod errata;
mod features;
mod identity;
#[cfg(target_arch = "x86_64")]
#[cfg_attr(test, allow(dead_code, reason = "tests record privileged instructions: see `recorded`"))]
mod instructions;
pub mod hyperv;
pub mod invept;
pub mod invlpgb;
pub mod kvm;
#[cfg(any(target_arch = "x86_64", test))]
pub mod guest;
#[cfg(any(target_arch = "x86_64", test))]
mod processor;
#[cfg(any(target_arch = "x86_64", test))]
pub mod kpti;
#[cfg(any(target_arch = "x86_64", test))]
mod x2apic;
#[cfg(any(target_arch = "x86_64", test))]
mod xapic;
#[cfg(test)]
#[path = "tests/instructions.rs"]
pub(crate) mod recorded;

pub use features::Features;
pub use identity::{Registers, Source};
#[cfg(target_arch = "x86_64")]
pub use instructions::{detect, enable, order_before_x2apic_write, tags_are_enabled};
#[cfg(any(target_arch = "x86_64", test))]
pub use kpti::{Halves, Kpti, MarkUserHalf, UserMarks};
#[cfg(any(target_arch = "x86_64", test))]
pub use processor::{KernelPages, X86_64};
#[cfg(any(target_arch = "x86_64", test))]
pub use x2apic::X2ApicIpi;
#[cfg(any(target_arch = "x86_64", test))]
pub use xapic::XApicIpi;
