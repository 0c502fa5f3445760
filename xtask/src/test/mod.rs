//! All of CI, as steps that run in parallel where they leave a core idle.
//!
//! `cargo xtask test` runs each step as a process of its own, `cargo xtask test STEP`, and prints
//! the step's name before each of its lines.

mod binaries;
pub(crate) mod builds;
pub(crate) mod c;
mod c_kernel;
mod effects;
mod inputs;
pub(crate) mod proof;
mod schedule;

use crate::command::{Failure, cargo};
use crate::{bench, book, boots, demo, experiments, page, port, publishing, setup, soak, tidy};
pub(crate) use schedule::Selection;
use schedule::{Cores, Step};
use soak::Miri;

/// The files of the crates, and those that become a part of them.
const CRATES: &[&str] =
    &["crates", "docs/smallest-embedding", "kernel", "machines", "predictions", "workloads"];

/// The files of the C interface.
const C: &[&str] = &["crates/capi", "crates/hw", "crates/shootdown"];

/// The steps, in the order in which they start: for each, its cores, the steps that must have
/// passed before it, and its budget.
///
/// A budget is about the number of seconds of CPU time that the step takes from a clean clone. The
/// first step that needs a build makes it for the others.
const STEPS: &[Step] = &[
    Step::new("toolchain", Cores::None, &[], 10, setup::toolchain),
    // This step downloads, and leaves the cores to the compiler.
    Step::new("packages", Cores::None, &["toolchain"], 90, setup::packages),
    Step::new("format", Cores::One, &["toolchain"], 5, || cargo("fmt --all --check").run()),
    Step::new("tidy", Cores::One, &[], 5, tidy::check),
    // Cargo builds into one folder for one command at a time: these two are never side by side. The
    // compiler leaves a core idle whenever it waits for the largest crate.
    Step::new("clippy", Cores::One, &["toolchain"], 130, builds::clippy).reads(CRATES),
    Step::new("build", Cores::One, &["toolchain"], 500, builds::tests)
        .after("clippy")
        .reads(CRATES),
    Step::new("miri", Cores::One, &["packages"], 160, || soak::miri(Miri::Sample))
        .reads(&["crates/shootdown"]),
    Step::new("bare", Cores::One, &["packages"], 55, builds::bare_targets).reads(CRATES),
    Step::new("c", Cores::One, &["packages"], 30, || c::check().and_then(|()| c_kernel::check()))
        .reads(C),
    Step::new("effects", Cores::One, &["toolchain"], 20, effects::check).reads(C),
    Step::new("tests", Cores::One, &["build"], 850, binaries::run),
    Step::new("proof", Cores::One, &["build"], 65, proof::check).reads(&[
        "crates",
        "docs/data",
        "proof",
    ]),
    Step::new("boots", Cores::One, &["packages", "build"], 210, || boots::run(boots::Part::Sample))
        .reads(CRATES),
    Step::new("counts", Cores::One, &["packages", "build"], 20, bench::counts_if_possible)
        .reads(&["crates"]),
    Step::new("port", Cores::One, &["packages", "build"], 110, port::test),
    Step::new("documentation", Cores::One, &["build"], 30, builds::documentation).reads(CRATES),
    Step::new("book", Cores::One, &["documentation"], 50, book::with_api),
    Step::new("guests", Cores::One, &["packages", "build"], 35, experiments::check),
    Step::new("bytes", Cores::One, &["build"], 80, demo::same_bytes).reads(CRATES),
    Step::new("publishing", Cores::One, &["toolchain"], 35, publishing::check),
    Step::new("page", Cores::One, &["packages", "build"], 10, page::check),
    Step::new("readme", Cores::One, &["build"], 30, demo::readme),
    Step::new("examples", Cores::One, &["build"], 5, builds::doc_tests).reads(CRATES),
];

/// Runs the steps of the selection.
pub(crate) fn all(selection: Selection) -> Result<(), Failure> {
    schedule::run(STEPS, selection)
}

/// Runs one step in this process.
pub(crate) fn step(name: &str) -> Result<(), Failure> {
    match STEPS.iter().find(|step| step.name == name) {
        Some(step) => schedule::run_one(step),
        None => {
            let names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
            Err(Failure::new(
                format!("`{name}` is not a step"),
                format!("cargo xtask test with one of: {}", names.join(", ")),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_needs_only_earlier_steps() {
        for (index, step) in STEPS.iter().enumerate() {
            for needed in step.needs.iter().chain(&step.after) {
                assert!(STEPS[..index].iter().any(|step| step.name == *needed), "{}", step.name);
            }
        }
    }
}
