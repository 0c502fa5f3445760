//! The file format of recordings, written by [`Writer`] and read by [`Reader`] from files that are
//! not trusted.
//!
//! `FORMAT.md` describes the layout for authors of other readers. In short: a
//! [`Header`] describes the fields of every kind of record; blocks of records follow, each with a
//! checksum; and [`Totals`] at the end reveal a file that is incomplete.
//!
//! In reading order: `base` has the values that numbers are relative to. `fields` encodes fields,
//! `records` has the table of the kinds of records, and `schema` describes the kinds in a file.
//! `rules` checks the properties of every valid recording, and `block` frames the records that are
//! written together.

mod base;
mod block;
mod error;
mod fields;
mod header;
mod reader;
mod records;
mod rules;
mod schema;
mod writer;

#[cfg(test)]
mod tests;

use core::fmt;

pub use error::{Cause, ReadError};
pub use header::{Ended, Header, Source, Totals};
pub use reader::Reader;
pub use rules::Invalid;
pub use writer::Writer;

/// Largest number of CPUs in a recording.
pub const CPUS_MAX: u32 = 8192;
/// Largest number of tasks in a recording, without the kernel's.
pub const TASKS_MAX: u32 = 1 << 20;
/// Largest number of address spaces in a recording.
pub const SPACES_MAX: u32 = 1 << 20;
/// Largest number of calls in the call stacks of a recording.
pub const FRAMES_MAX: u32 = 1 << 20;
/// Largest length of a name of a task, a function or a file, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Largest length of the header, in bytes.
pub const HEADER_BYTES_MAX: usize = 64 << 10;

/// The first bytes of a file. A tool that converts line ends in text damages these bytes.
const MAGIC: [u8; 8] = *b"\x89SHOOT\r\n";
/// The last bytes of a file.
const END_MARK: [u8; 8] = *b"\r\nTOOHS\x89";

/// The version of a file's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Readers refuse a file with a greater major version than their own.
    pub major: u16,
    /// A greater minor version has more kinds of records. Its files describe them, and older
    /// readers skip them.
    pub minor: u16,
}

impl Version {
    /// The version that [`Writer`] writes.
    pub const KNOWN: Self = Self { major: 1, minor: 4 };
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
