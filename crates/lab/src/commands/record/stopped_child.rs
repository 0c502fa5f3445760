//! The process of the command, which exists before the command starts.
//!
//! Before the first event, the kernel's filter must know the process number, and the recorder must
//! know the task. The recorder therefore starts this executable as a helper. The helper waits for a
//! byte from a pipe and then executes the command. The command does not see the pipes, because they
//! close on exec.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use rustix::process::{Gid, Pid, PidfdFlags, Uid, pidfd_open};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::ProgramOutput;
use super::account::Account;
use super::error::RecordError;
use super::helper::{self, Helper};

/// The process of the command, as the recorder sees it. If it is dropped before its release, the
/// process ends.
#[derive(Debug)]
pub(super) struct StoppedChild {
    process: Child,
    /// A process file descriptor, which is readable after the process has ended.
    ended: OwnedFd,
    release: Option<PipeWriter>,
    failure: PipeReader,
    /// The recorder's copies of the pipe ends that the process opens by name. They must exist until
    /// the process has opened them.
    opened: (PipeReader, PipeWriter),
}

impl StoppedChild {
    /// Starts a process that will become `command`, as the user `account` or as this user, and
    /// prints to `output`.
    ///
    /// # Errors
    ///
    /// If a process or a pipe cannot be created.
    pub(super) fn start(
        command: &[OsString],
        account: Option<&Account>,
        output: ProgramOutput,
    ) -> Result<Self, RecordError> {
        let pipe = || io::pipe().map_err(RecordError::system("a pipe"));
        let (released, release) = pipe()?;
        let (failure, failed) = pipe()?;
        let helper = Helper::StoppedChild {
            release: path(&released),
            failure: path(&failed),
            user: account.map(|account| account.uid),
            group: account.map(|account| account.gid),
            groups: account.map(|account| account.groups.clone()).unwrap_or_default(),
            command: command.to_vec(),
        };
        let environment = account.map(Account::environment);
        let mut process = helper::command(&helper);
        if output == ProgramOutput::Errors {
            process.stdout(io::stderr());
        }
        let mut process = process
            .envs(environment.into_iter().flatten())
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

    /// Returns a file descriptor that is readable after the process has ended.
    pub(super) fn ended_fd(&self) -> impl AsFd + '_ {
        &self.ended
    }

    /// Lets the process become the command.
    ///
    /// # Errors
    ///
    /// If the pipe cannot be written to, which should not happen.
    pub(super) fn release(&mut self) -> Result<(), RecordError> {
        let Some(mut release) = self.release.take() else { return Ok(()) };
        release.write_all(b"!").map_err(RecordError::system("the command's start"))
    }

    /// Returns the exit status if the process has ended.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>, RecordError> {
        self.process.try_wait().map_err(RecordError::system("the command's end"))
    }

    /// Returns the error because of which the process did not become the command, if there was one.
    /// Call this after the process has ended.
    pub(super) fn failure(self) -> Option<io::Error> {
        let Self { mut failure, opened, .. } = self;
        // The pipe ends when its last writing end is closed, which is in `opened`.
        drop(opened);
        let mut code = [0; 4];
        failure.read_exact(&mut code).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_le_bytes(code)))
    }
}

/// Returns a path under which another process can open this process's end of a pipe.
fn path(pipe: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), pipe.as_raw_fd()))
}

/// Runs the helper process: waits for the release, and then becomes the command.
pub(super) fn run(
    (release, failure): (&Path, &Path),
    identity: &Identity<'_>,
    command: &[OsString],
) {
    // These steps fail only if the recorder has ended. The command must then not start.
    let Some((program, arguments)) = command.split_first() else { return };
    let Ok(mut release) = File::open(release) else { return };
    let Ok(mut failure) = OpenOptions::new().write(true).open(failure) else { return };
    if release.read_exact(&mut [0]).is_err() {
        return;
    }
    let error = match identity.assume() {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error,
    };
    let code = error.raw_os_error().unwrap_or_default();
    let _ = failure.write_all(&code.to_le_bytes());
}

/// The user and the groups of the command; `None` for those of the recorder.
#[derive(Debug)]
pub(super) struct Identity<'a> {
    pub(super) user: Option<u32>,
    pub(super) group: Option<u32>,
    pub(super) groups: &'a [u32],
}

impl Identity<'_> {
    /// Changes the user and the groups of this process, which has one thread.
    fn assume(&self) -> io::Result<()> {
        let (Some(user), Some(group)) = (self.user, self.group) else { return Ok(()) };
        let groups: Vec<_> = self.groups.iter().map(|group| Gid::from_raw(*group)).collect();
        set_thread_groups(&groups)?;
        set_thread_res_gid(Gid::from_raw(group), Gid::from_raw(group), Gid::from_raw(group))?;
        let user = Uid::from_raw(user);
        Ok(set_thread_res_uid(user, user, user)?)
    }
}
