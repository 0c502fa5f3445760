//! The user of the recorder: what they ask by signals, and what they read.

use std::io::{self, Write as _};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish};

use super::error::RecordError;
use super::recorded::Loudness;
use super::signals::{Signals, Wish};
use crate::progress;

/// How often progress is drawn, per second: seldom enough not to disturb what is recorded.
const HZ: u8 = 4;

/// The user.
#[derive(Debug)]
pub(super) struct User {
    pub(super) signals: Signals,
    /// The last wish that was read.
    wish: Wish,
    /// A line on standard error, if that is a terminal.
    progress: ProgressBar,
    loudness: Loudness,
}

impl User {
    /// # Errors
    ///
    /// If the kernel does not deliver signals to us.
    pub(super) fn new(loudness: Loudness) -> Result<Self, RecordError> {
        let progress =
            progress::bar(None, "{msg}, {elapsed}").with_finish(ProgressFinish::AndClear);
        progress.set_draw_target(match loudness {
            Loudness::Quiet => ProgressDrawTarget::hidden(),
            Loudness::Normal => ProgressDrawTarget::stderr_with_hz(HZ),
        });
        Ok(Self { signals: Signals::listen()?, wish: Wish::GoOn, progress, loudness })
    }

    /// Shows progress.
    pub(super) fn show(&self, message: String) {
        self.progress.set_message(message);
    }

    /// Prints a line that stays.
    pub(super) fn say(&self, what: &str) {
        if self.loudness == Loudness::Normal {
            // A user without standard error misses nothing but the note.
            self.progress.suspend(|| drop(writeln!(io::stderr(), "note: {what}")));
        }
    }

    /// Reads the wish, and answers the first Ctrl-C with a note.
    pub(super) fn wish(&mut self, note: &str) -> Wish {
        let before = std::mem::replace(&mut self.wish, self.signals.wish());
        if (before, self.wish) == (Wish::GoOn, Wish::End) {
            self.say(note);
        }
        self.wish
    }

    /// Forgets earlier wishes, which were granted.
    pub(super) fn forget(&mut self) {
        self.signals.forget();
        self.wish = Wish::GoOn;
    }
}
