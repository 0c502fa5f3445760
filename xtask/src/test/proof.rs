//! The proof: mechanisms of the engine for any number of CPUs, and recorded runs that are held
//! against them (`proof/`).

use std::path::PathBuf;

use super::builds;
use crate::command::{Command, Failure};
use crate::setup;

/// The Python of the proof, which has its solvers.
fn python() -> Result<PathBuf, Failure> {
    setup::python(&crate::output().join("proof/venv"), "-r proof/requirements.txt")
}

/// Records runs of the engine, and checks the proof, its tests and the runs.
pub(super) fn check() -> Result<(), Failure> {
    let (python, runs) = (python()?, crate::output().join("proof/runs.txt"));
    builds::example("steps")?.arg(&runs).run()?;
    Command::new(&python).args("-m unittest -q proof.tests").run()?;
    Command::new(&python).args("-m proof --runs").arg(&runs).run()
}

/// Proves a part again with another solver, whose proofs are checked.
pub(crate) fn certify() -> Result<(), Failure> {
    Command::new(python()?).args("-m proof --certify").run()
}
