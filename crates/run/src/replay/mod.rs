//! Recordings, run again on a simulated machine.
//!
//! A recording is read twice. The first time, a [`Survey`] sees whether it is whole, counts what
//! the recorded kernel did, and notes how each system call came out. The second time its records
//! become steps, in one of two ways:
//!
//! - [by the recorded schedule](replay): every operation and context switch on its recorded CPU
//!   and in its recorded order, so that what a design does can be held against what the kernel did;
//! - by a schedule of the simulated machine's own, which may have other CPUs than the one that
//!   recorded, and more of them: [`threads`] makes a workload like any other.

mod recorded;
mod simulated;
mod steps;
mod survey;
mod tracker;

pub use recorded::{ReplayError, replay};
pub use simulated::threads;
pub use survey::{KernelCounts, Survey};
