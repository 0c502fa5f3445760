//! What threads do, and who runs it.
//!
//! [`operation`] is the language: what a thread does, one step after the other. [`programs`] are
//! benchmarks written in it. [`run`] has a workload done on a simulated machine, by the memory
//! manager of [`shootdown_vm`], under one design, and says what came of it.

pub mod operation;
mod by_address;
mod checked;
mod contents;
mod platform;
mod process;
pub mod programs;
pub mod recording;
pub mod replay;
mod watched;
mod world;

pub use contents::{Contents, FoundBy, WrongContent};
pub use operation::Workload;
pub use platform::{SimPlatform, Traffic};
pub use process::{Memory, Refusals, StepError};
pub use watched::{Unmaps, Watched};
pub use world::{Limits, Outcome, RunError, run};
