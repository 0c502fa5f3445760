//! What was traced becomes a recording.

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
use super::session::Captured;
use super::signals::Wish;
use super::user::User;
use crate::output::Output;

/// How many events pass between two looks at what the user wants.
const EVENTS_AT_ONCE: u64 = 1 << 14;
/// As much of a command as is kept, in bytes: a header has its bounds.
const COMMAND_BYTES_MAX: usize = 16 << 10;

/// How much was written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    pub(super) events: u64,
    pub(super) lost: u64,
    pub(super) bytes: u64,
}

/// What recordings say of where they are from.
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

/// What there is to write.
#[derive(Debug)]
pub(super) struct Recording<'a> {
    pub(super) captured: &'a Captured,
    pub(super) decoder: &'a Decoder,
    pub(super) header: Header,
    pub(super) startup: Startup,
    pub(super) ended: Ended,
}

impl Recording<'_> {
    /// Writes it, and gives it its name.
    ///
    /// # Errors
    ///
    /// If the disk is full or fails, or the user wants to wait no longer; then nothing stays.
    pub(super) fn write(self, output: &Output, user: &mut User) -> Result<Written, RecordError> {
        let file = output.create()?;
        let (file, mut written) = self.assemble(file, user).map_err(|stop| match stop {
            Stop::Failed(error) => output.unwritable(error).into(),
            Stop::Unwanted => RecordError::Interrupted,
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
        user.forget();
        merge(&captured.pages, captured.format, decoder, |event| -> Result<(), Stop> {
            match event.kind {
                RawKind::Lost { count } => {
                    // That it isn't known how many is no reason to call it none.
                    written.lost = written.lost.saturating_add(count.max(1));
                }
                _ => written.events += 1,
            }
            assembler.event(event)?;
            if written.events % EVENTS_AT_ONCE != 0 {
                return Ok(());
            }
            user.show(format!("writing: {} events", HumanCount(written.events)));
            match user.wish("writing the recording; Ctrl-C again discards it") {
                Wish::EndNow => Err(Stop::Unwanted),
                Wish::End | Wish::GoOn => Ok(()),
            }
        })?;
        let file = assembler.finish(ended)?.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok((file, written))
    }
}

/// Why a recording was not written to its end.
enum Stop {
    Failed(io::Error),
    Unwanted,
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// As much of `command` as a header has room for.
fn bounded(command: &[OsString]) -> Vec<String> {
    let mut room = COMMAND_BYTES_MAX;
    let mut words = Vec::new();
    for word in command {
        let word = word.to_string_lossy();
        if word.len().max(1) > room {
            words.push("...".to_owned());
            break;
        }
        // An empty word takes room as well.
        room -= word.len().max(1);
        words.push(word.into_owned());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_command_is_cut_where_a_header_has_no_room() {
        let words = |count: usize, length: usize| vec![OsString::from("x".repeat(length)); count];
        assert_eq!(bounded(&words(3, 5)), ["xxxxx"; 3]);
        let cut = bounded(&words(100, 1000));
        assert_eq!((cut.len(), cut.last().map(String::as_str)), (17, Some("...")));
        assert!(bounded(&words(100_000, 0)).len() <= COMMAND_BYTES_MAX + 1);
    }
}
