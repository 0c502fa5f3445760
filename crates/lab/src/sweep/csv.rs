//! Rows as CSV, written while the sweep runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::path::Path;

use serde_json::{Map, Value};

use super::{Rows, SweepError};
use crate::output::Output;

/// A CSV file. Its columns are the members of the first row without an error. Rows of other
/// commands have other members: their columns are added when the sweep has ended.
#[derive(Debug)]
pub(crate) struct Csv {
    output: Output,
    file: File,
    columns: Vec<String>,
    /// `true` if a row had a member without a column.
    is_lacking: bool,
}

impl Csv {
    /// Creates the file, or replaces it: it is a copy of the rows.
    pub(crate) fn create(path: &Path) -> Result<Self, SweepError> {
        let output = Output::page(path, "--csv", &[])?;
        let file = File::create(path).map_err(|error| output.unwritable(error))?;
        Ok(Self { output, file, columns: Vec::new(), is_lacking: false })
    }

    /// Adds a row.
    pub(crate) fn add(&mut self, row: &str) -> Result<(), SweepError> {
        let mut cells = cells(row);
        let mut text = String::new();
        if self.columns.is_empty() && !cells.contains_key("error") {
            self.columns = cells.keys().cloned().chain(["error".to_owned()]).collect();
            // The columns that identify a row come first.
            self.columns.sort_by_key(|name| !IDENTITY.contains(&name.as_str()));
            text = line(self.columns.iter().cloned());
        }
        if self.columns.is_empty() {
            self.is_lacking = true;
            return Ok(());
        }
        let columns = self.columns.iter().map(|name| cells.remove(name).unwrap_or_default());
        text += &line(columns);
        self.is_lacking |= !cells.is_empty();
        Ok(self.file.write_all(text.as_bytes()).map_err(|error| self.error(error))?)
    }

    /// Adds all rows of a sweep that is resumed.
    pub(crate) fn add_all(&mut self, rows: &mut Rows) -> Result<(), SweepError> {
        let mut result = Ok(());
        rows.each(|row| {
            if result.is_ok() {
                result = self.add(row);
            }
        })?;
        result
    }

    /// Ends the file. If some rows had members without a column, it is written again, with a column
    /// for each member of any row.
    pub(crate) fn finish(mut self, rows: &mut Rows) -> Result<(), SweepError> {
        if !self.is_lacking {
            return Ok(());
        }
        let mut names = BTreeSet::new();
        rows.each(|row| names.extend(cells(row).into_keys()))?;
        let mut columns: Vec<_> = names.into_iter().collect();
        columns.sort_by_key(|name| !IDENTITY.contains(&name.as_str()));
        let mut text = line(columns.iter().cloned());
        let mut failure = self.file.set_len(0).and_then(|()| self.file.rewind()).err();
        rows.each(|row| {
            let mut cells = cells(row);
            text += &line(columns.iter().map(|name| cells.remove(name).unwrap_or_default()));
            if text.len() > 1 << 20 {
                failure = failure.take().or(self.file.write_all(text.as_bytes()).err());
                text.clear();
            }
        })?;
        failure = failure.or(self.file.write_all(text.as_bytes()).err());
        match failure {
            Some(error) => Err(self.error(error).into()),
            None => Ok(()),
        }
    }

    fn error(&self, error: io::Error) -> crate::output::OutputError {
        self.output.unwritable(error)
    }
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

/// Returns a line of CSV. Cells with separators are quoted (RFC 4180).
fn line(cells: impl Iterator<Item = String>) -> String {
    let quoted = |cell: String| {
        if cell.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell
        }
    };
    cells.map(quoted).collect::<Vec<_>>().join(",") + "\n"
}
