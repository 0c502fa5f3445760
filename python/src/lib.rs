//! The native module of the Python package `shootdown`.
//!
//! It passes JSON as text. The package in `lib/` makes dictionaries of it. Whatever simulates
//! or reads long files runs without the interpreter's lock.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use shootdown_lab::sweep::{self, Start, SweepError};

/// Returns a Python error with the cause and the remedy.
fn error(error: SweepError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn json(text: &str) -> PyResult<serde_json::Value> {
    serde_json::from_str(text).map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Cells with numbers from 0.
#[pyclass(frozen)]
struct Sweep(sweep::Sweep);

#[pymethods]
impl Sweep {
    /// Parses a specification, a JSON object. Paths in it are relative to `folder`.
    #[new]
    fn new(specification: &str, folder: PathBuf) -> PyResult<Self> {
        sweep::Sweep::new(json(specification)?, &folder).map(Self).map_err(error)
    }

    /// Reads a specification, a TOML file.
    #[staticmethod]
    fn read(path: PathBuf) -> PyResult<Self> {
        sweep::Sweep::read(&path).map(Self).map_err(error)
    }

    /// Number of cells.
    #[getter]
    fn cells(&self) -> u64 {
        self.0.cells()
    }

    /// A hash of the cells, their files and the version.
    #[getter]
    fn fingerprint(&self) -> &str {
        self.0.fingerprint()
    }

    /// The specification as JSON, and the folder of its paths: the arguments of an equal sweep.
    #[getter]
    fn arguments(&self) -> (String, PathBuf) {
        (self.0.specification().to_string(), self.0.folder().to_owned())
    }

    /// Runs a cell without the interpreter's lock, and returns its row as JSON.
    fn run(&self, py: Python<'_>, cell: u64) -> PyResult<String> {
        py.detach(|| self.0.run(cell)).map_err(error)
    }
}

/// A file of rows of a sweep.
#[pyclass(frozen)]
struct Rows(Mutex<sweep::Rows>);

impl Rows {
    fn with<T>(&self, f: impl FnOnce(&mut sweep::Rows) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl Rows {
    /// Creates the file, or continues it if `resume` is true.
    #[new]
    fn new(sweep: &Sweep, path: PathBuf, resume: bool) -> PyResult<Self> {
        let start = if resume { Start::Resume } else { Start::New };
        let rows = sweep::Rows::open(&sweep.0, &path, start);
        rows.map(|rows| Self(Mutex::new(rows))).map_err(error)
    }

    /// Returns the cells without a row.
    fn missing(&self) -> Vec<u64> {
        self.with(|rows| rows.missing())
    }

    /// Appends the row of a cell, unless the file has it.
    fn append(&self, py: Python<'_>, cell: u64, row: &str) -> PyResult<bool> {
        py.detach(|| self.with(|rows| rows.append(cell, row))).map_err(error)
    }

    /// Returns the SHA-256 of the rows in the order of their cells.
    fn digest(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.with(sweep::Rows::digest)).map_err(error)
    }

    fn __len__(&self) -> usize {
        self.with(|rows| rows.len())
    }
}

/// Returns the names of the machines that need no file.
#[pyfunction]
fn machines() -> Vec<&'static str> {
    sweep::machine_names()
}

/// Returns a machine as JSON.
#[pyfunction]
fn machine(name: &str) -> PyResult<String> {
    sweep::machine(name).map(|machine| machine.to_string()).map_err(error)
}

/// Returns the names of all designs.
#[pyfunction]
fn designs() -> Vec<&'static str> {
    sweep::design_names()
}

/// Returns the workloads of the studies as JSON.
#[pyfunction]
fn workloads() -> String {
    serde_json::Value::from(sweep::workloads()).to_string()
}

/// Returns the header and the totals of a recording as JSON.
#[pyfunction]
fn recording(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let recording = py.detach(|| sweep::recording(&path)).map_err(error)?;
    Ok(recording.to_string())
}

/// Merges files of rows and returns their digest.
#[pyfunction]
fn merge(py: Python<'_>, inputs: Vec<PathBuf>, output: PathBuf) -> PyResult<String> {
    py.detach(|| sweep::merge(&inputs, &output)).map_err(error)
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Sweep>()?;
    module.add_class::<Rows>()?;
    module.add_function(wrap_pyfunction!(machines, module)?)?;
    module.add_function(wrap_pyfunction!(machine, module)?)?;
    module.add_function(wrap_pyfunction!(designs, module)?)?;
    module.add_function(wrap_pyfunction!(workloads, module)?)?;
    module.add_function(wrap_pyfunction!(recording, module)?)?;
    module.add_function(wrap_pyfunction!(merge, module)?)?;
    Ok(())
}
