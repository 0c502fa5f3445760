//! The engine on the hostile machine: small programs in every schedule; and the same with a rule
//! broken, which must be found.

use std::collections::BTreeSet;
use std::time::Duration;

use shootdown::Rule;
use shootdown_check::engine::Op::{self, *};
use shootdown_check::engine::{Config, Programs};
use shootdown_check::{
    Budget, Detail, Found, Profile, Scene, Search, Sometimes, Wrong, at_random, by_priorities,
    search, shortest,
};

/// Enough for all that is asked for here, many times over.
const BUDGET: Budget = Budget { time: Duration::from_secs(120), states: 4_000_000 };
const CONFIG: Config = Config { cpus: 2, spaces: 3, tags: 2, broken: None };
const HARDWARE: [Profile; 2] = [Profile::X86, Profile::ARM64];

fn programs(broken: Option<Rule>, ops: [&[Op]; 2]) -> Programs {
    let ops = ops.map(<[Op]>::to_vec).to_vec();
    Programs { config: Config { broken, ..CONFIG }, ops }
}

fn everything(scene: &dyn Scene, profile: Profile) -> Search {
    search(scene, profile, None, BUDGET)
}

/// Two CPUs, of which the first runs spaces, and the second changes them.
const SMALL: &[[&[Op]; 2]] = &[
    [&[Run(0)], &[Unmap(0, 0)]],
    [&[Run(0)], &[Protect(0, 0)]],
    [&[Run(0), Idle, Run(0)], &[Unmap(0, 0)]],
    [&[Run(0), Leave, Run(0)], &[Unmap(0, 0)]],
    [&[Run(0), Idle], &[UnmapTable(0, 0)]],
    [&[Run(0), Run(1)], &[Retire(0)]],
    [&[Run(0), Idle, Leave], &[Retire(0)]],
    [&[Run(0), Idle], &[Run(0), Idle, Retire(0)]],
    [&[Run(0), Unmap(0, 1), Run(0)], &[]],
    [&[Run(0), Unmap(0, 0), Run(0)], &[Take(0, 0)]],
    [&[Run(0), OfflineOnline, Run(0)], &[Unmap(0, 0)]],
];

#[test]
fn small_programs_are_right_in_every_schedule() {
    for profile in HARDWARE {
        let mut all_reached = BTreeSet::new();
        for &ops in SMALL {
            let Search { runs, states, is_complete, found, reached, .. } =
                everything(&programs(None, ops), profile);
            all_reached.extend(reached);
            println!("{} {ops:?}: {states} states in {runs} runs", profile.name);
            assert!(found.is_none(), "{}", found.unwrap().timeline(Detail::Accesses));
            assert!(is_complete, "{} {ops:?}: {states} states", profile.name);
        }
        // For a ring to find another on its way there must be three CPUs.
        all_reached.insert(Sometimes::Coalesced);
        let missing: Vec<_> =
            Sometimes::ALL.into_iter().filter(|what| !all_reached.contains(what)).collect();
        assert!(missing.is_empty(), "{}: {missing:?} never happens", profile.name);
    }
}

/// All programs of two CPUs with so many operations each: one, for `CHECK_LENGTH=2` takes hours.
#[test]
fn all_short_programs_are_right_in_every_schedule() {
    let length = number("CHECK_LENGTH", 1);
    let ops = [
        Run(0),
        Run(1),
        Idle,
        Leave,
        Unmap(0, 0),
        UnmapMasked(0, 1),
        Take(0, 0),
        Protect(0, 0),
        UnmapTable(0, 0),
        OfflineOnline,
    ];
    let mut sequences: Vec<Vec<Op>> = vec![Vec::new()];
    for _ in 0..length {
        sequences = sequences
            .iter()
            .flat_map(|first| ops.map(|op| first.iter().copied().chain([op]).collect()))
            .collect();
    }
    let (mut count, mut states) = (0, 0);
    for (index, first) in sequences.iter().enumerate() {
        // Which CPU does what makes no difference. The second runs a space before.
        for second in &sequences[index..] {
            let second: Vec<_> = [Run(0)].into_iter().chain(second.iter().copied()).collect();
            let found = everything(&programs(None, [first, &second]), Profile::X86);
            if let Some(found) = found.found {
                panic!("{first:?} {second:?}\n{}", found.timeline(Detail::Accesses));
            }
            assert!(found.is_complete, "{first:?} {second:?}: {} states", found.states);
            (count, states) = (count + 1, states + found.states);
        }
    }
    println!("{count} programs, {states} states");
    assert!(count >= 55);
}

