//! Recordings of real programs: what they asked of their memory, how their threads were scheduled,
//! and what the kernel that ran them did about it.
//!
//! In reading order: [`record`] is what a recording says; [`mod@format`] how that is written to a
//! file, by a [`Writer`] and a [`Reader`]; [`raw`] is what Linux's trace events say, and
//! [`assemble`] makes the one of the other; [`import`] reads events from the text of other tools.

pub mod assemble;
pub mod format;
pub mod import;
pub mod raw;
pub mod record;

pub use assemble::{Assembler, Startup};
pub use format::{Ended, Header, ReadError, Reader, Source, Totals, Writer};
pub use record::{Event, Record};
