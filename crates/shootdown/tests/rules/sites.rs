//! Each rule broken at one site, which is a place in the engine's source that follows the rule.
//!
//! A rule that is followed at several sites may be needed at one of them only, and a program that
//! fails without the rule may fail because of that site. So the software machine records the sites
//! of each rule, and this test breaks the rule at each site separately.

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
use crate::{Program, Search, explore, find_failure, in_parallel, program_against, programs};

static NOTED: Mutex<BTreeSet<Site>> = Mutex::new(BTreeSet::new());

fn note(site: Site) {
    NOTED.lock().unwrap_or_else(PoisonError::into_inner).insert(site);
}

/// Every site of a rule that is reached while a program runs.
fn reached() -> &'static BTreeSet<Site> {
    static REACHED: OnceLock<BTreeSet<Site>> = OnceLock::new();
    REACHED.get_or_init(|| {
        let config = Config { note_site: Some(note), ..Config::default() };
        in_parallel(programs::<1>(), |(name, program)| {
            let result = explore(Search::First(100), move || program(config));
            assert!(result.is_ok(), "{name}: {result:?}");
        });
        // Some rules are reached in few interleavings only.
        let missing = |rule: &&Rule| noted().iter().all(|site| site.rule != **rule);
        for &rule in Rule::ALL.iter().filter(missing) {
            let Some((name, program)) = program_against::<1>(rule) else { continue };
            let result = explore(Search::First(20_000), move || program(config));
            assert!(result.is_ok(), "{name}: {result:?}");
        }
        noted()
    })
}

fn noted() -> BTreeSet<Site> {
    NOTED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The sites of one rule.
fn sites_of(rule: Rule) -> Vec<Site> {
    reached().iter().copied().filter(|site| site.rule == rule).collect()
}

/// The places in the engine's source that name each rule, without comments and unit tests.
fn named() -> BTreeMap<String, Vec<String>> {
    let mut named = BTreeMap::new();
    find_rules_named(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut named);
    named
}

fn find_rules_named(folder: &Path, named: &mut BTreeMap<String, Vec<String>>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find_rules_named(&path, named);
            continue;
        }
        if path.ends_with("tests.rs") {
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
    let mut mismatches = Vec::new();
    for &rule in Rule::ALL {
        let sites = sites_of(rule);
        let places = named.get(&format!("{rule:?}")).cloned().unwrap_or_default();
        if sites.is_empty() || sites.len() != places.len() {
            mismatches.push((rule, places, sites));
        }
    }
    println!("rules whose named places differ from the sites reached: {mismatches:#?}");
    assert!(mismatches.is_empty());
}

/// Programs for a rule with several sites. For each site, one of them fails if the rule is broken
/// there only.
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
            ("broadcast_while_asid_changes", broadcast_while_asid_changes::<1>),
        ],
        Rule::ListRelease => &[
            ("allocate_beside_reserved", allocate_beside_reserved::<1>),
            ("unpin_while_tags_run_out", unpin_while_tags_run_out::<1>),
        ],
        Rule::FlushLocally => &[
            ("flush_own", flush_own::<1>),
            ("flush_own_gathered", flush_own_gathered::<1>),
            ("reclaim_own", reclaim_own::<1>),
        ],
        Rule::CompleteBroadcasts => &[
            ("broadcast_to_active", broadcast_to_active::<1>),
            ("wait_on_another_cpu_for_firmware", wait_on_another_cpu_for_firmware::<1>),
        ],
        Rule::CompleteForOthers => &[
            ("wait_on_another_cpu", wait_on_another_cpu::<1>),
            ("go_offline_with_broadcast", go_offline_with_broadcast::<1>),
        ],
        Rule::MarkBatched => {
            &[("reclaim_own", reclaim_own::<1>), ("unmap_batched_page", unmap_batched_page::<1>)]
        }
        _ => &[],
    }
}

/// Rules whose sites loom cannot show to be needed. `rules.rs` has the argument for each.
const ARGUED: [Rule; 2] = [Rule::AsidRelease, Rule::ListAcquire];

#[test]
fn each_site_broken_fails_a_program() {
    // The test `each_rule_broken_fails_its_program` covers rules with one site.
    let has_several = |site: &&Site| reached().iter().filter(|s| s.rule == site.rule).count() > 1;
    let sites: Vec<Site> = reached().iter().filter(has_several).copied().collect();
    let survivors = Mutex::new(Vec::new());
    in_parallel(sites, |site| {
        let start = Instant::now();
        let config = Config { broken_site: Some(site), ..Config::default() };
        let killer = find_failure(programs_against_sites(site.rule), config);
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
