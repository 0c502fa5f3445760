//! Files of rows: JSON lines in the order in which cells finished.
//!
//! A killed process leaves at most one torn line, at the end, because each row is written by one
//! call. That line is dropped when the sweep is resumed.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::{Sweep, SweepError};
use crate::error::{BAD_INPUT, CANNOT_RUN, Help, bad_input, cannot_run, shown, user_errors};

/// A file of rows that a sweep appends to. No other process can append to it at the same time.
#[derive(Debug)]
pub struct Rows {
    path: PathBuf,
    file: File,
    index: Index,
    /// For each cell, whether its row is in the file.
    is_done: Vec<bool>,
}

/// The treatment of a file that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The file must not exist.
    New,
    /// The rows in the file are kept, and their cells are not run again.
    Resume,
}

/// A part of the cells of a sweep: every `of`-th cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// The number of the shard, from 1.
    pub(crate) number: u64,
    pub(crate) of: u64,
}

impl Shard {
    pub(crate) const WHOLE: Self = Self { number: 1, of: 1 };

    const fn contains(self, cell: u64) -> bool {
        cell % self.of == self.number - 1
    }
}

/// The places of rows in a file.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// The sweep of the rows, or `None` if there are no rows.
    pub(crate) sweep: Option<Identity>,
    places: Vec<Place>,
    /// Number of bytes of complete lines.
    bytes: u64,
}

/// The members of a row that identify its sweep.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Identity {
    /// The fingerprint of the sweep.
    sweep: String,
    /// Number of cells of the sweep.
    pub(crate) cells: u64,
}

#[derive(Deserialize)]
struct Head {
    cell: u64,
    #[serde(flatten)]
    sweep: Identity,
}

/// The place of a row in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) cell: u64,
    offset: u64,
    /// Number of bytes, with the line end.
    length: usize,
}

const ANOTHER: &str = "choose another file with --output";
const REMOVE: &str = "remove this line, and add --resume to compute its cell again";

user_errors! {
    /// A file of rows cannot be used.
    #[derive(Debug, thiserror::Error)]
    pub(crate) enum RowsError {
        #[error("{}: {error}", shown(.path))]
        Io { path: PathBuf, error: io::Error } => {
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            let status = if is_missing { BAD_INPUT } else { CANNOT_RUN };
            Help::new(status, "use a file on a disk with free space, with --output")
        },
        #[error("{} exists", shown(.0))]
        Exists(_: PathBuf) => bad_input(format!("add --resume to continue, or {ANOTHER}")),
        #[error("another process writes to {}", shown(.0))]
        Locked(_: PathBuf) => cannot_run(format!("wait for it, or {ANOTHER}")),
        #[error("{}, line {line}: this is not a row of a sweep", shown(.path))]
        NotARow { path: PathBuf, line: u64 } => bad_input(REMOVE),
        #[error("{}, line {line}: cell {cell} is in the file twice", shown(.path))]
        Twice { path: PathBuf, line: u64, cell: u64 } => bad_input(REMOVE),
        #[error("{} has rows of another sweep, of other inputs, or of another version", shown(.0))]
        OtherSweep(_: PathBuf) => bad_input(ANOTHER),
        #[error("{}: cell {cell} has another row in an earlier file", shown(.path))]
        Differs { path: PathBuf, cell: u64 } =>
            bad_input("use files that the same version computed, and report this otherwise"),
        #[error("the files have no rows")]
        Empty => bad_input("use files that `shootdown sweep --output` wrote"),
    }
}

