//! A recording that was kept.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::HumanBytes;
use shootdown_recording::Ended;

use crate::error::shown;

/// The largest size of a buffer, which is more than most machines' memory.
pub(super) const BUFFER_KIB_MAX: u32 = 4 << 20;

/// Whether the user wants to read more than errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loudness {
    Quiet,
    Normal,
}

/// A recording that was kept, and how it came about.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(super) output: PathBuf,
    pub(super) program: OsString,
    pub(super) ended: Ended,
    pub(super) time: Duration,
    pub(super) events: u64,
    pub(super) lost: u64,
    pub(super) bytes: u64,
    pub(super) buffer_kib: u32,
    /// The number of tasks of the command that still live.
    pub(super) left: usize,
    pub(super) loudness: Loudness,
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.loudness == Loudness::Quiet {
            return Ok(());
        }
        let (program, output) = (shown(&self.program), shown(&self.output));
        match self.ended {
            Ended::Exited(code) if code != 0 => {
                writeln!(f, "note: {program} ended with status {code}")?;
            }
            // The others are errors.
            _ => {}
        }
        if self.left > 0 {
            writeln!(f, "note: {} of its tasks still run, no longer recorded", self.left)?;
        }
        writeln!(
            f,
            "recorded {} events (lost {}) of {program} in {:.1} s: {output} ({})",
            self.events,
            self.lost,
            self.time.as_secs_f64(),
            HumanBytes(self.bytes),
        )?;
        writeln!(f, "try:   shootdown replay {output}")
    }
}
