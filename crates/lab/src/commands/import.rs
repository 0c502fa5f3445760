//! `shootdown import`: makes a recording from the text output of other tools.

use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, ValueEnum};
use indicatif::HumanBytes;
use shootdown_recording::import::{
    Grouping, ImportError, Imported, Options, Program, Requester, requesters,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::converted::converted;
use crate::error::{Failure, Help, INTERRUPTED, bad_input, cannot_run, shown, user_errors};
use crate::output::{Existing, Output, OutputError, print};
use crate::progress;

pub(crate) const EXAMPLES: &str = include_str!("../../help/import.txt").trim_ascii_end();

/// The options of `shootdown import`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Import {
    /// The output of `trace-cmd report` or `perf script --ns`, a copy of the kernel's `trace` file,
    /// or perf.data or trace.dat, which those tools then convert
    #[arg(value_name = "INPUT")]
    input: PathBuf,
    /// The tool that wrote INPUT
    #[arg(long, value_enum, default_value_t = Tool::Auto)]
    source: Tool,
    #[command(flatten)]
    program: ProgramArg,
    /// The file of the recording
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Replace FILE if it exists
    #[arg(long)]
    force: bool,
}

/// The program that is imported, of all programs in the text.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
struct ProgramArg {
    /// Import the process with this number, with its threads and descendants
    ///
    /// If the text has no PIDs, threads that existed before the text are left out.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Import the first process with this name, with its threads and descendants
    ///
    /// If the text has no PIDs, all threads that existed before the text and have this
    /// name are taken for one process.
    #[arg(long, value_name = "NAME")]
    command: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tool {
    /// The tool that wrote the first event, recognised by its format
    Auto,
    /// `trace-cmd report`, or the kernel's `trace` file
    TraceCmd,
    /// `perf script`
    Perf,
}

/// A recording that was made from a text.
#[derive(Clone, Debug)]
struct Kept {
    imported: Imported,
    input: PathBuf,
    output: PathBuf,
    bytes: u64,
}

user_errors! {
    /// There is no recording, or an incomplete one.
    #[derive(Debug, thiserror::Error)]
    enum ImportFailure {
        /// The text could not be opened.
        #[error("{}: {error}", shown(.path))]
        NoInput { path: PathBuf, error: io::Error } =>
            bad_input("make the text with `trace-cmd report > FILE` or `perf script --ns > FILE`"),
        /// The text was refused.
        #[error("{}: {error}", shown(.path))]
        Refused { path: PathBuf, error: ImportError } => bad_input(error.remedy()),
        /// No program was chosen.
        #[error("{}: choose a program: {}", shown(.path), listed(.requesters))]
        NoProgram { path: PathBuf, requesters: Vec<Requester> } =>
            bad_input(match requesters.first() {
                Some(first) => format!("add --pid {}", first.pid),
                None => "add --pid PID or --command NAME".to_owned(),
            }),
        /// The recording could not be written.
        #[error(transparent)]
        Output(error: #[from] OutputError) => error.help(),
        /// The handlers of signals could not be installed.
        #[error("signals: {0}")]
        Signals(_: io::Error) => cannot_run("stop other programs, and run the command again"),
        /// A file of another tool cannot be converted.
        #[error("no temporary directory: {0}")]
        NoDirectory(_: io::Error) => cannot_run("name a directory with TMPDIR"),
        /// The user stopped the import.
        #[error("interrupted, and nothing was imported")]
        Interrupted => Help::new(INTERRUPTED, "run the command again"),
        /// The recording was kept, but the text lacks events.
        #[error("{}", .0.loss())]
        Incomplete(_: Box<Kept>) => bad_input(
            "record again with larger buffers: trace-cmd record -b 65536, perf record -m 16M",
        ),
    }
}

/// Number of programs that an error lists.
const LISTED_MAX: usize = 5;

fn listed(requesters: &[Requester]) -> String {
    let one = |it: &Requester| format!("{} of {} ({})", it.flushes, it.pid, shown(&it.name));
    match requesters {
        [] => "none in the text requested a flush".to_owned(),
        some => {
            let listed: Vec<_> = some.iter().take(LISTED_MAX).map(one).collect();
            format!("flush requests are {}", listed.join(", "))
        }
    }
}

/// Makes a recording of a text for another command, as `output`. Without `pid`, the text must have
/// one process that requests flushes. Returns `false` if the text lacks events.
///
/// # Errors
///
/// Any [`ImportFailure`] after which there is no recording.
pub(crate) fn of_text(
    (text, input): (&Path, &Path),
    pid: Option<u32>,
    output: &Path,
) -> Result<bool, Failure> {
    let one = || match requesters(BufReader::new(File::open(text).ok()?)).ok()?.as_slice() {
        [only] => Some(only.pid),
        _ => None,
    };
    let options = Import {
        input: input.to_owned(),
        source: Tool::Auto,
        program: ProgramArg { pid: pid.or_else(one), command: None },
        output: output.to_owned(),
        force: true,
    };
    let (kept, is_whole) = match import(&options, text, &Stop::default()) {
        Ok(kept) => (kept, true),
        Err(ImportFailure::Incomplete(kept)) => (*kept, false),
        Err(error) => return Err(error.into()),
    };
    kept.print_notes();
    Ok(is_whole && !kept.imported.is_cut)
}

/// Makes a recording from a text, which errors name `input`.
///
/// # Errors
///
/// Any [`ImportFailure`]. A recording exists only after [`ImportFailure::Incomplete`].
fn import(options: &Import, text: &Path, stop: &Stop) -> Result<Kept, ImportFailure> {
    let Import { input, output, .. } = options;
    let existing = if options.force { Existing::Replace } else { Existing::Keep };
    let output = Output::new(output, existing)?;
    let no_input = |error| ImportFailure::NoInput { path: input.clone(), error };
    let text = File::open(text).map_err(no_input)?;
    if options.program.pid.is_none() && options.program.command.is_none() {
        let requesters = requesters(BufReader::new(text));
        let path = input.clone();
        return Err(match requesters {
            Ok(requesters) => ImportFailure::NoProgram { path, requesters },
            Err(error) => ImportFailure::Refused { path, error },
        });
    }
    let metadata = text.metadata().map_err(no_input)?;
    output.refuse_input(&metadata)?;
    let template = "importing: {bytes} of {total_bytes}, {elapsed}";
    let progress = progress::bar(Some(metadata.len()), template);
    let text = Stoppable { text: progress.wrap_read(text), stop };
    let imported = shootdown_recording::import::import(
        BufReader::new(text),
        &options.options(),
        output.create()?,
    );
    progress.finish_and_clear();
    if stop.is_requested() {
        return Err(ImportFailure::Interrupted);
    }
    let (imported, file) = imported.map_err(|error| match error {
        ImportError::Write(error) => ImportFailure::Output(output.unwritable(error)),
        error => ImportFailure::Refused { path: input.clone(), error },
    })?;
    let bytes = output.keep(file)?;
    let kept = Kept { imported, input: input.clone(), output: output.path().to_owned(), bytes };
    if kept.imported.is_complete {
        Ok(kept)
    } else {
        Err(ImportFailure::Incomplete(Box::new(kept)))
    }
}

impl Import {
    /// Imports a file. SIGINT, SIGTERM and SIGHUP stop the import and leave no file.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let stop = Stop::listen()?;
        let directory = tempfile::tempdir().map_err(ImportFailure::NoDirectory)?;
        let text = converted(&self.input, directory.path())?;
        let kept = import(self, &text.path, &stop)?;
        kept.print_notes();
        Ok(print(&kept.to_string())?)
    }

    fn options(&self) -> Options {
        let source = match self.source {
            Tool::Auto => None,
            Tool::TraceCmd => Some(shootdown_recording::Source::TraceCmd),
            Tool::Perf => Some(shootdown_recording::Source::PerfScript),
        };
        let program = match (self.program.pid, &self.program.command) {
            (Some(pid), _) => Program::Pid(pid),
            (None, name) => Program::Name(name.clone().unwrap_or_default()),
        };
        Options { source, program }
    }
}

/// The request of the user to stop.
#[derive(Debug, Default)]
struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From this call on, signals only set the request, so that the process can remove an
    /// incomplete recording before it ends.
    fn listen() -> Result<Self, ImportFailure> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register(signal, Arc::clone(&stop)).map_err(ImportFailure::Signals)?;
        }
        Ok(Self(stop))
    }

    fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A text that cannot be read any more after a request to stop.
