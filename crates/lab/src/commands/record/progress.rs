//! The progress of a recording, which is drawn seldom enough not to disturb what is recorded.

use std::io::{self, Write as _};
use std::time::Instant;

use indicatif::{HumanBytes, HumanCount, ProgressBar};

use super::recorded::Loudness;
use crate::progress;

/// A line on standard error, if that is a terminal.
#[derive(Debug)]
pub(super) struct Progress {
    line: ProgressBar,
    drawn: Instant,
    loudness: Loudness,
}

impl Progress {
    pub(super) fn new(loudness: Loudness) -> Self {
        let line = match loudness {
            Loudness::Quiet => ProgressBar::hidden(),
            Loudness::Normal => progress::bar(None, "{msg}, {elapsed}"),
        };
        Self { line, drawn: Instant::now(), loudness }
    }

    /// While the command runs.
    pub(super) fn recording(&mut self, events: u64, lost: u64, bytes: u64) {
        let (events, bytes) = (HumanCount(events), HumanBytes(bytes));
        self.draw(|| format!("recording: {events} events, {lost} lost, {bytes}"));
    }

    /// When it has ended.
    pub(super) fn writing(&mut self, events: u64) {
        self.draw(|| format!("writing: {} events", HumanCount(events)));
    }

    /// Something worth a line that stays.
    pub(super) fn say(&self, what: &str) {
        if self.loudness == Loudness::Normal {
            // Nobody has to read it.
            self.line.suspend(|| drop(writeln!(io::stderr(), "note: {what}")));
        }
    }

    fn draw(&mut self, message: impl FnOnce() -> String) {
        if !self.line.is_hidden() && self.drawn.elapsed() >= progress::PERIOD {
            self.drawn = Instant::now();
            self.line.set_message(message());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.line.finish_and_clear();
    }
}
