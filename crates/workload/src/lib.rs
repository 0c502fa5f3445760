//! What threads do, and who runs it.
//!
//! [`operation`] is the language: what a thread does, one step after the other; [`stream`] how that
//! is written down, for a kernel that boots; and [`step`] what may become of it. [`programs`] are
//! benchmarks written in it. [`run`] has a workload done on a simulated machine, by the memory
//! manager of [`shootdown_vm`], under one design, and says what came of it.
//!
//! Without the feature `simulated`, which is on by default, there is the language alone, which
//! needs no operating system.

#![cfg_attr(not(feature = "simulated"), no_std)]

extern crate alloc;

pub mod operation;
pub mod step;
pub mod stream;
mod varint;

#[cfg(feature = "simulated")]
mod by_address;
#[cfg(feature = "simulated")]
mod checked;
#[cfg(feature = "simulated")]
mod contents;
#[cfg(feature = "simulated")]
mod platform;
#[cfg(feature = "simulated")]
mod process;
#[cfg(feature = "simulated")]
pub mod programs;
#[cfg(feature = "simulated")]
pub mod recording;
#[cfg(feature = "simulated")]
pub mod replay;
#[cfg(feature = "simulated")]
mod watched;
#[cfg(feature = "simulated")]
mod world;

pub use operation::{Refusals, Workload};
pub use step::StepError;
pub use varint::Malformed;

#[cfg(feature = "simulated")]
pub use contents::{Contents, FoundBy, WrongContent};
#[cfg(feature = "simulated")]
pub use platform::{SimPlatform, Traffic};
#[cfg(feature = "simulated")]
pub use process::Memory;
#[cfg(feature = "simulated")]
pub use watched::{Unmaps, Watched};
#[cfg(feature = "simulated")]
pub use world::{Limits, Outcome, RunError, run};
