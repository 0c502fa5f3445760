//! Runs workloads on a simulated machine.
//!
//! [`run`] executes a workload with the memory manager of [`shootdown_vm`], under one design, and
//! returns the measurements. [`programs`] contains benchmarks. [`replay`] runs recordings of real
//! programs. [`text`] reads workloads from text and runs grids of them.

// In reading order.
mod accounting;
mod platform;
mod instrumented;
mod contents;
mod numbers;
mod classes;
mod settings;
mod outcome;
mod memory_costs;
mod kernel;
mod checks;
mod executor;
pub mod programs;
pub mod replay;
pub mod text;
pub mod host_loops;

pub use classes::Classes;
pub use contents::{ContentsModel, MemoryId, UnderWay};
pub use executor::run;
pub use instrumented::{Instrumented, Unmaps};
pub use memory_costs::MemoryCosts;
pub use outcome::{Outcome, RunError};
pub use platform::{SimPlatform, Traffic};
pub use settings::{Limits, Memory, Settings, Supply};
