//! `shootdown record`: records the memory calls, page faults and scheduling of a program, and the
//! flushes of the Linux kernel that runs it, with the kernel's own tracing.
//!
//! In reading order: `tracefs` is the kernel's interface, and `guard` removes our instances from
//! it. `stopped_child` is the process of the program, which must not start before it is traced.
//! `target` selects programs that already run. `capture` runs a `session`, which traces the
//! programs and moves pages from `rings` to a `queue`. From there, another thread takes them:
//! `merge` sorts the events by time, `layout` and `page` describe the bytes of events, `decode`
//! their meaning, and `symbols` and `tasks` the functions and tasks that they refer to. `matching`
//! finds the events of samples, `stacks` has their call stacks, and `counted` the kernel's own
//! counters. `write` makes the recording, in `files` whose `blocks` are whole at any time.
//! `flushes`
//! traces nothing but flushes, and makes none.
//!
//! There are two instances of tracing. One traces the system calls and faults of the program and
//! its descendants. The other traces the switches, flushes and interrupts of all tasks.

mod account;
mod blocks;
mod capture;
mod counted;
mod decode;
mod error;
mod files;
mod flushes;
mod follow;
mod guard;
mod helper;
mod layout;
mod matching;
mod merge;
mod page;
mod priority;
mod queue;
mod recorded;
mod rings;
mod session;
mod signals;
mod stacks;
mod stopped_child;
mod symbols;
mod target;
mod tasks;
mod tracefs;
mod user;
mod write;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};

use shootdown_recording::{Ended, Header, Observer};

use crate::error::Failure;
use crate::output::Existing;
use crate::selection::Selection;

pub(crate) use error::FAILED;
pub(crate) use error::RecordError;
pub(crate) use flushes::Flushes;
pub(crate) use follow::Follow;
pub(crate) use helper::Helper;
pub(crate) use recorded::{OtherCall, Reason};
pub(crate) use rings::now_ns;
pub(crate) use signals::{Signals, StopRequest, Stopper};
pub(crate) use stacks::StackOptions;

use account::Account;
use capture::{Capture, MIB};
use decode::Decoder;
use files::{AtLimit, Files, Outputs};
use follow::Load;
use guard::Guard;
use recorded::{BUFFER_KIB_MAX, Loudness, Recorded};
use session::Session;
use stopped_child::Identity;
use symbols::Symbols;
use tracefs::{Scope, Tracefs};
use user::User;
use write::{Assembled, Extent};

/// The extension of the default name of a recording.
const EXTENSION: &str = "shootdown";

/// The memory of all buffers of an instance, by default, in KiB, unless that is less than
/// [`BUFFER_KIB_MIN`] for each CPU.
const BUFFERS_KIB: u32 = 256 << 10;
/// The default size of a buffer.
const BUFFER_KIB: u32 = 8 << 10;
const BUFFER_KIB_MIN: u32 = 1 << 10;

/// The default of `--memory-mib`.
const MEMORY_MIB: u32 = 256;
/// The default of `--limit-mib`.
const LIMIT_MIB: u64 = 1024;

pub(crate) const EXAMPLES: &str = "\
Examples:
  shootdown record -- sort --parallel=2 words.txt
  shootdown record --output gc.shootdown -- node allocate.js
  shootdown record --pid 4711 --duration 10s
  shootdown record --cgroup system.slice/redis.service --duration 1m
  shootdown record --until-all-end --duration 30s -- redis-server --daemonize yes

Needs tracefs, and root unless the mount permits this user to trace. The program runs as it would
without the recorder, and its threads and children are recorded with it. Under sudo, it runs as the
user that called sudo. Afterwards, tracing is configured as before.

While it records, the recorder writes FILE.part, whose blocks are whole at any time: `replay` reads
what a recorder that was killed has left. Memory and file are bounded by --memory-mib, --buffer-kib
and --limit-mib; with --keep-latest, a recording of any length keeps its latest part. The recorder
empties the kernel's buffers at a real-time priority, and writes at a low one.

Exits with the status of the program (128 + N if signal N killed it), or with 125 if the recorder
itself fails, 126 if the program cannot be run, 127 if it is not found, 130 if Ctrl-C stopped the
recorder before the program ended. With --pid, --cgroup or --all, or if --duration ends the
recording, a recording that lacks nothing is a success (0).";

/// The options of `shootdown record`.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("selected").args(["pid", "cgroup", "all", "command"])
    .required(true))]
