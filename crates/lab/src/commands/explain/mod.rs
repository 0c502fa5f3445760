//! `shootdown explain`: the causes and call sites of the TLB shootdowns in a recording or of a
//! command, their cost, and the changes that would remove them.
//!
//! In reading order: `predict` replays changed recordings. `findings` is the result, and `text`,
//! `folded`, `flamegraph` and `timeline` are its formats besides JSON. `budget` holds it against
//! limits, and `compare` against that of another recording. `cpu` is the view of a CPU. `page` is a
//! part of the page of `shootdown report`, and `error` has the errors.

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

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, ValueEnum};
use shootdown_explain::{Analysis, Costs, Explanation};

use super::record::{self, Follow, ProgramOutput, Purpose, StackOptions};
use crate::error::Failure;
use crate::output::{Existing, print};
use crate::recordings::{open_intact_part, refused};
use crate::render::{grouped, json};
use crate::selection::Selection;

use budget::Budget;
use compare::Comparison;
use cpu::{Beside, Interrupts, OfCpu};
use error::ExplainError;
use findings::{Findings, Overhead};
pub(crate) use findings::{caller, shown_frame};
use predict::Prediction;

pub(crate) const EXAMPLES: &str = "\
Examples:
  shootdown explain -- ./server --threads 2
  shootdown explain --pid 4711 --duration 10s
  shootdown explain server.shootdown
  shootdown explain server.shootdown --format json
  shootdown explain server.shootdown --format flamegraph > server.svg
  shootdown explain --all --cpu 3 --duration 10s
  shootdown explain --compare before.shootdown after.shootdown
  shootdown explain --budget 'requests<=1000,cpu<=0.1%' -- ./server

The first line has the part of the program's CPU time that shootdowns take. From 0.1 % on, it names
the caller that costs most, and what would remove its shootdowns. Of a command or of running
programs, `explain` makes a recording first: see `shootdown record --help`. Standard output of the
command is printed to standard error unless the format is text. Exits with 1 if --budget is
exceeded.";

/// The options of `shootdown explain`.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("selected").args(["recording", "pid", "cgroup", "all", "command"])
    .required(true))]
pub(crate) struct Explain {
    /// A recording, as `shootdown record` writes it
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
    /// The side that selects the calls and faults of CMD among those of all programs [default:
    /// recorder, if other programs use at most a quarter of the CPUs' time]
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
        if let Some(recording) = &self.recording {
            return self.explain(recording, Overhead::default(), None);
        }
        let directory = tempfile::tempdir().map_err(ExplainError::NoDirectory)?;
        let path = match &self.output {
            Some(path) => path.clone(),
            None => directory.path().join("recording"),
        };
        let purpose = match self.output {
            Some(_) => Purpose::Keep,
            None => Purpose::Explain(self.follow),
        };
        let program_output = match self.format {
            Format::Text => ProgramOutput::Inherited,
            _ => ProgramOutput::Errors,
        };
        let how = (&self.stacks, purpose, program_output);
        let before = Interrupts::now();
        if let (Some(cpu), Some(cpus)) = (self.cpu, before.cpus()) {
            refuse_missing(cpu, cpus)?;
        }
        let live = record::to_file(&path, Existing::Keep, &self.selection, &self.command, how)?;
        let overhead = Overhead {
            stacks_lost: Some(live.stacks_lost),
            stack_rate_hz: self.stacks.rate_hz(),
            recorder_cpu_ns: Some(live.recorder_cpu_ns),
            ..Overhead::default()
        };
        let beside = Beside { calls: live.other_calls, before, after: Interrupts::now() };
        self.explain(&path, overhead, Some(&beside))
    }

    fn explain(
        &self,
        path: &Path,
        overhead: Overhead,
        beside: Option<&Beside>,
    ) -> Result<(), Failure> {
        let (analysis, explanation, is_whole) = analysed(path)?;
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
        let advice = predict::advice(prediction, path, &analysis, &explanation);
        let findings = Findings::new(&analysis, &explanation, advice, overhead);
        if let Some(earlier) = &self.compare {
            return self.compare(&findings, earlier);
        }
        match self.format {
            Format::Json => print(&json(&findings))?,
            Format::Text => print(&text::findings(&findings, self.sites))?,
            Format::Folded | Format::Timeline | Format::Flamegraph => {}
        }
        let Some(budget) = &self.budget else { return Ok(()) };
        budget.check(&findings.total)?;
        if is_whole && findings.lost == 0 && !findings.is_blind {
            Ok(())
        } else {
            Err(ExplainError::Undecided.into())
        }
    }

    fn compare(&self, findings: &Findings, earlier: &Path) -> Result<(), Failure> {
        let (analysis, explanation, _) = analysed(earlier)?;
        let advice = predict::advice(Prediction::Count, earlier, &analysis, &explanation);
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

/// Reads a recording, and sums its flushes. The last result is `false` if the file was cut.
fn analysed(path: &Path) -> Result<(Analysis, Explanation, bool), Failure> {
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
    Ok((analysis, explanation, reader.cut().is_none()))
}
