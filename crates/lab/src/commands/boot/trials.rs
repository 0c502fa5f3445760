//! What the kernel found when it had faults put in: see `kernel/src/kernel/fault_injection`.

use std::fmt::Write as _;

use serde::Serialize;

use super::console::Line;
use super::options::Boot;
use crate::render::Printed;
use crate::render::table::Table;

/// A trial, as the kernel says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Trial {
    /// How a CPU comes to use what was changed.
    way: String,
    /// What is wrong with the engine's processor.
    fault: String,
    /// What was found then.
    verdict: String,
    /// Why, where it says nothing of the engine.
    why: String,
}

/// All that was tried, on one machine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    arch: &'static str,
    cpus: u32,
    trials: Vec<Trial>,
    /// Where each waits for all, and none for ever.
    storms: Vec<String>,
}

/// With no fault.
const INTACT: &str = "none";

impl Report {
    pub(crate) fn new(options: &Boot, lines: &[Line]) -> Self {
        let after = |start| lines.iter().filter_map(move |line| line.0.strip_prefix(start));
        let storms = after("storm ").filter(|line| value(line, "verdict") == "over");
        Self {
            arch: options.machine_name(),
            cpus: options.cpus,
            trials: after("trial ").map(trial).collect(),
            storms: storms.map(|line| value(line, "name").to_owned()).collect(),
        }
    }
}

impl Printed for Report {
    fn csv(&self) -> String {
        let mut table = Table::default().left(["arch", "way", "fault", "verdict"]);
        for Trial { way, fault, verdict, .. } in &self.trials {
            table.row([self.arch, way, fault, verdict]);
        }
        table.csv()
    }

    /// A row for each way, a column for each fault.
    fn text(&self) -> String {
        let mut ways: Vec<&str> = Vec::new();
        let mut faults: Vec<&str> = vec![INTACT];
        for trial in &self.trials {
            if !ways.contains(&trial.way.as_str()) {
                ways.push(&trial.way);
            }
            if !faults.contains(&trial.fault.as_str()) {
                faults.push(&trial.fault);
            }
        }
        let names = faults.iter().map(|&fault| if fault == INTACT { "as it is" } else { fault });
        let mut table = Table::default().left(["a CPU that"]).left(names);
        for way in ways {
            let cell = |fault: &&str| {
                let is_it = |trial: &&Trial| trial.way == way && trial.fault == **fault;
                self.trials.iter().find(is_it).map_or(String::new(), |trial| trial.verdict.clone())
            };
            let name = way.replace('-', " ");
            table.row([name].into_iter().chain(faults.iter().map(cell)));
        }
        let mut text = format!("{}, {} CPUs\n\n{table}", self.arch, self.cpus);
        let mut reasons: Vec<_> =
            self.trials.iter().filter(|trial| !trial.why.is_empty()).collect();
        reasons.dedup_by_key(|trial| (&trial.verdict, &trial.why));
        if !reasons.is_empty() {
            text.push('\n');
        }
        for Trial { way, fault, verdict, why } in reasons {
            let _ = writeln!(text, "{verdict}: {}, {fault}: {why}", way.replace('-', " "));
        }
        if !self.storms.is_empty() {
            let _ = writeln!(text, "\nnobody waits for ever: {}", self.storms.join(", "));
        }
        text
    }
}

fn trial(line: &str) -> Trial {
    let of = |name| value(line, name).to_owned();
    let why = line.split_once("why=").map_or("", |(_, why)| why).to_owned();
    Trial { way: of("way"), fault: of("fault"), verdict: of("verdict"), why }
}

/// The word behind `name=`.
fn value<'l>(line: &'l str, name: &str) -> &'l str {
    let mut words = line.split_whitespace().filter_map(|word| word.split_once('='));
    words.find(|(its, _)| *its == name).map_or("", |(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_read() {
        let line = "way=reads-all fault=none verdict=masked right=yes why=all is dropped, always";
        let trial = trial(line);
        assert_eq!((trial.way.as_str(), trial.fault.as_str()), ("reads-all", "none"));
        assert_eq!((trial.verdict.as_str(), &*trial.why), ("masked", "all is dropped, always"));
    }
}
