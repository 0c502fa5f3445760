//! `shootdown report`: recordings, published results and found bugs on one page.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::check::{self, zoo};
use super::replay::comparison::Comparison;
use super::replay::{self, DEFAULT_MACHINE};
use super::reproduce::page::{Others, page_of};
use super::reproduce::{self, Request, violated};
use crate::error::{Failure, shown};
use crate::machines;
use crate::output::{Output, print};
use crate::studies::Scale;

pub(crate) const EXAMPLES: &str = "\
Examples:
  shootdown report traces/sort.shootdown traces/node.shootdown
  shootdown report mine.shootdown --output mine.html --machine xeon-2s --quick
  shootdown report

The page needs nothing else, neither files nor network. Without a recording, it has the published
results, and the bugs of other kernels that the checker finds.";

#[derive(Args, Clone, Debug)]
pub(crate) struct Report {
    /// Recordings to replay, as `shootdown record` or `shootdown import` writes them
    #[arg(value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Where to write the page
    #[arg(long, value_name = "FILE.html", default_value = "report.html")]
    output: PathBuf,
    /// The machine to replay recordings on: a name, or a file that ends in .toml
    #[arg(long, value_name = "MACHINE", default_value = DEFAULT_MACHINE.name, requires = "traces")]
    machine: String,
    /// Where the simulator's random numbers start
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Simulate less of the published results: seconds instead of minutes, and less exact
    #[arg(long)]
    quick: bool,
}

/// The time to look for each bug of the zoo, of which most take milliseconds.
const ZOO_TIME: Duration = Duration::from_secs(60);

impl Report {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let page = Output::page(&self.output, "--output", &self.traces)?;
        let machine = machines::find(&self.machine)?;
        // Recordings first: they may be refused, and take seconds.
        let of = |trace: &PathBuf| Comparison::of(trace, &machine, self.seed);
        let replayed: Vec<_> = self.traces.iter().map(of).collect::<Result<_, _>>()?;
        let scale = if self.quick { Scale::Quick } else { Scale::Full };
        let request = Request { seed: self.seed, scale, only: None, machine: None };
        let mut results = request.results()?;
        let zoo = zoo::rows(ZOO_TIME, || ());
        let mut others = Others { after: check::page::part(&zoo), ..Others::default() };
        if !replayed.is_empty() {
            if results.machines.iter().all(|known| known.name != machine.name) {
                results.machines.push(machine);
            }
            others.before = replay::page::part(&replayed);
            (others.words, others.limits) = (WORDS_OF_REPLAYS, NOT_MODELLED);
        }
        page.write(&page_of(&results, &others))?;
        if !replayed.is_empty() {
            let verdicts = replayed.iter().flat_map(Comparison::verdicts);
            print(&format!("{}\n", replay::text::overview(verdicts)))?;
        }
        let found = zoo.iter().filter(|row| row.is_right()).count();
        print(&format!(
            "{}\nbugs of other kernels found by the checker: {found} of {}\n\nreport: {}\n",
            reproduce::text::summary(&results.rows),
            zoo.len(),
            shown(page.path())
        ))?;
        replayed.iter().try_for_each(Comparison::violated)?;
        Ok(violated(&results)?)
    }
}

const WORDS_OF_REPLAYS: &str = "\
<dt>spared<dd>CPUs that were told without an interrupt of their own, by one that was on its way \
already.\n\
<dt>interrupted<dd>What all CPUs together spent in flush interrupts.\n\
<dt>at a switch<dd>Flushes by a CPU that comes back to an address space and catches up with \
what it missed. They interrupt nobody.\n\
<dt>TLB refills<dd>Walks of the page table for a translation that was not in the TLB.\n\
<dt>wait for a flush<dd>From its beginning until all who had to know did: half of all flushes \
took no longer than p50, 99 of 100 no longer than p99.\n\
<dt>recorded schedule<dd>Every step on its recorded CPU and in its recorded order, so that \
linux-7.0 can be held against what the recorded kernel really did.\n\
<dt>simulated schedule<dd>The simulated machine decides which thread runs when, and where.\n";

const NOT_MODELLED: &str = "\
<h2>What a replay leaves out</h2>\n<ul>\n\
<li>Of a program’s accesses, only those that faulted were recorded. What it loses when its TLB \
is emptied is therefore too low, and full flushes look cheaper than they are.\n\
<li>Of a page fault, only the beginning was recorded: the rest counts as computing, and again \
as the simulated kernel’s work. Times are therefore too long, for all designs alike: hold them \
against each other, not against the recorded time.\n\
<li>Computing takes as long as it took where it was recorded, whatever the machine.\n\
<li>Interrupts that came from outside of the program, for reclaim or write-back, are counted \
but not replayed.\n\
</ul>\n";
