//! `shootdown machines`: the list of machine models, every number of one model, or their check
//! against what was measured on the real machines.

pub(crate) mod check;

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::Args;
use shootdown_sim::machine::{Idle, Machine, Number, Refill, StaleWrites, Tagging};

use crate::error::Failure;
use crate::machines::{Embedded, calibrated, find};
use crate::output::print;
use crate::render::table::Table;

pub(crate) const EXAMPLES: &str = include_str!("../../../help/machines.txt").trim_ascii_end();

#[derive(Args, Clone, Debug)]
pub(crate) struct Machines {
    /// The name of a machine, or a file that ends in .toml
    machine: Option<OsString>,
    /// Run the loops of the file's section `[measured]`, or those of all machines, in the
    /// simulator, and compare the times
    #[arg(long)]
    check: bool,
}

impl Machines {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if self.check {
            return self.check();
        }
        let text = match &self.machine {
            None => list(),
            Some(wanted) => details(&find(wanted)?),
        };
        Ok(print(&text)?)
    }

    fn check(&self) -> Result<(), Failure> {
        let machines = match &self.machine {
            None => Embedded::ALL.iter().map(|it| it.machine()).collect::<Result<Vec<_>, _>>()?,
            Some(wanted) => {
                let machine = find(wanted)?;
                if machine.measured.is_empty() {
                    return Err(check::CheckError::NoLoops(machine.name).into());
                }
                vec![machine]
            }
        };
        let check = check::Check::of(&machines)?;
        print(&check.text())?;
        Ok(check.verdict()?)
    }
}

/// Returns a table with one machine per line.
fn list() -> String {
    let mut table = Table::default().left(["machine"]).right(["CPUs", "error"]).left(["about"]);
    // A test checks that every embedded file is valid.
    for machine in Embedded::ALL.iter().filter_map(|embedded| embedded.machine().ok()) {
        let error = machine.time_error_percent.map_or_else(String::new, |it| format!("±{it} %"));
        let cpus = machine.cpu_count().to_string();
        table.row([machine.name.clone(), cpus, error, machine.about]);
    }
    format!(
        "{table}\nThe error is that of a simulated time, against times that nothing was \
         fitted to.\n\
         `shootdown machines NAME` shows every number and its source.\n"
    )
}

/// Returns every number of a machine with its unit and its source.
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

/// Returns a description of the machine's TLB tags, refills and remote invalidation.
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
    let remote = match (&machine.broadcast, &machine.remote_fence) {
        (Some(_), _) if machine.domains.is_some() => {
            ", hardware broadcasts invalidations, of tags in domains"
        }
        (Some(_), _) => ", hardware broadcasts invalidations",
        (None, Some(_)) => ", firmware invalidates other CPUs",
        (None, None) => "",
    };
    let writes = match machine.stale_writes {
        StaleWrites::Trapped => "",
        StaleWrites::Unnoticed => ", stale entries permit writes",
    };
    format!("{tags}{refill}{remote}{writes}")
}

/// Splits a key into the name of the quantity and the unit that the key ends with.
fn split_unit(key: &str) -> (&str, &str) {
    match key.rsplit_once('_') {
        Some((quantity, unit @ ("ns" | "us"))) => (quantity, unit),
        _ => (key, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_embedded_machine_is_listed_with_details() {
        assert_eq!(list().lines().count(), Embedded::ALL.len() + 5);
        for embedded in Embedded::ALL {
            assert!(
                !details(&find(embedded.name.as_ref()).expect("an embedded machine")).is_empty()
            );
        }
    }
}
