//! The errors of a recording.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::recorded::{BUFFER_KIB_MAX, Recorded};
use crate::error::{UserError, shown};
use crate::output::OutputError;

/// There is no complete recording.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("only root may trace the kernel")]
    NotRoot,
    #[error("there is no tracefs at /sys/kernel/tracing")]
    NoTracefs,
    /// This kernel has no such event, or describes it in an unknown way.
    #[error("this kernel has no event {event} as we know it")]
    NoEvent { event: &'static str },
    #[error("the kernel hides the addresses of its functions")]
    NoSymbols,
    /// A file of tracefs or of /proc could not be used.
    #[error("{}: {error}", shown(.path))]
    Kernel { path: PathBuf, error: io::Error },
    #[error("there is no memory for two buffers of {buffer_kib} KiB on each CPU")]
    NoMemory { buffer_kib: u32 },
    #[error("the recording of `{}` needs a name", shown(.program))]
    NoName { program: OsString },
    /// The recording could not be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("`{}` could not be started: {error}", shown(.program))]
    NotStarted { program: OsString, error: io::Error },
    /// This machine gave no process, pipe or signal.
    #[error("{what}: {error}")]
    System { what: &'static str, error: io::Error },
    /// The user asked us to stop before there was anything to keep.
    #[error("interrupted, and nothing was recorded")]
    Interrupted,
    /// The recording was kept, but lacks events.
    #[error("{} events were lost: {} was kept, but lacks them", .0.lost, shown(&.0.output))]
    Incomplete(Box<Recorded>),
    /// The recording was kept, and ends where the command was killed.
    #[error(
        "{} was killed by signal {signal}: {} ends there",
        shown(&.recorded.program),
        shown(&.recorded.output)
    )]
    Killed { signal: i32, recorded: Box<Recorded> },
    /// The recording was kept, and ends where the user asked us to stop, before the command did.
    #[error("stopped before {} ended: {} ends there", shown(&.0.program), shown(&.0.output))]
    Stopped(Box<Recorded>),
    /// The recording was kept, but instances of tracing could not be removed.
    #[error("{} could not be removed", all_shown(.paths).join(" and "))]
    InstancesLeft { paths: Vec<PathBuf> },
}

impl RecordError {
    pub(super) fn kernel(path: &Path, error: io::Error) -> Self {
        Self::Kernel { path: path.to_owned(), error }
    }

    pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::System { what, error }
    }
}

fn all_shown(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(shown).collect()
}

impl UserError for RecordError {
    /// The status that a shell has for a command that a signal ended.
    fn exit_status(&self) -> u8 {
        match self {
            Self::Interrupted | Self::Stopped(_) => 130,
            Self::Killed { signal, .. } => 128 + (signal & 0x7f) as u8,
            _ => 1,
        }
    }

    fn remedy(&self) -> String {
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
            Self::InstancesLeft { paths } => format!("rmdir {}", all_shown(paths).join(" ")),
        }
    }
}
