//! `shootdown record`: records the memory calls, page faults and scheduling of a program, and the
//! flushes of the Linux kernel that runs it, with the kernel's own tracing.
//!
//! In reading order: `tracefs` is the kernel's interface, and `guard` removes our instances from
//! it. `stopped_child` is the process of the program, which must not start before it is traced.
//! `session` traces the program and moves pages from `rings` to a `spool`. Then `merge` sorts the
//! events by time. `layout` and `page` describe the bytes of events, `decode` their meaning, and
//! `symbols` and `tasks` the functions and tasks that they refer to. `write` makes the recording.
//!
//! There are two instances of tracing. One traces the system calls and faults of the program and
//! its descendants. The other traces the switches, flushes and interrupts of all tasks.

mod decode;
mod error;
mod guard;
mod helper;
mod layout;
mod merge;
mod page;
mod recorded;
mod rings;
mod session;
mod signals;
mod spool;
mod stopped_child;
mod symbols;
mod tasks;
mod tracefs;
mod user;
mod write;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use rustix::process::geteuid;
use shootdown_recording::raw::Tid;
use shootdown_recording::{Ended, Startup};

use crate::error::{Failure, shown};
use crate::output::{Existing, Output};

pub(crate) use error::FAILED;
pub(crate) use helper::Helper;
pub(crate) use signals::{Signals, StopRequest};

use decode::Decoder;
use error::RecordError;
use guard::Guard;
use recorded::{BUFFER_KIB_MAX, Loudness, Recorded};
use session::{Captured, Session};
use stopped_child::StoppedChild;
use symbols::Symbols;
use tasks::{Tasks, add_tasks};
use tracefs::{Scope, Tracefs};
use user::User;
use write::Recording;

/// The extension of the default name of a recording.
const EXTENSION: &str = "shootdown";

pub(crate) const EXAMPLES: &str = "\
Examples:
  shootdown record -- sort --parallel=2 words.txt
  shootdown record --output gc.shootdown -- node allocate.js
  shootdown record --buffer-kib 65536 -- ./loop-that-unmaps

Needs root and tracefs. The program runs as it would without the recorder, and its threads and
children are recorded with it. Afterwards, tracing is configured as before.

Exits with the status of the program (128 + N if signal N killed it), or with 125 if the recorder
itself fails, 126 if the program cannot be run, 127 if it is not found, 130 if Ctrl-C stopped the
recorder before the program ended.";

/// The options of `shootdown record`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Record {
    /// The file of the recording [default: the name of the program, with .shootdown]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,
    /// The size of each of the two kernel buffers per CPU, in KiB
    #[arg(long, value_name = "N", default_value_t = 8192,
          value_parser = clap::value_parser!(u32).range(4..=i64::from(BUFFER_KIB_MAX)))]
    buffer_kib: u32,
    /// Print nothing but errors
    #[arg(long, short)]
    quiet: bool,
    /// The program to record, and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Record {
    /// Records the program and returns its exit status.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        let recorded = record(self)?;
        // Standard output belongs to the recorded program.
        let _ = write!(io::stderr(), "{recorded}");
        Ok(recorded.exit_status())
    }
}

impl Helper {
    /// Runs the helper process.
    pub(crate) fn run(&self) {
        match self {
            Self::Guard { instances } => guard::guard(instances),
            Self::StoppedChild { release, failure, command } => {
                stopped_child::run(release, failure, command);
            }
        }
    }
}

