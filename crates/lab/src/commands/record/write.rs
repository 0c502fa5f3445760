//! Writing the traced events as a recording.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufWriter};

use indicatif::HumanCount;
use shootdown_recording::raw::RawKind;
use shootdown_recording::{Assembler, Ended, Header, Source, Startup, Writer};
use tempfile::NamedTempFile;

use super::decode::Decoder;
use super::error::RecordError;
use super::merge::merge;
use super::recorded::Written;
use super::session::Captured;
use super::signals::StopRequest;
use super::user::User;
use crate::output::Output;

/// Number of events between two checks for a request to stop.
const EVENTS_PER_CHECK: u64 = 1 << 14;
/// The largest part of a command that is kept, in bytes, because headers have a size limit.
const COMMAND_BYTES_MAX: usize = 16 << 10;

/// Returns the header of a recording of `command` on this machine.
pub(super) fn header(command: &[OsString], cpus: u32) -> Header {
    let line = |path, key: Option<&str>| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = match key {
            None => text.lines().next(),
            Some(key) => text.lines().find_map(|line| {
                let (found, value) = line.split_once(':')?;
                (found.trim() == key).then_some(value)
            }),
        };
        line.unwrap_or_default().trim().to_owned()
    };
    Header {
        recorder: format!("shootdown {}", env!("CARGO_PKG_VERSION")),
        source: Source::Tracefs,
        kernel: line("/proc/sys/kernel/osrelease", None),
        processor: line("/proc/cpuinfo", Some("model name")),
        cpus,
        command: bounded(command),
    }
}

/// The contents of a recording.
#[derive(Debug)]
pub(super) struct Recording<'a> {
    pub(super) captured: &'a Captured,
    pub(super) decoder: &'a Decoder,
    pub(super) header: Header,
    pub(super) startup: Startup,
    pub(super) ended: Ended,
}

impl Recording<'_> {
    /// Writes the recording to `output`.
    ///
    /// # Errors
    ///
    /// If the disk is full or fails, or the user stops the recorder. No file is then left.
    pub(super) fn write(self, output: &Output, user: &mut User) -> Result<Written, RecordError> {
        let file = output.create()?;
        let (file, mut written) = self.assemble(file, user).map_err(|stop| match stop {
            Stop::Failed(error) => output.unwritable(error).into(),
            Stop::Requested => RecordError::Interrupted,
        })?;
        written.bytes = output.keep(file)?;
        Ok(written)
    }

    fn assemble(
        self,
        file: NamedTempFile,
        user: &mut User,
    ) -> Result<(NamedTempFile, Written), Stop> {
        let Self { captured, decoder, header, startup, ended } = self;
        let mut written = Written::default();
        let writer = Writer::create(BufWriter::new(file), &header)?;
        let mut assembler = Assembler::new(writer, startup);
        user.reset();
        merge(&captured.pages, captured.format, decoder, |event| -> Result<(), Stop> {
            match event.kind {
                RawKind::Lost { count } => {
                    // An unknown number of lost events counts as at least one.
                    written.lost = written.lost.saturating_add(count.max(1));
                }
                _ => written.events += 1,
            }
            assembler.event(event)?;
            if written.events % EVENTS_PER_CHECK != 0 {
                return Ok(());
            }
            user.show(format!("writing: {} events", HumanCount(written.events)));
            match user.stop_request("writing the recording; press Ctrl-C again to discard it") {
                StopRequest::Now => Err(Stop::Requested),
                StopRequest::Once | StopRequest::None => Ok(()),
            }
        })?;
        let file = assembler.finish(ended)?.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok((file, written))
    }
}

/// The reason why a recording was not completed.
enum Stop {
    Failed(io::Error),
    Requested,
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Returns the part of `command` that fits into a header.
fn bounded(command: &[OsString]) -> Vec<String> {
    let mut room = COMMAND_BYTES_MAX;
    let mut words = Vec::new();
    for word in command {
        let word = word.to_string_lossy();
        if word.len().max(1) > room {
            words.push("...".to_owned());
            break;
        }
        // An empty word counts as one byte.
        room -= word.len().max(1);
        words.push(word.into_owned());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_command_is_truncated() {
        let words = |count: usize, length: usize| vec![OsString::from("x".repeat(length)); count];
        assert_eq!(bounded(&words(3, 5)), ["xxxxx"; 3]);
        let cut = bounded(&words(100, 1000));
        assert_eq!((cut.len(), cut.last().map(String::as_str)), (17, Some("...")));
        assert!(bounded(&words(100_000, 0)).len() <= COMMAND_BYTES_MAX + 1);
    }
}
