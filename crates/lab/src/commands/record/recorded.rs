//! The summary of a recording that was kept.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::HumanBytes;
use shootdown_recording::Ended;

use crate::error::{INTERRUPTED, shown};

/// The largest size of a buffer, which exceeds the memory of most machines.
pub(super) const BUFFER_KIB_MAX: u32 = 4 << 20;

/// The messages that the recorder prints: errors only, or also notes and progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loudness {
    Quiet,
    Normal,
}

/// The written numbers of events and bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    pub(super) events: u64,
    pub(super) lost: u64,
    pub(super) bytes: u64,
}

/// A recording that was kept, and the end of its program.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(super) output: PathBuf,
    pub(super) program: OsString,
    pub(super) ended: Ended,
    pub(super) time: Duration,
    pub(super) written: Written,
    pub(super) buffer_kib: u32,
    /// Number of tasks of the command that still live.
    pub(super) left: usize,
    pub(super) loudness: Loudness,
}

impl Recorded {
    /// Returns the exit status of the program, as a shell reports it. If the user stopped the
    /// recorder before the program ended, the status is [`INTERRUPTED`].
    pub(super) fn exit_status(&self) -> u8 {
        match self.ended {
            Ended::Exited(code) => code as u8,
            Ended::Signalled(signal) => 128 + (signal & 0x7f) as u8,
            Ended::Interrupted => INTERRUPTED,
        }
    }
}

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.loudness == Loudness::Quiet {
            return Ok(());
        }
        let (program, output) = (shown(&self.program), shown(&self.output));
        match self.ended {
            Ended::Exited(0) => {}
            Ended::Exited(code) => writeln!(f, "note: {program} ended with status {code}")?,
            Ended::Signalled(signal) => {
                writeln!(f, "note: {program} was killed by signal {signal}")?;
            }
            Ended::Interrupted => writeln!(f, "note: stopped before {program} ended")?,
        }
        if self.left > 0 {
            writeln!(f, "note: {} of its tasks still run and are not recorded", self.left)?;
        }
        writeln!(
            f,
            "recorded {} events (lost {}) of {program} in {:.1} s: {output} ({})",
            self.written.events,
            self.written.lost,
            self.time.as_secs_f64(),
            HumanBytes(self.written.bytes),
        )?;
        writeln!(f, "try:   shootdown replay {output}")
    }
}
