//! The search: repeats runs until it finds a violation, has visited everything, or exhausts its
//! budget.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::choice::{Chooser, Exhaustive, Priorities, Random, Replay};
use crate::hardware::Violation;
use crate::history::{History, Line};
use crate::machine::{Action, End, Outcome, RunSettings};
use crate::profile::Profile;
use crate::sharing::Sharing;
use crate::sometimes::Sometimes;

/// A system and its programs, which can be run any number of times.
pub trait Scenario {
    /// Executes one run.
    fn run(&self, settings: RunSettings<'_>) -> Outcome;
}

/// The limits of a search.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Maximum duration.
    pub time: Duration,
    /// Maximum number of states, or of runs for a search at random.
    pub states: usize,
}

/// A violation, and the run that shows it.
#[derive(Clone, Debug)]
pub struct Found {
    /// The violation.
    pub violation: Violation,
    /// The choices of the run, from which it can be repeated.
    pub choices: Vec<Action>,
    /// The history of the run.
    pub lines: Vec<Line>,
}

/// The result of a search.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// Number of runs.
    pub runs: u64,
    /// Number of steps of all runs.
    pub steps: u64,
    /// Number of states of an exhaustive search.
    pub states: usize,
    /// The expected events that some run covered.
    pub reached: BTreeSet<Sometimes>,
    /// `true` if the search has visited everything within its bound on changes.
    pub is_complete: bool,
    /// The violation, if there is one.
    pub found: Option<Found>,
}

/// Visits all runs, or all runs with at most `changes_max` changes of CPU.
pub fn search(
    scenario: &dyn Scenario,
    profile: Profile,
    changes_max: Option<u32>,
    budget: Budget,
) -> Search {
    search_from(Sharing::default(), scenario, profile, changes_max, budget)
}

/// Searches with a known set of shared words.
fn search_from(
    mut sharing: Sharing,
    scenario: &dyn Scenario,
    profile: Profile,
    changes_max: Option<u32>,
    budget: Budget,
) -> Search {
    let new_chooser = || changes_max.map_or_else(Exhaustive::unbounded, Exhaustive::with_changes);
    let mut all = new_chooser();
    let (mut search, start) = (Search::default(), Instant::now());
    while all.next_run() {
        if all.states() > budget.states || start.elapsed() > budget.time {
            return search;
        }
        let (chooser, history) = (&mut all, History::Off);
        let outcome =
            scenario.run(RunSettings { profile, chooser, history, sharing: &mut sharing });
        if sharing.has_grown() {
            // The runs so far treated a shared word as one CPU's own.
            all = new_chooser();
            continue;
        }
        search.add(scenario, profile, &outcome, &mut sharing);
        search.states = all.states();
        if search.found.is_some() {
            return search;
        }
    }
    search.is_complete = true;
    search
}

/// Searches with 0, 1, … and at last `changes_max` changes of CPU. The violation that it finds has
/// as few changes as possible.
pub fn shortest(
    scenario: &dyn Scenario,
    profile: Profile,
    changes_max: u32,
    budget: Budget,
) -> Search {
    let mut total = Search::default();
    for changes in 0..=changes_max {
        total = total.and(search(scenario, profile, Some(changes), budget));
        if total.found.is_some() || !total.is_complete {
            break;
        }
    }
    // Runs with more changes were not visited.
    total.is_complete = false;
    total
}

/// Executes random runs, each with a seed of its own.
pub fn at_random(scenario: &dyn Scenario, profile: Profile, seed: u64, budget: Budget) -> Search {
    search_runs(scenario, profile, seed, budget, Random::new)
}

/// Executes runs under [`Priorities`] with a number of changes, each with a seed of its own.
pub fn by_priorities(
    scenario: &dyn Scenario,
    profile: Profile,
    changes: usize,
    seed: u64,
    budget: Budget,
) -> Search {
    search_runs(scenario, profile, seed, budget, |seed| Priorities::new(seed, changes))
}

fn search_runs<C: Chooser>(
    scenario: &dyn Scenario,
    profile: Profile,
    seed: u64,
    budget: Budget,
    chooser: impl Fn(u64) -> C,
) -> Search {
    let mut sharing = Sharing::all();
    let (mut search, start) = (Search::default(), Instant::now());
    while search.runs < budget.states as u64 && start.elapsed() < budget.time {
        let (chooser, history) = (&mut chooser(seed.wrapping_add(search.runs)), History::Off);
        let outcome =
            scenario.run(RunSettings { profile, chooser, history, sharing: &mut sharing });
        search.add(scenario, profile, &outcome, &mut sharing);
        if search.found.is_some() {
            break;
        }
    }
    search
}

impl Search {
    /// Adds the results of a search of the same programs that came after this one.
    pub fn and(self, next: Self) -> Self {
        Self {
            runs: self.runs + next.runs,
            steps: self.steps + next.steps,
            states: next.states,
            reached: &self.reached | &next.reached,
            is_complete: next.is_complete,
            found: next.found,
        }
    }

    fn add(
        &mut self,
        scenario: &dyn Scenario,
        profile: Profile,
        outcome: &Outcome,
        sharing: &mut Sharing,
    ) {
        self.runs += 1;
        self.steps += outcome.steps;
        self.reached.extend(&outcome.reached);
        if let End::Violation(violation) = outcome.end {
            let choices = outcome.choices.clone();
            let (chooser, history) = (&mut Replay::new(choices.clone()), History::On);
            let replay = scenario.run(RunSettings { profile, chooser, history, sharing });
            debug_assert_eq!(replay.end, outcome.end, "the same choices are the same run");
            self.found = Some(Found { violation, choices, lines: replay.lines });
        }
    }
}

#[cfg(test)]
mod tests {
    use shootdown::Rule;

    use super::*;
    use crate::engine::{Config, Programs};

    const BUDGET: Budget = Budget { time: Duration::from_secs(600), states: 1_000_000 };

    /// Searches with every word treated as shared, and with the words that really are.
    fn both(broken: Option<Rule>, text: &str) -> [Search; 2] {
        let config = Config { broken, ..Config::new(2) };
        let programs = Programs::parse(config, text).unwrap();
        [Sharing::all(), Sharing::default()]
            .map(|sharing| search_from(sharing, &programs, Profile::X86, None, BUDGET))
    }

    /// Accesses to what is one CPU's own can be left out: all that can happen still does.
    #[test]
    fn unshared_words_hide_no_violation() {
        let texts = [
            "run 0 | unmap 0.0",
            "run 0, idle | unmap-table 0.0",
            "run 0 | retire 0",
            "run 0, reclaim 0.0 | unmap 0.1",
        ];
        for text in texts {
            let [all, fewer] = both(None, text);
            println!("{text}: {} states, of {}", fewer.states, all.states);
            assert!(all.is_complete && fewer.is_complete);
            assert!(all.found.is_none() && fewer.found.is_none());
            assert_eq!(all.reached, fewer.reached, "{text}");
            assert!(fewer.states < all.states, "{text}");
        }
        let broken = [
            (Rule::ResumeFence, "run 0, idle, run 0 | unmap 0.0"),
            (Rule::SwitchFence, "run 0, run 1, run 0 | unmap 0.0"),
            (Rule::RingSwitching, "run 0 | unmap 0.0"),
        ];
        for (rule, text) in broken {
            let [all, fewer] = both(Some(rule), text).map(|search| search.found.is_some());
            assert!(all && fewer, "{rule:?}: {all}, {fewer}");
        }
    }
}
