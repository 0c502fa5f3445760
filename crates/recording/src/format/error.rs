//! The errors of reading a file: cause, place and remedy.

use std::io;

use thiserror::Error;

use super::Version;
use super::rules::Invalid;

/// The reason why a file was refused, and its place.
#[derive(Debug, Error)]
#[error("{cause}, at byte {offset}")]
pub struct ReadError {
    /// Number of bytes of the file before the place of the error.
    pub offset: u64,
    /// The reason.
    #[source]
    pub cause: Cause,
}

/// The reason why a file was refused.
#[derive(Debug, Error)]
pub enum Cause {
    /// The file does not start with the magic bytes of a recording.
    #[error("this is not a recording")]
    NotARecording,
    /// The file has a layout that this version does not support.
    #[error("the recording has version {version}, newer than {}", Version::KNOWN)]
    Newer {
        /// Version of the file.
        version: Version,
    },
    /// The file ends before the end mark.
    #[error("the recording ends too early")]
    Truncated,
    /// A checksum, a frame or the end mark does not match: the file was changed after it was
    /// written.
    #[error("the recording was damaged or altered")]
    Altered,
    /// The file is intact, but its contents are invalid.
    #[error("the recording is invalid: {0}")]
    Invalid(#[source] Invalid),
    /// The file could not be read.
    #[error("the recording cannot be read: {0}")]
    Io(#[source] io::Error),
}

impl ReadError {
    /// Returns the remedy, in one line.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self.cause {
            Cause::NotARecording => {
                "give a file that `shootdown record` or `shootdown import` has written; `import` \
                 reads the text of perf and trace-cmd"
            }
            Cause::Newer { .. } => "use the version of shootdown that wrote it, or a later one",
            Cause::Truncated | Cause::Altered => {
                "copy it again from an intact copy, or record again"
            }
            Cause::Invalid(_) => "record again; if shootdown itself has written it, report this",
            Cause::Io(_) => "check that the file and its storage can be read",
        }
    }
}
