//! A cell that simulates a workload of a study under a design.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Inputs, Set, design, first_seed, object, shootdown};
use crate::error::{Failure, Help, UserError, bad_input, shown};
use crate::studies::{Conditions, Experiment, Runs, Scale, experiments, simulate};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::sweep) struct ReproduceCell {
    workload: String,
    /// The machine, or `None` for the study's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    machine: Option<String>,
    #[serde(default, skip_serializing_if = "Set::is_empty")]
    set: Set,
    /// Number of CPUs, or `None` for the machine's own number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cpus: Option<usize>,
    #[serde(default = "full")]
    scale: Scale,
    #[serde(default = "shootdown")]
    design: String,
    #[serde(default = "first_seed")]
    seed: u64,
}

const fn full() -> Scale {
    Scale::Full
}

/// No study has a workload of that name.
#[derive(Debug, thiserror::Error)]
#[error("no study has the workload `{}`", shown(.0))]
struct UnknownWorkload(String);

impl UserError for UnknownWorkload {
    fn help(&self) -> Help {
        let names: Vec<_> = experiments().map(|experiment| experiment.workload).collect();
        bad_input(format!("use some of {}", names.join(", ")))
    }
}

impl ReproduceCell {
    pub(super) const PARAMETERS: &[&str] =
        &["workload", "machine", "set", "cpus", "scale", "design", "seed"];

    pub(super) fn run(&self, inputs: &Inputs) -> Result<Map<String, Value>, Failure> {
        let is_wanted = |experiment: &&Experiment| experiment.workload == self.workload;
        let experiment = experiments().find(is_wanted);
        let experiment = experiment.ok_or_else(|| UnknownWorkload(self.workload.clone()))?;
        let design = design(&self.design)?;
        let machine = self.machine.as_deref().unwrap_or(experiment.machine.name);
        let machine = inputs.machine(machine, &self.set, self.cpus)?;
        let conditions =
            Conditions { machine, seed: self.seed, scale: self.scale, runs: Runs::default() };
        let mut results = object(&simulate(experiment, design, &conditions)?);
        let texts = [
            ("study", experiment.study.name()),
            ("metric", experiment.metric),
            ("unit", experiment.unit),
            ("better", experiment.better.name()),
        ];
        results.extend(texts.map(|(name, text)| (name.to_owned(), text.into())));
        Ok(results)
    }
}
