//! Files that take numbers from another file (`extends`), scaled by clock.

use toml::{Table, Value};

use super::file::TIMES_OF_CORE;
use super::{MachineError, require};

/// Returns the file `own` with the numbers that it lacks, which are those of `base`. The sources of
/// inherited numbers begin with the name of the base.
pub(super) fn extend(base: &Table, mut own: Table) -> Result<Table, MachineError> {
    let mut all = base.clone();
    let name = base.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    // Measurements are of one machine alone.
    all.remove("measured");
    for section in without(&mut own)? {
        let removed = all.remove(&section);
        let cause = format!("it is without `{section}`, which {name} does not have either");
        require(removed.is_some(), cause, "remove the word from `without`")?;
    }
    let clocks = [base, &own].map(clock_ghz);
    require(
        clocks[0].is_some() || clocks[1].is_none(),
        format!("it states its clock, and {name} does not"),
        "remove `[clock]`: no time can be scaled by it",
    )?;
    for (section, value) in &mut all {
        inherit(section, value, &name, clocks);
    }
    own.remove("extends");
    for (section, value) in own {
        match (all.get_mut(&section), value) {
            (Some(Value::Table(inherited)), Value::Table(numbers)) => inherited.extend(numbers),
            (_, value) => drop(all.insert(section, value)),
        }
    }
    Ok(all)
}

/// Takes the list of sections that the file does not inherit.
fn without(own: &mut Table) -> Result<Vec<String>, MachineError> {
    let Some(list) = own.remove("without") else { return Ok(Vec::new()) };
    let names = list.try_into();
    names.map_err(|_| MachineError::Impossible {
        cause: "`without` is not a list of sections".to_owned(),
        remedy: "write `without = [\"virtualization\"]`".to_owned(),
    })
}

fn clock_ghz(file: &Table) -> Option<f64> {
    number(file.get("clock")?.get("ghz")?.get("value")?)
}

/// TOML has integers and other numbers.
fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|integer| integer as f64))
}

/// Adds the base's name to the sources of a section, and scales its times of the core.
fn inherit(section: &str, value: &mut Value, base: &str, clocks: [Option<f64>; 2]) {
    let tables: Vec<&mut Table> = match value {
        Value::Table(table) => vec![table],
        // Idle states.
        Value::Array(states) => states.iter_mut().filter_map(Value::as_table_mut).collect(),
        _ => return,
    };
    let scaled = TIMES_OF_CORE.iter().find(|(name, _)| *name == section).map_or(&[][..], |it| it.1);
    for (key, entry) in tables.into_iter().flatten() {
        let Some(entry) = entry.as_table_mut() else { continue };
        let mut origin = base.to_owned();
        if let [Some(from), Some(to)] = clocks
            && from != to
            && scaled.contains(&key.as_str())
            && let Some(value) = entry.get("value").and_then(number)
        {
            origin = format!("{base}'s {value} x {from} GHz / {to} GHz");
            entry.insert("value".to_owned(), (value * from / to).into());
        }
        if let Some(Value::String(source)) = entry.get_mut("source") {
            *source = format!("{origin}: {source}");
        }
    }
}
