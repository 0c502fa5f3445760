//! A kernel that boots, and runs the memory manager and the workloads of the lab on page tables
//! that a real MMU walks, with interrupts that cross CPUs.
//!
//! Start it with `shootdown boot`.
//!
//! # Reading it
//!
//! In this order: `arch` is what an architecture gives; `load` what is to be done, and `entry`
//! where it begins. `smoke` and `trials` see, by hand, whether the architecture and the engine do
//! what they are to do. The rest is a kernel as small as one can be that the engine and the memory
//! manager are embedded in: `sync` and `memory`; `machine`, the engine's half of the contract;
//! `coherence` and `platform`, the memory manager's two seams; `scheduler`; `process` and `user`,
//! whose threads really run in user mode; `operations` and `by_address`, what a workload's steps
//! mean, `contents`, what memory must hold then, and `tasks`, what threads do to each other;
//! `world`, all of a run, `report`, what came of it, and `run`, how it begins.

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
mod tasks;
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
