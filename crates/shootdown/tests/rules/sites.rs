//! Each rule broken at one place of the engine's source alone.
//!
//! A rule that is followed at several places may be needed at one of them only, and a program that
//! fails without the rule may fail because of that one. So the software machine notes which places
//! ask about a rule, and breaks each by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use shootdown::Rule;
use shootdown::soft::{Config, Site};

use crate::ends::*;
use crate::programs::*;
use crate::reclaim::*;
use crate::tags::*;
use crate::{Program, Search, explore, find_wrong, in_parallel, program_against, programs};

static NOTED: Mutex<BTreeSet<Site>> = Mutex::new(BTreeSet::new());

fn note(site: Site) {
    NOTED.lock().unwrap_or_else(PoisonError::into_inner).insert(site);
}

/// Every place that asks about a rule while a program runs.
fn reached() -> &'static BTreeSet<Site> {
    static REACHED: OnceLock<BTreeSet<Site>> = OnceLock::new();
    REACHED.get_or_init(|| {
        let config = Config { note_site: Some(note), ..Config::default() };
        in_parallel(programs::<1>(), |(name, program)| {
            let result = explore(Search::Some(100), move || program(config));
            assert!(result.is_ok(), "{name}: {result:?}");
        });
        // Some are asked about in few interleavings alone.
        let missing = |rule: &&Rule| noted().iter().all(|site| site.rule != **rule);
        for &rule in Rule::ALL.iter().filter(missing) {
            let Some((name, program)) = program_against::<1>(rule) else { continue };
            let result = explore(Search::Some(20_000), move || program(config));
            assert!(result.is_ok(), "{name}: {result:?}");
        }
        noted()
    })
}

fn noted() -> BTreeSet<Site> {
    NOTED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The places of one rule.
fn sites_of(rule: Rule) -> Vec<Site> {
    reached().iter().copied().filter(|site| site.rule == rule).collect()
}

/// The places in the engine's source that name each rule, comments and unit tests apart.
fn named() -> BTreeMap<String, Vec<String>> {
    let mut named = BTreeMap::new();
    find_named(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut named);
    named
}

fn find_named(folder: &Path, named: &mut BTreeMap<String, Vec<String>>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find_named(&path, named);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let lines = (1..).zip(text.lines()).take_while(|(_, line)| !line.starts_with("#[cfg("));
        for (number, line) in lines {
            let code = line.split("//").next().unwrap_or_default();
            for name in code.split("Rule::").skip(1) {
                let end = name.find(|letter: char| !letter.is_alphanumeric());
                let place = format!("{}:{number}", path.display());
                named.entry(name[..end.unwrap_or(name.len())].to_owned()).or_default().push(place);
            }
        }
    }
}

#[test]
fn every_site_of_a_rule_is_reached() {
    let named = named();
    let mut wrong = Vec::new();
    for &rule in Rule::ALL {
        let sites = sites_of(rule);
        let places = named.get(&format!("{rule:?}")).cloned().unwrap_or_default();
        if sites.is_empty() || sites.len() != places.len() {
            wrong.push((rule, places, sites));
        }
    }
    println!("named and not reached, or the reverse: {wrong:#?}");
    assert!(wrong.is_empty());
}

/// Programs for the places of a rule that has several. For each place, one of them goes wrong if
/// the rule is broken there alone.
fn programs_against_sites(rule: Rule) -> &'static [(&'static str, Program)] {
    match rule {
        Rule::LeaveRelease => &[
            ("enter_lazy", enter_lazy::<1>),
            ("switch_away_from_page", switch_away_from_page::<1>),
        ],
        Rule::HazardRelease => &[
            ("retire_while_leaving", retire_while_leaving::<1>),
            ("handler_leaves_unhooked_tables", handler_leaves_unhooked_tables::<1>),
        ],
        Rule::HazardAcquire => &[("retire_while_leaving", retire_while_leaving::<1>)],
        Rule::NewAsidFence => &[
            ("pin_while_flushing", pin_while_flushing::<1>),
            ("broadcast_while_renumbered", broadcast_while_renumbered::<1>),
        ],
        Rule::FlushLocally => &[
            ("flush_own", flush_own::<1>),
            ("flush_own_gathered", flush_own_gathered::<1>),
            ("reclaim_own", reclaim_own::<1>),
        ],
        Rule::CompleteForOthers => &[
            ("wait_elsewhere", wait_elsewhere::<1>),
            ("go_offline_with_broadcast", go_offline_with_broadcast::<1>),
        ],
        Rule::MarkBatched => &[
            ("reclaim_own", reclaim_own::<1>),
            ("unmap_what_was_taken", unmap_what_was_taken::<1>),
        ],
        _ => &[],
    }
}

/// Rules none of whose places can be shown to be needed: `rules.rs` argues for each.
const ARGUED: [Rule; 1] = [Rule::AsidRelease];

#[test]
fn each_site_broken_makes_a_program_go_wrong() {
    // A rule with one place is broken there as a whole, by the test of rules.
    let has_several = |site: &&Site| reached().iter().filter(|s| s.rule == site.rule).count() > 1;
    let sites: Vec<Site> = reached().iter().filter(has_several).copied().collect();
    let survivors = Mutex::new(Vec::new());
    in_parallel(sites, |site| {
        let start = Instant::now();
        let config = Config { broken_site: Some(site), ..Config::default() };
        let killer = find_wrong(programs_against_sites(site.rule), config);
        let place = format!("{:?} at {}", site.rule, site.location);
        match killer {
            Some((name, _)) => println!("killed {place} by {name}, {:.2?}", start.elapsed()),
            None if ARGUED.contains(&site.rule) => println!("argued {place}"),
            None => survivors.lock().unwrap().push(place),
        }
    });
    let survivors = survivors.into_inner().unwrap();
    println!("not detected: {survivors:#?}");
    assert!(survivors.is_empty());
}
