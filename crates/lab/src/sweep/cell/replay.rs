//! A cell that replays a recording under a design.

use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Inputs, Set, design, first_seed, object, shootdown};
use crate::commands::replay::{DEFAULT_MACHINE, DesignRow, Request, Schedule, TooFewCpus, once};
use crate::error::Failure;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::sweep) struct ReplayCell {
    recording: String,
    #[serde(default = "default_machine")]
    machine: String,
    #[serde(default, skip_serializing_if = "Set::is_empty")]
    set: Set,
    /// Number of CPUs, or `None` for the machine's own number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cpus: Option<usize>,
    #[serde(default = "recorded")]
    schedule: Schedule,
    #[serde(default = "shootdown")]
    design: String,
    #[serde(default = "first_seed")]
    seed: u64,
}

fn default_machine() -> String {
    DEFAULT_MACHINE.name.to_owned()
}

const fn recorded() -> Schedule {
    Schedule::Recorded
}

impl ReplayCell {
    pub(super) const PARAMETERS: &[&str] =
        &["recording", "machine", "set", "cpus", "schedule", "design", "seed"];

    pub(super) fn run(&self, inputs: &Inputs) -> Result<Map<String, Value>, Failure> {
        let design = design(&self.design)?;
        let machine = inputs.machine(&self.machine, &self.set, self.cpus)?;
        let recording = inputs.path(&self.recording);
        let survey = inputs.survey(&recording)?;
        if self.schedule == Schedule::Recorded
            && let Some(error) = TooFewCpus::of(&survey.header, &machine)
        {
            return Err(error.into());
        }
        let request = Request {
            recording: &recording,
            machine: &machine,
            designs: &[design],
            schedule: self.schedule,
            seed: self.seed,
            runs: 1,
        };
        let outcome = once(&request, design, self.seed, &survey, &ProgressBar::hidden())?;
        let mut results = object(&DesignRow::mean(design, &[outcome]));
        // This is an error of a mean, and a cell has one run.
        results.remove("time_error_ns");
        Ok(results)
    }
}
