//! `shootdown explain`: the causes and call sites of the TLB shootdowns in a recording or of a
//! command, their cost, and the changes that would remove them.
//!
//! In reading order: `predict` replays changed recordings. `findings` is the result, and `text`,
//! `folded`, `flamegraph` and `timeline` are its formats besides JSON. `page` is a part of the page
//! of `shootdown report`.

mod findings;
mod flamegraph;
mod folded;
pub(crate) mod page;
mod predict;
mod text;
mod timeline;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, ValueEnum};
use shootdown_explain::{Analysis, Costs, Explanation};

use super::record::{self, Follow, Purpose, StackOptions};
use crate::error::{Failure, UserError};
use crate::output::{Existing, print};
use crate::recordings::{open, refused};
use crate::render::json;
use crate::selection::Selection;

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

The first line names the call site that costs most, and what would remove its shootdowns. Of a
command or of running programs, `explain` makes a recording first: see `shootdown record --help`.";

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
    /// Keep the recording of a command or of running programs as FILE
    #[arg(long, short, value_name = "FILE", conflicts_with = "recording")]
    output: Option<PathBuf>,
    /// Who selects the calls and faults of CMD among those of all programs [default: recorder, if
    /// other programs use at most a quarter of the CPUs' time]
    #[arg(long, value_enum, value_name = "WHO", conflicts_with_all = ["recording", "output"])]
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

impl Explain {
    /// Explains a recording, or records a command first.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if let Some(recording) = &self.recording {
            return self.explain(recording, Overhead::default());
        }
        let directory = tempfile::tempdir().map_err(NoDirectory)?;
        let path = match &self.output {
            Some(path) => path.clone(),
            None => directory.path().join("recording"),
        };
        let purpose = match self.output {
            Some(_) => Purpose::Keep,
            None => Purpose::Explain(self.follow),
        };
        let how = (&self.stacks, purpose);
        let live = record::to_file(&path, Existing::Keep, &self.selection, &self.command, how)?;
        let overhead = Overhead {
            stacks_lost: Some(live.stacks_lost),
            stack_rate_hz: self.stacks.rate_hz(),
            recorder_cpu_ns: Some(live.recorder_cpu_ns),
            ..Overhead::default()
        };
        self.explain(&path, overhead)
    }

    fn explain(&self, path: &Path, overhead: Overhead) -> Result<(), Failure> {
        let costs = Costs::MODEL;
        let analysis = Analysis::of(open(path)?, costs).map_err(|error| refused(path, error))?;
        let explanation = Explanation::of(&analysis, costs);
        match self.format {
            Format::Folded => return Ok(print(&folded::stacks(&analysis, &explanation))?),
            Format::Timeline => return Ok(print(&timeline::events(&analysis, &explanation))?),
            Format::Flamegraph => {
                return Ok(print(&flamegraph::graph(&analysis, &explanation)?)?);
            }
            Format::Text | Format::Json => {}
        }
        let advice = predict::advice(self.predict, path, &analysis, &explanation);
        let findings = Findings::new(&analysis, &explanation, advice, overhead);
        let text = match self.format {
            Format::Json => json(&findings),
            _ => text::findings(&findings, self.sites),
        };
        Ok(print(&text)?)
    }
}

/// There is no room for the recording.
#[derive(Debug, thiserror::Error)]
#[error("no temporary directory: {0}")]
struct NoDirectory(std::io::Error);

impl UserError for NoDirectory {
    fn exit_status(&self) -> u8 {
        crate::error::CANNOT_RUN
    }

    fn remedy(&self) -> String {
        "name a file for the recording with --output FILE".to_owned()
    }
}
