//! `shootdown explain`: the causes and call sites of the TLB shootdowns in a recording or of a
//! command, their cost, and the changes that would remove them.
//!
//! In reading order: `predict` replays changed recordings, and `unnamed` lists files without names.
//! `findings` is the result, and `text`, `folded`, `flamegraph` and `timeline` are its formats
//! besides JSON. `budget` holds it against limits, `compare` against that of another recording, and
//! `trial` against a run with a change. `cpu` is the view of a CPU. `page` is a part of the page of
//! `shootdown report`, and `error` has the errors.

mod budget;
mod compare;
mod cpu;
mod error;
mod findings;
mod flamegraph;
mod folded;
pub(crate) mod page;
mod predict;
mod text;
mod timeline;
mod trial;
mod unnamed;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, ValueEnum};
use shootdown_explain::{Analysis, Costs, Explanation};
use shootdown_recording::Ended;

use super::import;
use super::record::{self, Follow, Live, ProgramOutput, Purpose, StackOptions};
use crate::converted::{beginning, converted};
use crate::error::Failure;
use crate::output::{Existing, print};
use crate::recordings::{open_intact_part, refused};
use crate::render::{grouped, json};
use crate::selection::Selection;

use budget::Budget;
use compare::Comparison;
use cpu::{Beside, Interrupts, OfCpu};
use error::ExplainError;
use findings::{Findings, Overhead, Run, Total};
pub(crate) use findings::{caller, shown_frame};
use predict::Prediction;
use trial::Measured;

pub(crate) const EXAMPLES: &str = include_str!("../../../help/explain.txt").trim_ascii_end();

/// The options of `shootdown explain`.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("selected").args(["recording", "pid", "cgroup", "all", "command"])
    .required(true).multiple(true))]
#[command(group = ArgGroup::new("running").args(["pid", "cgroup", "all", "command"]))]
pub(crate) struct Explain {
    /// A recording, or what `shootdown import` reads: perf.data, trace.dat, their tools' text. With
    /// --pid, only this process of another tool's file
    #[arg(conflicts_with_all = ["cgroup", "all", "command", "duration"])]
    recording: Option<PathBuf>,
    #[command(flatten)]
    selection: Selection,
    /// The format of the output
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// The number of call sites in the text
    #[arg(long, value_name = "N", default_value_t = 5)]
    sites: usize,
    /// The prediction of what advice saves
    #[arg(long, value_enum, default_value_t = Prediction::Replay)]
    predict: Prediction,
    /// Compare the recording with an earlier one
    #[arg(long, value_name = "EARLIER", requires = "recording")]
    compare: Option<PathBuf>,
    /// Exit with 1 if a number is larger: requests<=N, interrupts<=N, cpu<=P%, separated by commas
    #[arg(long, value_name = "LIMITS", conflicts_with = "compare")]
    budget: Option<Budget>,
    /// Explain the interrupts of this CPU: the programs, causes and calls that ask it to flush
    #[arg(long, value_name = "N", conflicts_with_all = ["compare", "budget"])]
    cpu: Option<u32>,
    /// Keep the recording of a command or of running programs as FILE
    #[arg(long, short, value_name = "FILE", conflicts_with = "recording")]
    output: Option<PathBuf>,
    /// Run CMD N times, print the spread of its requests, and explain the run with the median
    #[arg(long, value_name = "N", default_value_t = 1, requires = "command",
          conflicts_with_all = ["output", "cpu"],
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Run CMD again with each of the three best changes that need only environment or options, and
    /// print what it removes beside the prediction
    #[arg(long = "try", requires = "command", conflicts_with_all = ["output", "cpu"])]
    is_tried: bool,
    /// Where the calls and faults of CMD are separated from those of other programs [default:
    /// recorder, if these use at most a quarter of the CPUs' time]
    #[arg(long, value_enum, value_name = "SIDE", conflicts_with_all = ["recording", "output"])]
    follow: Option<Follow>,
    #[command(flatten)]
    stacks: StackOptions,
    /// The program to record and explain, and its arguments
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Causes and call sites for reading
    Text,
    /// One object
    Json,
    /// A line for each call stack with its CPU time in ns, as flame graph tools read it
    Folded,
    /// A flame graph of CPU time as SVG, for a browser
    Flamegraph,
    /// Trace events as JSON: a timeline for Perfetto
    Timeline,
}

impl Format {
    fn has_tables(self) -> bool {
        matches!(self, Self::Text | Self::Json)
    }
}

