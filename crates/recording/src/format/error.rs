//! Why a file was refused, where, and what to do about it.

use std::io;

use thiserror::Error;

use super::Version;
use super::rules::Invalid;

/// Why a file was refused, and where.
#[derive(Debug, Error)]
#[error("{cause}, at byte {offset}")]
pub struct ReadError {
    /// So many bytes of the file are before what it was refused for.
    pub offset: u64,
    /// Why.
    #[source]
    pub cause: Cause,
}

/// Why a file was refused.
#[derive(Debug, Error)]
pub enum Cause {
    /// It does not begin like a recording.
    #[error("this is not a recording")]
    NotARecording,
    /// It has a layout that this version does not know.
    #[error("the recording has version {version}, newer than {}", Version::KNOWN)]
    Newer {
        /// The file's version.
        version: Version,
    },
    /// It ends before its end.
    #[error("the recording ends too early")]
    Truncated,
    /// It is not as it was written: a checksum is not that of the bytes.
    #[error("the recording was damaged or altered")]
    Altered,
    /// It was written like that, and makes no sense.
    #[error("the recording is invalid: {0}")]
    Invalid(#[source] Invalid),
    /// It could not be read.
    #[error("the recording cannot be read: {0}")]
    Io(#[source] io::Error),
}

impl ReadError {
    /// What to do about it, in one line.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self.cause {
            Cause::NotARecording => {
                "a file that `shootdown record` or `shootdown import` has written"
            }
            Cause::Newer { .. } => "the version of shootdown that wrote it, or a later one",
            Cause::Truncated => "copy it again from where it is whole, or record again",
            Cause::Altered => "copy it again from where it is intact, or record again",
            Cause::Invalid(_) => "record again; if shootdown itself has written it, report this",
            Cause::Io(_) => "see whether the file and what it is stored on can be read",
        }
    }
}
