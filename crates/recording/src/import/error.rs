//! Why a text was not imported.

use std::io;

use thiserror::Error;

use super::Program;
use super::lines::LINE_BYTES_MAX;
use crate::format::CPUS_MAX;

/// As much of a line as an error shows.
const EXCERPT_CHARS: usize = 80;

/// Why a text was not imported. Lines are counted from 1.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The text could not be read, or not from its beginning again.
    #[error("the text: {0}")]
    Read(#[source] io::Error),
    /// The recording could not be written.
    #[error("the recording: {0}")]
    Write(#[source] io::Error),
    /// A line longer than 64 KiB.
    #[error("line {line} is longer than {LINE_BYTES_MAX} bytes")]
    LongLine {
        /// Which.
        line: u64,
    },
    /// The text ends within a line.
    #[error("line {line} has no end")]
    Cut {
        /// Which.
        line: u64,
    },
    /// An event that is known, in words that are not.
    #[error("line {line} cannot be understood: `{excerpt}`")]
    Malformed {
        /// Where.
        line: u64,
        /// What is said about it, escaped and shortened.
        excerpt: String,
    },
    /// Functions of the kernel are given as addresses, so that nobody knows what was called.
    #[error("line {line} has addresses for functions: `{excerpt}`")]
    Unresolved {
        /// Where.
        line: u64,
        /// What is said about it, escaped and shortened.
        excerpt: String,
    },
    /// An event before the one above it.
    #[error("the event in line {line} is earlier than the one before it")]
    OutOfOrder {
        /// Where.
        line: u64,
    },
    /// A time that is not in seconds.
    #[error("the time in line {line} is not in seconds")]
    UnknownClock {
        /// Where.
        line: u64,
    },
    /// A CPU of a number that is too large.
    #[error("line {line} has a CPU that is not among {CPUS_MAX}")]
    TooManyCpus {
        /// Where.
        line: u64,
    },
    /// There is no event in the text.
    #[error("there is no event in the text")]
    NoEvents,
    /// The program that should be recorded does nothing in the text.
    #[error("{} does nothing in the text", .0.shown())]
    UnknownProgram(Program),
}

impl ImportError {
    /// What to do about it.
    #[must_use]
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Read(_) => "a file that can be read twice, not a pipe",
            Self::Write(_) => "another place for the recording",
            Self::LongLine { .. } => "the text of `trace-cmd report` or `perf script`",
            Self::Cut { .. } => "write the text again; if it is whole, end it with a new line",
            Self::Malformed { .. } => {
                "a newer version of the tool, without options that change how events are printed"
            }
            Self::Unresolved { .. } => {
                "record and report as root, with /proc/sys/kernel/kptr_restrict at 0"
            }
            Self::OutOfOrder { .. } => {
                "`trace-cmd report` as it is, or `perf script --ns`: both sort by time"
            }
            Self::UnknownClock { .. } => "record with the clock `mono`: trace-cmd record -C mono",
            Self::TooManyCpus { .. } => "the text as the tool wrote it",
            Self::NoEvents => {
                "the text of `trace-cmd report` or `perf script --ns`, and no other --source"
            }
            Self::UnknownProgram(Program::Pid(_)) => "--command NAME, or a pid of the recording",
            Self::UnknownProgram(Program::Name(_)) => {
                "--pid PID, or the name as the text has it (15 bytes at most)"
            }
        }
    }
}

impl Program {
    /// The program, for an error.
    fn shown(&self) -> String {
        match self {
            Self::Pid(pid) => format!("process {pid}"),
            Self::Name(name) => format!("`{}`", excerpt(name)),
        }
    }
}

/// What an error shows of a text.
pub(super) fn excerpt(text: &str) -> String {
    let shown: String = text.chars().take(EXCERPT_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(EXCERPT_CHARS).is_some() { format!("{shown}…") } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_text_says_reaches_a_terminal_escaped_and_bounded() {
        assert_eq!(excerpt("a\x1b[2J\n"), "a\\u{1b}[2J\\n");
        assert_eq!(excerpt(&"é".repeat(80)), "é".repeat(80));
        assert_eq!(excerpt(&"é".repeat(81)).chars().count(), 81);
    }
}
