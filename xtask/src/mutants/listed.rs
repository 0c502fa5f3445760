//! The mutants that the engine itself lists: for each rule, a machine that breaks it, everywhere or
//! at one place of the source.

use std::collections::{BTreeMap, BTreeSet};

use crate::command::{Failure, cargo};

/// The tests that break rules. The first test names every rule, and breaks those that loom can
/// break visibly, also at each place alone. The other tests break the rest.
const TESTS: [&str; 3] = [
    "test -p shootdown --features soft --test rules -- each_rule_broken each_site_broken",
    "test -p shootdown-check --test axiomatic -- each_rule_broken",
    "test -p shootdown-check --test engine -- each_rule_broken",
];

/// Runs the tests that break each rule, and prints how many rules are detected. Returns the cause
/// of a failure, if there is one.
pub(super) fn each_broken_rule_is_detected(
    arguments: &BTreeMap<String, usize>,
) -> Result<Option<String>, Failure> {
    println!("\n── rules broken, one after the other: about ten minutes ──");
    let (mut rules, mut places) = (Count::default(), Count::default());
    let mut may_survive = arguments.clone();
    let (mut elsewhere, mut all_pass) = (BTreeSet::new(), true);
    for test in TESTS {
        let status = cargo(test).args("--nocapture").lines(|line| {
            let Some(listed) = Listed::from_line(line) else { return };
            println!("{line}");
            match (listed.fate, listed.place) {
                (_, Some(_)) => places.add(&listed, &mut may_survive),
                // The first test has no program for the rule: another test must break it.
                (Fate::Argued, None) => _ = elsewhere.insert(listed.rule.to_owned()),
                (Fate::Killed, None) if elsewhere.remove(listed.rule) => rules.killed += 1,
                (_, None) => rules.add(&listed, &mut may_survive),
            }
        })?;
        all_pass &= status.success();
    }
    rules.survived += elsewhere.len();
    println!("rules: {rules}\nplaces of rules: {places}");
    if rules.killed == 0 || !all_pass || rules.survived + places.survived != 0 {
        return Ok(Some("a broken rule is not detected, or a test fails".to_owned()));
    }
    Ok(None)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Killed,
    Argued,
    Survived,
}

/// A line of the tests. For a rule: `killed RULE by PROGRAM …`, `survived RULE: PROGRAM, …`, or
/// `survived RULE` if it has no program, for the reason that `rules.rs` gives. For a place: `killed
/// RULE at FILE:LINE by PROGRAM …`, `argued RULE at FILE:LINE` or `survived RULE at FILE:LINE`.
#[derive(Debug, PartialEq, Eq)]
struct Listed<'a> {
    fate: Fate,
    rule: &'a str,
    /// The file, and the rest of the place.
    place: Option<(&'a str, &'a str)>,
}

impl<'a> Listed<'a> {
    fn from_line(line: &'a str) -> Option<Self> {
        // The harness begins a line when it begins a test.
        let line = match line.strip_prefix("test ") {
            Some(line) => line.split_once(" ... ")?.1,
            None => line,
        };
        let words: Vec<_> = line.split_whitespace().collect();
        let [fate, rule, rest @ ..] = &words[..] else { return None };
        let place = match rest {
            ["at", place, ..] => Some(place.split_once(':')?),
            _ => None,
        };
        let fate = match *fate {
            "killed" => Fate::Killed,
            "argued" => Fate::Argued,
            "survived" if rest.is_empty() => Fate::Argued,
            "survived" => Fate::Survived,
            _ => return None,
        };
        Some(Self { fate, rule: rule.trim_end_matches(':'), place })
    }

    /// Returns the name in `mutants.txt`, which has no line number because that changes with every
    /// edit.
    fn name(&self) -> Option<String> {
        Some(format!("break {} in {}", self.rule, self.place?.0))
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    killed: usize,
    argued: usize,
    survived: usize,
}

impl Count {
    fn add(&mut self, listed: &Listed<'_>, may_survive: &mut BTreeMap<String, usize>) {
        match listed.fate {
            Fate::Killed => self.killed += 1,
            Fate::Argued => self.argued += 1,
            Fate::Survived => {
                let left = listed.name().and_then(|name| may_survive.get_mut(&name));
                match left {
                    Some(left) if *left > 0 => {
                        *left -= 1;
                        self.argued += 1;
                    }
                    _ => self.survived += 1,
                }
            }
        }
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { killed, argued, survived } = self;
        let all = killed + argued + survived;
        write!(f, "{all}, killed {killed}, argued {argued}, not argued {survived}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_read(line: &str, fate: Fate, rule: &str, place: Option<(&str, &str)>) {
        assert_eq!(Listed::from_line(line), Some(Listed { fate, rule, place }));
    }

    #[test]
    fn lines_of_rules_are_read() {
        let killed = "killed FlushFence by switch_with_kept_tag in 3.05s: assertion failed";
        assert_read(killed, Fate::Killed, "FlushFence", None);
        assert_read("survived StampClaim", Fate::Argued, "StampClaim", None);
        let survived = "survived FlushFence: switch_with_kept_tag, 500 runs";
        assert_read(survived, Fate::Survived, "FlushFence", None);
        let first = "test each_rule_broken_fails_its_program ... survived StampClaim";
        assert_read(first, Fate::Argued, "StampClaim", None);
        assert_eq!(Listed::from_line("test each_rule_broken ... ok"), None);
        assert_eq!(Listed::from_line("not detected: []"), None);
    }

    #[test]
    fn lines_of_places_are_read() {
        let place = Some(("crates/shootdown/src/hazard.rs", "71:9"));
        let killed = "killed HazardRelease at crates/shootdown/src/hazard.rs:71:9 by retire, 3.05s";
        assert_read(killed, Fate::Killed, "HazardRelease", place);
        let survived = "survived HazardRelease at crates/shootdown/src/hazard.rs:71:9";
        assert_read(survived, Fate::Survived, "HazardRelease", place);
        let argued = "argued HazardRelease at crates/shootdown/src/hazard.rs:71:9";
        assert_read(argued, Fate::Argued, "HazardRelease", place);
        let by_line = "killed HazardRelease at hazard.rs:71 by retire";
        assert_read(by_line, Fate::Killed, "HazardRelease", Some(("hazard.rs", "71")));
    }

    #[test]
    fn place_survives_only_as_often_as_argued() {
        let mut may_survive =
            BTreeMap::from([("break HazardRelease in a/hazard.rs".to_owned(), 1)]);
        let mut count = Count::default();
        for line in
            ["survived HazardRelease at a/hazard.rs:7", "survived HazardRelease at a/hazard.rs:9"]
        {
            count.add(&Listed::from_line(line).unwrap(), &mut may_survive);
        }
        assert_eq!(count, Count { killed: 0, argued: 1, survived: 1 });
    }
}
