//! The search for each known bug, and through all schedules of its fixed variant.

use std::time::Duration;

use rayon::prelude::*;
use shootdown_check::zoo::{Bug, Variant};
use shootdown_check::{Budget, Found, Search, search, shortest};

use crate::render::grouped;

/// The largest number of states of a search, which is bounded by memory.
pub(super) const STATES_MAX: usize = 50_000_000;
/// The largest number of changes between CPUs in the counter-example of a known bug.
const CHANGES_MAX: u32 = 6;

/// A known bug and the results of its searches.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) bug: &'static Bug,
    /// The violation that the search found, if any.
    pub(crate) found: Option<Found>,
    /// The search through the fixed variant.
    pub(crate) fixed: Search,
}

impl Row {
    /// Returns `true` if the search found the expected violation, and none in any schedule of the
    /// fixed variant.
    pub(crate) fn is_as_expected(&self) -> bool {
        let is_found = self.found.as_ref().is_some_and(|found| (self.bug.finds)(found.violation));
        is_found && self.fixed.is_complete && self.fixed.found.is_none()
    }

    /// Returns the result of the search through the fixed variant.
    pub(super) fn fixed_result(&self) -> String {
        match (&self.fixed.found, self.fixed.is_complete) {
            (Some(_), _) => "VIOLATION".to_owned(),
            (None, false) => "INCOMPLETE".to_owned(),
            (None, true) => format!("no violation in {} states", grouped(self.fixed.states as u64)),
        }
    }
}

/// Searches for a bug, with few changes between CPUs first, or through all schedules of its fixed
/// variant.
pub(crate) fn of_bug(bug: &Bug, variant: Variant, budget: Budget) -> Search {
    let scene = bug.scenario(variant);
    let short = match variant {
        Variant::Faulty => shortest(&scene, bug.profile, CHANGES_MAX, budget),
        Variant::Fixed => Search::default(),
    };
    match short.found {
        Some(_) => short,
        None => search(&scene, bug.profile, None, budget),
    }
}

/// Searches for each bug, for at most `time` per search. Calls `notify_done` after each bug.
pub(crate) fn rows(time: Duration, notify_done: impl Fn() + Sync) -> Vec<Row> {
    let bugs: Vec<_> = Bug::all().collect();
    let search_both = |bug: &&'static Bug| {
        let budget = Budget { time, states: STATES_MAX };
        let found =
            shortest(&bug.scenario(Variant::Faulty), bug.profile, CHANGES_MAX, budget).found;
        let fixed = search(&bug.scenario(Variant::Fixed), bug.profile, None, budget);
        notify_done();
        Row { bug, found, fixed }
    };
    bugs.par_iter().map(search_both).collect()
}
