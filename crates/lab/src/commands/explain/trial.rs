//! Trials of advice: the command runs again with the settings of a change, and the requests that
//! disappear are held against the prediction.

use std::env;
use std::ffi::OsString;

use serde::Serialize;

use super::findings::{Findings, SiteRow, Total};
use super::text::{is_worth_it, percent};
use crate::error::shown;
use crate::render::{duration, grouped, significant};

/// Number of changes that are tried.
const TRIALS_MAX: usize = 3;
/// A change that removes less than this part of all requests is not tried: one of this number.
const PARTS_MAX: u64 = 10;

/// A run of the command with a change.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Trial {
    pub(super) change: String,
    /// The environment and the options that the change needs.
    pub(super) settings: Vec<String>,
    /// Number of requests of all callers that the change removes, as predicted.
    pub(super) predicted: u64,
    #[serde(flatten)]
    pub(super) result: Measured,
}

/// The result of a trial.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Measured {
    Run { after: Total, removed: u64 },
    Refused { reason: String },
}

/// Returns the changes to try: those of the most expensive callers that need only settings.
pub(super) fn planned(findings: &Findings) -> Vec<Trial> {
    let mut trials: Vec<Trial> = Vec::new();
    let advice = findings.callers.iter().flat_map(|caller| &caller.advice);
    for row in advice.filter(|row| is_worth_it(findings) && !row.settings.is_empty()) {
        let predicted = predicted(&findings.callers, &row.settings);
        // Two runs of the same command differ by more than a few requests.
        let is_seen = predicted * PARTS_MAX >= findings.total.sum.requests;
        let is_new = trials.iter().all(|it| it.settings != row.settings);
        if is_seen && is_new && trials.len() < TRIALS_MAX {
            let result = Measured::Refused { reason: String::new() };
            let (change, settings) = (row.change.clone(), row.settings.clone());
            trials.push(Trial { change, settings, predicted, result });
        }
    }
    trials
}

/// Returns the requests that these settings save: an allocator's act on all callers below it.
fn predicted(callers: &[SiteRow], settings: &[String]) -> u64 {
    let saves = |caller: &SiteRow| {
        let row = caller.advice.iter().find(|row| row.settings == settings);
        row.map_or(0, |row| row.saves)
    };
    callers.iter().map(saves).sum()
}

/// Returns a command with settings: `env` sets the environment, before the program. Options come
/// last, or before `--`, because the last one of a program's own options counts.
///
/// # Errors
///
/// Returns the name of a variable that is set already: its settings would be lost.
pub(super) fn changed(command: &[OsString], settings: &[String]) -> Result<Vec<OsString>, String> {
    let (options, environment): (Vec<_>, Vec<_>) =
        settings.iter().partition(|word| word.starts_with('-'));
    for (name, _) in environment.iter().filter_map(|word| word.split_once('=')) {
        if env::var_os(name).is_some() {
            return Err(name.to_owned());
        }
    }
    let end = command.iter().position(|word| word == "--").unwrap_or(command.len());
    let (program, operands) = command.split_at(end);
    let setter = (!environment.is_empty()).then(|| "env".into());
    let mut words: Vec<OsString> = setter.into_iter().collect();
    words.extend(environment.into_iter().map(OsString::from));
    words.extend_from_slice(program);
    words.extend(options.into_iter().map(OsString::from));
    words.extend_from_slice(operands);
    Ok(words)
}

impl Trial {
    /// Returns the settings, and the requests that they removed.
    pub(super) fn text(&self, before: &Total) -> String {
        let settings = shown(self.settings.join(" "));
        let (after, removed) = match &self.result {
            Measured::Refused { reason } => return format!("\nnot tried: {settings}: {reason}\n"),
            Measured::Run { after, removed } => (after, *removed),
        };
        format!(
            "\ntried: {settings}\n     {} requests instead of {}: {} removed, {} predicted ({} \
             %)\n     shootdowns take {} of the CPU time instead of {}; the program used {} of it \
             instead of {}\n",
            grouped(after.sum.requests),
            grouped(before.sum.requests),
            grouped(removed),
            grouped(self.predicted),
            significant(100.0 * removed as f64 / self.predicted.max(1) as f64),
            percent(after.cpu_share),
            percent(before.cpu_share),
            duration(after.program_ns),
            duration(before.program_ns),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_placed_around_the_program() {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let changed = |settings: &[&str]| {
            let settings: Vec<_> = settings.iter().map(|it| (*it).to_owned()).collect();
            super::changed(&words(&["rg", "--mmap", "--", "b"]), &settings)
        };
        assert_eq!(changed(&["--no-mmap"]), Ok(words(&["rg", "--mmap", "--no-mmap", "--", "b"])));
        assert_eq!(
            changed(&["SD_A=1", "SD_B=2"]),
            Ok(words(&["env", "SD_A=1", "SD_B=2", "rg", "--mmap", "--", "b"]))
        );
        assert_eq!(changed(&["PATH=/"]), Err("PATH".to_owned()), "the user's setting is kept");
    }
}
