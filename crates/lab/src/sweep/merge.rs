//! The union of several files of rows, sorted by cell.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::SweepError;
use super::rows::{self, Index, Place, RowsError};
use super::summary::Summary;
use crate::output::{Existing, Output};

/// The rows of one or more files of the same sweep, each cell once.
#[derive(Debug)]
pub(crate) struct Merged {
    paths: Vec<PathBuf>,
    files: Vec<File>,
    /// The number of a file, and a place in it, in the order of cells.
    places: Vec<(usize, Place)>,
    /// Number of cells of the sweep.
    pub(crate) cells: u64,
}

impl Merged {
    /// Opens the files.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, has other lines than rows, or has rows of another sweep, or if a
    /// cell has different rows in two files.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self, SweepError> {
        let (mut files, mut places) = (Vec::new(), Vec::new());
        let mut sweep = None;
        for (number, path) in paths.iter().enumerate() {
            let file =
                File::open(path).map_err(|error| RowsError::Io { path: path.clone(), error })?;
            let index = Index::read(path, &file)?;
            if let Some(own) = &index.sweep
                && sweep.get_or_insert_with(|| own.clone()) != own
            {
                return Err(RowsError::OtherSweep(path.clone()).into());
            }
            places.extend(index.places().iter().map(|place| (number, *place)));
            files.push(file);
        }
        places.sort_unstable_by_key(|&(number, place)| (place.cell, number));
        let cells = sweep.ok_or(RowsError::Empty)?.cells;
        let mut merged = Self { paths: paths.to_owned(), files, places, cells };
        merged.drop_repeated()?;
        Ok(merged)
    }

    /// Drops the later rows of cells that are in several files. They must be equal.
    fn drop_repeated(&mut self) -> Result<(), RowsError> {
        let mut kept: Vec<(usize, Place)> = Vec::new();
        for &(number, place) in &self.places {
            match kept.last() {
                Some(first) if first.1.cell == place.cell => {
                    let digests = [*first, (number, place)].map(|at| self.each_of([at], |_| {}));
                    let [first, second] = digests;
                    if first? != second? {
                        let (path, cell) = (self.paths[number].clone(), place.cell);
                        return Err(RowsError::Differs { path, cell });
                    }
                }
                _ => kept.push((number, place)),
            }
        }
        self.places = kept;
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Calls `visit` with the row at each place. Returns the digest.
    fn each_of(
        &self,
        places: impl IntoIterator<Item = (usize, Place)>,
        visit: impl FnMut(&str),
    ) -> Result<String, RowsError> {
        let files: Vec<(&Path, &File)> =
            self.paths.iter().map(PathBuf::as_path).zip(&self.files).collect();
        rows::each(&files, places.into_iter(), visit)
    }

    /// Writes all rows to a new file. Returns their summary and their digest, which is the SHA-256
    /// of that file.
    ///
    /// # Errors
    ///
    /// If the output exists or cannot be written.
    pub(crate) fn write(&self, output: &Path) -> Result<(Summary, String), SweepError> {
        let output = Output::new(output, Existing::Keep)?;
        let (mut file, mut failure) = (output.create()?, None);
        let (mut summary, mut buffer) = (Summary::default(), Vec::new());
        let digest = self.each_of(self.places.iter().copied(), |row| {
            summary.add(row);
            buffer.extend_from_slice(row.as_bytes());
            buffer.push(b'\n');
            if buffer.len() > 1 << 20 {
                failure = failure.take().or(file.write_all(&buffer).err());
                buffer.clear();
            }
        })?;
        failure = failure.or(file.write_all(&buffer).err());
        if let Some(error) = failure {
            return Err(output.unwritable(error).into());
        }
        output.keep(file)?;
        Ok((summary, digest))
    }
}

/// Writes the rows of `inputs` to the new file `output`, sorted by cell. Returns their digest.
///
/// # Errors
///
/// If an input is not a file of rows of the same sweep, or the output exists or cannot be written.
pub fn merge(inputs: &[PathBuf], output: &Path) -> Result<String, SweepError> {
    Ok(Merged::open(inputs)?.write(output)?.1)
}
