//! The errors of `shootdown record`.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::recorded::{BUFFER_KIB_MAX, Recorded};
use crate::error::{Help, INTERRUPTED, shown, user_errors};
use crate::output::OutputError;

/// The exit status if the recorder itself fails, as env(1) and timeout(1) use it.
pub(crate) const FAILED: u8 = 125;
/// The exit status if the program was found but could not be run, as env(1) uses it.
const NOT_RUNNABLE: u8 = 126;
/// The exit status if the program was not found, as env(1) uses it.
const NOT_FOUND: u8 = 127;

user_errors! {
    /// There is no complete recording, or tracing was not cleaned up.
    #[derive(Debug, thiserror::Error)]
    pub(crate) enum RecordError {
        /// The mount of tracefs permits only its owner.
        #[error("only root may trace the kernel")]
        NotRoot => failed("run the command as root, for example with sudo"),
        /// Events have the numbers of the machine, and /proc has those of a container.
        #[error("this container has process numbers of its own, which the kernel's events lack")]
        PidNamespace => failed(
            "run it on the host, with --pid or --cgroup, or in a container with the host's \
             processes (--pid=host, hostPID: true)",
        ),
        #[error("there is no tracefs at /sys/kernel/tracing")]
        NoTracefs => failed("mount -t tracefs nodev /sys/kernel/tracing"),
        /// This kernel does not have the event, or describes it in an unknown format.
        #[error("this kernel has no event {event} in a known format")]
        NoEvent { event: &'static str } => failed(match event.split('/').next() {
            Some("csd" | "irq_vectors") => "use Linux 6.5 or later on x86-64",
            _ => "use Linux 5.8 or later on x86-64, built with CONFIG_FTRACE_SYSCALLS",
        }),
        #[error("the kernel hides the addresses of its functions")]
        NoSymbols => failed("sysctl kernel.kptr_restrict=1"),
        /// A file of tracefs or of /proc could not be used.
        #[error("{}: {error}", shown(.path))]
        Kernel { path: PathBuf, error: io::Error } =>
            failed("run the command as root of the machine, outside any container"),
        #[error("the kernel has no memory for two buffers of {buffer_kib} KiB on each CPU")]
        NoMemory { buffer_kib: u32 } => failed("use smaller buffers with --buffer-kib"),
        #[error("the file name of `{}` cannot name the recording", shown(.program))]
        NoName { program: OsString } => failed("name the recording with --output FILE"),
        /// The recording could not be written.
        #[error(transparent)]
        Output(error: #[from] OutputError) => failed(error.help().remedy),
        #[error("`{}` could not be started: {error}", shown(.program))]
        NotStarted { program: OsString, error: io::Error } => match error.kind() {
            io::ErrorKind::NotFound => Help::new(
                NOT_FOUND,
                "give the path of a program, or the name of a program in PATH",
            ),
            _ => Help::new(
                NOT_RUNNABLE,
                "check that the program runs without `shootdown record`",
            ),
        },
        /// There is no user of that name or number.
        #[error("there is no user `{}`", shown(.user))]
        NoUser { user: String } => failed("name a user of /etc/passwd with --user"),
        #[error("there is no process {pid}")]
        NoProcess { pid: u32 } =>
            failed("use the numbers of running processes, as `ps -e` prints them"),
        #[error("{}: {error}", shown(.path))]
        NoCgroup { path: PathBuf, error: io::Error } =>
            failed("name a control group below /sys/fs/cgroup, as `systemd-cgls` prints it"),
        /// No selected process runs.
        #[error("no selected process runs")]
        NothingSelected =>
            failed("check that the process, or a process of the control group, runs"),
        /// The kernel refused a process, a pipe or a signal handler.
        #[error("{what}: {error}")]
        System { what: &'static str, error: io::Error } =>
            failed("stop other programs, and run the command again"),
        /// The user stopped the recorder before there was a recording.
        #[error("interrupted, and nothing was recorded")]
        Interrupted => Help::new(INTERRUPTED, "run the command again"),
        /// The recording was kept, but lacks events.
        #[error("{} events were lost: {} was kept, but lacks them", .0.written.lost,
                shown(&.0.output))]
        Incomplete(recorded: Box<Recorded>) => {
            let larger = recorded.buffer_kib.saturating_mul(4).min(BUFFER_KIB_MAX);
            failed(format!("record again with --force --buffer-kib {larger}"))
        },
        /// The recording was kept, but the disk has no room for the rest.
        #[error("{}: {error}: it has the first {}", shown(&.recorded.output), .recorded.extent())]
        DiskFull { recorded: Box<Recorded>, error: io::Error } =>
            failed("choose a file on a disk with more free space, with --output"),
        /// The recording was kept, but is as large as it may become.
        #[error("{} has reached {} MiB: it has the first {}", shown(&.0.output), .0.limit_mib,
                .0.extent())]
        LimitReached(recorded: Box<Recorded>) => {
            let larger = recorded.limit_mib.saturating_mul(4);
            failed(format!(
                "record again with --force --limit-mib {larger}, or with --duration"
            ))
        },
        /// The recording was kept, but instances of tracing could not be removed.
        #[error("the tracing instances {} could not be removed", all_shown(.paths).join(" and "))]
        InstancesLeft { paths: Vec<PathBuf> } =>
            failed(format!("rmdir {}", all_shown(paths).join(" "))),
    }
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

fn failed(remedy: impl Into<String>) -> Help {
    Help::new(FAILED, remedy)
}
