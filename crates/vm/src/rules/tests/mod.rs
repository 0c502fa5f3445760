//! For each rule, programs of which one fails if the rule is broken at one place in the code, and
//! none if it is not. loom runs them in every interleaving with at most one preemption, and with
//! every value that each load may return. The programs call the crate's own operations.
//!
//! loom cannot see the following:
//!
//! - a walk that passes an earlier store or a later fence. The walks here are loads of the CPU
//!   itself, as C++ orders them; that the barrier of [`add_sharer`](crate::Platform::add_sharer)
//!   orders walks also is a promise of the kernel (`crates/check/src/zoo/sharers.rs` has walks at
//!   any time);
//! - counters and hints, which are not loom's words. Their values are those of a machine without
//!   reordering;
//! - flushes that are wrong by themselves, with all orderings right: `tests/all` has those.

mod claims;
mod coherence;
mod lists;
mod lock;
mod machine;
mod replicas;
pub(super) mod sites;
pub(crate) mod system;
pub(crate) mod words;

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use super::{Kind, Rule};
use claims::*;
use lists::*;
use machine::Promise;
use replicas::*;
use sites::{Broken, Site};

type Program = fn();

/// Returns the programs of which one fails for each place that breaks the rule.
const fn programs_against(rule: Rule) -> &'static [Program] {
    match rule {
        Rule::EndRelease => &[end_while_searching, end_in_another_block],
        Rule::ListAcquire => &[end_while_searching, reuse_slot_for_higher_range],
        Rule::RangeRelease => &[reuse_slot_for_lower_range, reuse_slot_for_higher_range],
        Rule::ReuseAcquire => &[reuse_slot_on_another_cpu],
        Rule::BlockRelease | Rule::BlockAcquire => {
            &[make_block_while_searching, make_block_on_two_cpus]
        }
        Rule::DeferredRelease | Rule::DeferredAcquire => &[complete_deferred_flush],
        Rule::UsedFence => &[
            make_replica_while_discarding,
            make_replica_while_migrating,
            make_replica_while_reclaiming,
        ],
        Rule::AbandonRelease => {
            &[give_up_one_of_two_while_migrating, free_table_after_cut_and_giving_up]
        }
        Rule::UncountRelease => &[give_up_last_while_discarding],
        Rule::AbandonAcquire => &[
            give_up_last_while_discarding,
            give_up_one_of_two_while_migrating,
            give_up_while_cutting,
        ],
        Rule::CutRelease => {
            &[free_table_after_cut_and_giving_up, unhook_while_cutting_and_giving_up]
        }
        Rule::IsolatedRelease | Rule::IsolatedAcquire => &[allocate_while_isolated],
    }
}

/// Returns a program that fails if the platform breaks a promise.
const fn program_against(promise: Promise) -> Program {
    match promise {
        Promise::AddSharerFence | Promise::SharersAcquire | Promise::RemoveSharerRelease => {
            link_and_cut_while_discarding
        }
        Promise::EntryAcquire | Promise::EntryRelease => discard_while_discarding,
    }
}

/// Returns `true` if no execution of the program fails.
fn passes(program: Program, broken: Broken) -> bool {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(1);
    model.max_branches = 10_000;
    sites::set_broken(broken);
    let result = catch_unwind(AssertUnwindSafe(|| model.check(program)));
    sites::set_broken(Broken::Nothing);
    result.is_ok()
}

/// Returns every place that obeys a rule. Fails if a program fails with all rules obeyed.
fn sites() -> Vec<Site> {
    let programs = Rule::ALL.iter().flat_map(|&rule| programs_against(rule));
    let programs = programs.copied().chain(Promise::ALL.map(program_against));
    let mut done: Vec<Program> = Vec::new();
    for program in programs {
        if !done.iter().any(|&other| core::ptr::fn_addr_eq(other, program)) {
            done.push(program);
            assert!(passes(program, Broken::Nothing));
        }
    }
    sites::reached().into_iter().collect()
}

/// The orderings that are weaker than an ordering.
const fn weaker(ordering: Ordering) -> &'static [Ordering] {
    match ordering {
        AcqRel => &[Acquire, Release],
        _ => &[Relaxed],
    }
}

#[test]
fn each_place_that_breaks_a_rule_fails() {
    let mut survivors = Vec::new();
    let sites = sites();
    for &site in &sites {
        let orderings = match site.rule.kind() {
            Kind::Fence => &[Relaxed],
            Kind::Ordering(ordering) => weaker(ordering),
        };
        for &ordering in orderings {
            let broken = Broken::Site(site, ordering);
            if programs_against(site.rule).iter().all(|&program| passes(program, broken)) {
                survivors.push(broken);
            }
        }
    }
    assert!(survivors.is_empty(), "not detected: {survivors:#?}");
    let (named, mut reached) = (named(), BTreeMap::new());
    for site in sites {
        *reached.entry(format!("{:?}", site.rule)).or_insert(0) += 1;
    }
    // The barrier is broken where its function is called.
    assert_eq!(reached.insert("UsedFence".into(), 1), Some(3));
    assert_eq!(named, reached, "places that name a rule, and places that programs reach");
}

/// The rules that these programs need have programs of their own above.
#[test]
fn discard_that_meets_a_claim_leaves_no_translation() {
    let programs =
        [discard_while_migrating, discard_while_freeing_discarded, discard_while_reclaiming];
    for program in programs {
        assert!(passes(program, Broken::Nothing));
    }
}

#[test]
fn links_are_cut_after_four_flushes_for_each() {
    assert!(passes(cut_after_four_flushes_for_each_link, Broken::Nothing));
}

#[test]
fn sharers_of_everything_are_all_cpus() {
    assert!(passes(flush_of_everything_concerns_everyone, Broken::Nothing));
}

#[test]
fn each_promise_that_the_platform_breaks_fails() {
    for promise in Promise::ALL {
        let program = program_against(promise);
        assert!(!passes(program, Broken::Platform(promise)), "{promise:?} is not detected");
    }
}

/// Number of places in the source that name each rule, without comments and tests.
fn named() -> BTreeMap<String, usize> {
    let mut named = BTreeMap::new();
    count_named(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut named);
    named
}

fn count_named(folder: &Path, named: &mut BTreeMap<String, usize>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            if !path.ends_with("tests") {
                count_named(&path, named);
            }
            continue;
        }
        for line in fs::read_to_string(&path).unwrap().lines() {
            let code = line.split("//").next().unwrap_or_default();
            for name in code.split("Rule::").skip(1) {
                let end = name.find(|letter: char| !letter.is_alphanumeric());
                *named.entry(name[..end.unwrap_or(name.len())].into()).or_insert(0) += 1;
            }
        }
    }
}