#[derive(Debug)]
struct Stoppable<'a, T> {
    text: T,
    stop: &'a Stop,
}

impl<T: Read> Read for Stoppable<'_, T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_requested() {
            // Readers would retry after an error of the kind `Interrupted`.
            return Err(io::Error::other("interrupted"));
        }
        self.text.read(buffer)
    }
}

impl<T: Seek> Seek for Stoppable<'_, T> {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.text.seek(position)
    }
}

impl Kept {
    fn print_notes(&self) {
        for note in self.notes() {
            // If standard error is closed, only the note is lost.
            let _ = writeln!(io::stderr(), "note: {note}");
        }
    }

    /// Returns what the recording lacks, or what was assumed, because the text lacks it.
    fn notes(&self) -> Vec<String> {
        let Imported { process, threads, grouping, began_before, has_interrupts, .. } =
            self.imported;
        let mut notes = Vec::new();
        match grouping {
            Grouping::Name if threads > 1 => notes.push(format!(
                "the text has no PIDs: {threads} threads with the name are taken for \
                 process {process}"
            )),
            Grouping::OneThread if began_before => notes.push(format!(
                "the text has no PIDs: other threads of process {process} that existed \
                 before it are left out"
            )),
            Grouping::Process | Grouping::Name | Grouping::OneThread => {}
        }
        if began_before {
            notes.push(
                "the program began before the text: the memory that it had mapped is unknown, so \
                 the replay lacks flushes of this memory"
                    .to_owned(),
            );
        }
        if self.imported.is_cut {
            notes.push("the text ends within a line, which is left out".to_owned());
        }
        if !has_interrupts {
            notes.push(
                "the text has no events of interrupts (csd_queue_cpu, ipi_send_cpu, \
                 ipi_send_cpumask): a request is inferred from each CPU that flushed when another \
                 one asked, and the recording cannot be replayed"
                    .to_owned(),
            );
        }
        notes
    }

