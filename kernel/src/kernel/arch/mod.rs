//! The architecture that the kernel is built for, and its interface.
//!
//! The rest of the kernel is the same for all architectures. Besides the trait, an architecture
//! has:
//!
//! - `boot.s`, which brings each CPU to Rust with interrupts masked, the MMU on, and a stack of its
//!   own;
//! - `link.ld`, the linker script;
//! - the vectors;
//! - drivers for the few devices that are needed.
//!
//! It calls the kernel only by [`upcalls`].

mod contract;
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
mod device_tree;
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
mod high_half;
#[cfg(not(target_arch = "loongarch64"))]
mod page_tables;
mod payload;
#[cfg(not(target_arch = "x86_64"))]
mod ticks;
mod upcalls;

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::X86_64 as Arch;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{Aarch64 as Arch, guest};

#[cfg(target_arch = "riscv64")]
mod riscv64;
#[cfg(target_arch = "riscv64")]
pub(crate) use riscv64::{Riscv64 as Arch, guest};

#[cfg(target_arch = "loongarch64")]
mod loongarch64;
#[cfg(target_arch = "loongarch64")]
pub(crate) use loongarch64::LoongArch64 as Arch;

pub(crate) use contract::{Architecture, Boot, Interrupt, Status, Task, User, UserExit};
pub(crate) use upcalls::set_interrupt_handler;
