//! The Python package: builds it into an environment of its own, and runs its tests.

use crate::command::{Command, Failure, cargo};
use crate::setup;

/// The tests of the package to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Those that take seconds.
    Short,
    /// Also the notebook, and a sweep of 100,000 cells on a cluster of processes.
    All,
}

/// Installs the package as a user does, and runs its tests. They also run the job files for
/// batch systems in `docs/sweeps`.
pub(crate) fn test(part: Part) -> Result<(), Failure> {
    setup::gnu_parallel()?;
    cargo("build --quiet --release -p shootdown-lab").run()?;
    let python = setup::python(&crate::output().join("python"), "./python[test]")?;
    let lab = crate::output().join("release/shootdown");
    let tests = Command::new(&python).args("-m pytest -q -rs python").env("SHOOTDOWN", lab);
    match part {
        Part::Short => tests.run(),
        Part::All => tests.env("SHOOTDOWN_SOAK", "1").run(),
    }
}
