//! `shootdown replay`: a recording under several designs.

mod csv;
pub(crate) mod html;
mod run;
pub(crate) mod text;
pub(crate) mod verdict;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use shootdown_designs::{Design, registry};

use crate::cli::Format;
use crate::error::Failure;
use crate::{machines, print};

pub(crate) use verdict::Verdict;

#[derive(Args, Clone, Debug)]
pub(crate) struct Replay {
    /// A recording, as `shootdown record` or `shootdown import` writes it
    pub(crate) trace: PathBuf,
    /// The machine to replay it on: a name, or a file that ends in .toml
    #[arg(long, value_name = "MACHINE", default_value = DEFAULT_MACHINE)]
    pub(crate) machine: String,
    /// The designs, with commas between them
    #[arg(long, value_name = "A,B", value_delimiter = ',',
          default_values_t = SIDE_BY_SIDE.map(str::to_owned))]
    pub(crate) designs: Vec<String>,
    /// Whose decision it is which thread runs where
    #[arg(long, value_enum, default_value_t = Schedule::Recorded)]
    pub(crate) schedule: Schedule,
    /// Where the simulated schedule's random numbers start
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Over how many runs, with a seed each, to take the mean of a simulated schedule
    #[arg(long, value_name = "N", default_value_t = DEFAULT_RUNS,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// How to print what came of it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

/// Like the one that made the recordings in `traces/`.
pub(crate) const DEFAULT_MACHINE: &str = "emerald-rapids-kvm";

/// Which of two threads was first is often chance, and decides who waits for a timeslice: a single
/// run says little about a difference of a few tenths of a percent.
pub(crate) const DEFAULT_RUNS: u32 = 16;

/// Those of a report, and this engine with the memory manager doing as under Linux 7.0.
pub(crate) const SIDE_BY_SIDE: [&str; 4] =
    ["linux-4.12", "linux-7.0", "shootdown-alone", "shootdown"];

/// Before seed 000, Linux of today, and this engine.
pub(crate) const DEFAULT_DESIGNS: [&str; 3] = ["linux-4.12", "linux-7.0", "shootdown"];

/// Whose decision it is which thread runs where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Schedule {
    /// The recorded kernel's: every step on its recorded CPU, in the recorded order
    Recorded,
    /// The simulated machine's, which may have other CPUs
    Simulated,
}

impl Schedule {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Simulated => "simulated",
        }
    }
}

/// Runs the command.
pub(crate) fn replay(options: &Replay) -> Result<(), Failure> {
    let designs = designs(&options.designs)?;
    let machine = machines::find(&options.machine)?;
    let verdict = run::run(&run::Request {
        trace: &options.trace,
        machine: &machine,
        designs: &designs,
        schedule: options.schedule,
        seed: options.seed,
        runs: options.runs,
    })?;
    print(&match options.format {
        Format::Text => text::verdict(&verdict),
        Format::Json => json(&verdict),
        Format::Csv => csv::verdict(&verdict),
    })?;
    violated(&verdict)
}

fn designs(names: &[String]) -> Result<Vec<Design>, Failure> {
    let mut designs = Vec::new();
    for name in names {
        let design = name.trim().parse().map_err(|_| Failure::UnknownDesign {
            name: name.clone(),
            known: registry().iter().map(|design| design.name()).collect(),
        })?;
        if !designs.contains(&design) {
            designs.push(design);
        }
    }
    Ok(designs)
}

/// The verdict as one object.
fn json(verdict: &Verdict) -> String {
    // Structures of numbers and strings always serialise.
    let mut text = escaped(&serde_json::to_string_pretty(verdict).unwrap_or_default());
    text.push('\n');
    text
}

/// JSON that means the same. It has to escape the control characters of ASCII; others act on
/// terminals as well.
fn escaped(json: &str) -> String {
    let mut escaped = String::new();
    for character in json.chars() {
        if character < '\x7f' || character.escape_debug().len() == 1 {
            escaped.push(character);
        } else {
            let units = &mut [0; 2];
            for unit in character.encode_utf16(units) {
                escaped += &format!("\\u{unit:04x}");
            }
        }
    }
    escaped
}

/// The engine must not let a dead translation be used, whatever else.
fn violated(verdict: &Verdict) -> Result<(), Failure> {
    let ours = verdict.designs.iter().filter(|row| row.design.starts_with("shootdown"));
    match ours.map(|row| row.violations).sum() {
        0 => Ok(()),
        violations => Err(Failure::Violated { violations }),
    }
}
