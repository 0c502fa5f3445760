//! `shootdown replay`: replays a recording under several designs.

pub(crate) mod comparison;
mod fidelity;
pub(crate) mod page;
mod replays;
mod tables;
pub(crate) mod text;
mod verdict;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use shootdown_designs::{Design, registry};

use crate::error::{Failure, Help, UserError, bad_input};
use crate::machines::{self, Embedded};
use crate::output::print;
use crate::render::Readable;

use replays::DEFAULT_RUNS;

pub(crate) use replays::{Request, TooFewCpus, once, run as replay};
pub(crate) use verdict::{DesignRow, Schedule, Verdict};

pub(crate) const EXAMPLES: &str = include_str!("../../../help/replay.txt").trim_ascii_end();

#[derive(Args, Clone, Debug)]
pub(crate) struct Replay {
    /// A recording, as `shootdown record` or `shootdown import` writes it
    recording: PathBuf,
    /// The machine of the replay: a name, or a file that ends in .toml
    #[arg(long, value_name = "MACHINE", default_value = DEFAULT_MACHINE.name)]
    machine: OsString,
    /// The designs, separated by commas; an unknown name prints the list
    ///
    /// `shootdown` is the engine with the lab's memory manager, `shootdown-alone` the engine alone.
    #[arg(long, value_name = "A,B", value_delimiter = ',',
          default_values_t = SIDE_BY_SIDE.map(|design| design.name().to_owned()))]
    designs: Vec<String>,
    /// The schedule of the threads
    #[arg(long, value_enum, default_value_t = Schedule::Recorded)]
    schedule: Schedule,
    /// The seed of the simulated schedule's random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The number of runs under the simulated schedule, each with another seed; results are means
    #[arg(long, value_name = "N", default_value_t = DEFAULT_RUNS,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// The format of the output
    #[arg(long, value_enum, default_value_t = Readable::Text)]
    format: Readable,
}

/// A machine like the one on which the recordings in `traces/` were made.
pub(crate) const DEFAULT_MACHINE: Embedded = Embedded::EMERALD_RAPIDS_KVM;

/// The designs of a report, and the engine with the memory manager of Linux 7.0.
const SIDE_BY_SIDE: [Design; 4] =
    [Design::LINUX_4_12, Design::LINUX_7_0, Design::SHOOTDOWN_ALONE, Design::SHOOTDOWN];

/// There is no design of that name.
#[derive(Debug, thiserror::Error)]
#[error("{}", shootdown_designs::UnknownDesign(.0.clone()))]
pub(crate) struct UnknownDesign(pub(crate) String);

impl UserError for UnknownDesign {
    fn help(&self) -> Help {
        let names: Vec<_> = registry().iter().map(|design| design.name()).collect();
        bad_input(format!("use some of {}", names.join(", ")))
    }
}

impl Replay {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let designs = designs(&self.designs)?;
        let machine = machines::find(&self.machine)?;
        if self.schedule == Schedule::Recorded
            && let Some(error) = TooFewCpus::find(&self.recording, &machine)?
        {
            return Err(error.into());
        }
        let verdict = replays::run(&Request {
            recording: &self.recording,
            machine: &machine,
            designs: &designs,
            schedule: self.schedule,
            seed: self.seed,
            runs: self.schedule.runs(self.runs),
        })?;
        print(&self.format.of(&verdict, text::verdict))?;
        verdict.violated()?;
        Ok(verdict.accounted()?)
    }
}

/// Returns the designs of these names, each once.
pub(crate) fn designs(names: &[String]) -> Result<Vec<Design>, UnknownDesign> {
    let mut designs = Vec::new();
    for name in names {
        let design = name.trim().parse().map_err(|_| UnknownDesign(name.clone()))?;
        if !designs.contains(&design) {
            designs.push(design);
        }
    }
    Ok(designs)
}
