//! `shootdown check`: the engine, or a known bug of another kernel, on the hostile machine.

pub(crate) mod page;
mod text;
pub(crate) mod zoo;

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use indicatif::HumanCount;
use serde::{Deserialize, Serialize};
use shootdown::{Lifetime, Rule};
use shootdown_check::engine::{BadProgram, Config, Programs, Tags};
use shootdown_check::zoo::{Bug, Variant};
use shootdown_check::{
    Budget, Campaign, CounterExample, Design, Detail, Found, Profile, Progress, UnknownDesign,
    Verdict,
};

use crate::error::{
    CANNOT_RUN, FOUND, Failure, Help, bad_input, cannot_run, found, shown, user_errors,
};
use crate::output::{Output, print};
use crate::progress;
use crate::selection::parse_time;

pub(crate) const EXAMPLES: &str = include_str!("../../../help/check.txt").trim_ascii_end();

#[derive(Args, Clone, Debug)]
pub(crate) struct Check {
    /// The code to check: shootdown, the engine without one rule, a known bug, its fixed variant,
    /// or zoo for all known bugs; --list prints the names
    #[arg(long, value_name = "NAME", default_value = "shootdown")]
    design: String,
    /// The architectures of the hostile machine, separated by commas; --list prints the names
    #[arg(long, value_parser = profiles(), value_name = "A,B", value_delimiter = ',',
          hide_possible_values = true, default_values = Profile::ALL.map(|profile| profile.name))]
    arch: Vec<Profile>,
    /// The number of CPUs of the large random programs
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u64).range(2..=64))]
    cpus: u64,
    /// The time for the search and for shrinking a counter-example: 30s, 5m, 2h
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    budget: Duration,
    /// The seed of random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Check only this program: operations separated by commas, CPUs separated by bars
    #[arg(long, value_name = "PROGRAM")]
    program: Option<String>,
    /// With --program: the kind and number of TLB tags, such as broadcast:9
    #[arg(long, value_name = "KIND:N", default_value = "per-cpu:2", value_parser = tags,
          requires = "program")]
    tags: Tags,
    /// With --program: the way in which address spaces end
    #[arg(long, value_enum, default_value_t = LifetimeArg::Handoff, requires = "program")]
    lifetime: LifetimeArg,
    /// Draw the counter-example to this file, if there is one
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// Show every access to shared memory of the counter-example
    #[arg(long)]
    accesses: bool,
    /// List the names of designs and the operations of programs
    #[arg(long)]
    list: bool,
}

fn profiles() -> impl TypedValueParser<Value = Profile> {
    let names: Vec<_> = Profile::every().map(|profile| profile.name).collect();
    PossibleValuesParser::new(names)
        .try_map(|name| Profile::named(&name).ok_or("no such architecture"))
}

/// The way in which address spaces end: see `shootdown::Lifetime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LifetimeArg {
    /// The last CPU that leaves a dead address space frees it
    Handoff,
    /// The CPU that ends an address space interrupts the CPUs that have it loaded lazily
    Shoot,
    /// Each CPU that keeps an address space loaded lazily has a reference to it, as in Linux
    Counted,
}

impl LifetimeArg {
    pub(crate) const fn lifetime(self) -> Lifetime {
        match self {
            Self::Handoff => Lifetime::Handoff,
            Self::Shoot => Lifetime::Shoot,
            Self::Counted => Lifetime::Counted,
        }
    }
}

user_errors! {
    /// The check could not be made, found a violation, or gave no result.
    #[derive(Debug, thiserror::Error)]
    pub(crate) enum CheckError {
        #[error("{0}")]
        UnknownDesign(_: UnknownDesign) => bad_input("shootdown check --list"),
        #[error("{0}")]
        BadProgram(_: BadProgram) => bad_input(A_PROGRAM),
        #[error("the program has no operations")]
        EmptyProgram => bad_input(A_PROGRAM),
        /// Only the engine can run the program of `--program`.
        #[error("{0} has its own program, so --program cannot be used")]
        NoProgramFor(_: Design) => bad_input("use --design shootdown, or remove --program"),
        /// The checker found a violation.
        #[error("{design}: {violation}")]
        Found { design: Design, violation: String, repeat: Option<String> } =>
            found(match (repeat, *design) {
                (Some(repeat), _) => format!("{repeat}, to repeat this"),
                (None, Design::Bug(bug, _)) => {
                    format!("shootdown check --design {}", Design::Bug(bug, Variant::Fixed))
                }
                (None, _) => "shootdown check --list".to_owned(),
            }),
        /// Some situations that a search must cover never occurred.
        #[error("the search was too short, because these situations never occurred: {}",
                .0.join("; "))]
        Unreached(_: Vec<String>) => cannot_run("search longer, with --budget TIME"),
        /// The budget ended before all schedules of the program were searched.
        #[error("the budget was too short: not all schedules of the program were searched")]
        Undecided(budget: Duration) => cannot_run(longer(*budget)),
        /// Some known bugs were not found, or some fixed variants have a violation.
        #[error("{failed} known bugs were not found, or their fixed variants have violations")]
        Zoo { failed: usize, has_violation: bool, budget: Duration } =>
            Help::new(if *has_violation { FOUND } else { CANNOT_RUN }, longer(*budget)),
    }
}

