//! The machine files that come with the command, and those that the user brings.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use shootdown_sim::machine::{Idle, Machine, Number, Refill, StaleWrites, Tagging};

use crate::commands::reproduce::text::{Align, Table};
use crate::error::Failure;

/// The files of `machines/`, so that the command works wherever it is.
const EMBEDDED: [(&str, &str); 12] = [
    ("amd-invlpgb", include_str!("../../../machines/amd-invlpgb.toml")),
    ("ampere-emag-32", include_str!("../../../machines/ampere-emag-32.toml")),
    ("arc-80mhz", include_str!("../../../machines/arc-80mhz.toml")),
    ("arm64-2s", include_str!("../../../machines/arm64-2s.toml")),
    ("desktop-1s", include_str!("../../../machines/desktop-1s.toml")),
    ("emerald-rapids-kvm", include_str!("../../../machines/emerald-rapids-kvm.toml")),
    ("haswell-desktop", include_str!("../../../machines/haswell-desktop.toml")),
    ("power8-16s", include_str!("../../../machines/power8-16s.toml")),
    ("riscv-64", include_str!("../../../machines/riscv-64.toml")),
    ("skylake-laptop-kvm", include_str!("../../../machines/skylake-laptop-kvm.toml")),
    ("xeon-2s", include_str!("../../../machines/xeon-2s.toml")),
    ("xeon-4s", include_str!("../../../machines/xeon-4s.toml")),
];

/// A machine by its name, or from a file: whatever ends in `.toml` is a path.
pub(crate) fn find(wanted: &str) -> Result<Machine, Failure> {
    let path = Path::new(wanted);
    if path.extension().is_some_and(|extension| extension == "toml") {
        let text = fs::read_to_string(path).map_err(|error| Failure::unreadable(path, error))?;
        return Machine::from_toml(&text).map_err(|error| Failure::bad_machine(path, error));
    }
    let Some((name, text)) = EMBEDDED.iter().find(|(name, _)| *name == wanted) else {
        let known = EMBEDDED.map(|(name, _)| name).to_vec();
        return Err(Failure::UnknownMachine { name: wanted.to_owned(), known });
    };
    Machine::from_toml(text)
        .map_err(|error| Failure::bad_machine(&Path::new("machines").join(name), error))
}

/// The machines that have at least so many CPUs.
pub(crate) fn with_cpus(cpus: usize) -> Vec<&'static str> {
    let has_cpus = |text| Machine::from_toml(text).is_ok_and(|machine| machine.cpu_count() >= cpus);
    EMBEDDED.iter().filter(|(_, text)| has_cpus(text)).map(|(name, _)| *name).collect()
}

/// The numbers of a machine that were fitted to a published measurement.
pub(crate) fn calibrated(machine: &Machine) -> impl Iterator<Item = (&Number, &str)> {
    machine.numbers().iter().filter_map(|number| Some((number, number.calibrated_on.as_deref()?)))
}

/// The machines, one a line.
pub(crate) fn list() -> String {
    let mut table =
        Table::new([("machine", Align::Left), ("CPUs", Align::Right)]).column("about", Align::Left);
    for (name, text) in EMBEDDED {
        // That they parse is a test.
        let Ok(machine) = Machine::from_toml(text) else { continue };
        table.row([name.to_owned(), machine.cpu_count().to_string(), machine.about]);
    }
    format!("{table}\n`shootdown machines NAME` shows every number and its source.\n")
}

/// Every number of a machine.
pub(crate) fn details(machine: &Machine) -> String {
    let mut text = format!(
        "{}: {}\n{} CPUs; idle: {}; {}\n\n",
        machine.name,
        machine.about,
        machine.cpu_count(),
        idle(&machine.idle),
        translation(machine)
    );
    let mut table = Table::new([("number", Align::Left), ("value", Align::Right)])
        .column("unit", Align::Left)
        .column("", Align::Left)
        .column("source", Align::Left);
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

/// How its TLBs are kept.
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

/// A key as (what, unit): the unit is last in its name.
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
    fn every_embedded_file_is_the_machine_that_it_is_named_after() {
        for (name, _) in EMBEDDED {
            let machine = find(name).unwrap_or_else(|failure| panic!("{name}: {failure}"));
            assert_eq!(machine.name, name);
            assert!(!details(&machine).is_empty());
        }
        assert_eq!(list().lines().count(), EMBEDDED.len() + 4);
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_that_are_known() {
        let text = find("pdp-11").unwrap_err().to_string();
        assert!(text.contains("pdp-11") && text.contains("xeon-2s"), "{text}");
    }
}
