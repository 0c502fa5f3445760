//! Mutants of the engine: each function, operator and condition changed, by cargo-mutants. (The
//! engine's tests break each of its rules, a barrier, an ordering or a step, everywhere and at each
//! place.)
//!
//! Each mutant must be detected by a test that fails or never ends. A mutant that is not detected
//! must have an argument in `crates/shootdown/mutants.txt`, or it is a finding.
//!
//! The first pass uses tests that take less than a second, and kills most mutants. Each later pass
//! tries the survivors with slower tests. The command can be interrupted at any time: a new run
//! skips the mutants that were killed. It tries survivors again, because there may be a new test.

mod ledger;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::{fs, iter};

use serde::Deserialize;

use crate::command::{Command, Failure, unwritable};
use crate::setup;
use ledger::{Ledger, Verdict};

/// Minimum percentage of killed mutants among those that build.
const KILLED_PERCENT_MIN: f64 = 95.0;

/// The file with the arguments for survivors.
const ARGUED: &str = "crates/shootdown/mutants.txt";

/// One pass over the remaining mutants, with some of the tests. `passes.toml` describes the fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pass {
    name: String,
    tests: String,
    opt_level: String,
    timeout_s: u32,
    tries_argued: bool,
}

/// The contents of `passes.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Passes {
    pass: Vec<Pass>,
}

fn passes() -> Vec<Pass> {
    let passes: Passes =
        toml::from_str(include_str!("passes.toml")).expect("a test reads the file");
    passes.pass
}

/// Tries all mutants, or a part: `SHARD/SHARDS`, from `0/8` to `7/8`, or those with `part` in their
/// names.
pub(crate) fn campaign(part: Option<&str>) -> Result<(), Failure> {
    let tool = Tool { program: setup::mutator()?, place: place()? };
    let all = tool.list()?;
    let mutants = part_of(&all, part);
    if mutants.is_empty() {
        let remedy = "cargo xtask mutants 'replace'";
        return Err(Failure::new("no mutant has this in its name", remedy));
    }
    let mut ledger = Ledger::read(&place()?.join("verdicts.txt"));
    tool.note_verdicts(&mut ledger)?;
    let arguments = read_arguments()?;
    let is_left = |pass: &Pass, ledger: &Ledger, name: &str| {
        let is_argued = arguments.contains_key(ledger::without_place(name));
        !ledger.is_flushed(name) && (pass.tries_argued || !is_argued)
    };
    for pass in &passes() {
        let left = mutants.iter().filter(|mutant| is_left(pass, &ledger, mutant));
        let left: BTreeSet<&String> = left.collect();
        println!("\n── {} mutants left: {} ──", left.len(), pass.name);
        if !left.is_empty() {
            tool.run(pass, all.iter().filter(|mutant| !left.contains(mutant)))?;
            tool.note_verdicts(&mut ledger)?;
        }
    }
    conclude(&ledger, &mutants, &arguments, part.is_none())
}

/// Returns the folder in which mutants are built and verdicts kept.
fn place() -> Result<PathBuf, Failure> {
    let place = crate::output().join("mutants");
    fs::create_dir_all(&place).map_err(unwritable(&place))?;
    Ok(place)
}

fn read_arguments() -> Result<BTreeMap<String, usize>, Failure> {
    let text = fs::read_to_string(crate::root().join(ARGUED)).unwrap_or_default();
    ledger::arguments(&text)
}

/// Prints the tally of the mutants. Returns a failure if one survives without an argument, or if
/// too few were killed.
fn conclude(
    ledger: &Ledger,
    mutants: &[String],
    arguments: &BTreeMap<String, usize>,
    are_all: bool,
) -> Result<(), Failure> {
    let tally = ledger.tally(mutants, arguments);
    println!("\n{tally}\nverdicts: {}", ledger.path().display());
    let cause = if !tally.unargued.is_empty() {
        format!("{} mutants survive without an argument", tally.unargued.len())
    } else if are_all && tally.killed_percent() < KILLED_PERCENT_MIN {
        format!("less than {KILLED_PERCENT_MIN} % were killed")
    } else {
        return Ok(());
    };
    Err(Failure::new(cause, format!("write a test, or add an argument to {ARGUED}")))
}

