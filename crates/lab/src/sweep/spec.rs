//! The specification of a sweep, as a TOML file or as the equal JSON value.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::SweepError;
use super::cell::{Cell, Inputs};
use super::grid::{Grid, VALUES_MAX};
use crate::error::{Help, bad_input, cannot_run, shown, user_errors};
use crate::machines::one_line;

/// A sweep: cells with numbers from 0, which can be run in any order.
#[derive(Debug)]
pub struct Sweep {
    specification: Value,
    /// The grids, each with the number of its first cell.
    grids: Vec<(u64, Grid)>,
    /// Number of cells.
    cells: u64,
    fingerprint: String,
    inputs: Inputs,
}

/// The help for most mistakes.
const EXAMPLES: &str = "correct the file; docs/sweeps.md has examples";

user_errors! {
    /// A specification cannot be used.
    #[derive(Debug, thiserror::Error)]
    pub(crate) enum SpecError {
        #[error("{}: {error}", shown(.path))]
        Unreadable { path: PathBuf, error: io::Error } => match error.kind() {
            io::ErrorKind::NotFound => bad_input(EXAMPLES),
            _ => cannot_run(EXAMPLES),
        },
        #[error("{}", shown(.0))]
        Syntax(_: String) => bad_input(EXAMPLES),
        #[error("the specification has no [[grid]]")]
        NoGrid => bad_input(EXAMPLES),
        #[error("a grid has no `command`")]
        NoCommand => commands(),
        #[error("a sweep cannot run `{}`", shown(.0))]
        UnknownCommand(_: String) => commands(),
        #[error("`{}` is not a parameter of `{of}`", shown(.name))]
        UnknownKey { name: String, of: String, known: String } =>
            bad_input(format!("use some of {known}")),
        #[error("`{}` has no value, or a value that is neither a number nor text", shown(.0))]
        NoValues(_: String) => bad_input("use one value, or a list of values"),
        #[error("`{}` is not a range of whole numbers", shown(.0))]
        BadRange(_: String) => bad_input(
            "use a list, or { from = 2, to = 64, times = 2 }, or { from = 1, to = 9, \
             step = 1 }",
        ),
        #[error("`{}` is not a table", shown(.0))]
        NotATable(_: String) => bad_input(EXAMPLES),
        #[error("a cell of `{of}`: {}", shown(.cause))]
        BadValue { of: String, cause: String } => bad_input(EXAMPLES),
        #[error("`parts` is not one whole number from 1 to {VALUES_MAX}")]
        BadParts => bad_input("set `parts` to the number of cells of a campaign"),
        #[error("the sweep has more than {VALUES_MAX} cells")]
        TooManyCells => bad_input("divide the specification into several"),
        #[error("there is no cell {number}: the sweep has {cells}")]
        NoCell { number: u64, cells: u64 } => bad_input("use a number from 0 to the last cell's"),
    }
}

/// The help for a command that is missing or unknown.
fn commands() -> Help {
    let names: Vec<_> = Cell::COMMANDS.iter().map(|(name, _)| *name).collect();
    bad_input(format!("set `command` to {}", names.join(", ")))
}

impl Sweep {
    /// Reads a specification. Paths in it are relative to its folder.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or is not a specification.
    pub fn read(path: &Path) -> Result<Self, SweepError> {
        let text = fs::read_to_string(path)
            .map_err(|error| SpecError::Unreadable { path: path.to_owned(), error })?;
        let syntax = |error: toml::de::Error| {
            SpecError::Syntax(format!("{}: {}", path.display(), one_line(&error.to_string())))
        };
        let value: Value = toml::from_str(&text).map_err(syntax)?;
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        Self::new(value, folder.unwrap_or(Path::new(".")))
    }

    /// Returns the sweep of a specification that was parsed already. Paths in it are relative to
    /// `folder`.
    ///
    /// # Errors
    ///
    /// If the value is not a specification.
    pub fn new(specification: Value, folder: &Path) -> Result<Self, SweepError> {
        let Value::Object(mut file) = specification.clone() else {
            return Err(SpecError::NoGrid.into());
        };
        let grids = match file.remove("grid") {
            Some(Value::Array(grids)) if !grids.is_empty() => grids,
            Some(Value::Object(grid)) => vec![Value::Object(grid)],
            _ => return Err(SpecError::NoGrid.into()),
        };
        if let Some(name) = file.keys().next() {
            let (name, of) = (name.clone(), "a specification".to_owned());
            return Err(SpecError::UnknownKey { name, of, known: "[[grid]]".to_owned() }.into());
        }
        let (mut numbered, mut cells) = (Vec::new(), 0_u64);
        for grid in grids {
            let Value::Object(grid) = grid else {
                return Err(SpecError::NotATable("grid".to_owned()).into());
            };
            let grid = self::grid(grid)?;
            let count = grid.len().ok_or(SpecError::TooManyCells)?;
            numbered.push((cells, grid));
            cells += count;
        }
        if cells > VALUES_MAX {
            return Err(SpecError::TooManyCells.into());
        }
        let mut sweep = Self {
            specification,
            grids: numbered,
            cells,
            fingerprint: String::new(),
            inputs: Inputs::new(folder),
        };
        sweep.fingerprint = sweep.hash();
        Ok(sweep)
    }

