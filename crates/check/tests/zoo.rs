//! Every bug of the zoo is found, and its fixed variant passes the same search.

use std::time::{Duration, Instant};

use shootdown_check::zoo::{Bug, Variant};
use shootdown_check::{Budget, Detail, Search, search, shortest};

const BUDGET: Budget = Budget { time: Duration::from_secs(3600), states: 2_000_000 };

#[test]
fn each_bug_is_found() {
    for bug in Bug::all() {
        let start = Instant::now();
        let search = shortest(&bug.scenario(Variant::Faulty), bug.profile, 6, BUDGET);
        // The README claims less than a second for each bug; a number of steps does not depend on
        // the host.
        assert!(search.steps < 1_000_000, "{}: {} steps", bug.name, search.steps);
        let found = search.found.unwrap_or_else(|| panic!("{}: no violation is found", bug.name));
        println!("{}: {} ({:?})\n{}", bug.name, bug.source, start.elapsed(), bug.story);
        println!("{}", found.timeline(Detail::Accesses));
        assert!((bug.finds)(found.violation), "{}: {}", bug.name, found.violation);
    }
}

#[test]
fn each_fixed_variant_has_no_violation() {
    let mut failed = Vec::new();
    for bug in Bug::all() {
        let scenario = bug.scenario(Variant::Fixed);
        let Search { states, is_complete, found, .. } =
            search(&scenario, bug.profile, None, BUDGET);
        println!("{}: {states} states", bug.name);
        if let Some(found) = found {
            println!("{}", found.timeline(Detail::Accesses));
            failed.push(bug.name);
        }
        assert!(is_complete || failed.last() == Some(&bug.name), "{}: {states} states", bug.name);
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn names_are_unique() {
    let mut names: Vec<_> = Bug::all().map(|bug| bug.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    // The README states this number.
    assert_eq!(count, 76);
}