/// Returns the mutants of a part: a shard, or those with the text in their names.
fn part_of(names: &[String], part: Option<&str>) -> Vec<String> {
    let names = names.iter().cloned();
    match part.map(|part| shard(part).ok_or(part)) {
        None => names.collect(),
        Some(Ok((shard, shards))) => names.skip(shard).step_by(shards).collect(),
        Some(Err(text)) => names.filter(|name| name.contains(text)).collect(),
    }
}

/// Parses `SHARD/SHARDS`.
fn shard(part: &str) -> Option<(usize, usize)> {
    let (shard, shards) = part.split_once('/')?;
    let (shard, shards) = (shard.parse().ok()?, shards.parse().ok()?);
    (shard < shards).then_some((shard, shards))
}

/// Returns `true` for a mutant of test code: cargo-mutants lists deleted fields in spite of
/// `--exclude-re`.
fn is_of_tests(mutant: &str) -> bool {
    mutant.contains(" in tests::")
}

/// cargo-mutants, and its working folder.
struct Tool {
    program: PathBuf,
    place: PathBuf,
}

impl Tool {
    fn command(&self) -> Command {
        Command::new(&self.program)
            .args("mutants --package shootdown --exclude crates/shootdown/src/soft/**")
            // cargo-mutants takes a module of tests with more conditions than `test` for a part of
            // the engine. See also `is_of_tests`.
            .args(r"--exclude-re \btests::")
            .arg("--output")
            .arg(&self.place)
    }

    /// Returns the names of all mutants.
    fn list(&self) -> Result<Vec<String>, Failure> {
        let listed = self.command().args("--list").output()?;
        Ok(listed.lines().filter(|mutant| !is_of_tests(mutant)).map(str::to_owned).collect())
    }

    /// Tries all mutants that are not settled.
    fn run<'a>(
        &self,
        pass: &Pass,
        settled: impl Iterator<Item = &'a String>,
    ) -> Result<(), Failure> {
        // cargo-mutants skips the mutants that its last run killed, which it reads from this file.
        let memory = self.place.join("mutants.out");
        let text: String =
            settled.flat_map(|mutant| iter::once(mutant.as_str()).chain(["\n"])).collect();
        let _ = fs::remove_dir_all(&memory);
        fs::create_dir_all(&memory)
            .and_then(|()| fs::write(memory.join("previously_caught.txt"), text))
            .map_err(unwritable(&memory))?;
        let status = self
            .command()
            .args("--iterate --no-shuffle --profile mutants --timeout")
            .arg(pass.timeout_s.to_string())
            .args(&pass.tests)
            // cargo-mutants builds a copy of the workspace, which needs a target folder of its own.
            .env("CARGO_TARGET_DIR", self.place.join("target"))
            .env("CARGO_PROFILE_MUTANTS_OPT_LEVEL", &pass.opt_level)
            .env("CHECK_ALL", "1")
            .status()?;
        match status.code() {
            // All were killed; some survived; some took too long.
            Some(0 | 2 | 3) => Ok(()),
            _ => Err(Failure::new(
                format!("cargo-mutants gave up ({status})"),
                "read its output above; verdicts so far are kept",
            )),
        }
    }

    /// Records the verdicts of the last run, which may have been interrupted.
    fn note_verdicts(&self, ledger: &mut Ledger) -> Result<(), Failure> {
        let logs = fs::read_dir(self.place.join("mutants.out/log")).into_iter().flatten();
        for log in logs.flatten() {
            let text = fs::read(log.path()).unwrap_or_default();
            if let Some((mutant, verdict)) = Verdict::of_log(&String::from_utf8_lossy(&text)) {
                ledger.note(mutant, verdict);
            }
        }
        ledger.write().map_err(unwritable(&self.place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pass_names_tests() {
        assert_eq!(passes().len(), 5);
        assert!(passes().iter().all(|pass| pass.tests.contains("-C=--")));
    }

    #[test]
    fn part_is_a_shard_or_a_name() {
        let names = ["a", "b", "ab"].map(str::to_owned);
        let part = |part| part_of(&names, part);
        assert_eq!(part(None), ["a", "b", "ab"]);
        assert_eq!(part(Some("0/2")), ["a", "ab"]);
        assert_eq!(part(Some("b")), ["b", "ab"]);
        assert_eq!(part(Some("2/2")), [""; 0]);
    }
}
