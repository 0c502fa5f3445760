//! Rows as CSV.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write as _};

use serde_json::{Map, Value};

use super::{Rows, SweepError};
use crate::output::Output;
use crate::render::table::csv_line;

/// Writes the rows in the order of their cells. The columns are the members of the first row
/// without an error. If other rows have other members, there is a column for each of any row.
pub(crate) fn write(rows: &mut Rows, output: &Output) -> Result<(), SweepError> {
    let (mut columns, mut names) = (Vec::new(), BTreeSet::new());
    rows.each(|row| {
        let cells = cells(row);
        if columns.is_empty() && !cells.contains_key("error") {
            columns = cells.keys().cloned().chain(["error".to_owned()]).collect();
        }
        names.extend(cells.into_keys());
    })?;
    if names.iter().any(|name| !columns.contains(name)) {
        columns = names.into_iter().collect();
    }
    // The columns that identify a row come first.
    columns.sort_by_key(|name| !IDENTITY.contains(&name.as_str()));
    let file = File::create(output.path()).map_err(|error| output.unwritable(error))?;
    let mut file = BufWriter::new(file);
    let mut written = file.write_all(csv_line(columns.iter().cloned()).as_bytes());
    rows.each(|row| {
        let mut cells = cells(row);
        let cells = columns.iter().map(|name| cells.remove(name).unwrap_or_default());
        if written.is_ok() {
            written = file.write_all(csv_line(cells).as_bytes());
        }
    })?;
    Ok(written.and_then(|()| file.flush()).map_err(|error| output.unwritable(error))?)
}

/// The first columns.
const IDENTITY: [&str; 3] = ["cell", "command", "design"];

/// Returns the members of a row, those of inner objects under names with dots.
fn cells(row: &str) -> BTreeMap<String, String> {
    let mut cells = BTreeMap::new();
    let members: Map<String, Value> = serde_json::from_str(row).unwrap_or_default();
    flatten("", members, &mut cells);
    cells
}

fn flatten(prefix: &str, members: Map<String, Value>, cells: &mut BTreeMap<String, String>) {
    for (name, value) in members {
        let name = format!("{prefix}{name}");
        match value {
            Value::Object(inner) => flatten(&format!("{name}."), inner, cells),
            Value::Null => _ = cells.insert(name, String::new()),
            Value::String(text) => _ = cells.insert(name, text),
            Value::Array(items) => {
                let items: Vec<_> = items.iter().map(|item| item.as_str().unwrap_or("")).collect();
                cells.insert(name, items.join("; "));
            }
            number => _ = cells.insert(name, number.to_string()),
        }
    }
}
