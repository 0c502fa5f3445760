//! Runs workloads on a simulated machine.
//!
//! [`run`] performs a workload's operations with the memory manager of [`shootdown_vm`], under one
//! design, and returns what it measured. [`programs`] are benchmarks. [`replay`] runs recordings of
//! real programs.

mod by_address;
mod checked;
mod contents;
mod instrumented;
mod platform;
mod process;
pub mod programs;
pub mod replay;
mod world;

pub use contents::{Contents, FoundBy, WrongContent};
pub use instrumented::{Instrumented, Unmaps};
pub use platform::{SimPlatform, Traffic};
pub use process::Memory;
pub use world::{Limits, Outcome, RunError, run};
