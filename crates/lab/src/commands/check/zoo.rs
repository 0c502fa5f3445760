//! All bugs of the zoo, each looked for, and the whole of its mended twin.

use std::time::Duration;

use rayon::prelude::*;
use shootdown_check::zoo::{Bug, Variant};
use shootdown_check::{Budget, Found, Search, search, shortest};

/// The largest number of states of a program that fits into memory.
pub(super) const STATES_MAX: usize = 50_000_000;
/// Counter-examples of bugs have no more changes of CPU than these.
pub(super) const CHANGES_MAX: u32 = 6;

/// A bug, and what came of it.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) bug: &'static Bug,
    /// What is wrong with it.
    pub(crate) found: Option<Found>,
    /// The search through its twin.
    pub(crate) twin: Search,
}

impl Row {
    /// Whether the bug is found, in the way in which it is one, and nothing is wrong with its twin.
    pub(crate) fn is_right(&self) -> bool {
        let is_found = self.found.as_ref().is_some_and(|found| (self.bug.finds)(found.violation));
        is_found && self.twin.is_complete && self.twin.found.is_none()
    }
}

/// Looks for each, for no longer than `time`, and tells when another one is done.
pub(crate) fn rows(time: Duration, notify_by: impl Fn() + Sync) -> Vec<Row> {
    let bugs: Vec<_> = Bug::all().collect();
    let look = |bug: &&'static Bug| {
        let budget = Budget { time, states: STATES_MAX };
        let found =
            shortest(&bug.scenario(Variant::Faulty), bug.profile, CHANGES_MAX, budget).found;
        let twin = search(&bug.scenario(Variant::Fixed), bug.profile, None, budget);
        notify_by();
        Row { bug, found, twin }
    };
    bugs.par_iter().map(look).collect()
}
