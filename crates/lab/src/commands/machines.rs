//! `shootdown machines`: the machines, or every number of one of them.

use std::fmt::Write as _;

use clap::Args;
use shootdown_sim::machine::{Idle, Machine, Number, Refill, StaleWrites, Tagging};

use crate::error::Failure;
use crate::machines::{Embedded, calibrated, find};
use crate::output::print;
use crate::render::table::Table;

pub(crate) const EXAMPLES: &str = "\
Examples:
  shootdown machines
  shootdown machines power8-16s
  shootdown machines ./my-server.toml";

#[derive(Args, Clone, Debug)]
pub(crate) struct Machines {
    /// A machine's name, or a file that ends in .toml
    machine: Option<String>,
}

impl Machines {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let text = match &self.machine {
            None => list(),
            Some(wanted) => details(&find(wanted)?),
        };
        Ok(print(&text)?)
    }
}

/// The machines, one per line.
fn list() -> String {
    let mut table = Table::default().left(["machine"]).right(["CPUs"]).left(["about"]);
    // A test parses each of them.
    for machine in Embedded::ALL.iter().filter_map(|embedded| embedded.machine().ok()) {
        table.row([machine.name.clone(), machine.cpu_count().to_string(), machine.about]);
    }
    format!("{table}\n`shootdown machines NAME` shows every number and its source.\n")
}

/// Every number of a machine.
fn details(machine: &Machine) -> String {
    let mut text = format!(
        "{}: {}\n{} CPUs; idle: {}; {}\n\n",
        machine.name,
        machine.about,
        machine.cpu_count(),
        idle(&machine.idle),
        translation(machine)
    );
    let mut table = Table::default().left(["number"]).right(["value"]).left(["unit", "", "source"]);
    for number in machine.numbers() {
        let (key, unit) = split_unit(&number.key);
        let mark = if number.calibrated_on.is_some() { "*" } else { "" };
        table.row([
            format!("{}.{key}", number.section),
            number.value.to_string(),
            unit.to_owned(),
            mark.to_owned(),
            number.source.clone(),
        ]);
    }
    let _ = write!(text, "{table}");
    let mut calibrated = calibrated(machine).peekable();
    if calibrated.peek().is_some() {
        text.push_str("\n* fitted to a published measurement:\n");
    }
    for (Number { section, key, .. }, measurement) in calibrated {
        let (key, _) = split_unit(key);
        let _ = writeln!(text, "  {section}.{key}: {measurement}");
    }
    text
}

fn idle(idle: &Idle) -> String {
    match idle {
        Idle::Poll => "polls".to_owned(),
        Idle::States(states) => {
            states.iter().map(|state| state.name.as_str()).collect::<Vec<_>>().join(", ")
        }
    }
}

/// The kinds of its TLBs and of their maintenance.
fn translation(machine: &Machine) -> String {
    let tags = match machine.tagging {
        Tagging::PerCpu => "tags per CPU",
        Tagging::Global => "global tags",
        Tagging::Renamed => "tags from a counter",
    };
    let refill = match machine.refill {
        Refill::Hardware => "",
        Refill::Software => ", refilled by software",
    };
    let tells = match (&machine.broadcast, &machine.remote_fence) {
        (Some(_), _) => ", hardware broadcasts",
        (None, Some(_)) => ", firmware fences others",
        (None, None) => "",
    };
    let writes = match machine.stale_writes {
        StaleWrites::Trapped => "",
        StaleWrites::Unnoticed => ", writes through stale entries unnoticed",
    };
    format!("{tags}{refill}{tells}{writes}")
}

/// Splits a key into its quantity and its unit, with which its name ends.
fn split_unit(key: &str) -> (&str, &str) {
    match key.rsplit_once('_') {
        Some((what, unit @ ("ns" | "us"))) => (what, unit),
        _ => (key, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_is_listed_and_has_details() {
        assert_eq!(list().lines().count(), Embedded::ALL.len() + 4);
        for embedded in Embedded::ALL {
            assert!(!details(&find(embedded.name).expect("an embedded machine")).is_empty());
        }
    }
}
