//! The files of a recording: the one that is written, and, if only the latest part is kept, the
//! part before it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::blocks::Blocks;
use crate::output::{Existing, Output, OutputError};

/// The word in the name of the part before the last one.
const OLDER: &str = "older";
/// Bytes below a file's limit at which the next file begins: more than a block, which is written
/// whole.
const MARGIN_BYTES: u64 = 256 << 10;

/// The outputs of a recording.
#[derive(Debug)]
pub(super) struct Outputs {
    pub(super) latest: Output,
    /// The part before the latest one, unless the recorder stops at the limit.
    pub(super) older: Option<Output>,
}

impl Outputs {
    /// Returns the outputs of a recording at `path`.
    ///
    /// # Errors
    ///
    /// Those of [`Output::new`].
    pub(super) fn new(
        path: &Path,
        existing: Existing,
        at_limit: AtLimit,
    ) -> Result<Self, OutputError> {
        let latest = Output::new(path, existing)?;
        let older = match at_limit {
            AtLimit::Stop => None,
            AtLimit::KeepLatest => Some(Output::new(&older(path), existing)?),
        };
        Ok(Self { latest, older })
    }
}

/// The treatment of a recording that has reached its largest size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtLimit {
    Stop,
    /// The oldest part is dropped.
    KeepLatest,
}

/// Returns the name of the part before the one at `path`.
fn older(path: &Path) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(".");
    name.push(OLDER);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// The file that is written.
#[derive(Debug)]
pub(super) struct Files<'o> {
    outputs: &'o Outputs,
    file: NamedTempFile,
    /// The largest size of all files together.
    bytes_max: u64,
    /// `true` if there is a part before this file.
    pub(super) has_older: bool,
}

impl<'o> Files<'o> {
    /// Creates the first file.
    ///
    /// # Errors
    ///
    /// Those of [`Output::create_part`].
    pub(super) fn create(outputs: &'o Outputs, bytes_max: u64) -> Result<Self, OutputError> {
        let file = outputs.latest.create_part()?;
        Ok(Self { outputs, file, bytes_max, has_older: false })
    }

    /// Returns the file as the writer's output.
    ///
    /// # Errors
    ///
    /// If the file descriptor cannot be duplicated.
    pub(super) fn blocks(&self) -> io::Result<Blocks> {
        Ok(Blocks::new(self.file.as_file().try_clone()?, self.bytes_of_one()))
    }

    /// Returns `true` if a file of this size should be ended, and the next one begin.
    pub(super) fn is_full(&self, bytes: u64) -> bool {
        self.outputs.older.is_some() && bytes + MARGIN_BYTES >= self.bytes_of_one()
    }

    /// Keeps the file, which is complete, as the older part, and begins the next one.
    ///
    /// # Errors
    ///
    /// If the file cannot be renamed, or the next one not be created.
    pub(super) fn next(mut self) -> io::Result<Self> {
        let Outputs { latest, older } = self.outputs;
        if let Some(older) = older {
            if self.has_older {
                // It is a part of this recording. If it cannot be removed, the next call fails.
                let _ = fs::remove_file(older.path());
            }
            older.keep(self.file).map_err(io::Error::other)?;
        }
        self.file = latest.create_part().map_err(io::Error::other)?;
        self.has_older = true;
        Ok(self)
    }

    /// Gives the file, which is complete, its name. Returns its size in bytes.
    ///
    /// # Errors
    ///
    /// Those of [`Output::keep`].
    pub(super) fn keep(self) -> Result<u64, OutputError> {
        self.outputs.latest.keep(self.file)
    }

    fn bytes_of_one(&self) -> u64 {
        match self.outputs.older {
            None => self.bytes_max,
            Some(_) => self.bytes_max / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn older_part_is_replaced_by_the_next() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("r.shootdown");
        let outputs = Outputs::new(&path, Existing::Keep, AtLimit::KeepLatest).expect("outputs");
        let mut files = Files::create(&outputs, 2 << 20).expect("a file");
        assert!(!files.is_full(700 << 10) && files.is_full(800 << 10) && !files.has_older);
        for part in ["one", "two", "three"] {
            files.file.write_all(part.as_bytes()).expect("room");
            if part != "three" {
                files = files.next().expect("a file");
            }
        }
        assert!(files.has_older);
        assert_eq!(files.keep().expect("a file"), 5);
        let read = |name| fs::read_to_string(directory.path().join(name)).expect("a file");
        assert_eq!(["r.older.shootdown", "r.shootdown"].map(read), ["two", "three"]);
        let error = Outputs::new(&path, Existing::Replace, AtLimit::Stop);
        assert!(error.is_ok_and(|outputs| outputs.older.is_none()));
        fs::remove_file(&path).expect("a file");
        let refused = Outputs::new(&path, Existing::Keep, AtLimit::KeepLatest);
        assert!(refused.is_err(), "the older part exists");
    }

    #[test]
    fn recorder_that_stops_at_the_limit_has_one_file() {
        assert_eq!(older(Path::new("/a/r.shootdown")), Path::new("/a/r.older.shootdown"));
        assert_eq!(older(Path::new("r")), Path::new("r.older"));
    }
}
