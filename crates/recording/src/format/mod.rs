//! How a recording is written to a file, and read from one that nobody vouches for.
//!
//! `docs/recording-format.md` has the layout for those who write a reader of their own. In short:
//! a [`Header`] with the fields of every kind of record, blocks of records with a checksum each,
//! and [`Totals`] at the end, so that a file that lacks anything is known to.
//!
//! In reading order: `base` is what numbers are relative to; `fields` has the encodings of fields,
//! `records` the table of the kinds of records, and `schema` the kinds as a file describes them;
//! `rules` is what is true of every recording, and `block` how much is written at once.

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

/// As many CPUs as a recording may have.
pub const CPUS_MAX: u32 = 8192;
/// As many tasks as a recording may have, besides the kernel's.
pub const TASKS_MAX: u32 = 1 << 20;
/// As many spaces as a recording may have.
pub const SPACES_MAX: u32 = 1 << 20;
/// The longest name of a task.
pub const NAME_BYTES_MAX: usize = 255;
/// The longest header.
pub const HEADER_BYTES_MAX: usize = 64 << 10;

/// How files begin. What copies text and mends its line ends breaks it, and so is found out.
const MAGIC: [u8; 8] = *b"\x89SHOOT\r\n";
/// How files end.
const END_MARK: [u8; 8] = *b"\r\nTOOHS\x89";

/// The version of a file's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Files of another one cannot be read.
    pub major: u16,
    /// A greater one has more kinds of records, which its files describe and older readers skip.
    pub minor: u16,
}

impl Version {
    /// The one that is written here.
    pub const KNOWN: Self = Self { major: 1, minor: 0 };
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
