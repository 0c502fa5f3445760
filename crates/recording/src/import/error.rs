//! The errors of an import: causes and remedies.

use std::io;

use thiserror::Error;

use super::Program;
use super::lines::LINE_BYTES_MAX;
use crate::format::CPUS_MAX;

/// Largest number of characters of a line that an error shows.
const EXCERPT_CHARS: usize = 80;

/// The reason why a text was not imported. Lines are counted from 1.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The text could not be read, or could not be read again from its beginning.
    #[error("the text: {0}")]
    Read(#[source] io::Error),
    /// The recording could not be written.
    #[error("the recording: {0}")]
    Write(#[source] io::Error),
    /// A line is longer than 64 KiB.
    #[error("line {line} is longer than {LINE_BYTES_MAX} bytes")]
    LongLine {
        /// Number of the line.
        line: u64,
    },
    /// The file is known, and is not a text that can be imported.
    #[error("this is {name}, and not the text of events")]
    OtherFile {
        /// The kind of the file.
        name: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// The name of an event is known, but its fields cannot be parsed.
    #[error("line {line} cannot be parsed: `{excerpt}`")]
    Malformed {
        /// Number of the line.
        line: u64,
        /// Name and fields of the event, escaped and shortened.
        excerpt: String,
    },
    /// A function of the kernel is printed as an address, so that its name is unknown.
    #[error("line {line} has addresses for functions: `{excerpt}`")]
    Unresolved {
        /// Number of the line.
        line: u64,
        /// Name and fields of the event, escaped and shortened.
        excerpt: String,
    },
    /// An event is earlier than the event before it.
    #[error("the event in line {line} is earlier than the one before it")]
    OutOfOrder {
        /// Number of the line.
        line: u64,
    },
    /// A time is not in seconds.
    #[error("the time in line {line} is not in seconds")]
    UnknownClock {
        /// Number of the line.
        line: u64,
    },
    /// The number of a CPU is too large.
    #[error("line {line} has a CPU that is not among {CPUS_MAX}")]
    TooManyCpus {
        /// Number of the line.
        line: u64,
    },
    /// The text contains no event.
    #[error("there is no event in the text")]
    NoEvents,
    /// The text contains no event of the program.
    #[error("{} does nothing in the text", .0.shown())]
    UnknownProgram(Program),
}

impl ImportError {
    /// Returns the remedy, in one line.
    #[must_use]
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Read(_) => "give a file that can be read twice, not a pipe",
            Self::Write(_) => "write the recording to another place",
            Self::LongLine { .. } => "give the text of `trace-cmd report` or `perf script`",
            Self::OtherFile { remedy, .. } => remedy,
            Self::Malformed { .. } => {
                "turn off options that change how events are printed (ftrace's `fields`, `raw`), \
                 or use a newer version of the tool"
            }
            Self::Unresolved { .. } => {
                "record and report as root, with /proc/sys/kernel/kptr_restrict at 0"
            }
            Self::OutOfOrder { .. } => {
                "give the output of `trace-cmd report` or `perf script --ns`, which sort by time"
            }
            Self::UnknownClock { .. } => "record with the clock `mono`: trace-cmd record -C mono",
            Self::TooManyCpus { .. } => "give the text as the tool wrote it",
            Self::NoEvents => {
                "give the text of `trace-cmd report` or `perf script --ns`, and no other --source"
            }
            Self::UnknownProgram(Program::Pid(_)) => {
                "use --command NAME, or a pid of the recording"
            }
            Self::UnknownProgram(Program::Name(_)) => {
                "use --pid PID, or the name as the text has it (15 bytes at most)"
            }
        }
    }
}

impl Program {
    /// Returns the program as an error shows it.
    fn shown(&self) -> String {
        match self {
            Self::Pid(pid) => format!("process {pid}"),
            Self::Name(name) => format!("`{}`", excerpt(name)),
        }
    }
}

/// Escapes and shortens text for an error.
pub(super) fn excerpt(text: &str) -> String {
    let shown: String = text.chars().take(EXCERPT_CHARS).flat_map(char::escape_debug).collect();
    if text.chars().nth(EXCERPT_CHARS).is_some() { format!("{shown}…") } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_is_escaped_and_bounded() {
        assert_eq!(excerpt("a\x1b[2J\n"), "a\\u{1b}[2J\\n");
        assert_eq!(excerpt(&"é".repeat(80)), "é".repeat(80));
        assert_eq!(excerpt(&"é".repeat(81)).chars().count(), 81);
    }
}
