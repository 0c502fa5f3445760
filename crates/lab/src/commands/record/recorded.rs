//! The summary of a recording that was kept.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount};
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

/// The reason why tracing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// All programs that were waited for have ended.
    Ended,
    /// The user stopped the recorder.
    User,
    /// The time of `--duration` is over.
    Time,
    /// The recording could not become longer.
    Full,
}

/// The written numbers of events and bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    pub(super) events: u64,
    pub(super) lost: u64,
    pub(super) bytes: u64,
    /// Number of call stacks.
    pub(super) stacks: u64,
    /// Number of call stacks that were sampled and lost.
    pub(super) stacks_lost: u64,
}

/// A function that a CPU was asked to call by an interrupt. It flushes no pages of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherCall {
    pub(crate) cpu: u32,
    pub(crate) function: String,
    pub(crate) count: u64,
}

/// A recording that was kept, and the end of its program.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    pub(super) output: PathBuf,
    /// The part before `output`, if only the latest part was kept, and there is more than one.
    pub(super) older: Option<PathBuf>,
    pub(super) program: OsString,
    pub(super) ended: Ended,
    pub(super) reason: Reason,
    /// `true` if the recorder ran the program.
    pub(super) is_command: bool,
    pub(super) time: Duration,
    pub(super) written: Written,
    pub(super) buffer_kib: u32,
    pub(super) limit_mib: u64,
    /// Number of tasks of the programs that still live.
    pub(super) left: usize,
    /// The calls by interrupts that flush no pages of a program.
    pub(super) other_calls: Vec<OtherCall>,
    pub(super) loudness: Loudness,
}

impl Recorded {
    /// Returns the recorded part, as a message names it.
    pub(super) fn extent(&self) -> String {
        format!("{} events", HumanCount(self.written.events))
    }

    /// Returns the exit status of the program, as a shell reports it. If the user stopped the
    /// recorder before the program ended, the status is [`INTERRUPTED`]. If the recorder did not
    /// run the program, or was told for how long, the status is 0.
    pub(super) fn exit_status(&self) -> u8 {
        match self.ended {
            Ended::Interrupted if !self.is_command || self.reason == Reason::Time => 0,
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
            Ended::Interrupted if self.is_command => {
                writeln!(f, "note: stopped before {program} ended")?;
            }
            Ended::Interrupted => {}
        }
        if self.left > 0 && self.is_command {
            writeln!(f, "note: {} of its tasks still run and are not recorded", self.left)?;
            if self.ended != Ended::Interrupted {
                writeln!(f, "note: --until-all-end records until they end")?;
            }
        }
        writeln!(
            f,
            "recorded {} events (lost {}) of {program} in {:.1} s: {output} ({})",
            self.written.events,
            self.written.lost,
            self.time.as_secs_f64(),
            HumanBytes(self.written.bytes),
        )?;
        if let Some(older) = &self.older {
            writeln!(f, "only the latest part was kept: {output}, and before it {}", shown(older))?;
        }
        if self.written.stacks > 0 {
            let Written { stacks, stacks_lost, .. } = self.written;
            writeln!(
                f,
                "sampled {stacks} call stacks of flush requests (lost {stacks_lost}), \
                 for shootdown explain {output}"
            )?;
        }
        writeln!(f, "try:   shootdown replay {output}")
    }
}