/// Of CPUs that drop everything at each load, for they have no tags, and of one that has but one.
#[test]
fn so_they_are_with_few_tags() {
    for tags in [0, 1] {
        for ops in [SMALL[0], SMALL[3], SMALL[5]] {
            let mut programs = programs(None, ops);
            programs.config.tags = tags;
            let found = everything(&programs, Profile::X86);
            assert!(found.is_complete && found.found.is_none(), "{tags} tags, {ops:?}");
        }
    }
}

/// Programs of eight CPUs and a dozen operations, in schedules at random: nobody retires a space,
/// for flushes of it may be under way. `CHECK_PROGRAMS` is how many (600), and `CHECK_SEED` the
/// first of their seeds (0).
#[test]
fn large_programs_are_right_in_random_schedules() {
    let (count, first) = (number("CHECK_PROGRAMS", 600), number("CHECK_SEED", 0));
    for profile in HARDWARE {
        let mut reached = BTreeSet::new();
        for seed in first..first + count {
            let ops = (0..8).map(|cpu| random_ops(seed * 8 + cpu)).collect();
            let programs = Programs { config: Config { cpus: 8, ..CONFIG }, ops };
            let budget = Budget { states: 4, ..BUDGET };
            let found = at_random(&programs, profile, seed, budget);
            if let Some(found) = found.found {
                panic!(
                    "{} {seed}: {}\n{}",
                    profile.name,
                    found.wrong,
                    found.timeline(Detail::Events)
                );
            }
            reached.extend(found.reached);
        }
        reached.insert(Sometimes::HandedOff);
        assert_eq!(reached, BTreeSet::from(Sometimes::ALL), "{}", profile.name);
    }
}

/// And if a rule is broken, that is found there, too.
#[test]
fn what_is_broken_is_found_at_random() {
    for rule in [Rule::RingPresent, Rule::CatchUpOnSwitch, Rule::FlushLocally] {
        let is_found = (0..60).any(|seed| {
            let ops = (0..8).map(|cpu| random_ops(seed * 8 + cpu)).collect();
            let config = Config { cpus: 8, broken: Some(rule), ..CONFIG };
            let budget = Budget { states: 4, ..BUDGET };
            at_random(&Programs { config, ops }, Profile::X86, seed, budget).found.is_some()
        });
        assert!(is_found, "{rule:?}");
    }
}

/// And made smaller, until an engineer can read it.
#[test]
fn what_is_found_at_random_becomes_small() {
    let budget = Budget { states: 500, ..BUDGET };
    let is_found = |programs: &Programs| {
        let is_found = |search: Search| search.found.is_some();
        is_found(at_random(programs, Profile::X86, 1, budget))
            || is_found(by_priorities(programs, Profile::X86, 3, 1, budget))
    };
    let config = Config { cpus: 8, broken: Some(Rule::RingPresent), ..CONFIG };
    let programs = |seed: u64| {
        let ops = (0..8).map(|cpu| random_ops(seed * 8 + cpu)).collect();
        Programs { config, ops }
    };
    let found = (0..60).map(programs).find(&is_found).expect("it is found in one of them");
    let small = found.shrunken(is_found);
    let count: usize = small.ops.iter().map(Vec::len).sum();
    println!("{:?}", small.ops);
    // Who runs the space, and who takes a page from it.
    assert_eq!(count, 2, "{:?}", small.ops);
}

