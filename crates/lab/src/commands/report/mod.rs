//! `shootdown report`: recordings, published measurements, loops and known bugs on one page.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::check::{self, zoo};
use super::explain::{self, page::Program};
use super::replay::comparison::Comparison;
use super::replay::{self, DEFAULT_MACHINE};
use super::reproduce::page::{Others, page_of};
use super::reproduce::{self, Request, violated};
use crate::error::{Failure, Violations, shown};
use crate::machines;
use crate::output::{Output, print};
use crate::studies::{Curves, Results, Scale};

mod sizes;

pub(crate) const EXAMPLES: &str = include_str!("../../../help/report.txt").trim_ascii_end();

#[derive(Args, Clone, Debug)]
pub(crate) struct Report {
    /// The recordings to replay, which `shootdown record` or `shootdown import` wrote
    #[arg(value_name = "RECORDING")]
    recordings: Vec<PathBuf>,
    /// The file of the page
    #[arg(long, value_name = "FILE.html", default_value = "report.html")]
    output: PathBuf,
    /// The machine of the replays: a name, or a file that ends in .toml
    #[arg(long, value_name = "MACHINE", default_value = DEFAULT_MACHINE.name,
          requires = "recordings")]
    machine: OsString,
    /// The seed of the simulator's random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Take seconds instead of minutes: with recordings, leave out the published measurements,
    /// the known bugs, and the simulated schedule; without, simulate less of the measurements, with
    /// larger errors
    #[arg(long)]
    quick: bool,
}

/// The time limit of the search for each known bug. Most searches take milliseconds.
const ZOO_TIME: Duration = Duration::from_secs(60);

impl Report {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let page = Output::page(&self.output, "--output", &self.recordings)?;
        let machine = machines::find(&self.machine)?;
        // The recordings come first, because they may be refused and take only seconds.
        let scale = if self.quick { Scale::Quick } else { Scale::Full };
        let of = |recording: &PathBuf| Comparison::of(recording, &machine, self.seed, scale);
        let programs: Vec<_> =
            self.recordings.iter().map(|path| Program::of(path)).collect::<Result<_, _>>()?;
        let replayed: Vec<_> = self.recordings.iter().map(of).collect::<Result<_, _>>()?;
        let is_about_programs = self.quick && !replayed.is_empty();
        let (mut results, sizes, zoo) = if is_about_programs {
            (Results::none(self.seed), Vec::new(), Vec::new())
        } else {
            let request = Request { seed: self.seed, scale, only: None, machine: None };
            let sizes = Curves::all(self.seed, scale)?;
            (request.results()?, sizes, zoo::rows(ZOO_TIME, || ()))
        };
        let mut others = Others::default();
        if !is_about_programs {
            others.after = sizes::part(&sizes) + &check::page::part(&zoo);
        }
        if !replayed.is_empty() {
            if results.machines.iter().all(|known| known.name != machine.name) {
                results.machines.push(machine);
            }
            let programs: Vec<_> = programs.into_iter().flatten().collect();
            others.first = explain::page::part(&programs);
            others.before = replay::page::part(&replayed);
            (others.words, others.limits) = (WORDS_OF_REPLAYS, NOT_MODELLED);
        }
        page.write(&page_of(&results, &others))?;
        if !replayed.is_empty() {
            let verdicts = replayed.iter().flat_map(Comparison::verdicts);
            print(&format!("{}\n", replay::text::overview(verdicts)))?;
        }
        if !is_about_programs {
            let found = zoo.iter().filter(|row| row.is_as_expected()).count();
            print(&format!(
                "{}\nknown bugs found by the checker: {found} of {}\n\n",
                reproduce::text::summary(&results.rows),
                zoo.len(),
            ))?;
        }
        print(&format!("report: {}\n", shown(page.path())))?;
        replayed.iter().try_for_each(Comparison::violated)?;
        replayed.iter().try_for_each(Comparison::accounted)?;
        Violations::none_in(sizes.iter().map(Curves::violations))?;
        Ok(violated(&results)?)
    }
}

const WORDS_OF_REPLAYS: &str = include_str!("replays.html");

const NOT_MODELLED: &str = include_str!("limits.html");