    /// Returns the error text of an incomplete recording.
    fn loss(&self) -> String {
        let events = match self.imported.lost {
            0 => "events".to_owned(),
            lost => format!("{lost} events"),
        };
        format!("{events} were lost: {} was kept, but lacks them", shown(&self.output))
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Imported { events, unknown, process, cpus, time_ns, .. } = self.imported;
        let (input, output) = (shown(&self.input), shown(&self.output));
        writeln!(
            f,
            "imported {events} events ({unknown} of unknown kinds) of {input}, process {process} \
             on {cpus} CPUs in {:.1} s: {output} ({})",
            time_ns as f64 / 1e9,
            HumanBytes(self.bytes),
        )?;
        writeln!(f, "try:   shootdown replay {output}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::fs;

    use clap::Parser;
    use shootdown_recording::Reader;

    use crate::output::Reason;

    const TEXT: &str = include_str!("../../../recording/tests/import/kernel.txt");

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        import: Import,
    }

    fn parse(words: &[&OsStr]) -> Result<Import, clap::Error> {
        let words = [OsStr::new("import")].into_iter().chain(words.iter().copied());
        Line::try_parse_from(words).map(|line| line.import)
    }

    fn import(options: &Import) -> Result<Kept, ImportFailure> {
        super::import(options, &options.input, &Stop::default())
    }

    /// Imports `text` into `x.shootdown` in `directory`.
    fn import_in(
        directory: &Path,
        text: &str,
        more: &[&str],
    ) -> (PathBuf, Result<Kept, ImportFailure>) {
        let (input, output) = (directory.join("trace.txt"), directory.join("x.shootdown"));
        fs::write(&input, text).expect("a text");
        let mut words = vec![input.as_os_str(), OsStr::new("-o"), output.as_os_str()];
        words.extend(more.iter().map(OsStr::new));
        let result = import(&parse(&words).expect("options"));
        (output, result)
    }

    fn files(directory: &Path) -> usize {
        fs::read_dir(directory).expect("a directory").count()
    }

    #[test]
    fn imported_recording_is_readable() {
        let directory = tempfile::tempdir().expect("a directory");
        let (output, result) = import_in(directory.path(), TEXT, &["--command", "mapper"]);
        let summary = result.expect("a recording").to_string();
        assert!(summary.starts_with("imported 287 events (0 of unknown kinds) of "), "{summary}");
        assert!(summary.contains(", process 19820 on 2 CPUs in 0.0 s: "), "{summary}");
        let reader = Reader::open(File::open(output).expect("a file")).expect("a header");
        assert!(reader.count() > 200);
        assert_eq!(files(directory.path()), 2);
    }

    #[test]
    fn existing_file_is_replaced_only_with_force() {
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("x.shootdown"), "precious").expect("a file");
        let (output, result) = import_in(directory.path(), TEXT, &["--pid", "19820"]);
        assert!(matches!(
            result,
            Err(ImportFailure::Output(OutputError { reason: Reason::Exists, .. }))
        ));
        assert_eq!(fs::read(&output).expect("a file"), b"precious");
        let (output, result) = import_in(directory.path(), TEXT, &["--pid", "19820", "--force"]);
        assert!(result.is_ok());
        assert_ne!(fs::read(&output).expect("a file"), b"precious");
    }