pub(crate) struct Record {
    #[command(flatten)]
    selection: Selection,
    /// Record until all descendants of CMD have ended, also those that detach themselves
    #[arg(long, conflicts_with_all = ["pid", "cgroup", "all"])]
    until_all_end: bool,
    /// Run CMD as this user, by name or number [default: the user that called sudo]
    #[arg(long, value_name = "USER", conflicts_with_all = ["pid", "cgroup", "all"])]
    user: Option<String>,
    /// The file of the recording [default: the name of the program, with .shootdown]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,
    /// The size of each of the two kernel buffers per CPU, in KiB [default: 8192, and less on more
    /// than 32 CPUs]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(4..=i64::from(BUFFER_KIB_MAX)))]
    buffer_kib: Option<u32>,
    /// The largest memory for events that are not written yet, in MiB
    #[arg(long, value_name = "N", default_value_t = MEMORY_MIB,
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    memory_mib: u32,
    /// The largest size of the recording, in MiB. The recorder stops there
    #[arg(long, value_name = "N", default_value_t = LIMIT_MIB,
          value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    limit_mib: u64,
    /// Do not stop at --limit-mib: keep the latest part, between half the limit and the limit, in
    /// FILE and the file before it, whose name has `.older` before the extension
    #[arg(long)]
    keep_latest: bool,
    #[command(flatten)]
    stacks: StackOptions,
    /// Print nothing but errors
    #[arg(long, short)]
    quiet: bool,
    #[arg(skip)]
    purpose: Purpose,
    #[arg(skip)]
    program_output: ProgramOutput,
    /// The program to record, and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// The use of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It is kept, for any use.
    #[default]
    Keep,
    /// It is explained, and then removed. It lacks wake-ups, which only the simulated schedule
    /// needs. The side that follows a command is chosen by the load of the machine, if it is not
    /// given.
    Explain(Option<Follow>),
}

/// The place of a recorded command's standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ProgramOutput {
    #[default]
    Inherited,
    /// The recorder's standard error: its standard output is for another program.
    Errors,
}

impl Purpose {
    /// Returns the side that selects the events of a command that runs until it ends itself. Only
    /// the kernel knows the descendants that are left, which recordings report.
    fn follow(self, load: Option<Load>, cpus: usize) -> Follow {
        match (self, load) {
            (Self::Explain(Some(follow)), _) => follow,
            (Self::Explain(None), Some(load)) => load.follow(cpus),
            _ => Follow::Kernel,
        }
    }
}

/// Returns the CPU time of this process.
fn process_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Record {
    /// Records the program and returns its exit status.
    pub(crate) fn run(&self) -> Result<u8, Failure> {
        let user = User::new(self.loudness())?;
        let recorded = record(self, user, None)?;
        // Standard output belongs to the recorded program.
        let _ = write!(io::stderr(), "{recorded}");
        Ok(recorded.exit_status())
    }

    /// Returns the options of a recording that another command asked for.
    fn quiet(path: &Path, selection: &Selection, stacks: &StackOptions) -> Self {
        Self {
            selection: selection.clone(),
            until_all_end: false,
            user: None,
            output: Some(path.to_owned()),
            force: false,
            buffer_kib: None,
            memory_mib: MEMORY_MIB,
            limit_mib: LIMIT_MIB,
            keep_latest: false,
            stacks: stacks.clone(),
            quiet: true,
            purpose: Purpose::Keep,
            program_output: ProgramOutput::Inherited,
            command: Vec::new(),
        }
    }

    fn loudness(&self) -> Loudness {
        if self.quiet { Loudness::Quiet } else { Loudness::Normal }
    }
}

impl Helper {
    /// Runs the helper process.
    pub(crate) fn run(&self) {
        match self {
            Self::Guard { instances } => guard::guard(instances),
            Self::StoppedChild { release, failure, user, group, groups, command } => {
                let identity = Identity { user: *user, group: *group, groups };
                stopped_child::run((release, failure), &identity, command);
            }
        }
    }
}

/// A recording that another command asked for.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    /// Number of call stacks that were sampled and lost.
    pub(crate) stacks_lost: u64,
    /// CPU time of this process while it recorded.
    pub(crate) recorder_cpu_ns: u64,
    /// The calls by interrupts that flush no pages of a program.
    pub(crate) other_calls: Vec<OtherCall>,
    /// The end of the command.
    pub(crate) ended: Ended,
}

/// Records the selected programs, or `command`, as `path`, which replaces an existing file only if
/// `existing` allows that. Events that were lost, and a recording that is not whole, are reported
/// by the recording itself.
///
/// # Errors
///
/// Any [`RecordError`] after which there is no recording.
pub(crate) fn to_file(
    path: &Path,
    existing: Existing,
    selection: &Selection,
    command: &[OsString],
    (stacks, purpose, program_output): (&StackOptions, Purpose, ProgramOutput),
) -> Result<Live, Failure> {
    let options = Record {
        force: existing == Existing::Replace,
        purpose,
        program_output,
        command: command.to_vec(),
        ..Record::quiet(path, selection, stacks)
    };
    let before = process_time();
    let recorded = kept(record(&options, User::new(Loudness::Quiet)?, None))?;
    let recorder_cpu_ns = (process_time() - before).as_nanos() as u64;
    let Recorded { written, other_calls, ended, .. } = recorded;
    Ok(Live { stacks_lost: written.stacks_lost, recorder_cpu_ns, other_calls, ended })
}

/// The thread that observes a recording, and stops it.
pub(crate) trait Watch: Send {
    /// Begins to observe a recording with this header.
    fn begin(&mut self, header: &Header) -> Observer;
}