const A_PROGRAM: &str =
    "use --program 'run 0, idle, run 0 | unmap 0.1', or see shootdown check --list";

/// The remedy for a search that was too short.
fn longer(budget: Duration) -> String {
    format!("search longer, with --budget {}s", budget.as_secs().max(1).saturating_mul(4))
}

impl Check {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if self.list {
            return Ok(print(&text::list())?);
        }
        let design: Design = self.design.parse().map_err(CheckError::UnknownDesign)?;
        // An output that cannot be written is reported before the search.
        let drawing = self.svg.as_ref().map(|path| Output::page(path, "--svg", &[])).transpose()?;
        match (design, &self.program) {
            (Design::Engine(broken), None) => self.campaign(broken, drawing),
            (Design::Engine(broken), Some(program)) => self.one_program(broken, program, drawing),
            (design, Some(_)) => Err(CheckError::NoProgramFor(design).into()),
            (Design::Bug(bug, variant), None) => self.one_bug(bug, variant, drawing),
            (Design::Zoo, None) => self.all_bugs(),
        }
    }

    fn campaign(&self, broken: Option<Rule>, drawing: Option<Output>) -> Result<(), Failure> {
        let campaign = Campaign {
            profiles: self.arch.clone(),
            cpus: self.cpus as usize,
            time: self.budget,
            seed: self.seed,
            broken,
        };
        let verdict = with_progress(&campaign);
        let design = Design::Engine(broken);
        print(&text::verdict(design, &campaign, &verdict))?;
        if let Some(bad) = &verdict.counter_example {
            return self.fail(design, &bad.found, Some(repeat(design, bad, self.seed)), drawing);
        }
        let missing: Vec<_> =
            campaign.expected().difference(&verdict.reached).map(ToString::to_string).collect();
        if missing.is_empty() { Ok(()) } else { Err(CheckError::Unreached(missing).into()) }
    }

    fn one_program(
        &self,
        broken: Option<Rule>,
        program: &str,
        drawing: Option<Output>,
    ) -> Result<(), Failure> {
        let (tags, lifetime) = (self.tags, self.lifetime.lifetime());
        let config = Config { tags, lifetime, broken, ..Config::new(1) };
        let programs = Programs::parse(config, program).map_err(CheckError::BadProgram)?;
        if program.split(['|', ',']).all(|operation| operation.trim().is_empty()) {
            return Err(CheckError::EmptyProgram.into());
        }
        let design = Design::Engine(broken);
        let mut is_complete = true;
        for &profile in &self.arch {
            let budget = Budget { time: self.budget, states: zoo::STATES_MAX };
            let search = CounterExample::search(&programs, profile, self.seed, budget);
            print(&text::program(profile, &search))?;
            if let Some(found) = search.found {
                let bad = CounterExample { programs, profile, found };
                return self.fail(
                    design,
                    &bad.found,
                    Some(repeat(design, &bad, self.seed)),
                    drawing,
                );
            }
            is_complete &= search.is_complete;
        }
        if is_complete { Ok(()) } else { Err(CheckError::Undecided(self.budget).into()) }
    }

    fn one_bug(
        &self,
        bug: &'static Bug,
        variant: Variant,
        drawing: Option<Output>,
    ) -> Result<(), Failure> {
        print(&text::bug(bug))?;
        let design = Design::Bug(bug, variant);
        let budget = Budget { time: self.budget, states: zoo::STATES_MAX };
        let found = zoo::of_bug(bug, variant, budget);
        match found.found {
            Some(found) => return self.fail(design, &found, None, drawing),
            None => print(&text::program(bug.profile, &found))?,
        }
        if found.is_complete { Ok(()) } else { Err(CheckError::Undecided(self.budget).into()) }
    }

    fn all_bugs(&self) -> Result<(), Failure> {
        let count = Bug::all().count() as u64;
        let bar = progress::bar(Some(count), "{pos} of {len} bugs, {elapsed}");
        let rows = zoo::rows(self.budget, || bar.inc(1));
        bar.finish_and_clear();
        print(&text::zoo(&rows))?;
        let has_violation = rows.iter().any(|row| row.fixed.found.is_some());
        match rows.iter().filter(|row| !row.is_as_expected()).count() {
            0 => Ok(()),
            failed => Err(CheckError::Zoo { failed, has_violation, budget: self.budget }.into()),
        }
    }

    /// Prints and draws the counter-example, and returns it as an error.
    fn fail(
        &self,
        design: Design,
        found: &Found,
        repeat: Option<String>,
        drawing: Option<Output>,
    ) -> Result<(), Failure> {
        // The model of a known bug is a few lines, and its accesses are what matters.
        let is_small = matches!(design, Design::Bug(..));
        let detail = if self.accesses || is_small { Detail::Accesses } else { Detail::Events };
        print(&format!("\n{}", found.timeline(detail)))?;
        if let Some(drawing) = drawing {
            drawing.write(&found.drawing(detail))?;
            print(&format!("drawn: {}\n", shown(drawing.path())))?;
        }
        Err(CheckError::Found { design, violation: found.violation.to_string(), repeat }.into())
    }
}

