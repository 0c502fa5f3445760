//! How far a recording is, for someone who can see it.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::rings::Counts;

/// How often it is drawn: seldom enough not to disturb what is recorded.
const PERIOD: Duration = Duration::from_millis(250);

/// Whether the user wants to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loudness {
    Quiet,
    Normal,
}

/// A line on standard error, if that is a terminal.
#[derive(Debug)]
pub(super) struct Progress {
    line: ProgressBar,
    drawn: Instant,
    loudness: Loudness,
}

impl Progress {
    pub(super) fn new(loudness: Loudness) -> Self {
        let target = match loudness {
            Loudness::Quiet => ProgressDrawTarget::hidden(),
            Loudness::Normal => ProgressDrawTarget::stderr(),
        };
        let line = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{msg}, {elapsed}") {
            line.set_style(style);
        }
        Self { line, drawn: Instant::now(), loudness }
    }

    /// While the command runs.
    pub(super) fn recording(&mut self, counts: Counts, bytes: u64) {
        let Counts { events, lost } = counts;
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
        if !self.line.is_hidden() && self.drawn.elapsed() >= PERIOD {
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
