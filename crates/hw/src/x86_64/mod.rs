//! What the engine asks of an x86-64 processor, for any kernel on one.
//!
//! [`X86_64`] is a [`Processor`](crate::Processor): it loads roots, drops translations and
//! orders memory, by what the processor [can do](Features):
//!
//! | has | tags | here | on other CPUs |
//! |---|---|---|---|
//! | nothing | none: each load discards | `INVLPG`, MOV to CR3, CR4.PGE | interrupt |
//! | PCID | per CPU, six as in Linux | the same | interrupt |
//! | PCID, `INVPCID` | the same | the same, `INVPCID` for everything | interrupt |
//! | PCID, `INVLPGB` | global, 4095 | the same | broadcast or interrupt |
//!
//! [`detect`] asks CPUID. Then each CPU is [enabled](enable) once. Encodings are functions that run
//! anywhere ([`cr3`], [`invpcid`], [`invlpgb`]), and are tested on any host; what executes them is
//! compiled for x86-64 alone.
//!
//! # What is not here
//!
//! - *Kernel page-table isolation* (KPTI, PTI): each space has one root and one tag, and the
//!   kernel's pages are in all of them. Where the processor is so leaky that user code must not
//!   even have the kernel's pages mapped, each space has two of both, and each invalidation goes to
//!   both; that is not modelled.
//! - *Shadow stacks, LAM, five levels of tables*: nothing depends on them. A kernel that sets bits
//!   of CR3 for them (LAM) needs a [`load`](crate::Processor::load) of its own.
//! - Nested paging: translations of guests are other instructions' (`INVEPT`, `INVVPID`,
//!   `INVLPGA`).

pub mod cr3;
mod features;
#[cfg(target_arch = "x86_64")]
#[cfg_attr(test, allow(dead_code, reason = "tests record what is privileged: see `recorded`"))]
mod instructions;
pub mod invlpgb;
pub mod invpcid;
#[cfg(any(target_arch = "x86_64", test))]
mod processor;
#[cfg(test)]
#[path = "tests/instructions.rs"]
mod recorded;

pub use features::{Features, Registers, Source};
#[cfg(target_arch = "x86_64")]
pub use instructions::{detect, enable, order_before_x2apic_write};
#[cfg(any(target_arch = "x86_64", test))]
pub use processor::{KernelPages, X86_64};