/// Few changes find what needs few, in programs that are not made for it.
#[test]
fn by_priorities_too_what_is_broken_is_found() {
    for rule in [Rule::RingPresent, Rule::CatchUpOnSwitch, Rule::FlushLocally] {
        let is_found = (0..60).any(|seed| {
            let ops = (0..4).map(|cpu| random_ops(seed * 8 + cpu)).collect();
            let config = Config { cpus: 4, broken: Some(rule), ..CONFIG };
            let budget = Budget { states: 10, ..BUDGET };
            let found = by_priorities(&Programs { config, ops }, Profile::X86, 3, seed, budget);
            found.found.is_some()
        });
        assert!(is_found, "{rule:?}");
    }
    for seed in 0..20 {
        let ops = (0..4).map(|cpu| random_ops(seed * 8 + cpu)).collect();
        let programs = Programs { config: Config { cpus: 4, ..CONFIG }, ops };
        let budget = Budget { states: 10, ..BUDGET };
        let found = by_priorities(&programs, Profile::ARM64, 3, seed, budget).found;
        assert!(found.is_none(), "{}", found.unwrap().timeline(Detail::Events));
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn random_ops(seed: u64) -> Vec<Op> {
    let mut state = seed;
    let mut below = |bound: u64| {
        // Knuth's MMIX.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % bound) as usize
    };
    let op = |_| {
        let (kind, space, page) = (below(12), below(3), below(4));
        match kind {
            0..5 => Run(space),
            5 => Idle,
            6 => Leave,
            7 => Unmap(space, page),
            8 => UnmapMasked(space, page),
            9 => Take(space, page),
            10 => Protect(space, page),
            _ => OfflineOnline,
        }
    };
    (0..12).map(op).collect()
}

/// What is found of an engine that breaks a rule, by as short a way as there is.
fn found(rule: Rule, profile: Profile, ops: [&[Op]; 2]) -> Found {
    let broken = programs(Some(rule), ops);
    let found = shortest(&broken, profile, 3, Budget { states: 400_000, ..BUDGET }).found;
    found.or_else(|| everything(&broken, profile).found).unwrap_or_else(|| {
        panic!("{rule:?} is broken, and nobody notices");
    })
}

/// What becomes of an engine without a rule, in one of the programs that need it.
const BROKEN: &[(Rule, Profile, [&[Op]; 2])] = &[
    (Rule::FlushFence, Profile::ARM64, [&[Run(0), Idle, Run(0)], &[Unmap(0, 0)]]),
    (Rule::SwitchFence, Profile::X86, [&[Run(0), Run(1), Run(0)], &[Unmap(0, 0)]]),
    (Rule::ResumeFence, Profile::X86, [&[Run(0), Idle, Run(0)], &[Unmap(0, 0)]]),
    (Rule::RegisterFence, Profile::ARM64, [&[Run(0)], &[Unmap(0, 0)]]),
    (Rule::LeaveRelease, Profile::ARM64, [&[Run(0), Idle], &[UnmapTable(0, 0)]]),
    (Rule::RingPresent, Profile::X86, [&[Run(0)], &[Unmap(0, 0)]]),
    (Rule::RingSwitching, Profile::X86, [&[Run(0)], &[Unmap(0, 0)]]),
    (Rule::RingLeaving, Profile::X86, [&[Run(0), Run(1), Run(0)], &[UnmapTable(0, 0)]]),
    (Rule::RingLazy, Profile::X86, [&[Run(0), Idle], &[UnmapTable(0, 0)]]),
    (Rule::FlushLocally, Profile::X86, [&[Run(0), Unmap(0, 1), Run(0)], &[]]),
    (Rule::Wait, Profile::X86, [&[Run(0)], &[Unmap(0, 0)]]),
    (
        Rule::ServeWhileWaiting,
        Profile::X86,
        [&[Run(0), UnmapMasked(0, 1)], &[Run(0), UnmapMasked(0, 0)]],
    ),
    (Rule::LookAgain, Profile::X86, [&[Run(0), UnmapMasked(0, 1)], &[Run(0), UnmapMasked(0, 0)]]),
    (Rule::CatchUpOnSwitch, Profile::X86, [&[Run(0), Run(1), Run(0)], &[Unmap(0, 0)]]),
    (Rule::CatchUpOnResume, Profile::X86, [&[Run(0), Idle, Run(0)], &[Unmap(0, 0)]]),
    (Rule::KnowEveryRange, Profile::X86, [&[Run(0), Idle, Run(0)], &[Unmap(0, 0)]]),
    (Rule::DiscardReusedTag, Profile::X86, [&[Run(0), Run(1), Run(2), Run(0)], &[Unmap(0, 0)]]),
    (Rule::DiscardFreedTables, Profile::X86, [&[Run(0), Run(1), Run(0)], &[UnmapTable(0, 0)]]),
    (Rule::MarkHeldBack, Profile::X86, [&[Run(0), Unmap(0, 0), Run(0)], &[Take(0, 0)]]),
    (Rule::MarkHolders, Profile::X86, [&[Run(0), Idle], &[Run(0), Idle, Retire(0)]]),
];

#[test]
fn what_the_engine_rests_on_cannot_be_left_out() {
    for &(rule, profile, ops) in BROKEN {
        let Found { wrong, .. } = found(rule, profile, ops);
        println!("{rule:?} on {}: {wrong}", profile.name);
        let is_hang = matches!(rule, Rule::ServeWhileWaiting | Rule::LookAgain);
        assert_eq!(wrong == Wrong::Stuck, is_hang, "{rule:?}: {wrong}");
    }
}

#[test]
fn the_same_search_twice_finds_the_same() {
    let once = || found(Rule::RingPresent, Profile::X86, SMALL[0]);
    let (one, other) = (once(), once());
    assert_eq!((one.wrong, one.choices, one.lines), (other.wrong, other.choices, other.lines));
}

#[test]
fn a_counter_example_can_be_read() {
    let found = found(Rule::RingSwitching, Profile::X86, SMALL[0]);
    let expected = "\
CPU 0                                     CPU 1
────────────────────────────────────────  ────────────────────────────────────────
";
    let timeline = found.timeline(Detail::Events);
    println!("{timeline}");
    assert!(timeline.starts_with(expected));
    assert!(timeline.contains("unmaps page 0 of space 0"));
    assert!(timeline.ends_with(&format!("{}.\n", found.wrong)));
}
