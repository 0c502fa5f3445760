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
mod arch;
#[cfg(target_os = "none")]
mod by_hand;
#[cfg(target_os = "none")]
mod console;
#[cfg(target_os = "none")]
mod entry;
#[cfg(target_os = "none")]
mod load;
#[cfg(target_os = "none")]
mod smoke;
#[cfg(target_os = "none")]
mod trials;

#[cfg(target_os = "none")]
pub(crate) use entry::{fatal, interrupt, main_on_first_cpu, main_on_other_cpu};

/// What is built for the host, where nothing of this could run.
#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!("this kernel is for bare machines: see `shootdown boot --help`");
    std::process::exit(2);
}
