//! The recorded programs: a command that the recorder starts, or programs that already run.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use shootdown_recording::Ended;

use super::error::RecordError;
use super::stopped_child::StoppedChild;
use super::tasks::Tasks;
use crate::selection::Selection;

/// The time between two looks for tasks that still live.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The root of the control groups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The recorded programs.
#[derive(Debug)]
pub(super) enum Target {
    /// A command, until its first process has ended, or until all descendants have ended.
    Command { child: StoppedChild, until: Until },
    /// Programs that ran before the recorder.
    Running,
}

/// The processes that the recorder waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    CommandEnds,
    AllEnd,
}

impl Target {
    pub(super) fn runs_command(&self) -> bool {
        matches!(self, Self::Command { .. })
    }

    /// Returns the note after the first Ctrl-C; empty if it ends the recording at once.
    pub(super) fn note_of_stop<'n>(&self, note: &'n str) -> &'n str {
        if self.runs_command() { note } else { "" }
    }

    /// Returns a file descriptor that is readable after the command has ended.
    pub(super) fn ended_fd(&self) -> Option<impl AsFd + '_> {
        match self {
            // The command that has ended would end every wait for its descendants.
            Self::Command { child, until: Until::CommandEnds } => Some(child.ended_fd()),
            Self::Command { .. } | Self::Running => None,
        }
    }
}

/// The ends that were observed so far.
#[derive(Debug, Default)]
pub(super) struct Watched {
    looked_at: Option<Instant>,
}

impl Watched {
    /// Returns `true` if the programs have ended. `living` returns the number of their tasks.
    pub(super) fn has_ended(
        &mut self,
        target: &mut Target,
        living: impl FnOnce() -> Result<usize, RecordError>,
    ) -> Result<bool, RecordError> {
        let is_first = match target {
            Target::Command { child, until } => {
                let has_ended = child.ended()?.is_some();
                if !has_ended || *until == Until::CommandEnds {
                    return Ok(has_ended);
                }
                false
            }
            Target::Running => self.looked_at.is_none(),
        };
        let now = Instant::now();
        if is_first || self.looked_at.is_some_and(|before| now - before < LOOK_EVERY) {
            self.looked_at.get_or_insert(now);
            return Ok(false);
        }
        self.looked_at = Some(now);
        Ok(living()? == 0)
    }
}

/// Returns the end of a process.
pub(super) fn ended(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Exited(code),
        (None, signal) => Ended::Signalled(signal.unwrap_or_default()),
    }
}

/// Returns the processes that run now and are selected. The recorder itself is never among them.
///
/// # Errors
///
/// If there is no such process, or no such control group.
pub(super) fn selected(selection: &Selection, tasks: &Tasks) -> Result<BTreeSet<u32>, RecordError> {
    let mut processes: BTreeSet<u32> = if selection.all {
        tasks.programs().collect()
    } else if let Some(path) = &selection.cgroup {
        let mut members = BTreeSet::new();
        let path = cgroup(path);
        add_members(&path, &mut members).map_err(|error| RecordError::NoCgroup { path, error })?;
        members
    } else {
        if let Some(&pid) = selection.pid.iter().find(|pid| !tasks.has_process(**pid)) {
            return Err(RecordError::NoProcess { pid });
        }
        tasks.with_descendants(&selection.pid)
    };
    processes.remove(&std::process::id());
    Ok(processes)
}

/// Returns the directory of a control group, which is named as systemd and containers name it
/// (`/user.slice`), or by its whole path.
fn cgroup(path: &Path) -> PathBuf {
    if path.starts_with(CGROUPS) {
        return path.to_owned();
    }
    Path::new(CGROUPS).join(path.strip_prefix("/").unwrap_or(path))
}

/// Adds the processes of a control group and of the groups below it.
fn add_members(group: &Path, members: &mut BTreeSet<u32>) -> std::io::Result<()> {
    let text = fs::read_to_string(group.join("cgroup.procs"))?;
    members.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
    for entry in fs::read_dir(group)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            // A group below may be removed at any time.
            let _ = add_members(&entry.path(), members);
        }
    }
    Ok(())
}

/// Returns the words that describe the selection in a recording's header.
pub(super) fn description(selection: &Selection) -> Vec<OsString> {
    match (&selection.cgroup, selection.pid.first()) {
        (Some(path), _) => vec!["--cgroup".into(), path.into()],
        (None, Some(pid)) => {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
            words.map(|word| String::from_utf8_lossy(word).into_owned().into()).collect()
        }
        (None, None) => vec!["--all".into()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_is_a_name_or_a_path() {
        for path in ["user.slice/a", "/user.slice/a", "/sys/fs/cgroup/user.slice/a"] {
            assert_eq!(cgroup(Path::new(path)), Path::new("/sys/fs/cgroup/user.slice/a"));
        }
    }
}
