//! The kernel: the architecture, and what it is to the engine and to the memory manager.
//!
//! # Reading it
//!
//! In this order: `arch` is what an architecture gives; `load` what is to be done, and `entry`
//! where it begins. `smoke` and `trials` see, by hand, whether the architecture and the engine do
//! what they are to do. The rest is a kernel as small as one can be that the engine and the memory
//! manager are embedded in: `sync` and `memory`; `machine`, the engine's half of the contract;
//! `coherence` and `platform`, the memory manager's two seams; `scheduler`; `process` and `user`,
//! whose threads really run in user mode; `contents`, what memory must hold then; `world`, the host
//! of [`shootdown_program::interpreter`], which knows what a workload's steps mean; `report`, what
//! came of a run, and `run`, how it begins.

// In reading order.
mod arch;
mod console;
mod load;
mod entry;
mod by_hand;
mod smoke;
mod trials;
mod sync;
mod memory;
mod paths;
mod counts;
mod machine;
mod coherence;
mod platform;
mod scheduler;
mod process;
mod contents;
mod user;
mod world;
mod report;
mod run;

pub(crate) use entry::{fatal, interrupt, main_on_first_cpu, main_on_other_cpu};
