//! The kernel's results of fault injection. `kernel/src/kernel/fault_injection` makes them.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;
use shootdown_sanitizer::report::Report as Fault;

use super::console::Line;
use super::error::BootError;
use super::options::Boot;
use crate::render::Printed;
use crate::render::table::Table;

/// A trial: a scenario that runs with a fault in the engine's processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Trial {
    /// The event after which a CPU uses the changed translation.
    scenario: String,
    /// The fault of the engine's processor, or [`INTACT`].
    fault: String,
    /// The translation that the CPU used, for example `fresh` or `stale`.
    verdict: String,
    /// The reason, if the trial gives no information about the engine.
    why: String,
    /// The modes of the sanitizer that found the fault, if there was a sanitizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    sanitizer: Option<String>,
}

/// All trials on one machine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    arch: &'static str,
    cpus: u32,
    trials: Vec<Trial>,
    /// The names of the storms that ended. In a storm, every CPU waits for all others.
    storms: Vec<String>,
}

/// The name of no fault.
const INTACT: &str = "none";

impl Report {
    /// The report of these lines of the kernel, and of these faults that the sanitizer has found.
    pub(crate) fn new(options: &Boot, lines: &[Line], faults: Option<&[Fault]>) -> Self {
        let after = |start| lines.iter().filter_map(move |line| line.0.strip_prefix(start));
        let storms = after("storm ").filter(|line| value(line, "verdict") == "over");
        Self {
            arch: options.machine_name(),
            cpus: options.cpus,
            trials: (1..).zip(after("trial ")).map(|(n, line)| trial(line, n, faults)).collect(),
            storms: storms.map(|line| value(line, "name").to_owned()).collect(),
        }
    }

    /// Checks that the sanitizer has found every injected fault, and nothing else.
    ///
    /// # Errors
    ///
    /// If it has not.
    pub(crate) fn check_sanitizer(&self, faults: Option<&[Fault]>) -> Result<(), BootError> {
        let of_no_trial =
            |fault: &&Fault| (fault.mark as usize).wrapping_sub(1) >= self.trials.len();
        if faults.unwrap_or_default().iter().any(|fault| of_no_trial(&fault)) {
            return Err(BootError::Sanitizer { scenario: "a storm".to_owned(), has: "a fault" });
        }
        for Trial { scenario, fault, sanitizer, .. } in &self.trials {
            let has = match (fault.as_str(), sanitizer.as_deref()) {
                (INTACT, Some(NOTHING)) | (_, None | Some(ABSENT)) => continue,
                (INTACT, _) => "a fault",
                (_, Some(NOTHING)) => "nothing",
                _ => continue,
            };
            let scenario = format!("{scenario} with {fault}");
            return Err(BootError::Sanitizer { scenario, has });
        }
        Ok(())
    }
}

impl Printed for Report {
    fn csv(&self) -> String {
        let has_sanitizer = self.trials.iter().any(|trial| trial.sanitizer.is_some());
        let last = has_sanitizer.then_some("sanitizer");
        let mut table =
            Table::default().left(["arch", "scenario", "fault", "verdict"].into_iter().chain(last));
        for Trial { scenario, fault, verdict, sanitizer, .. } in &self.trials {
            let cells = [self.arch, scenario, fault, verdict].into_iter();
            table.row(cells.chain(sanitizer.as_deref()));
        }
        table.csv()
    }

    /// Returns a table with a row for each scenario and a column for each fault.
    fn text(&self) -> String {
        let mut scenarios: Vec<&str> = Vec::new();
        let mut faults: Vec<&str> = vec![INTACT];
        for trial in &self.trials {
            if !scenarios.contains(&trial.scenario.as_str()) {
                scenarios.push(&trial.scenario);
            }
            if !faults.contains(&trial.fault.as_str()) {
                faults.push(&trial.fault);
            }
        }
        let names = faults.iter().map(|&fault| if fault == INTACT { "no fault" } else { fault });
        let mut table = Table::default().left(["a CPU that"]).left(names);
        for scenario in scenarios {
            let cell = |fault: &&str| {
                let is_cell = |trial: &&Trial| trial.scenario == scenario && trial.fault == **fault;
                self.trials.iter().find(is_cell).map_or(String::new(), Trial::cell)
            };
            let name = scenario.replace('-', " ");
            table.row([name].into_iter().chain(faults.iter().map(cell)));
        }
        let mut text = format!("{}, {} CPUs\n\n{table}", self.arch, self.cpus);
        let mut reasons: Vec<_> =
            self.trials.iter().filter(|trial| !trial.why.is_empty()).collect();
        reasons.dedup_by_key(|trial| (&trial.verdict, &trial.why));
        if !reasons.is_empty() {
            text.push('\n');
        }
        for Trial { scenario, fault, verdict, why, .. } in reasons {
            let _ = writeln!(text, "{verdict}: {}, {fault}: {why}", scenario.replace('-', " "));
        }
        if !self.storms.is_empty() {
            let _ = writeln!(text, "\nall CPUs finished waiting in: {}", self.storms.join(", "));
        }
        text
    }
}

impl Trial {
    /// The verdict, and what the sanitizer has found.
    fn cell(&self) -> String {
        match self.sanitizer.as_deref() {
            None | Some(ABSENT | NOTHING) => self.verdict.clone(),
            Some(found) => format!("{} ({found})", self.verdict),
        }
    }
}

/// The sanitizer's result for a trial that was not run.
const ABSENT: &str = "absent";
/// The sanitizer's result if it has found nothing.
const NOTHING: &str = "nothing";

/// The trial of a line, which is the one with this number.
fn trial(line: &str, number: u64, faults: Option<&[Fault]>) -> Trial {
    let of = |name| value(line, name).to_owned();
    let why = line.split_once("why=").map_or("", |(_, why)| why).to_owned();
    let verdict = of("verdict");
    let sanitizer = faults.map(|faults| {
        let of_trial = faults.iter().filter(|fault| fault.mark == number);
        let modes: BTreeSet<&str> = of_trial.map(|fault| fault.mode.name()).collect();
        match (verdict.as_str(), modes.is_empty()) {
            ("absent", true) => ABSENT.to_owned(),
            (_, true) => NOTHING.to_owned(),
            (_, false) => Vec::from_iter(modes).join(" and "),
        }
    });
    Trial { scenario: of("way"), fault: of("fault"), verdict, why, sanitizer }
}

/// Returns the word after `name=`, or an empty string.
fn value<'l>(line: &'l str, name: &str) -> &'l str {
    let mut words = line.split_whitespace().filter_map(|word| word.split_once('='));
    words.find(|(found, _)| *found == name).map_or("", |(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trial_line_is_parsed() {
        let line = "way=reads-all fault=none verdict=masked right=yes why=all is dropped, always";
        let trial = trial(line, 1, None);
        assert_eq!((trial.scenario.as_str(), trial.fault.as_str()), ("reads-all", "none"));
        assert_eq!((trial.verdict.as_str(), &*trial.why), ("masked", "all is dropped, always"));
    }
}
