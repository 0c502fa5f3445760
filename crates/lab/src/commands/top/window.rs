//! A recording of bounded size, which a thread makes while its sums are shown. When it is full, the
//! next one follows, so that memory and disk are bounded however long the command runs.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread::{self, JoinHandle};

use super::live::Live;
use crate::commands::record::{self, Reason, RecordError, Signals, StackOptions, Stopper};
use crate::selection::Selection;

/// The largest size of a recording. The analysis of a full one needs some 150 MiB of memory.
const LIMIT_MIB: u64 = 32;

/// A recording that is being made.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) live: Live,
    path: PathBuf,
    stopper: Stopper,
    ended: Receiver<Result<Reason, RecordError>>,
    thread: JoinHandle<()>,
}

impl Window {
    /// Starts a recording as `path`.
    ///
    /// # Errors
    ///
    /// If there is no pipe or no thread. Errors of the recording come from [`Window::end`].
    pub(super) fn start(
        path: &Path,
        selection: &Selection,
        stacks: &StackOptions,
    ) -> std::io::Result<Self> {
        let (signals, stopper) = Signals::of_stopper()?;
        let (sender, ended) = mpsc::channel();
        let live = Live::default();
        let (mut watch, path) = (live.clone(), path.to_owned());
        let (of_thread, selection, stacks) = (path.clone(), selection.clone(), stacks.clone());
        let thread = thread::Builder::new().name("recorder".to_owned()).spawn(move || {
            let options = (&selection, &stacks);
            let result = record::observed(&of_thread, LIMIT_MIB, options, signals, &mut watch);
            // The other thread may have ended.
            let _ = sender.send(result);
        })?;
        Ok(Self { live, path, stopper, ended, thread })
    }

    /// Returns the result if the recording has ended.
    ///
    /// # Errors
    ///
    /// Those of the recording.
    pub(super) fn ended(&self) -> Option<Result<Reason, RecordError>> {
        match self.ended.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(RecordError::Interrupted)),
        }
    }

    /// Stops the recording, and returns its path when it is whole.
    ///
    /// # Errors
    ///
    /// Those of the recording.
    pub(super) fn stop(mut self) -> Result<PathBuf, RecordError> {
        self.stopper.stop();
        let result = self.ended.recv().unwrap_or(Err(RecordError::Interrupted));
        let joined = self.thread.join();
        result?;
        joined.map_err(|_| RecordError::Interrupted)?;
        Ok(self.path)
    }
}
