//! The engine's [`Machine`] on bare metal: processors, and the interface to a kernel.
//!
//! The engine asks a machine for two kinds of operations. Those that are the same for every kernel
//! on an architecture (load a root, invalidate a page, make a store visible) form a [`Processor`].
//! This crate has one for [x86-64](x86_64), [AArch64](aarch64), [RISC-V](riscv64) and
//! [LoongArch64](loongarch64). Those that depend on the kernel (store a CPU's state, find its
//! number, send an interrupt) form a [`Kernel`], which your kernel implements. [`Bare`] combines
//! the two into a [`Machine`].
//!
//! ```text
//!    x86_64::X86_64            ─┐
//!    aarch64::Aarch64           │
//!    riscv64::RiscV64           ├─ Processor ─┐
//!    loongarch64::LoongArch64  ─┘             ├─ Bare: Machine ── Shootdown<Bare<K>>
//!                        your kernel ─ Kernel ┘
//! ```
//!
//! A kernel that needs nothing special implements [`Platform`] instead of [`Kernel`]: the number of
//! a CPU, the interrupt controller's number of a CPU, and what happens to a dead space. The
//! [interrupt](Ipi) and the rest are [ready](ReadyEngine).
//!
//! A kernel that needs more (a hypervisor's paravirtual flush, a count of each invalidation) wraps
//! a processor in a [`Processor`] of its own, or implements [`Machine`] itself and calls the
//! processor.
//!
//! A hypervisor has a second engine, whose spaces are guests: see [`Stage2`].
//!
//! The functions that encode operands and registers compile on every host, and are tested there.
//! Only the instructions are compiled for their architecture alone.

#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::pedantic)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::doc_markdown,
    clippy::module_name_repetitions,
    reason = "fields of registers have the widths and names of the manuals"
)]

#[cfg(test)]
extern crate std;

// In reading order.
pub mod errata;
mod forward;
mod processor;
mod ipi;
mod kernel;
mod bare;
mod ready;
mod stage2;

pub mod aarch64;
pub mod loongarch64;
pub mod riscv64;
pub mod x86_64;

#[cfg(test)]
#[path = "tests/book.rs"]
mod book;
#[cfg(test)]
#[path = "tests/halves.rs"]
mod halves;

pub use bare::Bare;
pub use ipi::Ipi;
pub use kernel::Kernel;
pub use processor::Processor;
pub use ready::{Platform, ReadyEngine, ReadyKernel, ReadyMachine};
pub use stage2::{LastVcpu, Stage2, Vcpu, VcpuNames};

#[doc(no_inline)]
pub use shootdown::Machine;
