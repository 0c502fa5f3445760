//! This executable in another role, as a process of its own: without `fork`, which is no safe
//! thing to do by hand.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Subcommand;

/// What the process does. Not for users.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Helper {
    /// Remove instances when standard input ends
    Guard {
        #[arg(required = true)]
        instances: Vec<PathBuf>,
    },
    /// Become a program when a pipe says so
    Held {
        release: PathBuf,
        failure: PathBuf,
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
}

impl Helper {
    /// The name of the hidden command that this is the options of.
    pub(crate) const COMMAND: &str = "record-helper";
}

/// A process that does what `helper` says.
pub(super) fn command(helper: &Helper) -> Command {
    // Not by our name: that file may have been replaced since we were started.
    let mut command = Command::new(Path::new("/proc/self/exe"));
    command.arg(Helper::COMMAND);
    match helper {
        Helper::Guard { instances } => command.arg("guard").args(instances),
        Helper::Held { release, failure, command: program } => {
            command.arg("held").args([release, failure]).arg("--").args(program)
        }
    };
    command
}