impl Explain {
    /// Explains a recording, or records a command first.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if !self.format.has_tables() && (self.cpu.is_some() || self.compare.is_some()) {
            return Err(ExplainError::OnlyTables.into());
        }
        let directory = tempfile::tempdir().map_err(ExplainError::NoDirectory)?;
        if let Some(file) = &self.recording {
            let read = |file| recording_of(file, &self.selection.pid, directory.path());
            let earlier = self.compare.as_deref().map(read).transpose()?;
            let recording = read(file)?;
            return self.explain(&recording, Overhead::default(), (None, earlier.as_ref()));
        }
        let before = Interrupts::now();
        if let (Some(cpu), Some(cpus)) = (self.cpu, before.cpus()) {
            refuse_missing(cpu, cpus)?;
        }
        if self.runs > 1 || self.is_tried {
            let (recording, overhead) = self.median_run(&self.command, directory.path())?;
            return self.explain(&recording, overhead, (None, None));
        }
        let path = self.output.clone().unwrap_or_else(|| directory.path().join("recording"));
        let live = self.record(&self.command, &path)?;
        let overhead = self.overhead(&live);
        let beside = Beside { calls: live.other_calls, before, after: Interrupts::now() };
        self.explain(&Recording::at(&path), overhead, (Some(&beside), None))
    }

    fn record(&self, command: &[OsString], path: &Path) -> Result<Live, Failure> {
        let purpose = match self.output {
            Some(_) => Purpose::Keep,
            None => Purpose::Explain(self.follow),
        };
        let program_output = match self.format {
            Format::Text => ProgramOutput::Inherited,
            _ => ProgramOutput::Errors,
        };
        let how = (&self.stacks, purpose, program_output);
        record::to_file(path, Existing::Keep, &self.selection, command, how)
    }

    fn overhead(&self, live: &Live) -> Overhead {
        Overhead {
            stacks_lost: Some(live.stacks_lost),
            stack_rate_hz: self.stacks.rate_hz(),
            recorder_cpu_ns: Some(live.recorder_cpu_ns),
            ..Overhead::default()
        }
    }

    /// Records a command as often as the user wants. Returns the run with the median of the
    /// requests.
    fn median_run(
        &self,
        command: &[OsString],
        directory: &Path,
    ) -> Result<(Recording, Overhead), Failure> {
        let mut recorded = Vec::new();
        for run in 0..self.runs {
            let path = directory.join(run.to_string());
            let live = self.record(command, &path)?;
            let overhead = self.overhead(&live);
            let (analysis, explanation, _) = analysed(&Recording::at(&path))?;
            let Total { sum, cpu_share, .. } = Total::of(&analysis, &explanation);
            recorded.push((
                Run { requests: sum.requests, cpu_share },
                (path, live.ended),
                overhead,
            ));
        }
        recorded.sort_by_key(|(run, ..)| run.requests);
        let runs: Vec<_> = recorded.iter().map(|(run, ..)| *run).collect();
        let (_, (path, ended), overhead) = recorded.swap_remove((recorded.len() - 1) / 2);
        let runs = if self.runs > 1 { runs } else { Vec::new() };
        Ok((Recording { runs, ended: Some(ended), ..Recording::at(&path) }, overhead))
    }

    /// Runs the command with each change of the advice that needs only settings.
    fn tried(&self, findings: &mut Findings, before: &Recording) -> Result<(), Failure> {
        let mut trials = trial::planned(findings);
        for trial in &mut trials {
            trial.result = match trial::changed(&self.command, &trial.settings) {
                Err(name) => Measured::Refused { reason: format!("{name} is set already") },
                Ok(command) => {
                    let directory = tempfile::tempdir().map_err(ExplainError::NoDirectory)?;
                    let (recording, _) = self.median_run(&command, directory.path())?;
                    let (analysis, explanation, _) = analysed(&recording)?;
                    let after = Total::of(&analysis, &explanation);
                    let removed = findings.total.sum.requests.saturating_sub(after.sum.requests);
                    // A program that refuses a setting makes no requests either.
                    if recording.ended == before.ended {
                        Measured::Run { after, removed }
                    } else {
                        Measured::Refused { reason: "the command ends differently".to_owned() }
                    }
                }
            };
        }
        findings.tried = trials;
        Ok(())
    }

    fn explain(
        &self,
        recording: &Recording,
        overhead: Overhead,
        (beside, earlier): (Option<&Beside>, Option<&Recording>),
    ) -> Result<(), Failure> {
        let (analysis, explanation, is_whole) = analysed(recording)?;
        if let Some(cpu) = self.cpu {
            refuse_missing(cpu, analysis.header.cpus)?;
            let of_cpu = OfCpu::of(cpu, &analysis, &explanation, beside);
            let is_json = self.format == Format::Json;
            return Ok(print(&if is_json { json(&of_cpu) } else { of_cpu.text(self.sites) })?);
        }
        match self.format {
            Format::Folded => print(&folded::stacks(&analysis, &explanation))?,
            Format::Timeline => print(&timeline::events(&analysis, &explanation))?,
            Format::Flamegraph => print(&flamegraph::graph(&analysis, &explanation)?)?,
            Format::Text | Format::Json => {}
        }
        let has_advice = self.format.has_tables() && self.compare.is_none();
        let prediction = if has_advice { self.predict } else { Prediction::Count };
        let advice = predict::advice(prediction, &recording.path, &analysis, &explanation);
        let mut findings = Findings::new(&analysis, &explanation, advice, overhead);
        findings.runs.clone_from(&recording.runs);
        if self.is_tried {
            self.tried(&mut findings, recording)?;
        }
        if let Some(earlier) = earlier {
            return self.compare(&findings, earlier);
        }
        match self.format {
            Format::Json => print(&json(&findings))?,
            Format::Text => print(&text::findings(&findings, self.sites))?,
            Format::Folded | Format::Timeline | Format::Flamegraph => {}
        }
        let Some(budget) = &self.budget else { return Ok(()) };
        budget.check(&findings.total)?;
        if is_whole && findings.lost == 0 && !findings.is_blind && !findings.is_inferred {
            Ok(())
        } else {
            Err(ExplainError::Undecided.into())
        }
    }

    fn compare(&self, findings: &Findings, earlier: &Recording) -> Result<(), Failure> {
        let (analysis, explanation, _) = analysed(earlier)?;
        let advice = predict::advice(Prediction::Count, &earlier.path, &analysis, &explanation);
        let earlier = Findings::new(&analysis, &explanation, advice, Overhead::default());
        let comparison = Comparison::of(&earlier, findings);
        let text = match self.format {
            Format::Json => json(&comparison),
            _ => comparison.text(self.sites),
        };
        Ok(print(&text)?)
    }
}

