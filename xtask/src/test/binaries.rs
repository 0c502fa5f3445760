//! Builds the tests and runs their binaries in parallel.
//!
//! `cargo test` runs one binary after the other, so a core is idle whenever the last test of a
//! binary runs alone.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::builds::SELECTION;
use crate::command::{Captured, Command, Failure, cargo};
use crate::{parallel, setup};

/// Maximum time of a binary: over ten times that of the slowest on an idle host, so that a busy one
/// has no effect. A longer run has a test that waits for an event that never comes.
const LIMIT: Duration = Duration::from_secs(1800);

/// The slowest binaries, which start first.
const SLOWEST: &[&str] = &["check engine", "shootdown rules", "lab all", "vm all"];

/// One executable with tests.
#[derive(Debug)]
pub(super) struct Binary {
    /// The crate, without the project's name, and the file of tests.
    name: String,
    program: PathBuf,
    /// The folder of its crate, where its tests expect to run.
    folder: PathBuf,
}

/// Builds all tests, and returns their executables in the order in which they start.
pub(super) fn build() -> Result<Vec<Binary>, Failure> {
    let mut binaries = Vec::new();
    let status = cargo("test --quiet --no-run --message-format=json-render-diagnostics")
        .args(SELECTION)
        .lines(|line| {
            binaries.extend(serde_json::from_str(line).ok().and_then(|line| binary(&line)));
        })?;
    if !status.success() {
        return Err(Failure::new("the tests do not compile", "read the errors above"));
    }
    let rank = |binary: &Binary| {
        SLOWEST.iter().position(|name| binary.name == *name).unwrap_or(SLOWEST.len())
    };
    binaries.sort_by(|one, other| (rank(one), &one.name).cmp(&(rank(other), &other.name)));
    Ok(binaries)
}

/// Returns the test binary in a message of cargo, if there is one.
fn binary(message: &Value) -> Option<Binary> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let program = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = folder.file_name()?.to_str()?;
    let target = message["target"]["name"].as_str()?;
    let is_unit = message["target"]["kind"][0] != "test";
    let name = format!("{package} {}", if is_unit { "(unit tests)" } else { target });
    Some(Binary { name, program, folder })
}

/// Builds all tests where necessary, and runs them.
pub(super) fn run() -> Result<(), Failure> {
    setup::report_recording_tests();
    let binaries = build()?;
    let passed = parallel::map(&binaries, |binary| run_one(binary).unwrap_or(false));
    let failed: Vec<&str> = binaries
        .iter()
        .zip(passed)
        .filter_map(|(binary, passed)| (!passed).then_some(binary.name.as_str()))
        .collect();
    if failed.is_empty() {
        println!("{} test binaries passed", binaries.len());
        return Ok(());
    }
    Err(Failure::new(
        format!("tests failed: {}", failed.join(", ")),
        "cargo test -p shootdown-CRATE --test FILE, for each of these",
    ))
}

/// Runs one binary and prints its closing line and the reasons of skipped tests, or all of its
/// output if it fails. Returns `true` if it passed.
fn run_one(binary: &Binary) -> Result<bool, Failure> {
    let start = Instant::now();
    let Captured { status, output } = Command::new(&binary.program)
        .arg("--show-output")
        .env("CARGO_MANIFEST_DIR", &binary.folder)
        // Hundreds of tests expect a panic, and each backtrace costs as much as such a test.
        .env("RUST_BACKTRACE", "0")
        .within(&binary.folder)
        .captured_within(LIMIT)?;
    let passed = status.is_some_and(|status| status.success());
    let mut report = String::new();
    let lines: Vec<&str> = if passed {
        let is_shown = |line: &&str| line.starts_with("skipped: ") || line.contains(" ... ignored");
        output.lines().filter(is_shown).collect()
    } else {
        output.lines().collect()
    };
    for line in lines {
        report += &format!("    {line}\n");
    }
    let end = match status {
        Some(_) => output.lines().rev().find(|line| line.starts_with("test result: ")),
        None => Some("test result: STOPPED at its time limit"),
    };
    let end = end.unwrap_or("test result: FAILED, without a closing line");
    let seconds = start.elapsed().as_secs_f64();
    // One call prints all lines, so that other output does not come between them.
    println!("{report}{:<28} {seconds:>6.1} s  {end}", binary.name);
    Ok(passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_is_named_after_its_crate_and_file() {
        let message = |kind: &str, test: bool| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "manifest_path": "/x/crates/check/Cargo.toml",
                "target": {"kind": [kind], "name": "engine"},
                "profile": {"test": test},
                "executable": "/x/target/ci/deps/engine-0",
            })
        };
        let name = |message| binary(&message).map(|binary| binary.name);
        assert_eq!(name(message("test", true)).as_deref(), Some("check engine"));
        assert_eq!(name(message("lib", true)).as_deref(), Some("check (unit tests)"));
        assert_eq!(name(message("bin", false)), None);
    }
}