/// Returns the command that repeats the counter-example, if its search had this seed.
pub(crate) fn repeat(design: Design, bad: &CounterExample, seed: u64) -> String {
    let Config { tags, lifetime, .. } = bad.programs.config;
    let mut command = format!("shootdown check --design {design} --arch {}", bad.profile.name);
    if tags != Tags::PerCpu(2) {
        command += &format!(" --tags {}", tags_text(tags));
    }
    if lifetime != Lifetime::Handoff {
        command += &format!(" --lifetime {}", format!("{lifetime:?}").to_lowercase());
    }
    if seed != 1 {
        command += &format!(" --seed {seed}");
    }
    format!("{command} --program '{}'", bad.programs)
}

/// Runs a campaign and shows the progress.
fn with_progress(campaign: &Campaign) -> Verdict {
    let bar = progress::bar(None, "{elapsed}: {msg}");
    let progress = Progress::default();
    let verdict = std::thread::scope(|scope| {
        let running = scope.spawn(|| campaign.run(&progress));
        while !running.is_finished() {
            std::thread::park_timeout(Duration::from_millis(100));
            let tried = progress.tried.load(Relaxed);
            if tried > 0 {
                bar.set_message(format!(
                    "found; shrinking it: {tried} programs tried, {} operations in the smallest",
                    progress.smallest.load(Relaxed),
                ));
                continue;
            }
            bar.set_message(format!(
                "{} short programs in {} states, {} runs of large programs, {} steps",
                progress.short.load(Relaxed),
                HumanCount(progress.states.load(Relaxed)),
                HumanCount(progress.runs.load(Relaxed)),
                HumanCount(progress.steps.load(Relaxed)),
            ));
        }
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    bar.finish_and_clear();
    verdict
}

/// Parses a kind and number of tags such as `per-cpu:2`.
pub(crate) fn tags(text: &str) -> Result<Tags, String> {
    let (kind, count) = text.split_once(':').unwrap_or((text, ""));
    let count: usize =
        count.parse().map_err(|_| "expected a kind and a number, such as per-cpu:2".to_owned())?;
    match kind {
        "per-cpu" if count <= 2 => Ok(Tags::PerCpu(count)),
        "global" if count <= 63 => Ok(Tags::Global(count)),
        "broadcast" if count <= 63 => Ok(Tags::Broadcast(count)),
        "refused" if count <= 63 => Ok(Tags::Refused(count)),
        "renamed" if count <= 255 => Ok(Tags::Renamed(count)),
        "domains" if count <= 63 => Ok(Tags::Domains(count)),
        "assigned" if (1..=63).contains(&count) => Ok(Tags::Assigned(count)),
        _ => Err("expected per-cpu:0 to 2, global:0 to 63, broadcast:0 to 63, refused:0 to 63, \
                 domains:0 to 63, renamed:0 to 255 or assigned:1 to 63"
            .into()),
    }
}

/// Returns a kind and number of tags in the form that [`tags`] parses.
fn tags_text(tags: Tags) -> String {
    match tags {
        Tags::PerCpu(count) => format!("per-cpu:{count}"),
        Tags::Global(count) => format!("global:{count}"),
        Tags::Broadcast(count) => format!("broadcast:{count}"),
        Tags::Refused(count) => format!("refused:{count}"),
        Tags::Domains(count) => format!("domains:{count}"),
        Tags::Renamed(count) => format!("renamed:{count}"),
        Tags::Assigned(count) => format!("assigned:{count}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_parsed_as_printed() {
        let (broadcast, refused) = (Tags::Broadcast(9), Tags::Refused(63));
        let by_kernel = [Tags::Renamed(3), Tags::Assigned(1), Tags::Domains(4)];
        let all = [Tags::PerCpu(0), Tags::Global(63), broadcast, refused];
        for kind in all.into_iter().chain(by_kernel) {
            assert_eq!(tags(&tags_text(kind)), Ok(kind));
        }
        for bad in ["", "per-cpu", "per-cpu:3", "global:64", "own:1", "global:x"] {
            assert!(tags(bad).is_err(), "{bad}");
        }
    }
}
