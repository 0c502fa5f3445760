//! The engine's [`Machine`] on bare metal: processors, and what a kernel adds to one.
//!
//! The engine asks a machine for two kinds of things. How to load a root, invalidate a page and
//! make a store visible is the same for every kernel on an architecture: that is a [`Processor`],
//! and this crate has one for [x86-64](x86_64), [AArch64](aarch64) and [LoongArch64](loongarch64).
//! Where a CPU's state lives, how a CPU finds its number and how it sends an interrupt is the
//! kernel's own: that is a [`Kernel`], which your kernel implements. [`Bare`] combines the two into
//! a [`Machine`].
//!
//! ```text
//!    x86_64::X86_64            ─┐
//!    aarch64::Aarch64           ├─ Processor ─┐
//!    loongarch64::LoongArch64  ─┘             ├─ Bare: Machine ── Shootdown<Bare<K>>
//!                        your kernel ─ Kernel ┘
//! ```
//!
//! A kernel that needs more (a hypervisor's paravirtual flush, a count of each invalidation) wraps
//! a processor in a [`Processor`] of its own, or implements [`Machine`] itself and calls the
//! processor.
//!
//! Operands and registers are encoded by functions that compile, and are tested, on every host.
//! Only the instructions themselves are compiled for their architecture alone.

#![no_std]
#![warn(clippy::pedantic)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::doc_markdown,
    clippy::module_name_repetitions,
    reason = "fields of registers are as wide, and named, as the manuals have it"
)]

#[cfg(test)]
extern crate std;

// In reading order.
mod forward;
mod processor;
mod kernel;
mod bare;

pub mod aarch64;
pub mod loongarch64;
pub mod x86_64;

pub use bare::Bare;
pub use kernel::Kernel;
pub use processor::Processor;

#[doc(no_inline)]
pub use shootdown::Machine;
