//! The proof: mechanisms of the engine for any number of CPUs, and recorded runs that are held
//! against them (`proof/`).

use crate::command::{Command, Failure, cargo};
use crate::setup;

/// Records runs of the engine, and checks the proof, its tests and the runs.
pub(super) fn check() -> Result<(), Failure> {
    let folder = crate::output().join("proof");
    let python = setup::python(&folder.join("venv"), "-r proof/requirements.txt")?;
    let runs = folder.join("runs.txt");
    cargo("run --quiet --profile ci -p shootdown-check --example steps --").arg(&runs).run()?;
    Command::new(&python).args("-m unittest -q proof.tests").run()?;
    Command::new(&python).args("-m proof --runs").arg(&runs).run()
}