impl Rows {
    /// Opens the file for the rows of a sweep.
    ///
    /// # Errors
    ///
    /// If the file cannot be written to, another process has it open, it exists and `start` is
    /// [`Start::New`], or it has other rows than those of this sweep.
    pub fn open(sweep: &Sweep, path: &Path, start: Start) -> Result<Self, SweepError> {
        let io = |error| RowsError::Io { path: path.to_owned(), error };
        let mut options = OpenOptions::new();
        options.read(true).append(true);
        match start {
            Start::New => options.create_new(true),
            Start::Resume => options.create(true),
        };
        let file = options.open(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => RowsError::Exists(path.to_owned()),
            _ => io(error),
        })?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| RowsError::Locked(path.to_owned()))?;
        let index = Index::read(path, &file)?;
        let own = Identity { sweep: sweep.fingerprint().to_owned(), cells: sweep.cells() };
        if index.sweep.as_ref().is_some_and(|sweep| *sweep != own) {
            return Err(RowsError::OtherSweep(path.to_owned()).into());
        }
        // What follows the last complete line is a row that a killed process was writing.
        file.set_len(index.bytes).map_err(io)?;
        let mut is_done = vec![false; usize::try_from(sweep.cells()).unwrap_or(0)];
        for place in &index.places {
            match is_done.get_mut(place.cell as usize) {
                Some(done) => *done = true,
                None => return Err(RowsError::OtherSweep(path.to_owned()).into()),
            }
        }
        Ok(Self { path: path.to_owned(), file, index, is_done })
    }

    /// Returns the number of rows in the file.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.index.places.len()
    }

    /// Returns `true` if the file has no rows.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the cells without a row, in ascending order.
    #[must_use]
    pub fn missing(&self) -> Vec<u64> {
        self.missing_of(Shard::WHOLE)
    }

    pub(crate) fn missing_of(&self, shard: Shard) -> Vec<u64> {
        let cells = (0..).zip(&self.is_done);
        cells.filter(|&(cell, done)| !done && shard.contains(cell)).map(|(cell, _)| cell).collect()
    }

    /// Appends the row of a cell. Returns `false`, and appends nothing, if the file has it already.
    ///
    /// # Errors
    ///
    /// If the file cannot be written to.
    ///
    /// # Panics
    ///
    /// If the sweep has no such cell.
    pub fn append(&mut self, cell: u64, row: &str) -> Result<bool, SweepError> {
        if std::mem::replace(&mut self.is_done[cell as usize], true) {
            return Ok(false);
        }
        let line = format!("{row}\n");
        self.file.write_all(line.as_bytes()).map_err(|error| self.io(error))?;
        self.index.places.push(Place { cell, offset: self.index.bytes, length: line.len() });
        self.index.bytes += line.len() as u64;
        Ok(true)
    }

    /// Returns the digest: the SHA-256 of the lines in the order of their cells, in hexadecimal.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn digest(&mut self) -> Result<String, SweepError> {
        Ok(self.each(|_| {})?)
    }

    /// Calls `visit` with each row, in the order of cells. Returns the digest.
    pub(crate) fn each(&mut self, visit: impl FnMut(&str)) -> Result<String, RowsError> {
        self.index.places.sort_unstable();
        let files = [(self.path.as_path(), &self.file)];
        each(&files, self.index.places.iter().map(|place| (0, *place)), visit)
    }

    fn io(&self, error: io::Error) -> RowsError {
        RowsError::Io { path: self.path.clone(), error }
    }
}

impl Index {
    /// Reads the places of all complete rows.
    pub(crate) fn read(path: &Path, file: &File) -> Result<Self, RowsError> {
        let (mut index, mut reader) = (Self::default(), BufReader::new(file));
        let (mut line, mut number, mut seen) = (Vec::new(), 0, std::collections::HashSet::new());
        loop {
            line.clear();
            let read = reader.read_until(b'\n', &mut line);
            read.map_err(|error| RowsError::Io { path: path.to_owned(), error })?;
            if line.last() != Some(&b'\n') {
                return Ok(index);
            }
            number += 1;
            let not_a_row = || RowsError::NotARow { path: path.to_owned(), line: number };
            let head: Head = serde_json::from_slice(&line).map_err(|_| not_a_row())?;
            if *index.sweep.get_or_insert_with(|| head.sweep.clone()) != head.sweep {
                return Err(RowsError::OtherSweep(path.to_owned()));
            }
            if !seen.insert(head.cell) {
                let (path, cell) = (path.to_owned(), head.cell);
                return Err(RowsError::Twice { path, line: number, cell });
            }
            let (offset, length) = (index.bytes, line.len());
            index.places.push(Place { cell: head.cell, offset, length });
            index.bytes += length as u64;
        }
    }

    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }
}

/// Calls `visit` with the row at each place, a number of one of `files` and a place in it. Returns
/// the SHA-256 of the lines.
pub(crate) fn each(
    files: &[(&Path, &File)],
    places: impl Iterator<Item = (usize, Place)>,
    mut visit: impl FnMut(&str),
) -> Result<String, RowsError> {
    let (mut hash, mut line) = (Sha256::new(), Vec::new());
    for (number, place) in places {
        let (path, file) = files[number];
        line.resize(place.length, 0);
        file.read_exact_at(&mut line, place.offset)
            .map_err(|error| RowsError::Io { path: path.to_owned(), error })?;
        hash.update(&line);
        // A row was valid JSON when its place was found.
        visit(std::str::from_utf8(&line).unwrap_or_default().trim_end());
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