/// Records the running programs that are selected as `path`, which is replaced, until they end, the
/// recording is `limit_mib` long, or `stop` has a request. Returns the reason of the end.
///
/// # Errors
///
/// Any [`RecordError`] after which there is no recording.
pub(crate) fn observed(
    path: &Path,
    limit_mib: u64,
    (selection, stacks): (&Selection, &StackOptions),
    stop: Signals,
    watch: &mut dyn Watch,
) -> Result<Reason, RecordError> {
    let options = Record { limit_mib, force: true, ..Record::quiet(path, selection, stacks) };
    let user = User::with(stop, Loudness::Quiet);
    kept(record(&options, user, Some(watch))).map(|recorded| recorded.reason)
}

/// Returns the recording, even if it is not whole.
fn kept(result: Result<Recorded, RecordError>) -> Result<Recorded, RecordError> {
    match result {
        Err(
            RecordError::Incomplete(recorded)
            | RecordError::LimitReached(recorded)
            | RecordError::DiskFull { recorded, .. },
        ) => Ok(*recorded),
        other => other,
    }
}

/// Records the selected programs. `watch` observes the recording while it is written.
///
/// The first Ctrl-C is for the command, which is recorded until it ends. The second Ctrl-C, SIGTERM
/// or SIGHUP stops the recorder. The recording is kept, and the command continues if it has not
/// ended.
///
/// # Errors
///
/// Any [`RecordError`]. The instances of tracing are removed, except after
/// [`RecordError::InstancesLeft`]. A recording exists only after that error and after
/// [`RecordError::Incomplete`], [`RecordError::DiskFull`] and [`RecordError::LimitReached`].
fn record(
    options: &Record,
    mut user: User,
    watch: Option<&mut dyn Watch>,
) -> Result<Recorded, RecordError> {
    tasks::refuse_namespace()?;
    let tracefs = Tracefs::find()?;
    let outputs = outputs(options)?;
    let account = Account::find(options.user.as_deref())?;
    let decoder = Decoder::new(decode::WANTED, &tracefs, symbols()?)?;
    let (start, load) = (Instant::now(), Load::now());
    // The guard starts before the instances exist, and outlives them.
    let instances = [Scope::Command, Scope::System].map(|scope| tracefs.instance(scope));
    let guard = Guard::start(instances.to_vec())?;
    tracefs.remove_stale();
    let buffer_kib = options.buffer_kib.unwrap_or_else(default_buffer_kib);
    let events = |scope| decoder.events(scope, options.purpose);
    let session = Session::new(&tracefs, events, buffer_kib)?;
    let sampler = stacks::start(&options.stacks, &tracefs, session.streams(), &user)?;
    let files = Files::create(&outputs, options.limit_mib.saturating_mul(MIB as u64))?;
    let capture = capture::capture(
        (session, sampler),
        (options, load),
        account.as_ref(),
        (&decoder, &outputs, files),
        (&mut user, watch),
    )?;
    let time = start.elapsed();
    let cleaned = guard.end();
    let Capture { captured, ended, reason, assembled, program } = capture;
    let Assembled { mut written, extent, files } = assembled;
    if matches!(extent, Extent::Discarded) {
        return Err(RecordError::Interrupted);
    }
    let has_older = files.as_ref().is_none_or(|files| files.has_older);
    if let Some(files) = files {
        written.bytes = files.keep()?;
    }
    cleaned?;
    let Outputs { latest, older } = &outputs;
    let recorded = Recorded {
        output: latest.path().to_owned(),
        older: older.as_ref().filter(|_| has_older).map(|older| older.path().to_owned()),
        program,
        ended,
        reason,
        is_command: !options.command.is_empty(),
        time,
        written,
        buffer_kib,
        limit_mib: options.limit_mib,
        left: captured.left,
        other_calls: decoder.other_calls(),
        loudness: options.loudness(),
    };
    match extent {
        Extent::CutByDisk(error) => {
            Err(RecordError::DiskFull { recorded: Box::new(recorded), error })
        }
        Extent::CutByLimit => Err(RecordError::LimitReached(Box::new(recorded))),
        _ if recorded.written.lost > 0 => Err(RecordError::Incomplete(Box::new(recorded))),
        Extent::Whole | Extent::Discarded => Ok(recorded),
    }
}

fn outputs(options: &Record) -> Result<Outputs, RecordError> {
    let existing = if options.force { Existing::Replace } else { Existing::Keep };
    let selection = &options.selection;
    let name = match (options.command.first(), &selection.cgroup, selection.pid.first()) {
        (Some(program), _, _) => program.clone(),
        (None, Some(group), _) => group.into(),
        (None, None, Some(pid)) => format!("pid-{pid}").into(),
        (None, None, None) => "all".into(),
    };
    let path = match &options.output {
        Some(path) => path.clone(),
        None => default_name(&name).ok_or(RecordError::NoName { program: name })?,
    };
    let at_limit = if options.keep_latest { AtLimit::KeepLatest } else { AtLimit::Stop };
    Ok(Outputs::new(&path, existing, at_limit)?)
}

fn default_buffer_kib() -> u32 {
    let cpus = thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32);
    (BUFFERS_KIB / cpus).clamp(BUFFER_KIB_MIN, BUFFER_KIB)
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
