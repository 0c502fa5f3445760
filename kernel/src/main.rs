//! A kernel that boots, and runs the memory manager and the workloads of the lab on page tables
//! that a real MMU walks, with interrupts that cross CPUs.
//!
//! Start it with `shootdown boot`.

#![cfg_attr(target_os = "none", no_std, no_main)]
#![warn(clippy::pedantic)]
#![allow(
    clippy::module_name_repetitions,
    clippy::cast_possible_truncation,
    reason = "names are read with their module; addresses have 64 bits"
)]

#[cfg(target_os = "none")]
extern crate alloc;

#[cfg(target_os = "none")]
mod kernel;

/// Replaces the kernel on the host, which cannot run it.
#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!("this kernel is for bare machines: see `shootdown boot --help`");
    std::process::exit(2);
}
