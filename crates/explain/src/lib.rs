//! Causes, call sites and costs of the TLB shootdowns in a recording, and advice.
//!
//! In reading order: `causes` is the table of the kernel's functions, and `costs` the model of what
//! cannot be measured. `counters` compares the records with the kernel's own counters. `doing`
//! follows what each task asked of the kernel, and the memory that it mapped, in `ranges`.
//! [`Analysis`] attributes each flush to a task, a cause and a call stack; [`Analyst`] does so
//! while records arrive. `sites` sums flushes by cause and call site. `advice` is the table of
//! remedies, and `change` applies one to a recording.

#![warn(missing_docs)]

mod advice;
mod analysis;
mod causes;
mod change;
mod costs;
mod counters;
mod doing;
mod ranges;
mod sites;
mod stacks;

#[cfg(test)]
mod tests;

pub use advice::{Advice, Remedies, Remedy};
pub use analysis::{Analysis, Analyst, Flush, Received};
pub use causes::{CauseId, Causes};
pub use change::Change;
pub use costs::Costs;
pub use counters::Balance;
pub use sites::{Explanation, Site, Suffered, Sum};
