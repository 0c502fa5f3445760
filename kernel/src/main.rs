//! A bootable kernel that runs the lab's workloads and the memory manager on page tables that a
//! real MMU walks, with real inter-processor interrupts.
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

/// Explains on the host, which cannot run the kernel, how to boot it.
#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!("this kernel runs on bare machines: see `shootdown boot --help`");
    std::process::exit(2);
}
