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

// In reading order.
#[cfg(target_os = "none")]
mod arch;
#[cfg(target_os = "none")]
mod console;
#[cfg(target_os = "none")]
mod load;
#[cfg(target_os = "none")]
mod entry;
#[cfg(target_os = "none")]
mod by_hand;
#[cfg(target_os = "none")]
mod smoke;
#[cfg(target_os = "none")]
mod trials;
#[cfg(target_os = "none")]
mod sync;
#[cfg(target_os = "none")]
mod memory;
#[cfg(target_os = "none")]
mod paths;
#[cfg(target_os = "none")]
mod counts;
#[cfg(target_os = "none")]
mod machine;
#[cfg(target_os = "none")]
mod coherence;
#[cfg(target_os = "none")]
mod platform;
#[cfg(target_os = "none")]
mod scheduler;
#[cfg(target_os = "none")]
mod process;
#[cfg(target_os = "none")]
mod contents;
#[cfg(target_os = "none")]
mod user;
#[cfg(target_os = "none")]
mod operations;
#[cfg(target_os = "none")]
mod by_address;
#[cfg(target_os = "none")]
mod world;
#[cfg(target_os = "none")]
mod report;
#[cfg(target_os = "none")]
mod run;

#[cfg(target_os = "none")]
pub(crate) use entry::{fatal, interrupt, main_on_first_cpu, main_on_other_cpu};

/// What is built for the host, where nothing of this could run.
#[cfg(not(target_os = "none"))]
fn main() {
    eprintln!("this kernel is for bare machines: see `shootdown boot --help`");
    std::process::exit(2);
}
