//! Why a file was refused, where, and what to do about it.

use core::error::Error;
use core::fmt;
use std::io;

use super::Version;
use super::rules::Invalid;

/// Why a file was refused, and where.
#[derive(Debug)]
pub struct ReadError {
    /// So many bytes of the file are before what it was refused for.
    pub offset: u64,
    /// Why.
    pub cause: Cause,
}

/// Why a file was refused.
#[derive(Debug)]
pub enum Cause {
    /// It does not begin like a recording.
    NotARecording,
    /// It has a layout that this version does not know.
    Newer {
        /// The file's version.
        version: Version,
    },
    /// It ends before its end.
    Truncated,
    /// It is not as it was written: a checksum is not that of the bytes.
    Altered,
    /// It was written like that, and makes no sense.
    Invalid(Invalid),
    /// It could not be read.
    Io(io::Error),
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

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, at byte {}", self.cause, self.offset)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotARecording => f.write_str("this is not a recording"),
            Self::Newer { version } => {
                write!(f, "the recording has version {version}, newer than {}", Version::KNOWN)
            }
            Self::Truncated => f.write_str("the recording ends too early"),
            Self::Altered => f.write_str("the recording was damaged or altered"),
            Self::Invalid(what) => write!(f, "the recording is invalid: {what}"),
            Self::Io(error) => write!(f, "the recording cannot be read: {error}"),
        }
    }
}

impl Error for ReadError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.cause {
            Cause::Invalid(what) => Some(what),
            Cause::Io(error) => Some(error),
            _ => None,
        }
    }
}
