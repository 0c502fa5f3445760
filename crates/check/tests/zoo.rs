//! Every bug of the zoo is found, and its twin goes through the same search.

use std::time::{Duration, Instant};

use shootdown_check::zoo::{Bug, Variant};
use shootdown_check::{Budget, Detail, Search, search, shortest};

const BUDGET: Budget = Budget { time: Duration::from_secs(60), states: 2_000_000 };

#[test]
fn each_bug_is_found() {
    for bug in Bug::all() {
        let start = Instant::now();
        let search = shortest(&bug.scene(Variant::Faulty), bug.profile, 6, BUDGET);
        // Less than a second, as the README says, on any machine.
        assert!(search.steps < 1_000_000, "{}: {} steps", bug.name, search.steps);
        let found = search.found.unwrap_or_else(|| panic!("{}: nothing is found", bug.name));
        println!("{}: {} ({:?})\n{}", bug.name, bug.source, start.elapsed(), bug.story);
        println!("{}", found.timeline(Detail::Accesses));
        assert!((bug.finds)(found.wrong), "{}: {}", bug.name, found.wrong);
    }
}

#[test]
fn its_faultless_twin_is_right_in_every_schedule() {
    let mut wrong = Vec::new();
    for bug in Bug::all() {
        let scene = bug.scene(Variant::Mended);
        let Search { states, is_complete, found, .. } = search(&scene, bug.profile, None, BUDGET);
        println!("{}: {states} states", bug.name);
        if let Some(found) = found {
            println!("{}", found.timeline(Detail::Accesses));
            wrong.push(bug.name);
        }
        assert!(is_complete || wrong.last() == Some(&bug.name), "{}: {states} states", bug.name);
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn names_are_unique() {
    let mut names: Vec<_> = Bug::all().map(|bug| bug.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    // As the README says.
    assert_eq!(count, 36);
}
