//! The proof: mechanisms of the engine for any number of CPUs, and recorded runs that are held
//! against them (`proof/`).

use crate::command::{Command, Failure, cargo};
use crate::setup;

/// Records runs of the engine, and checks the proof, its tests and the runs.
pub(super) fn check() -> Result<(), Failure> {
    setup::python_environments()?;
    let folder = crate::output().join("proof");
    let (venv, runs) = (folder.join("venv"), folder.join("runs.txt"));
    let python = venv.join("bin/python");
    if !python.exists() {
        Command::new("python3").args("-m venv").arg(&venv).run()?;
    }
    Command::new(&python).args("-m pip install --quiet -r proof/requirements.txt").run()?;
    cargo("run --quiet --profile ci -p shootdown-check --example steps --").arg(&runs).run()?;
    Command::new(&python).args("-m unittest -q proof.tests").run()?;
    Command::new(&python).args("-m proof --runs").arg(&runs).run()
}
