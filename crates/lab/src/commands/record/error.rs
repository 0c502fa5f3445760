//! Why a program could not be recorded, and what to do about it: one line each.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::{BUFFER_KIB_MAX, Recorded};
use crate::error::shown;
use crate::output::OutputError;

/// Why the command ended without a complete recording.
#[derive(Debug)]
pub(crate) enum RecordError {
    /// Tracing is for root.
    NotRoot,
    /// There is no tracefs where it should be.
    NoTracefs,
    /// This kernel has no such event, or describes it in an unknown way.
    NoEvent { event: &'static str },
    /// The kernel keeps the addresses of its functions to itself.
    NoSymbols,
    /// A file of tracefs or of /proc could not be used.
    Kernel { path: PathBuf, error: io::Error },
    /// There is no memory for buffers of that size.
    NoMemory { buffer_kib: u32 },
    /// The recording would have no name.
    NoName { program: OsString },
    /// The recording could not be written.
    Output(OutputError),
    /// The command could not be started.
    NotStarted { program: OsString, error: io::Error },
    /// This machine gave no process, pipe or signal.
    System { what: &'static str, error: io::Error },
    /// Someone asked us to stop before there was anything to keep.
    Interrupted,
    /// The recording was kept, but lacks events.
    Incomplete(Box<Recorded>),
    /// The recording was kept, and ends where the command was killed.
    Killed { signal: i32, recorded: Box<Recorded> },
    /// The recording was kept, and ends where someone asked us to stop, before the command did.
    Stopped(Box<Recorded>),
    /// The recording was kept, but instances of tracing could not be removed.
    InstancesLeft { paths: Vec<PathBuf> },
}

impl RecordError {
    pub(super) fn kernel(path: &Path, error: io::Error) -> Self {
        Self::Kernel { path: path.to_owned(), error }
    }

    pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::System { what, error }
    }

    /// With which status the command ends: as a shell has it for what a signal has ended.
    pub(crate) fn exit_status(&self) -> u8 {
        match self {
            Self::Interrupted | Self::Stopped(_) => 130,
            Self::Killed { signal, .. } => 128 + (signal & 0x7f) as u8,
            _ => 1,
        }
    }

    /// What happened, in one line.
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::NotRoot => "only root may trace the kernel".to_owned(),
            Self::NoTracefs => "there is no tracefs at /sys/kernel/tracing".to_owned(),
            Self::NoEvent { event } => format!("this kernel has no event {event} as we know it"),
            Self::NoSymbols => "the kernel hides the addresses of its functions".to_owned(),
            Self::Kernel { path, error } => format!("{}: {error}", shown(path)),
            Self::NoMemory { buffer_kib } => {
                format!("there is no memory for two buffers of {buffer_kib} KiB on each CPU")
            }
            Self::NoName { program } => {
                format!("the recording of `{}` needs a name", shown(program))
            }
            Self::Output(error) => error.cause(),
            Self::NotStarted { program, error } => {
                format!("`{}` could not be started: {error}", shown(program))
            }
            Self::System { what, error } => format!("{what}: {error}"),
            Self::Interrupted => "interrupted, and nothing was recorded".to_owned(),
            Self::Incomplete(recorded) => {
                let Recorded { lost, output, .. } = &**recorded;
                format!("{lost} events were lost: {} was kept, but lacks them", shown(output))
            }
            Self::Killed { signal, recorded } => {
                let Recorded { program, output, .. } = &**recorded;
                let (program, output) = (shown(program), shown(output));
                format!("{program} was killed by signal {signal}: {output} ends there")
            }
            Self::Stopped(recorded) => {
                let Recorded { program, output, .. } = &**recorded;
                format!("stopped before {} ended: {} ends there", shown(program), shown(output))
            }
            Self::InstancesLeft { paths } => {
                let paths: Vec<_> = paths.iter().map(shown).collect();
                format!("{} could not be removed", paths.join(" and "))
            }
        }
    }

    /// What to do, in one line.
    pub(crate) fn remedy(&self) -> String {
        match self {
            Self::NotRoot => "sudo shootdown record ...".to_owned(),
            Self::NoTracefs => "mount -t tracefs nodev /sys/kernel/tracing".to_owned(),
            Self::NoEvent { .. } => {
                "Linux 6.4 or later on x86-64, built with CONFIG_FTRACE_SYSCALLS".to_owned()
            }
            Self::NoSymbols => "sysctl kernel.kptr_restrict=1".to_owned(),
            Self::Kernel { .. } => "a machine of which we are the root, not a container".to_owned(),
            Self::NoMemory { .. } => "less, with --buffer-kib".to_owned(),
            Self::NoName { .. } => "--output FILE".to_owned(),
            Self::Output(error) => error.remedy(),
            Self::NotStarted { error, .. } => match error.kind() {
                io::ErrorKind::NotFound => "the path of a program, or a name in PATH".to_owned(),
                _ => "a program that runs without us".to_owned(),
            },
            Self::System { .. } => "again, with fewer programs running".to_owned(),
            Self::Interrupted => "the same again".to_owned(),
            Self::Incomplete(recorded) => {
                let larger = recorded.buffer_kib.saturating_mul(4).min(BUFFER_KIB_MAX);
                format!("the same with --force --buffer-kib {larger}")
            }
            Self::Killed { recorded, .. } | Self::Stopped(recorded) => {
                format!("shootdown replay {}, for what it did until then", shown(&recorded.output))
            }
            Self::InstancesLeft { paths } => {
                let paths: Vec<_> = paths.iter().map(shown).collect();
                format!("rmdir {}", paths.join(" "))
            }
        }
    }
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (try: {})", self.cause(), self.remedy())
    }
}

impl std::error::Error for RecordError {}

impl From<OutputError> for RecordError {
    fn from(error: OutputError) -> Self {
        Self::Output(error)
    }
}
