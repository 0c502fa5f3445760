//! Helper processes, which run this executable in another role. Starting an executable avoids
//! `fork`, which is not safe in a process with threads.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Subcommand;

/// The role of a helper process. Users do not call it.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Helper {
    /// Remove the instances of tracing when standard input ends
    Guard {
        #[arg(required = true)]
        instances: Vec<PathBuf>,
    },
    /// Wait for a byte from a pipe, and then become the command
    StoppedChild {
        release: PathBuf,
        failure: PathBuf,
        /// The user, the group and all groups of the command, if they are not the recorder's
        #[arg(long)]
        user: Option<u32>,
        #[arg(long)]
        group: Option<u32>,
        #[arg(long, value_delimiter = ',')]
        groups: Vec<u32>,
        #[arg(required = true, last = true)]
        command: Vec<OsString>,
    },
}

impl Helper {
    /// The name of the hidden command.
    pub(crate) const COMMAND: &str = "record-helper";
}

/// Returns a command that starts a helper process.
pub(super) fn command(helper: &Helper) -> Command {
    // The file of our name may have been replaced since this process started.
    let mut command = Command::new(Path::new("/proc/self/exe"));
    command.arg(Helper::COMMAND);
    match helper {
        Helper::Guard { instances } => command.arg("guard").args(instances),
        Helper::StoppedChild { release, failure, user, group, groups, command: program } => {
            command.arg("stopped-child").args([release, failure]);
            let user = user.iter().map(|user| ("--user", user));
            let group = group.iter().map(|group| ("--group", group));
            let groups = groups.iter().map(|group| ("--groups", group));
            for (option, number) in user.chain(group).chain(groups) {
                command.args([option, &number.to_string()]);
            }
            command.arg("--").args(program)
        }
    };
    command
}
