//! `shootdown record`: what a real program asks of its memory, how its threads are scheduled, and
//! what the Linux that runs it does about that, by the kernel's own tracing.
//!
//! In reading order: `tracefs` is the kernel's interface; `guard` sees to it that nothing of ours
//! stays there; `stopped_child` is the command, which must not begin before we look. `session` traces it,
//! moving pages from `rings` to a `spool`. Then `merge` puts them in order, `page` and `layout` say
//! what is in them, `decode` what it means, `symbols` and `tasks` what it refers to; and `write`
//! makes the recording of it.
//!
//! There are two instances of tracing. One follows the command and its descendants: their calls
//! and faults. The other has what concerns everyone: switches, flushes and interrupts.

mod decode;
mod error;
mod guard;
mod stopped_child;
mod helper;
mod layout;
mod merge;
mod page;
mod progress;
mod rings;
mod session;
mod signals;
mod spool;
mod symbols;
mod tasks;
mod tracefs;
mod user;
mod write;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::HumanBytes;
use rustix::process::geteuid;
use shootdown_workload::recording::raw::Tid;
use shootdown_workload::recording::{Ended, Startup};

use crate::error::shown;
use crate::output::{Existing, Output};

pub(crate) use error::RecordError;
pub(crate) use helper::Helper;

use decode::{Decoder, Scope};
use guard::Guard;
use progress::Loudness;
use session::{Captured, Session};
use signals::Wish;
use stopped_child::Held;
use symbols::Symbols;
use tasks::{Tasks, add_tasks};
use tracefs::Tracefs;
use user::User;
use write::Recording;

/// What the names of recordings end in, if the user does not choose.
const EXTENSION: &str = "shootdown";
/// As large as one may be, which is larger than most machines' memory.
const BUFFER_KIB_MAX: u32 = 4 << 20;

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

/// A recording that was kept, and how it came about.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    output: PathBuf,
    program: OsString,
    ended: Ended,
    time: Duration,
    events: u64,
    lost: u64,
    bytes: u64,
    buffer_kib: u32,
    /// How many tasks of the command still live.
    left: usize,
    loudness: Loudness,
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
pub(crate) fn record(options: &Record) -> Result<Recorded, RecordError> {
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

/// Has the command run while it is traced.
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
        user.progress.say(&format!("`{}` still runs, as process {pid}", shown(&command[0])));
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

impl fmt::Display for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.loudness == Loudness::Quiet {
            return Ok(());
        }
        let (program, output) = (shown(&self.program), shown(&self.output));
        match self.ended {
            Ended::Exited(code) if code != 0 => {
                writeln!(f, "note: {program} ended with status {code}")?;
            }
            // The others are errors.
            _ => {}
        }
        if self.left > 0 {
            writeln!(f, "note: {} of its tasks still run, no longer recorded", self.left)?;
        }
        writeln!(
            f,
            "recorded {} events (lost {}) of {program} in {:.1} s: {output} ({})",
            self.events,
            self.lost,
            self.time.as_secs_f64(),
            HumanBytes(self.bytes),
        )?;
        writeln!(f, "try:   shootdown replay {output}")
    }
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
