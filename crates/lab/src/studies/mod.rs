//! The studies: published measurements of kernel changes, and comparisons without published
//! figures.
//!
//! A study consists of experiments. Each has a workload, a machine, a metric and designs.

mod arc_asid_range;
mod arm64_skip_broadcast;
mod choice;
mod experiment;
mod powerpc_shoot_lazies;
mod predictions;
mod results;
mod scaling;
mod simulate;
mod sizes;
#[cfg(test)]
pub(crate) mod tests;
mod x86_batched_unmap;
mod x86_lazy_tlb;

pub(crate) use choice::{Cell, Choice, Cost};
pub(crate) use experiment::{Experiment, Pair, Scale, Study};
pub(crate) use powerpc_shoot_lazies::CONTEXT_SWITCHES;
pub(crate) use predictions::{Figure, Prediction};
pub(crate) use results::{Results, Row, Simulated};
pub(crate) use scaling::{Curve, Scaling};
pub(crate) use simulate::{Conditions, Measurement, Runs, simulate};
pub(crate) use sizes::{Curves, Point};

/// All experiments, in the order of their studies.
pub(crate) fn experiments() -> impl Iterator<Item = &'static Experiment> {
    let studies = [
        x86_lazy_tlb::EXPERIMENTS,
        powerpc_shoot_lazies::EXPERIMENTS,
        arc_asid_range::EXPERIMENTS,
        arm64_skip_broadcast::EXPERIMENTS,
        x86_batched_unmap::EXPERIMENTS,
    ];
    studies.into_iter().flatten()
}
