//! A cell that runs a workload as text under a design.

use std::ffi::OsStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use shootdown_run::text;

use super::{BadParameter, Inputs, Set, design, first_seed, object, shootdown};
use crate::error::Failure;
use crate::machines::Embedded;
use crate::workloads;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::sweep) struct RunCell {
    /// A file, or the name of a workload that the command has.
    file: String,
    #[serde(default = "default_machine")]
    machine: String,
    /// Numbers of the machine, whose names have a dot, and parameters of the workload.
    #[serde(default, skip_serializing_if = "Set::is_empty")]
    set: Set,
    /// Number of CPUs, or `None` for the machine's own number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cpus: Option<usize>,
    #[serde(default = "shootdown")]
    design: String,
    #[serde(default = "first_seed")]
    seed: u64,
}

fn default_machine() -> String {
    Embedded::XEON_2S.name.to_owned()
}

impl RunCell {
    pub(super) const PARAMETERS: &[&str] = &["file", "machine", "set", "cpus", "design", "seed"];

    pub(super) fn run(&self, inputs: &Inputs) -> Result<Map<String, Value>, Failure> {
        let design = design(&self.design)?;
        let (of_machine, of_workload): (Set, Set) =
            self.set.clone().into_iter().partition(|(name, _)| name.contains('.'));
        let machine = inputs.machine(&self.machine, &of_machine, self.cpus)?;
        let path = inputs.path(&self.file);
        let file = if path.exists() { path.as_os_str() } else { OsStr::new(&self.file) };
        let mut found = workloads::find(file)?;
        for (name, value) in of_workload {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let set = found.text.set(&name, &value);
            set.map_err(|error| BadParameter(format!("set {name}: {}", error.cause)))?;
        }
        let cell = text::Cell { workload: &found.text, machine: &machine, design, seed: self.seed };
        let rows = cell.run().map_err(|error| {
            let (cpus, seed) = (machine.cpu_count(), self.seed);
            found.failed(text::GridError { cpus, design, seed, error })
        })?;
        if let [row] = &rows[..] {
            return Ok(object(row));
        }
        // A workload with several intervals has their results one level deeper.
        let interval = |row: &text::Row| {
            let name = row.workload.split_once('/').map_or("", |(_, name)| name);
            let mut results = object(row);
            for shared in ["workload", "machine", "cpus", "design", "seed"] {
                results.remove(shared);
            }
            (name.to_owned(), results.into())
        };
        let intervals: Map<String, Value> = rows.iter().map(interval).collect();
        let violations = rows.iter().map(|row| row.violations).max().unwrap_or(0);
        Ok(Map::from_iter([
            ("intervals".to_owned(), intervals.into()),
            ("violations".to_owned(), violations.into()),
        ]))
    }
}