    #[test]
    fn refused_text_leaves_no_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let (output, result) = import_in(directory.path(), "\x1b[2J\n", &["--pid", "1"]);
        let failure = result.expect_err("no event");
        assert!(failure.to_string().ends_with("trace.txt: there is no event in the text"));
        assert!(!output.exists());
        assert_eq!(files(directory.path()), 1);
    }

    #[test]
    fn incomplete_text_is_imported_with_error() {
        let directory = tempfile::tempdir().expect("a directory");
        for (lost, cause) in [("LOST 7", "7 events were lost: "), ("LOST", "events were lost: ")] {
            let text = format!("{TEXT}CPU:1 [{lost} EVENTS]\n");
            let more = ["--command", "mapper", "--force"];
            let (output, result) = import_in(directory.path(), &text, &more);
            let failure = result.expect_err("events were lost");
            assert!(failure.to_string().starts_with(cause), "{failure:?}");
            assert!(output.exists());
        }
    }

    #[test]
    fn at_most_one_program_is_chosen() {
        let words = |words: &[&str]| parse(&words.iter().map(OsStr::new).collect::<Vec<_>>());
        assert!(words(&["t", "-o", "x", "--pid", "1"]).is_ok());
        assert!(words(&["t", "-o", "x"]).is_ok(), "the programs are listed");
        assert!(words(&["t", "-o", "x", "--pid", "1", "--command", "sh"]).is_err());
        assert!(words(&["t", "-o", "x", "--pid", "-1"]).is_err());
    }

    #[test]
    fn unopened_or_unwritten_path_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        let failure = |input: &Path, output: &Path| {
            let (pid, number) = (OsStr::new("--pid"), OsStr::new("19820"));
            let words = [input.as_os_str(), OsStr::new("-o"), output.as_os_str(), pid, number];
            import(&parse(&words).expect("options")).expect_err("no recording")
        };
        let missing = failure(&path("none\x07"), &path("x"));
        assert!(matches!(missing, ImportFailure::NoInput { .. }));
        assert!(missing.to_string().contains("none\\u{7}: "), "{missing:?}");
        fs::write(path("t"), TEXT).expect("a text");
        let unwritten = failure(&path("t"), &path("missing/x"));
        assert!(matches!(
            unwritten,
            ImportFailure::Output(OutputError { reason: Reason::Unwritable(_), .. })
        ));
    }

    #[test]
    fn output_does_not_replace_input() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("t");
        fs::write(&path, TEXT).expect("a text");
        let words = ["--pid", "19820", "--force", "-o"].map(OsStr::new);
        let words = [&words[..], &[path.as_os_str(); 2]].concat();
        let failure = import(&parse(&words).expect("options")).expect_err("no recording");
        assert!(matches!(
            failure,
            ImportFailure::Output(OutputError { reason: Reason::IsInput, .. })
        ));
        assert_eq!(fs::read_to_string(&path).expect("text"), TEXT);
        assert_eq!(files(directory.path()), 1);
    }
}