/// Runs a command, and records it.
///
/// The first Ctrl-C is for the command, which is recorded until it ends. The second Ctrl-C, SIGTERM
/// or SIGHUP stops the recorder. The recording is kept, and the command continues if it has not
/// ended.
///
/// # Errors
///
/// Any [`RecordError`]. The instances of tracing are removed, except after
/// [`RecordError::InstancesLeft`]. A recording exists only after that error and after
/// [`RecordError::Incomplete`].
fn record(options: &Record) -> Result<Recorded, RecordError> {
    if !geteuid().is_root() {
        return Err(RecordError::NotRoot);
    }
    let tracefs = Tracefs::find()?;
    let program = options.command.first().cloned().unwrap_or_default();
    let existing = if options.force { Existing::Replace } else { Existing::Keep };
    let path = match &options.output {
        Some(path) => path.clone(),
        None => default_name(&program)
            .ok_or_else(|| RecordError::NoName { program: program.clone() })?,
    };
    let output = Output::new(&path, existing)?;
    let decoder = Decoder::new(&tracefs, symbols()?)?;
    let loudness = if options.quiet { Loudness::Quiet } else { Loudness::Normal };
    let mut user = User::new(loudness)?;
    let start = Instant::now();
    // The guard starts before the instances exist, and outlives them.
    let instances = [Scope::Command, Scope::System].map(|scope| tracefs.instance(scope));
    let guard = Guard::start(instances.to_vec())?;
    tracefs.remove_stale();
    let session = Session::new(&tracefs, &decoder, options.buffer_kib, &output)?;
    let header = write::header(&options.command, session.cpus());
    let (captured, startup, ended) = capture(session, &options.command, &mut user)?;
    let time = start.elapsed();
    let cleaned = guard.end();
    let left = captured.left;
    let recording = Recording { captured: &captured, decoder: &decoder, header, startup, ended };
    let written = recording.write(&output, &mut user)?;
    cleaned?;
    let recorded = Recorded {
        output: output.path().to_owned(),
        program,
        ended,
        time,
        written,
        buffer_kib: options.buffer_kib,
        left,
        loudness,
    };
    if recorded.written.lost > 0 {
        return Err(RecordError::Incomplete(Box::new(recorded)));
    }
    Ok(recorded)
}

/// Runs and traces the command until it ends, or until the user stops the recorder.
fn capture(
    mut session: Session<'_>,
    command: &[OsString],
    user: &mut User,
) -> Result<(Captured, Startup, Ended), RecordError> {
    let mut child = StoppedChild::start(command)?;
    // The tasks are listed twice, because one may start between the first list and the first event.
    let mut tasks = Tasks::new();
    add_tasks(&mut tasks)?;
    session.start(child.pid())?;
    add_tasks(&mut tasks)?;
    if user.signals.stop_request() != StopRequest::None {
        return Err(RecordError::Interrupted);
    }
    child.release()?;
    let pid = child.pid();
    let ended = session.run(&mut child, user);
    if !matches!(ended, Ok(Ended::Exited(_) | Ended::Signalled(_))) {
        user.note(&format!("`{}` still runs, as process {pid}", shown(&command[0])));
    } else if let Some(error) = child.failure() {
        return Err(RecordError::NotStarted { program: command[0].clone(), error });
    }
    let ended = ended?;
    let startup = Startup { recorded: vec![Tid(pid)], tasks: tasks.into_values().collect() };
    Ok((session.end()?, startup, ended))
}

fn default_name(program: &OsStr) -> Option<PathBuf> {
    let mut name: OsString = Path::new(program).file_name()?.to_owned();
    name.push(".");
    name.push(EXTENSION);
    Some(PathBuf::from(name))
}

fn symbols() -> Result<Symbols, RecordError> {
    let path = Path::new("/proc/kallsyms");
    let text = fs::read_to_string(path).map_err(|error| RecordError::kernel(path, error))?;
    Symbols::parse(&text).ok_or(RecordError::NoSymbols)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_name_is_name_of_program() {
        let name = |program: &str| default_name(OsStr::new(program));
        assert_eq!(name("/usr/bin/sort"), Some(PathBuf::from("sort.shootdown")));
        assert_eq!(name("./run.sh"), Some(PathBuf::from("run.sh.shootdown")));
        assert_eq!(name(".."), None);
    }
}