fn refuse_missing(cpu: u32, cpus: u32) -> Result<(), ExplainError> {
    if cpu < cpus { Ok(()) } else { Err(ExplainError::NoCpu { cpu, last: cpus.saturating_sub(1) }) }
}

/// A recording, or one that was made of another tool's file.
struct Recording {
    path: PathBuf,
    /// `false` if the other file was cut, or its tool lost events.
    is_whole: bool,
    /// All runs of the command, by requests, if there are several. The recording is of one of them.
    runs: Vec<Run>,
    /// The end of the command, if it ran.
    ended: Option<Ended>,
}

impl Recording {
    fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), is_whole: true, runs: Vec::new(), ended: None }
    }
}

/// Returns the recording at `file`. If the file is another tool's, makes one of its process `pids`
/// in `directory`.
fn recording_of(file: &Path, pids: &[u32], directory: &Path) -> Result<Recording, Failure> {
    let directory = tempfile::Builder::new().disable_cleanup(true).tempdir_in(directory);
    let directory = directory.map_err(ExplainError::NoDirectory)?;
    let text = converted(file, directory.path())?;
    match (beginning(&text.path).first(), pids) {
        // A recording begins like this. Errors of files that cannot be read are its reader's.
        (None | Some(0x89), []) => {
            Ok(Recording { is_whole: text.is_whole, ..Recording::at(&text.path) })
        }
        (None | Some(0x89), _) | (_, [_, _, ..]) => Err(ExplainError::OneProgram.into()),
        (Some(_), pids) => {
            let path = directory.path().join("recording");
            let is_whole = import::of_text((&text.path, file), pids.first().copied(), &path)?;
            Ok(Recording { is_whole: is_whole && text.is_whole, ..Recording::at(&path) })
        }
    }
}

/// Reads a recording, and sums its flushes. The last result is `false` if the file was cut.
fn analysed(recording: &Recording) -> Result<(Analysis, Explanation, bool), Failure> {
    let path = recording.path.as_path();
    let costs = Costs::MODEL;
    let mut reader = open_intact_part(path)?;
    let analysis = Analysis::of(&mut reader, costs).map_err(|error| refused(path, error))?;
    if let Some(cut) = reader.cut() {
        // If standard error is closed, only the note is lost.
        let _ = writeln!(io::stderr(), "note: only the intact part is explained: {cut}");
    }
    if analysis.lost > 0 {
        let lost = grouped(analysis.lost);
        let _ = writeln!(io::stderr(), "warning: {lost} events were lost, so counts are too small");
    }
    let explanation = Explanation::of(&analysis, costs);
    Ok((analysis, explanation, recording.is_whole && reader.cut().is_none()))
}
