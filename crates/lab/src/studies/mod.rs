//! The studies: published measurements of kernel changes, and comparisons without published
//! figures.
//!
//! A study consists of experiments. Each has a workload, a machine, a metric and designs.

mod arc_asid_range;
mod arm64_skip_broadcast;
mod experiment;
mod powerpc_shoot_lazies;
mod predictions;
mod results;
mod scaling;
mod simulate;
mod sizes;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod x86_batched_unmap;
mod x86_lazy_tlb;

pub(crate) use experiment::{Experiment, Pair, Scale, Study};
pub(crate) use predictions::{Figure, Prediction};
pub(crate) use results::{Results, Row, Simulated};
pub(crate) use scaling::{Curve, Scaling};
pub(crate) use simulate::{Conditions, Measurement, Runs, simulate};
pub(crate) use sizes::{Curves, Point};
pub(crate) use table::experiments;

/// The workload that is also simulated with more and with fewer CPUs.
pub(crate) const CONTEXT_SWITCHES: &str = "context-switches";
