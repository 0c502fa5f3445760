//! The errors of `shootdown guest`.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::commands::sanitize::SanitizeError;
use crate::error::{Help, INTERRUPTED, UserError, bad_input, cannot_run, shown};
use crate::output::OutputError;
use crate::recordings::RecordingError;

/// There is no recording from the guest.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GuestError {
    #[error("{program} is not installed")]
    NoProgram { program: &'static str, package: &'static str },
    /// A program of the host, which prepares the guest, failed.
    #[error("{program} failed: {}", shown(.error))]
    Failed { program: &'static str, error: String },
    /// The sources of apt name no mirror of Debian.
    #[error("apt has no mirror of Debian, from which the kernel could be fetched")]
    NoMirror,
    #[error("Debian has no package of Linux {}", shown(.version))]
    NoPackage { version: String, known: Vec<String> },
    #[error("Linux on the engine was not built for this user")]
    NoPort,
    #[error("`{}` is neither a version of Linux nor a file", shown(.0))]
    NoKernel(OsString),
    #[error("{} is not a kernel image for x86-64", shown(.0))]
    NotAnImage(PathBuf),
    #[error("there is no program `{}`", shown(.0))]
    NotFound(OsString),
    #[error("{} needs {}, which is not on this machine", shown(.program), shown(.library))]
    NoLibrary { program: PathBuf, library: String },
    #[error("{}: {error}", shown(.path))]
    File { path: PathBuf, error: io::Error },
    /// A file that the guest gives back would replace a file, or could not be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error("temporary files: {0}")]
    Temporary(io::Error),
    #[error("{program} could not be started: {error}")]
    NotStarted { program: &'static str, error: io::Error },
    #[error("signals: {0}")]
    Signals(io::Error),
    /// The kernel panicked, or QEMU failed.
    #[error("the guest ended unexpectedly after `{}`", shown(.last))]
    Crashed { last: String },
    #[error("the guest did not end within {} s, after `{}`", .limit.as_secs(), shown(.last))]
    TooLong { last: String, limit: Duration },
    /// The recorder in the guest made no recording.
    #[error("in the guest: {}", shown(.error))]
    Recorder { error: String, remedy: String },
    #[error(transparent)]
    Recording(#[from] RecordingError),
    #[error(transparent)]
    Sanitize(#[from] SanitizeError),
    #[error("interrupted, and nothing was recorded")]
    Interrupted,
}

impl UserError for GuestError {
    fn help(&self) -> Help {
        match self {
            Self::NoProgram { package, .. } => {
                cannot_run(format!("sudo apt-get install {package} (on Debian and Ubuntu)"))
            }
            Self::Failed { program: "apt-get", .. } => {
                cannot_run("check the network, or give an image of a kernel with --kernel")
            }
            Self::Failed { .. } => cannot_run("free some disk space, and run the command again"),
            Self::NoMirror => {
                cannot_run("give images with --kernel /boot/vmlinuz-VERSION and --busybox PATH")
            }
            Self::NoPackage { known, .. } => {
                bad_input(format!("use --kernel with {}", known.join(", ")))
            }
            Self::NoPort => cannot_run("cargo xtask port linux --cloud, in the repository"),
            Self::NoKernel(_) => {
                bad_input("use --kernel 6.12, --kernel shootdown, or the path of an image")
            }
            Self::NotAnImage(_) => {
                bad_input("give a bzImage, such as /boot/vmlinuz-VERSION on Debian and Ubuntu")
            }
            Self::NotFound(_) => {
                bad_input("give the path of a program, or the name of a program in PATH")
            }
            Self::NoLibrary { .. } => bad_input("install the library, and run the command again"),
            Self::File { .. } => bad_input("check the path, and that this user may read it"),
            Self::Output(error) => error.help(),
            Self::Sanitize(error) => error.help(),
            Self::Temporary(_) => {
                cannot_run("free some disk space, or set TMPDIR to another directory")
            }
            Self::NotStarted { .. } | Self::Signals(_) => {
                cannot_run("stop other programs, and run the command again")
            }
            Self::Crashed { .. } => cannot_run(
                "add --console to show all lines of the kernel, or use a larger --memory-mib",
            ),
            Self::TooLong { .. } => cannot_run("wait longer with --limit SECONDS"),
            Self::Recorder { remedy, .. } => cannot_run(remedy),
            Self::Recording(_) => cannot_run("report this with the whole command"),
            Self::Interrupted => Help::new(INTERRUPTED, "run the command again"),
        }
    }
}
