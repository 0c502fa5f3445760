//! Replays of recordings on a simulated machine.
//!
//! A recording is read twice. The first time, a [`Survey`] checks that it is complete, counts the
//! operations of the recorded kernel, and stores the result of each system call. The second time,
//! its records become steps. There are two kinds of replay:
//!
//! - [Under the recorded schedule](replay): every operation and every context switch happens on its
//!   recorded CPU and in its recorded order, so that a design can be compared with the recorded
//!   kernel.
//! - Under a schedule that the simulated machine chooses: [`threads`] makes a workload from the
//!   recording. The machine may have other CPUs than the recorded one, and more of them.

mod delivery;
mod effects;
mod folios;
mod late_switches;
mod linux;
mod recorded;
mod simulated;
mod steps;
mod survey;

pub use recorded::{ReplayError, replay};
pub use simulated::threads;
pub use survey::{KernelCounts, Survey};
