//! A cell that searches for violations on the hostile machine.
//!
//! Its budgets are numbers of programs and of states, never times, so that its row is the same on
//! any host.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use shootdown::Rule;
use shootdown_check::engine::{Config, Programs};
use shootdown_check::zoo::{Bug, Variant};
use shootdown_check::{Budget, Campaign, CounterExample, Design, Profile, Search};

use super::{BadParameter, first_seed, object, shootdown};
use crate::commands::check::{self, CheckError, LifetimeArg};
use crate::error::Failure;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::sweep) struct CheckCell {
    #[serde(default = "x86")]
    arch: String,
    /// Number of CPUs of large random programs.
    #[serde(default = "eight")]
    cpus: usize,
    /// A program to search in every schedule, instead of a campaign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tags: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lifetime: Option<LifetimeArg>,
    #[serde(default = "shootdown")]
    design: String,
    #[serde(default = "first_seed")]
    seed: u64,
    /// Number of programs of the whole campaign.
    #[serde(default = "tasks")]
    tasks: usize,
    /// Number of cells of the campaign.
    #[serde(default = "one")]
    parts: usize,
    /// Number of this cell in the campaign, from 1.
    #[serde(default = "one")]
    part: usize,
}

fn x86() -> String {
    Profile::X86.name.to_owned()
}

const fn eight() -> usize {
    8
}

/// All short programs of an architecture, each after 20 large ones.
const fn tasks() -> usize {
    3570
}

const fn one() -> usize {
    1
}

/// Maximum number of states of one search, which takes some seconds and 100 MB.
const STATES_MAX: usize = 2_000_000;

/// The results of a cell.
#[derive(Serialize)]
struct Results {
    /// `violation`, `none`, or `undecided` if the limits were reached first.
    verdict: &'static str,
    /// `true` if the verdict is not the right one: a violation of the engine or of a fixed variant,
    /// or a known bug that was not found.
    failed: bool,
    runs: u64,
    states: u64,
    steps: u64,
    /// Situations that occurred in some run.
    covered: Vec<String>,
    /// Situations that a long campaign must cover and this cell did not.
    uncovered: Vec<String>,
    #[serde(flatten)]
    found: Option<FoundText>,
}

/// A violation, as text.
#[derive(Serialize)]
struct FoundText {
    violation: String,
    /// Number of the failing program in the campaign, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<usize>,
    /// The command that repeats it.
    repeat: String,
}

impl CheckCell {
    pub(super) const PARAMETERS: &[&str] =
        &["arch", "cpus", "program", "tags", "lifetime", "design", "seed", "tasks", "parts"];

    pub(super) fn run(&self) -> Result<Map<String, Value>, Failure> {
        let design: Design = self.design.parse().map_err(CheckError::UnknownDesign)?;
        let results = match (design, &self.program) {
            (Design::Engine(broken), None) => self.campaign(design, broken)?,
            (Design::Engine(broken), Some(program)) => self.program(design, broken, program)?,
            (Design::Bug(bug, variant), None) => bug_results(design, bug, variant),
            (Design::Bug(..) | Design::Zoo, Some(_)) => {
                return Err(CheckError::NoProgramFor(design).into());
            }
            (Design::Zoo, None) => {
                let cause = "`zoo` is not one design: list the names of its bugs";
                return Err(BadParameter(cause.to_owned()).into());
            }
        };
        Ok(object(&results))
    }

    fn profile(&self) -> Result<Profile, Failure> {
        Ok(Profile::named(&self.arch)
            .ok_or_else(|| BadParameter(format!("no architecture `{}`", self.arch)))?)
    }

    fn campaign(&self, design: Design, broken: Option<Rule>) -> Result<Results, Failure> {
        let (parts, part) = (self.parts, self.part);
        if !(2..=64).contains(&self.cpus) || !(1..=parts).contains(&part) {
            let cause = "a campaign has 2 to 64 CPUs, and parts from 1 on".to_owned();
            return Err(BadParameter(cause).into());
        }
        let campaign = Campaign {
            profiles: vec![self.profile()?],
            cpus: self.cpus,
            time: Duration::ZERO,
            seed: self.seed,
            broken,
        };
        let bound = |part: usize| (self.tasks as u128 * part as u128 / parts as u128) as usize;
        let (verdict, task) = campaign.run_tasks(bound(part - 1)..bound(part));
        let found = verdict.counter_example.as_ref().map(|bad| FoundText {
            violation: bad.found.violation.to_string(),
            task,
            repeat: check::repeat(design, bad, self.seed),
        });
        let uncovered = campaign.expected().into_iter().filter(|it| !verdict.reached.contains(it));
        Ok(Results {
            verdict: if found.is_some() { "violation" } else { "none" },
            failed: found.is_some() && broken.is_none(),
            runs: verdict.runs,
            states: verdict.states,
            steps: verdict.steps,
            covered: verdict.reached.iter().map(ToString::to_string).collect(),
            uncovered: uncovered.map(|it| it.to_string()).collect(),
            found,
        })
    }

    fn program(
        &self,
        design: Design,
        broken: Option<Rule>,
        program: &str,
    ) -> Result<Results, Failure> {
        let (mut config, profile) = (Config::new(2), self.profile()?);
        config.broken = broken;
        if let Some(tags) = &self.tags {
            config.tags = check::tags(tags).map_err(BadParameter)?;
        }
        config.lifetime = self.lifetime.unwrap_or(LifetimeArg::Handoff).lifetime();
        let programs = Programs::parse(config, program).map_err(CheckError::BadProgram)?;
        if programs.is_empty() {
            return Err(CheckError::EmptyProgram.into());
        }
        let search = CounterExample::search(&programs, profile, self.seed, budget());
        let found = search.found.clone().map(|found| {
            let bad = CounterExample { programs, profile, found };
            let violation = bad.found.violation.to_string();
            FoundText { violation, task: None, repeat: check::repeat(design, &bad, self.seed) }
        });
        let failed = found.is_some() && broken.is_none();
        Ok(of_search(&search, found, failed))
    }
}

fn bug_results(design: Design, bug: &'static Bug, variant: Variant) -> Results {
    let search = check::zoo::of_bug(bug, variant, budget());
    let text = search.found.as_ref().map(|found| FoundText {
        violation: found.violation.to_string(),
        task: None,
        repeat: format!("shootdown check --design {design}"),
    });
    let failed = match (&search.found, variant) {
        (Some(found), Variant::Faulty) => !(bug.finds)(found.violation),
        (None, Variant::Faulty) | (Some(_), Variant::Fixed) => true,
        (None, Variant::Fixed) => false,
    };
    of_search(&search, text, failed)
}

fn of_search(search: &Search, found: Option<FoundText>, failed: bool) -> Results {
    Results {
        verdict: match (&found, search.is_complete) {
            (Some(_), _) => "violation",
            (None, true) => "none",
            (None, false) => "undecided",
        },
        failed,
        runs: search.runs,
        states: search.states as u64,
        steps: search.steps,
        covered: search.reached.iter().map(ToString::to_string).collect(),
        uncovered: Vec::new(),
        found,
    }
}

/// Returns a budget that does not depend on the speed of the host.
fn budget() -> Budget {
    Budget { time: shootdown_check::UNLIMITED, states: STATES_MAX }
}