    /// Returns the specification, from which [`Sweep::new`] makes an equal sweep.
    #[must_use]
    pub const fn specification(&self) -> &Value {
        &self.specification
    }

    /// Returns the folder that paths in the specification are relative to.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.inputs.folder()
    }

    /// Returns the number of cells.
    #[must_use]
    pub const fn cells(&self) -> u64 {
        self.cells
    }

    /// Returns the first digits of a hash of the version, the cells, and the files that they name.
    /// Rows of different sweeps cannot be mixed up, because each row contains it.
    #[must_use]
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Runs a cell and returns its row: a JSON object in one line, without a line end. The same
    /// cell has the same row on any host.
    ///
    /// A cell that fails, or panics, has a row with an `error`.
    ///
    /// # Errors
    ///
    /// If there is no such cell.
    pub fn run(&self, number: u64) -> Result<String, SweepError> {
        let parameters =
            self.parameters(number).ok_or(SpecError::NoCell { number, cells: self.cells })?;
        let mut row = format!(
            "{{\"cell\":{number},\"cells\":{},\"sweep\":\"{}\"",
            self.cells, self.fingerprint
        );
        // A cell was parsed when the sweep was made, so it parses again.
        let result = match Cell::parse(parameters.clone()) {
            Ok(cell) => {
                members(&mut row, cell.parameters());
                cell.run(&self.inputs)
            }
            Err(error) => {
                members(&mut row, parameters);
                Err(error.to_string())
            }
        };
        match result {
            Ok(results) => members(&mut row, results),
            Err(error) => members(&mut row, Map::from_iter([("error".to_owned(), error.into())])),
        }
        Ok(row + "}")
    }

    /// Returns the parameters of a cell.
    pub(super) fn parameters(&self, number: u64) -> Option<Map<String, Value>> {
        if number >= self.cells {
            return None;
        }
        let after = self.grids.partition_point(|(first, _)| *first <= number);
        let (first, grid) = &self.grids[after - 1];
        Some(grid.cell(number - first))
    }

    fn hash(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(env!("CARGO_PKG_VERSION"));
        for (_, grid) in &self.grids {
            for cell in grid.samples() {
                hash.update(Value::from(cell).to_string());
            }
        }
        for file in self.grids.iter().flat_map(|(_, grid)| Cell::files(grid)) {
            // A file that cannot be read is an error of its cells.
            hash.update(fs::read(self.inputs.path(&file)).unwrap_or_default());
        }
        hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Appends the members of an object to an object that is not closed yet.
fn members(row: &mut String, members: Map<String, Value>) {
    for (name, value) in members {
        *row += &format!(",{}:{value}", Value::from(name));
    }
}

fn grid(mut given: Map<String, Value>) -> Result<Grid, SpecError> {
    let Some(Value::String(command)) = given.remove("command") else {
        return Err(SpecError::NoCommand);
    };
    let known = Cell::COMMANDS.iter().find(|(name, _)| *name == command);
    let Some((_, known)) = known else { return Err(SpecError::UnknownCommand(command)) };
    let mut grid = Grid::new(command.clone(), known, given)?;
    // A campaign of several parts has a cell for each.
    let parts = match grid.values("parts") {
        [] => None,
        [parts] => {
            let parts = parts.as_u64().filter(|parts| (1..=VALUES_MAX).contains(parts));
            Some(parts.ok_or(SpecError::BadParts)?)
        }
        _ => return Err(SpecError::BadParts),
    };
    if let Some(parts) = parts {
        grid.push_parts("part", parts);
    }
    for cell in grid.samples() {
        Cell::parse(cell).map_err(|cause| SpecError::BadValue {
            of: command.clone(),
            cause: cause.to_string(),
        })?;
    }
    Ok(grid)
}
