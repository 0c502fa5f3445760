//! `shootdown record`: what a real program asks of its memory, how its threads are scheduled, and
//! what the Linux that runs it does about that, by the kernel's own tracing.
//!
//! In reading order: `tracefs` is the kernel's interface; `guard` removes our instances from it;
//! `stopped_child` is the command, which must not begin before it is traced. `session` traces it,
//! and moves pages from `rings` to a `spool`. Then `merge` puts them in order; `layout` and `page`
//! describe their bytes, `decode` their events, `symbols` and `tasks` what these refer to; and
//! `write` makes the recording.
//!
//! There are two instances of tracing. One follows the command and its descendants: their calls
//! and faults. The other has what concerns everyone: switches, flushes and interrupts.

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

pub(crate) use helper::Helper;

use decode::Decoder;
use error::RecordError;
use guard::Guard;
use recorded::{BUFFER_KIB_MAX, Loudness, Recorded};
use session::{Captured, Session};
use signals::Wish;
use stopped_child::Held;
use symbols::Symbols;
use tasks::{Tasks, add_tasks};
use tracefs::{Scope, Tracefs};
use user::User;
use write::Recording;

/// The extension of recordings, unless the user chooses a name.
const EXTENSION: &str = "shootdown";

pub(crate) const EXAMPLES: &str = "\
Examples:
  shootdown record -- sort --parallel=2 words.txt
  shootdown record --output gc.shootdown -- node allocate.js
  shootdown record --buffer-kib 65536 -- ./loop-that-unmaps

Needs root and tracefs. The program runs as it would, its threads and children are recorded with it,
and tracing is left as it was found.";

/// The options of `shootdown record`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Record {
    /// Where to write the recording [default: the program's name, with .shootdown]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,
    /// How large the kernel's two buffers are, on each CPU, in KiB
    #[arg(long, value_name = "N", default_value_t = 8192,
          value_parser = clap::value_parser!(u32).range(4..=i64::from(BUFFER_KIB_MAX)))]
    buffer_kib: u32,
    /// Say nothing but what went wrong
    #[arg(long, short)]
    quiet: bool,
    /// The program to record, and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Record {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let recorded = record(self)?;
        // Standard output is the recorded program's.
        let _ = write!(io::stderr(), "{recorded}");
        Ok(())
    }
}

impl Helper {
    /// Does what the process is for.
    pub(crate) fn run(&self) {
        match self {
            Self::Guard { instances } => guard::guard(instances),
            Self::Held { release, failure, command } => {
                stopped_child::held(release, failure, command);
            }
        }
    }
}

/// Runs a command, and records it.
///
/// The first Ctrl-C is the command's: what it does until it ends is recorded. The second one, or a
/// request to end, ends the recording, which is kept; the command, if it did not end itself, is
/// left alone.
///
/// # Errors
///
/// Each of [`RecordError`]. Whichever it is, tracing is as it was, but after
/// [`RecordError::InstancesLeft`]; and there is no file, but after that one and after
/// [`RecordError::Incomplete`], [`RecordError::Killed`] and [`RecordError::Stopped`].
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
    // Before all that it removes, and outliving it.
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
        events: written.events,
        lost: written.lost,
        bytes: written.bytes,
        buffer_kib: options.buffer_kib,
        left,
        loudness,
    };
    match (recorded.lost, recorded.ended) {
        (0, Ended::Exited(_)) => Ok(recorded),
        (0, Ended::Signalled(signal)) => {
            Err(RecordError::Killed { signal, recorded: Box::new(recorded) })
        }
        (0, Ended::Interrupted) => Err(RecordError::Stopped(Box::new(recorded))),
        _ => Err(RecordError::Incomplete(Box::new(recorded))),
    }
}

/// Runs the command while it is traced.
fn capture(
    mut session: Session<'_>,
    command: &[OsString],
    user: &mut User,
) -> Result<(Captured, Startup, Ended), RecordError> {
    let mut held = Held::start(command)?;
    // Twice, for a task may begin between the first look and the first event.
    let mut tasks = Tasks::new();
    add_tasks(&mut tasks)?;
    session.start(held.pid())?;
    add_tasks(&mut tasks)?;
    if user.signals.wish() != Wish::GoOn {
        return Err(RecordError::Interrupted);
    }
    held.release()?;
    let pid = held.pid();
    let ended = session.run(&mut held, user);
    if !matches!(ended, Ok(Ended::Exited(_) | Ended::Signalled(_))) {
        user.say(&format!("`{}` still runs, as process {pid}", shown(&command[0])));
    } else if let Some(error) = held.failure() {
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
    fn a_recording_is_named_after_its_program_not_where_that_is() {
        let name = |program: &str| default_name(OsStr::new(program));
        assert_eq!(name("/usr/bin/sort"), Some(PathBuf::from("sort.shootdown")));
        assert_eq!(name("./run.sh"), Some(PathBuf::from("run.sh.shootdown")));
        assert_eq!(name(".."), None);
    }
}
