//! Recordings of real programs: their operations on memory, the scheduling of their threads, and
//! the flushes and interrupts of the kernel that ran them.
//!
//! In reading order: [`record`] defines the records of a recording, and a [`Tracker`] follows which
//! task and which address space each CPU has. [`mod@format`] stores them in
//! a file, with a [`Writer`] and a [`Reader`]. [`raw`] defines the trace events of Linux, and
//! [`assemble`] converts them to records. [`import`] parses trace events from the text of other
//! tools.

pub mod assemble;
pub mod format;
pub mod import;
pub mod raw;
pub mod record;
mod tracker;

pub use assemble::{Assembler, Observer, Startup};
pub use format::{Ended, Header, ReadError, Reader, Source, Totals, Writer};
pub use record::{Event, Record};
pub use tracker::{Task, Tracker};
