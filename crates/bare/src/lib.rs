//! [`Machine`] on bare metal, in two halves.
//!
//! What the engine asks of the machine is of two kinds. How a root is loaded, a page invalidated
//! and a store made visible is the same for every kernel on an architecture: that is a
//! [`Processor`], of which there is one crate for each. Where a CPU's state lives, how its number
//! is known and an interrupt sent is the kernel's own: that is a [`Kernel`]. [`Bare`] is the
//! [`Machine`] that they make.
//!
//! ```text
//!    shootdown-x86_64 ─┐
//!    shootdown-aarch64 ┼─ Processor ─┐
//!    shootdown-loongarch64           ├─ Bare: Machine ── Shootdown<Bare<K>>
//!                your kernel ─ Kernel┘
//! ```
//!
//! A kernel that is asked for more (a hypervisor's paravirtual flush, a count of each invalidation)
//! wraps a processor in one of its own, or implements [`Machine`] itself and calls the processor.

#![no_std]
#![warn(clippy::pedantic)]

mod kernel;
mod machine;
mod processor;

pub use kernel::Kernel;
pub use machine::Bare;
pub use processor::Processor;

#[doc(no_inline)]
pub use shootdown::Machine;
