//! The demonstration, and the checks of the README's promises about it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Command, Failure, cargo};
use crate::test::builds;
use crate::{output, root};

/// How much of the studies the demonstration simulates.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Studies {
    /// Everything.
    Full,
    /// A part, in a tenth of the time.
    Quick,
}

/// Replays the recordings, reproduces the studies, and writes a report.
pub(crate) fn run(studies: Studies) -> Result<(), Failure> {
    let report = output().join("demo.html");
    // The command runs in the root, and prints the path that it is given.
    let mut command = cargo("run --quiet --release -p shootdown-lab -- report --output")
        .arg(report.strip_prefix(root()).unwrap_or(&report));
    if matches!(studies, Studies::Quick) {
        command = command.arg("--quick");
    }
    recordings()?.into_iter().fold(command, Command::arg).run()
}

/// Returns the recordings that ship in `traces/`.
fn recordings() -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(root().join("traces"))
        .map_err(|error| Failure::new(format!("traces: {error}"), "git checkout traces"))?;
    let mut files: Vec<_> = entries
        .filter_map(|entry| Some(Path::new("traces").join(entry.ok()?.file_name())))
        .filter(|path| path.extension().is_some_and(|extension| extension == "shootdown"))
        .collect();
    files.sort();
    Ok(files)
}

/// Runs each command that the README shows: of the demonstration, a part that is quick. `cargo
/// xtask soak` runs it whole.
pub(crate) fn readme() -> Result<(), Failure> {
    let path = root().join("README.md");
    let text = fs::read_to_string(&path)
        .map_err(|error| Failure::new(format!("README.md: {error}"), "git checkout README.md"))?;
    let mut commands = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("$ ")) {
        commands += 1;
        match line {
            // This step is a part of that command.
            "cargo xtask test" => {}
            "cargo xtask demo" => run(Studies::Quick)?,
            _ => {
                return Err(Failure::new(
                    format!("README.md shows `{line}`, which no test runs"),
                    "add the command to `readme` in xtask/src/demo.rs",
                ));
            }
        }
    }
    println!("{commands} commands of the README work");
    Ok(())
}

/// Checks that a simulation depends on its seed, and on nothing else of the host or the build: the
/// build for tests and the one that ships give the same bytes.
pub(crate) fn same_bytes() -> Result<(), Failure> {
    const REPRODUCE: &str = "reproduce --quick --format json";
    let tested = Command::new(builds::lab()?).args(REPRODUCE).output()?;
    let shipped = cargo("run --quiet --release -p shootdown-lab --").args(REPRODUCE).output()?;
    if tested != shipped {
        return Err(Failure::new(
            "the same simulation gave different results",
            "compare `shootdown reproduce --quick --format json` of the profiles ci and release",
        ));
    }
    println!("{} bytes, the same from both builds", tested.len());
    Ok(())
}
