//! The user of the recorder: requests to stop, progress and notes.

use std::io::{self, Write as _};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish};

use super::error::RecordError;
use super::recorded::Loudness;
use super::signals::{Signals, StopRequest};
use crate::progress;

/// Redraws of the progress per second. A small number does not disturb the recorded program.
const HZ: u8 = 4;

/// The user.
#[derive(Debug)]
pub(super) struct User {
    pub(super) signals: Signals,
    /// The last request that was read.
    request: StopRequest,
    /// The line of progress on standard error, shown only on a terminal.
    progress: ProgressBar,
    loudness: Loudness,
}

impl User {
    /// # Errors
    ///
    /// If the signal handlers cannot be installed.
    pub(super) fn new(loudness: Loudness) -> Result<Self, RecordError> {
        let signals = Signals::listen().map_err(RecordError::system("signals"))?;
        Ok(Self::with(signals, loudness))
    }

    /// Returns a user who requests to stop by `signals`.
    pub(super) fn with(signals: Signals, loudness: Loudness) -> Self {
        let progress =
            progress::bar(None, "{msg}, {elapsed}").with_finish(ProgressFinish::AndClear);
        progress.set_draw_target(match loudness {
            Loudness::Quiet => ProgressDrawTarget::hidden(),
            Loudness::Normal => ProgressDrawTarget::stderr_with_hz(HZ),
        });
        Self { signals, request: StopRequest::None, progress, loudness }
    }

    /// Shows progress.
    pub(super) fn show(&self, message: String) {
        self.progress.set_message(message);
    }

    /// Prints a note on standard error.
    pub(super) fn note(&self, text: &str) {
        if self.loudness == Loudness::Normal {
            // If standard error is closed, only the note is lost.
            self.progress.suspend(|| drop(writeln!(io::stderr(), "note: {text}")));
        }
    }

    /// Returns the request to stop. Prints `note`, unless it is empty, after the first Ctrl-C.
    pub(super) fn stop_request(&mut self, note: &str) -> StopRequest {
        let before = std::mem::replace(&mut self.request, self.signals.stop_request());
        if (before, self.request) == (StopRequest::None, StopRequest::Once) && !note.is_empty() {
            self.note(note);
        }
        self.request
    }

    /// Discards earlier requests, which were obeyed.
    pub(super) fn reset(&mut self) {
        self.signals.reset();
        self.request = StopRequest::None;
    }
}
