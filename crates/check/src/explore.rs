//! The search: runs, until something is wrong, all was seen, or it is enough.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::choice::{Again, Chooser, Everything, Priorities, Random};
use crate::hardware::Wrong;
use crate::history::{Line, Writing};
use crate::profile::Profile;
use crate::sharing::Sharing;
use crate::sometimes::Sometimes;
use crate::world::{Action, End, Outcome, Setting, Stacks};

/// What can be run over and over.
pub trait Scene {
    /// One run.
    fn run(&self, setting: Setting<'_>) -> Outcome;
}

/// How long one looks.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// No longer than that.
    pub time: Duration,
    /// Nor in more states, or, at random, in more runs.
    pub states: usize,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// What is wrong.
    pub wrong: Wrong,
    /// How to come there again: what was chosen, where there was a choice.
    pub choices: Vec<Action>,
    /// What happened.
    pub lines: Vec<Line>,
}

/// How a search went.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// Runs.
    pub runs: u64,
    /// Steps of all of them.
    pub steps: u64,
    /// States, if all were looked for.
    pub states: usize,
    /// What happened in some run.
    pub reached: BTreeSet<Sometimes>,
    /// Whether there is nothing else to be seen.
    pub is_complete: bool,
    /// What is wrong.
    pub found: Option<Found>,
}

/// Goes through everything, or through all with so many changes of CPU.
pub fn search(
    scene: &dyn Scene,
    profile: Profile,
    changes_max: Option<u32>,
    budget: Budget,
) -> Search {
    search_from(Sharing::default(), scene, profile, changes_max, budget)
}

/// The same, where so much is known already of which words are shared.
fn search_from(
    mut sharing: Sharing,
    scene: &dyn Scene,
    profile: Profile,
    changes_max: Option<u32>,
    budget: Budget,
) -> Search {
    let all_anew = || changes_max.map_or_else(Everything::unbounded, Everything::with_changes);
    let mut all = all_anew();
    let mut stacks = Stacks::default();
    let (mut search, start) = (Search::default(), Instant::now());
    while all.next_run() {
        if all.states() > budget.states || start.elapsed() > budget.time {
            return search;
        }
        let outcome = scene.run(Setting {
            profile,
            chooser: &mut all,
            stacks: &mut stacks,
            writing: Writing::Off,
            sharing: &mut sharing,
        });
        if sharing.has_grown() {
            // So far, a word was taken to be one CPU's own that is not.
            all = all_anew();
            continue;
        }
        search.add(scene, profile, &outcome, &mut stacks, &mut sharing);
        search.states = all.states();
        if search.found.is_some() {
            return search;
        }
    }
    search.is_complete = true;
    search
}

/// The same with ever more changes of CPU, up to `changes_max`: what is found has as few as
/// possible.
pub fn shortest(scene: &dyn Scene, profile: Profile, changes_max: u32, budget: Budget) -> Search {
    let mut total = Search::default();
    for changes in 0..=changes_max {
        total = total.and(search(scene, profile, Some(changes), budget));
        if total.found.is_some() || !total.is_complete {
            break;
        }
    }
    // There are more changes than those.
    total.is_complete = false;
    total
}

/// Runs at random, each with a seed of its own.
pub fn at_random(scene: &dyn Scene, profile: Profile, seed: u64, budget: Budget) -> Search {
    many(scene, profile, seed, budget, Random::new)
}

/// Runs by [priorities](Priorities) that change so often, each with a seed of its own.
pub fn by_priorities(
    scene: &dyn Scene,
    profile: Profile,
    changes: usize,
    seed: u64,
    budget: Budget,
) -> Search {
    many(scene, profile, seed, budget, |seed| Priorities::new(seed, changes))
}

fn many<C: Chooser>(
    scene: &dyn Scene,
    profile: Profile,
    seed: u64,
    budget: Budget,
    chooser: impl Fn(u64) -> C,
) -> Search {
    let (mut stacks, mut sharing) = (Stacks::default(), Sharing::all());
    let (mut search, start) = (Search::default(), Instant::now());
    while search.runs < budget.states as u64 && start.elapsed() < budget.time {
        let mut chooser = chooser(seed.wrapping_add(search.runs));
        let outcome = scene.run(Setting {
            profile,
            chooser: &mut chooser,
            stacks: &mut stacks,
            writing: Writing::Off,
            sharing: &mut sharing,
        });
        search.add(scene, profile, &outcome, &mut stacks, &mut sharing);
        if search.found.is_some() {
            break;
        }
    }
    search
}

impl Search {
    /// This one, and then another of the same.
    #[must_use]
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
        scene: &dyn Scene,
        profile: Profile,
        outcome: &Outcome,
        stacks: &mut Stacks,
        sharing: &mut Sharing,
    ) {
        self.runs += 1;
        self.steps += outcome.steps;
        self.reached.extend(&outcome.reached);
        if let End::Wrong(wrong) = outcome.end {
            let choices = outcome.choices.clone();
            let mut again = Again::new(choices.clone());
            let writing = Writing::On;
            let written =
                scene.run(Setting { profile, chooser: &mut again, stacks, writing, sharing });
            debug_assert_eq!(written.end, outcome.end, "the same choices are the same run");
            self.found = Some(Found { wrong, choices, lines: written.lines });
        }
    }
}

#[cfg(test)]
mod tests {
    use shootdown::Rule;

    use super::*;
    use crate::engine::{Config, Programs};

    const BUDGET: Budget = Budget { time: Duration::from_secs(600), states: 1_000_000 };

    /// With all words taken to be shared, and with those that are.
    fn both(broken: Option<Rule>, text: &str) -> [Search; 2] {
        let config = Config { broken, ..Config::new(2) };
        let programs = Programs::parse(config, text).unwrap();
        [Sharing::all(), Sharing::default()]
            .map(|sharing| search_from(sharing, &programs, Profile::X86, None, BUDGET))
    }

    /// Accesses to what is one CPU's own can be left out: all that can happen still does.
    #[test]
    fn what_only_one_uses_hides_nothing() {
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
