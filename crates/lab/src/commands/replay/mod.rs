//! `shootdown replay`: a recording under several designs.

pub(crate) mod comparison;
mod csv;
pub(crate) mod page;
mod replays;
mod tables;
pub(crate) mod text;
mod verdict;

use std::path::PathBuf;

use clap::Args;
use shootdown_designs::{Design, registry};

use crate::error::{Failure, UserError, shown};
use crate::machines::{self, Embedded};
use crate::output::print;
use crate::render::{Format, Printed};

use replays::{DEFAULT_RUNS, Request};
use verdict::{Schedule, Verdict};

pub(crate) const EXAMPLES: &str = "\
Examples:
  shootdown replay traces/sort.shootdown
  shootdown replay sort.shootdown --designs linux-7.0,shootdown --format json
  shootdown replay sort.shootdown --schedule simulated --machine xeon-2s

By the recorded schedule, every step is on its recorded CPU and in its recorded order; linux-7.0 can
then be held against what the recorded kernel really did. By a simulated one, the machine decides.";

#[derive(Args, Clone, Debug)]
pub(crate) struct Replay {
    /// A recording, as `shootdown record` or `shootdown import` writes it
    trace: PathBuf,
    /// The machine to replay it on: a name, or a file that ends in .toml
    #[arg(long, value_name = "MACHINE", default_value = DEFAULT_MACHINE.name)]
    machine: String,
    /// The designs, with commas between them
    #[arg(long, value_name = "A,B", value_delimiter = ',',
          default_values_t = SIDE_BY_SIDE.map(|design| design.name().to_owned()))]
    designs: Vec<String>,
    /// Whose decision it is which thread runs where
    #[arg(long, value_enum, default_value_t = Schedule::Recorded)]
    schedule: Schedule,
    /// Where the simulated schedule's random numbers start
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Over how many runs, with a seed each, to take the mean of a simulated schedule
    #[arg(long, value_name = "N", default_value_t = DEFAULT_RUNS,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// How to print what came of it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// A machine like the one of the recordings in `traces/`.
pub(crate) const DEFAULT_MACHINE: Embedded = Embedded::EMERALD_RAPIDS_KVM;

/// The designs of a report, and this engine with the memory manager of Linux 7.0.
const SIDE_BY_SIDE: [Design; 4] =
    [Design::LINUX_4_12, Design::LINUX_7_0, Design::SHOOTDOWN_ALONE, Design::SHOOTDOWN];

/// There is no such design.
#[derive(Debug, thiserror::Error)]
#[error("there is no design `{}`", shown(.0))]
struct UnknownDesign(String);

impl UserError for UnknownDesign {
    fn remedy(&self) -> String {
        registry().iter().map(|design| design.name()).collect::<Vec<_>>().join(", ")
    }
}

impl Printed for Verdict {
    fn text(&self) -> String {
        text::verdict(self)
    }

    fn csv(&self) -> String {
        csv::verdict(self)
    }
}

impl Replay {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let designs = designs(&self.designs)?;
        let machine = machines::find(&self.machine)?;
        let verdict = replays::run(&Request {
            trace: &self.trace,
            machine: &machine,
            designs: &designs,
            schedule: self.schedule,
            seed: self.seed,
            runs: self.schedule.runs(self.runs),
        })?;
        print(&verdict.in_format(self.format))?;
        Ok(verdict.violated()?)
    }
}

/// The designs of these names, each once.
fn designs(names: &[String]) -> Result<Vec<Design>, UnknownDesign> {
    let mut designs = Vec::new();
    for name in names {
        let design = name.trim().parse().map_err(|_| UnknownDesign(name.clone()))?;
        if !designs.contains(&design) {
            designs.push(design);
        }
    }
    Ok(designs)
}
