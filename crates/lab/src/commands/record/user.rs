//! Who waits for the recording: what they want, and what they see.

use super::error::RecordError;
use super::progress::Progress;
use super::recorded::Loudness;
use super::signals::Signals;

/// The two directions together.
#[derive(Debug)]
pub(super) struct User {
    pub(super) signals: Signals,
    pub(super) progress: Progress,
}

impl User {
    /// # Errors
    ///
    /// If the kernel does not let us hear signals.
    pub(super) fn new(loudness: Loudness) -> Result<Self, RecordError> {
        Ok(Self { signals: Signals::listen()?, progress: Progress::new(loudness) })
    }
}
