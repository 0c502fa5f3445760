//! The command to record, as a process that exists before it begins.
//!
//! Its number must be known to the kernel's filter, and its task to us, before its first event. So
//! we start ourselves in its place; that process waits until a pipe says go, and then becomes the
//! command. Nothing of this is seen by the command: the pipes close as it begins.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::error::RecordError;
use super::helper::{self, Helper};

/// The command's process, seen from the recorder. Dropped before it is released, it ends by itself.
#[derive(Debug)]
pub(super) struct Held {
    process: Child,
    /// Readable when the process ended.
    ended: OwnedFd,
    release: Option<PipeWriter>,
    failure: PipeReader,
    /// Our own ends of what the process opens by name, which must last until it has.
    opened: (PipeReader, PipeWriter),
}

impl Held {
    /// A process that will become `command`.
    ///
    /// # Errors
    ///
    /// If there is no process or pipe to be had.
    pub(super) fn start(command: &[OsString]) -> Result<Self, RecordError> {
        let pipe = || io::pipe().map_err(RecordError::system("a pipe"));
        let (released, release) = pipe()?;
        let (failure, failed) = pipe()?;
        let helper = Helper::Held {
            release: path(&released),
            failure: path(&failed),
            command: command.to_vec(),
        };
        let mut process = helper::command(&helper)
            .spawn()
            .map_err(RecordError::system("a process for the command"))?;
        match pidfd_open(Pid::from_child(&process), PidfdFlags::empty()) {
            Ok(ended) => {
                let opened = (released, failed);
                Ok(Self { process, ended, release: Some(release), failure, opened })
            }
            Err(error) => {
                drop(release);
                let _ = process.wait();
                Err(RecordError::System { what: "the command's process", error: error.into() })
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Readable when the process has ended.
    pub(super) fn ended_fd(&self) -> impl AsFd + '_ {
        &self.ended
    }

    /// Lets it become the command.
    ///
    /// # Errors
    ///
    /// Never while the pipe is ours, as far as anyone knows.
    pub(super) fn release(&mut self) -> Result<(), RecordError> {
        let Some(mut release) = self.release.take() else { return Ok(()) };
        release.write_all(b"!").map_err(RecordError::system("the command's start"))
    }

    /// How it ended, if it did.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>, RecordError> {
        self.process.try_wait().map_err(RecordError::system("the command's end"))
    }

    /// Why it never became the command, if it didn't. It must have ended.
    pub(super) fn failure(self) -> Option<io::Error> {
        let Self { mut failure, opened, .. } = self;
        // The last ends of the pipe: else there would be no end of it.
        drop(opened);
        let mut code = [0; 4];
        failure.read_exact(&mut code).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_le_bytes(code)))
    }
}

/// Under which name another process finds one of our pipes.
fn path(pipe: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), pipe.as_raw_fd()))
}

/// What the process does.
pub(super) fn held(release: &Path, failure: &Path, command: &[OsString]) {
    // Whatever fails here, the recorder is gone, and the command is nobody's wish any more.
    let Some((program, arguments)) = command.split_first() else { return };
    let Ok(mut release) = File::open(release) else { return };
    let Ok(mut failure) = OpenOptions::new().write(true).open(failure) else { return };
    if release.read_exact(&mut [0]).is_err() {
        return;
    }
    let error = Command::new(program).args(arguments).exec();
    let code = error.raw_os_error().unwrap_or_default();
    let _ = failure.write_all(&code.to_le_bytes());
}
