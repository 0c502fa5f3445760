//! Recordings as files.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use shootdown_recording::{ReadError, Reader};

use crate::error::{bad_input, shown, user_errors};

user_errors! {
    /// A recording could not be opened or read.
    #[derive(Debug, thiserror::Error)]
    pub(crate) enum RecordingError {
        #[error("{}: {error}", shown(.path))]
        Unopened { path: PathBuf, error: io::Error } =>
            bad_input("make a recording with `shootdown record -- COMMAND`"),
        /// The contents are not a valid recording.
        #[error("{}: {error}", shown(.path))]
        Refused { path: PathBuf, error: ReadError } => bad_input(error.remedy()),
    }
}

/// Opens a recording of which only a part may be left. The reader ends before the first damaged
/// block. The command must report [`Reader::cut`].
pub(crate) fn open_intact_part(path: &Path) -> Result<Reader<'static>, RecordingError> {
    open(path).map(Reader::intact_part)
}

/// Opens a recording and reads its header. The reader refuses a damaged recording.
pub(crate) fn open(path: &Path) -> Result<Reader<'static>, RecordingError> {
    let file = File::open(path)
        .map_err(|error| RecordingError::Unopened { path: path.to_owned(), error })?;
    Reader::open(file).map_err(|error| refused(path, error))
}

/// Returns the error of a recording whose contents could not be read.
pub(crate) fn refused(path: &Path, error: ReadError) -> RecordingError {
    RecordingError::Refused { path: path.to_owned(), error }
}
