//! The cells of a sweep: for each command, its parameters and its results.

mod check;
mod replay;
mod reproduce;
mod run;

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use shootdown_designs::Design;
use shootdown_run::replay::Survey;
use shootdown_sim::Machine;

use super::grid::Grid;
use crate::error::{Failure, Help, UserError, bad_input, shown};
use crate::machines;
use crate::recordings::{open, refused};

use check::CheckCell;
use replay::ReplayCell;
use reproduce::ReproduceCell;
use run::RunCell;

/// The parameters of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub(super) enum Cell {
    /// A workload as text under a design.
    Run(RunCell),
    /// A recording under a design.
    Replay(ReplayCell),
    /// A workload of a study under a design.
    Reproduce(ReproduceCell),
    /// A part of a campaign of the checker, a program, or a known bug.
    Check(CheckCell),
}

impl Cell {
    /// The commands, each with its parameters in the order of the axes.
    pub(super) const COMMANDS: &[(&str, &[&str])] = &[
        ("run", RunCell::PARAMETERS),
        ("replay", ReplayCell::PARAMETERS),
        ("reproduce", ReproduceCell::PARAMETERS),
        ("check", CheckCell::PARAMETERS),
    ];

    pub(super) fn parse(parameters: Map<String, Value>) -> Result<Self, serde_json::Error> {
        serde_json::from_value(parameters.into())
    }

    /// Returns the parameters, those with default values included.
    pub(super) fn parameters(&self) -> Map<String, Value> {
        object(self)
    }

    /// Returns the results, or the cause of an error in one line.
    pub(super) fn run(&self, inputs: &Inputs) -> Result<Map<String, Value>, String> {
        let run = || match self {
            Self::Run(cell) => cell.run(inputs),
            Self::Replay(cell) => cell.run(inputs),
            Self::Reproduce(cell) => cell.run(inputs),
            Self::Check(cell) => cell.run(),
        };
        let mut results = match catch_unwind(AssertUnwindSafe(run)) {
            Ok(results) => results.map_err(|error| error.0.to_string())?,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                return Err(format!("the simulation panicked: {}", text.unwrap_or("no message")));
            }
        };
        let parameters = self.parameters();
        results.retain(|name, _| !parameters.contains_key(name));
        Ok(results)
    }

    /// Returns the files that the cells of a grid read.
    pub(super) fn files(grid: &Grid) -> impl Iterator<Item = String> {
        let texts = |name| grid.values(name).iter().filter_map(Value::as_str);
        let machines = texts("machine").filter(|name| name.ends_with(".toml"));
        texts("recording").chain(texts("file")).chain(machines).map(str::to_owned)
    }
}

/// Returns the members of a structure.
fn object(value: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(members)) => members,
        // Every caller passes a structure whose keys are text.
        _ => Map::new(),
    }
}

/// Numbers of a machine that a cell sets, by their names: `tlb.invalidate_page_ns`.
type Set = BTreeMap<String, Value>;

/// A parameter has a value that the command does not accept.
#[derive(Debug, thiserror::Error)]
#[error("{}", shown(.0))]
struct BadParameter(String);

impl UserError for BadParameter {
    fn help(&self) -> Help {
        bad_input("correct the specification; docs/sweeps.md lists the parameters")
    }
}

/// The files of a sweep. What several cells need is read once.
#[derive(Debug)]
pub(super) struct Inputs {
    folder: PathBuf,
    surveys: Mutex<HashMap<PathBuf, Arc<Survey>>>,
}

/// The largest number of surveys that are kept. A survey of a long recording takes megabytes.
const SURVEYS_MAX: usize = 16;

impl Inputs {
    pub(super) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), surveys: Mutex::default() }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a file that the specification names.
    pub(super) fn path(&self, file: impl AsRef<Path>) -> PathBuf {
        self.folder.join(file)
    }

    fn machine(&self, name: &str, set: &Set, cpus: Option<usize>) -> Result<Machine, Failure> {
        let is_file = name.ends_with(".toml");
        let wanted = if is_file { self.path(name) } else { PathBuf::from(name) };
        let refused = |error| machines::MachineFileError::refused(&wanted, error);
        let mut machine = machines::find(wanted.as_os_str())?;
        if let Some(cpus) = cpus {
            machine = machine.with_cpus(cpus).map_err(refused)?;
        }
        for (name, value) in set {
            let number = value.as_f64();
            let number = number.ok_or_else(|| BadParameter(format!("set {name}: not a number")))?;
            machine = machine.with_number(name, number).map_err(refused)?;
        }
        Ok(machine)
    }

    /// Returns the survey of a recording. Two threads may both read a recording that is new.
    fn survey(&self, path: &Path) -> Result<Arc<Survey>, Failure> {
        let surveys =
            || -> MutexGuard<'_, _> { self.surveys.lock().unwrap_or_else(PoisonError::into_inner) };
        if let Some(survey) = surveys().get(path) {
            return Ok(Arc::clone(survey));
        }
        let survey = Survey::of(open(path)?, |_| {}).map_err(|error| refused(path, error))?;
        let survey = Arc::new(survey);
        let mut kept = surveys();
        if kept.len() >= SURVEYS_MAX {
            kept.clear();
        }
        kept.insert(path.to_owned(), Arc::clone(&survey));
        Ok(survey)
    }
}

/// Returns the design of this name.
fn design(name: &str) -> Result<Design, Failure> {
    Ok(name.parse().map_err(|_| crate::commands::replay::UnknownDesign(name.to_owned()))?)
}

/// The default seed, as on the command line.
const fn first_seed() -> u64 {
    1
}

/// The default design.
fn shootdown() -> String {
    Design::SHOOTDOWN.name().to_owned()
}
