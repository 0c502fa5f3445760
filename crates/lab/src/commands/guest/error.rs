//! The errors of `shootdown guest`.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::commands::sanitize::SanitizeError;
use crate::error::{Help, INTERRUPTED, bad_input, cannot_run, shown, user_errors};
use crate::output::OutputError;
use crate::recordings::RecordingError;

user_errors! {
    /// There is no recording from the guest.
    #[derive(Debug, thiserror::Error)]
    pub(crate) enum GuestError {
        #[error("{program} is not installed")]
        NoProgram { program: &'static str, package: &'static str } =>
            cannot_run(format!("sudo apt-get install {package} (on Debian and Ubuntu)")),
        /// A program of the host, which prepares the guest, failed.
        #[error("{program} failed: {}", shown(.error))]
        Failed { program: &'static str, error: String } => cannot_run(match *program {
            "apt-get" => "check the network, or give an image of a kernel with --kernel",
            _ => "free some disk space, and run the command again",
        }),
        /// The sources of apt name no mirror of Debian.
        #[error("apt has no mirror of Debian, from which the kernel could be fetched")]
        NoMirror =>
            cannot_run("give images with --kernel /boot/vmlinuz-VERSION and --busybox PATH"),
        #[error("Debian has no package of Linux {}", shown(.version))]
        NoPackage { version: String, known: Vec<String> } =>
            bad_input(format!("use --kernel with {}", known.join(", "))),
        #[error("Linux on the engine was not built for this user")]
        NoPort => cannot_run("cargo xtask port linux --cloud, in the repository"),
        #[error("`{}` is neither a version of Linux nor a file", shown(.0))]
        NoKernel(_: OsString) =>
            bad_input("use --kernel 6.12, --kernel shootdown, or the path of an image"),
        #[error("{} is not a kernel image for x86-64", shown(.0))]
        NotAnImage(_: PathBuf) =>
            bad_input("give a bzImage, such as /boot/vmlinuz-VERSION on Debian and Ubuntu"),
        #[error("there is no program `{}`", shown(.0))]
        NotFound(_: OsString) =>
            bad_input("give the path of a program, or the name of a program in PATH"),
        #[error("{} needs {}, which is not on this machine", shown(.program), shown(.library))]
        NoLibrary { program: PathBuf, library: String } =>
            bad_input("install the library, and run the command again"),
        #[error("{}: {error}", shown(.path))]
        File { path: PathBuf, error: io::Error } =>
            bad_input("check the path, and that this user may read it"),
        /// A file that the guest gives back would replace a file, or could not be written.
        #[error(transparent)]
        Output(error: #[from] OutputError) => error.help(),
        #[error("temporary files: {0}")]
        Temporary(_: io::Error) =>
            cannot_run("free some disk space, or set TMPDIR to another directory"),
        #[error("{program} could not be started: {error}")]
        NotStarted { program: &'static str, error: io::Error } =>
            cannot_run("stop other programs, and run the command again"),
        #[error("signals: {0}")]
        Signals(_: io::Error) => cannot_run("stop other programs, and run the command again"),
        /// The kernel panicked, or QEMU failed.
        #[error("the guest ended unexpectedly after `{}`", shown(.last))]
        Crashed { last: String } => cannot_run(
            "add --console to show all lines of the kernel, or use a larger --memory-mib",
        ),
        #[error("the guest did not end within {} s, after `{}`", .limit.as_secs(), shown(.last))]
        TooLong { last: String, limit: Duration } => cannot_run("wait longer with --limit SECONDS"),
        /// The recorder in the guest made no recording.
        #[error("in the guest: {}", shown(.error))]
        Recorder { error: String, remedy: String } => cannot_run(remedy),
        #[error(transparent)]
        Recording(_: #[from] RecordingError) => cannot_run("report this with the whole command"),
        #[error(transparent)]
        Sanitize(error: #[from] SanitizeError) => error.help(),
        #[error("interrupted, and nothing was recorded")]
        Interrupted => Help::new(INTERRUPTED, "run the command again"),
    }
}
