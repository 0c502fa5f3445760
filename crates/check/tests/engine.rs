//! The engine on the hostile machine: small programs in every schedule; and the same with a rule
//! broken, which must be found.
//!
//! Where a test has many programs, it runs a part of them, always the same, unless `CHECK_ALL` is
//! set: `cargo xtask soak` and `cargo xtask mutants` set it.

use std::collections::BTreeSet;
use std::time::Duration;

use shootdown::{Lifetime, Rule};
use shootdown_check::engine::Op::{self, *};
use shootdown_check::engine::{Config, Programs, Tags};
use shootdown_check::{
    Budget, Detail, Found, Profile, Scene, Search, Sometimes, Wrong, at_random, by_priorities,
    search, shortest,
};

/// Far more than any search here needs. The time is that of a host that does much else besides.
const BUDGET: Budget = Budget { time: Duration::from_secs(3600), states: 4_000_000 };
const CONFIG: Config = Config::new(2);
const HARDWARE: [Profile; 2] = [Profile::X86, Profile::ARM64];

fn programs(broken: Option<Rule>, ops: [&[Op]; 2]) -> Programs {
    let ops = ops.map(<[Op]>::to_vec).to_vec();
    Programs { config: Config { broken, ..CONFIG }, ops }
}

/// Every `of`-th of these, from the first on; all of them if `CHECK_ALL` is set.
fn part<T>(of: usize, all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let is_all = std::env::var_os("CHECK_ALL").is_some();
    all.into_iter().step_by(if is_all { 1 } else { of })
}

/// Pairs of each text with each kind of hardware, such that every second has each text once, and
/// both kinds in turn.
fn on_hardware<'t>(texts: &[&'t str]) -> impl Iterator<Item = (&'t str, Profile)> {
    texts
        .iter()
        .enumerate()
        .flat_map(|(index, text)| [index % 2, 1 - index % 2].map(|kind| (*text, HARDWARE[kind])))
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
    [&[Run(0), Unmap(0, 0), Run(0)], &[Reclaim(0, 0)]],
    [&[Run(0), OfflineOnline, Run(0)], &[Unmap(0, 0)]],
    [&[Run(0), Idle, Run(0)], &[FreeTable(0, 0)]],
    [&[Run(0), Idle], &[FreeTable(0, 0), FreeTable(0, 1)]],
    [&[Run(0)], &[UnmapLarge(0, 0)]],
    [&[Run(0)], &[UnmapJoined(0, 0)]],
    [&[Run(0), Run(1)], &[ReclaimBoth(0, 0)]],
    [&[Run(0), Run(1), Run(0)], &[TrimCpumask(0)]],
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
        // Some need three CPUs, other tags, sets of two words, or a longer program.
        let others = [
            Sometimes::Coalesced,
            Sometimes::Broadcast,
            Sometimes::RolledOverDuringFlush,
            Sometimes::PinnedForDevice,
            Sometimes::RangInSecondWord,
            Sometimes::Reaped,
        ];
        all_reached.extend(others);
        let missing: Vec<_> =
            Sometimes::ALL.into_iter().filter(|what| !all_reached.contains(what)).collect();
        assert!(missing.is_empty(), "{}: {missing:?} never happens", profile.name);
    }
}

/// Programs of two CPUs with `CHECK_LENGTH` operations each (1; 2 takes hours): every fifth, or
/// all.
#[test]
fn all_short_programs_are_right_in_every_schedule() {
    let length = number("CHECK_LENGTH", 1);
    let (mut count, mut states) = (0, 0);
    let all: Vec<_> = Programs::all_short(CONFIG, length as u32).collect();
    assert!(all.len() >= 170);
    for programs in part(5, all) {
        let found = everything(&programs, Profile::X86);
        if let Some(found) = found.found {
            panic!("{programs}\n{}", found.timeline(Detail::Accesses));
        }
        assert!(found.is_complete, "{programs}: {} states", found.states);
        (count, states) = (count + 1, states + found.states);
    }
    println!("{count} programs, {states} states");
}

/// Programs of three CPUs: what two flush, and a third uses; what one flushes, and two use; a CPU
/// that comes and goes meanwhile; a ring that finds another on its way.
const OF_THREE: [&str; 5] = [
    "unmap 0.0 | run 0 | idle",
    "unmap 0.0 | leave | run 0",
    "unmap-kernel 0 | run 0 | leave",
    "retire 0 | run 0, idle | run 0",
    "unmap-kernel 0 | idle | run 0, offline-online",
];

#[test]
fn so_they_are_on_three_cpus() {
    for (text, profile) in part(2, on_hardware(&OF_THREE)) {
        let programs = Programs::parse(CONFIG, text).expect("it is a program");
        let found = everything(&programs, profile);
        println!("{} {text}: {} states", profile.name, found.states);
        if let Some(found) = found.found {
            panic!("{} {text}\n{}", profile.name, found.timeline(Detail::Accesses));
        }
        assert!(found.is_complete, "{} {text}: {} states", profile.name, found.states);
    }
}

/// Larger ones in all schedules with one change of CPU, where a CPU that cannot go on, an
/// interrupt, or a store that becomes visible counts for none. `CHECK_CHANGES` is how many (with
/// two it takes ten minutes).
#[test]
fn larger_ones_are_with_few_changes() {
    let texts = [
        "unmap 0.0 | run 0 | run 0",
        "unmap 0.0 | unmap 0.1 | run 0",
        "unmap 0.0 | unmap-masked 0.1 | run 0, idle, run 0",
        "unmap-table 0.0 | run 0, idle | run 0, run 1",
        "reclaim 0.0 | unmap 0.0 | run 0, idle, run 0",
        "retire 0 | run 0, idle, leave | run 0, idle, run 1",
    ];
    let changes = number("CHECK_CHANGES", 1) as u32;
    let budget = Budget { states: 20_000_000, ..BUDGET };
    let mut reached = BTreeSet::new();
    for (text, profile) in part(2, on_hardware(&texts)) {
        let programs = Programs::parse(CONFIG, text).expect("it is a program");
        let found = search(&programs, profile, Some(changes), budget);
        println!("{} {text}: {} states", profile.name, found.states);
        if let Some(found) = found.found {
            panic!("{} {text}\n{}", profile.name, found.timeline(Detail::Accesses));
        }
        assert!(found.is_complete, "{} {text}: {} states", profile.name, found.states);
        reached.extend(found.reached);
    }
    assert!(reached.contains(&Sometimes::Coalesced) && reached.contains(&Sometimes::HandedOff));
}

/// With few tags, or none; with those that are the same on all CPUs, and invalidations that reach
/// everyone; with tags that are counted up. And however spaces end.
#[test]
fn so_they_are_on_all_kinds_of_hardware() {
    let kinds = [
        (Profile::X86, Tags::PerCpu(0)),
        (Profile::X86, Tags::PerCpu(1)),
        (Profile::RISCV, Tags::PerCpu(0)),
        (Profile::RISCV, Tags::Global(3)),
        (Profile::ARM64, Tags::Broadcast(3)),
        (Profile::ARC, Tags::Renamed(2)),
    ];
    let lifetimes = [Lifetime::Handoff, Lifetime::Shoot, Lifetime::Counted];
    for ((profile, tags), lifetime) in kinds.into_iter().zip(lifetimes.into_iter().cycle()) {
        for ops in part(3, [SMALL[0], SMALL[5], SMALL[3], SMALL[9]]) {
            let mut programs = programs(None, ops);
            programs.config = Config { tags, lifetime, ..programs.config };
            let found = everything(&programs, profile);
            if let Some(found) = found.found {
                panic!("{tags:?} {programs}\n{}", found.timeline(Detail::Accesses));
            }
            assert!(found.is_complete, "{tags:?}, {programs}: {} states", found.states);
        }
    }
}

/// The kinds of hardware that large programs run on, each with another way to end spaces.
const KINDS: [(Profile, Config); 6] = [
    (Profile::X86, CONFIG),
    (Profile::X86, Config { lifetime: Lifetime::Shoot, ..CONFIG }),
    (Profile::X86, Config { cpu_words: 2, ..CONFIG }),
    (Profile::ARM64, Config { tags: Tags::Broadcast(10), spaces: 12, ..CONFIG }),
    (
        Profile::RISCV,
        Config { tags: Tags::Global(4), lifetime: Lifetime::Counted, spaces: 5, ..CONFIG },
    ),
    (Profile::ARC, Config { tags: Tags::Renamed(3), cpu_words: 2, ..CONFIG }),
];

/// Programs of eight CPUs and a dozen operations each, in schedules at random. `CHECK_PROGRAMS` is
/// how many (600), and `CHECK_SEED` the first of their seeds (0).
#[test]
fn large_programs_are_right_in_random_schedules() {
    let (count, first) = (number("CHECK_PROGRAMS", 600), number("CHECK_SEED", 0));
    let mut reached = BTreeSet::new();
    for (profile, config) in KINDS {
        let config = Config { cpus: 8, ..config };
        for seed in first..first + count {
            let programs = Programs::at_random(config, 12, seed);
            let found = at_random(&programs, profile, seed, Budget { states: 4, ..BUDGET });
            if let Some(found) = found.found {
                let timeline = found.timeline(Detail::Events);
                panic!("{} {config:?} {seed}: {programs}\n{timeline}", profile.name);
            }
            reached.extend(found.reached);
        }
    }
    let missing: Vec<_> = Sometimes::ALL.iter().filter(|what| !reached.contains(what)).collect();
    assert!(missing.is_empty(), "{missing:?} never happens");
}

/// The most that there can be.
#[test]
fn so_they_are_on_64_cpus() {
    for (profile, config) in KINDS {
        let config = Config { cpus: 64, ..config };
        for seed in 0..6 {
            let programs = Programs::at_random(config, 6, seed);
            let budget = Budget { states: 2, ..BUDGET };
            let found = at_random(&programs, profile, seed, budget).found;
            assert!(found.is_none(), "{}", found.unwrap().wrong);
            let found = by_priorities(&programs, profile, 5, seed, budget).found;
            assert!(found.is_none(), "{}", found.unwrap().wrong);
        }
    }
}

/// What the engine rests on, and schedules find in programs that are not made for it.
const EASY: [Rule; 3] = [Rule::RingPresent, Rule::CatchUpOnSwitch, Rule::FlushLocally];

/// And if a rule is broken, that is found there, too.
#[test]
fn what_is_broken_is_found_at_random() {
    for rule in EASY {
        let config = Config { broken: Some(rule), ..Config::new(8) };
        let is_found = (0..60).any(|seed| {
            let programs = Programs::at_random(config, 12, seed);
            let budget = Budget { states: 4, ..BUDGET };
            at_random(&programs, Profile::X86, seed, budget).found.is_some()
        });
        assert!(is_found, "{rule:?}");
    }
}

/// And made smaller, until an engineer can read it.
#[test]
fn what_is_found_at_random_becomes_small() {
    let budget = Budget { states: 500, ..BUDGET };
    let is_found = |programs: &Programs| {
        at_random(programs, Profile::X86, 1, budget).found.is_some()
            || by_priorities(programs, Profile::X86, 3, 1, budget).found.is_some()
    };
    let config = Config { broken: Some(Rule::RingPresent), ..Config::new(8) };
    let mut programs = (0..60).map(|seed| Programs::at_random(config, 12, seed));
    let found = programs.find(&is_found).expect("it is found in one of them");
    let small = found.shrunken(is_found);
    println!("{small}");
    // Who runs the space, and who takes a page from it.
    assert_eq!((small.len(), small.config.cpus), (2, 2), "{small}");
}

/// Few changes find what needs few, in programs that are not made for it.
#[test]
fn by_priorities_too_what_is_broken_is_found() {
    let budget = Budget { states: 10, ..BUDGET };
    for rule in EASY {
        let config = Config { broken: Some(rule), ..Config::new(4) };
        let is_found = (0..60).any(|seed| {
            let programs = Programs::at_random(config, 12, seed);
            by_priorities(&programs, Profile::X86, 3, seed, budget).found.is_some()
        });
        assert!(is_found, "{rule:?}");
    }
    for seed in 0..20 {
        let programs = Programs::at_random(Config::new(4), 12, seed);
        let found = by_priorities(&programs, Profile::ARM64, 3, seed, budget).found;
        assert!(found.is_none(), "{}", found.unwrap().timeline(Detail::Events));
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
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
        Rule::AnswerWhileWaiting,
        Profile::X86,
        [&[Run(0), UnmapMasked(0, 1)], &[Run(0), UnmapMasked(0, 0)]],
    ),
    (Rule::RecheckBell, Profile::X86, [&[Run(0), UnmapMasked(0, 1)], &[Run(0), UnmapMasked(0, 0)]]),
    (Rule::CatchUpOnSwitch, Profile::X86, [&[Run(0), Run(1), Run(0)], &[Unmap(0, 0)]]),
    (Rule::CatchUpOnResume, Profile::X86, [&[Run(0), Idle, Run(0)], &[Unmap(0, 0)]]),
    (Rule::KnowEveryRange, Profile::X86, [&[Run(0), Idle, Run(0)], &[Unmap(0, 0)]]),
    (Rule::DiscardReusedTag, Profile::X86, [&[Run(0), Run(1), Run(2), Run(0)], &[Unmap(0, 0)]]),
    (Rule::DiscardFreedTables, Profile::X86, [&[Run(0), Run(1), Run(0)], &[UnmapTable(0, 0)]]),
    (Rule::MarkBatched, Profile::X86, [&[Run(0), Unmap(0, 0), Run(0)], &[Reclaim(0, 0)]]),
    (Rule::MarkHazards, Profile::X86, [&[Run(0), Idle], &[Run(0), Idle, Retire(0)]]),
    (Rule::PublishTables, Profile::ARM64, [&[Run(0), Unmap(0, 0), Run(0)], &[]]),
    (Rule::PublishTables, Profile::ARM64, [&[UnmapKernel(0)], &[]]),
    (Rule::OnlineSync, Profile::ARM64, [&[OfflineOnline], &[UnmapKernel(0)]]),
];

#[test]
fn what_the_engine_rests_on_cannot_be_left_out() {
    for &(rule, profile, ops) in BROKEN {
        let Found { wrong, .. } = found(rule, profile, ops);
        println!("{rule:?} on {}: {wrong}", profile.name);
        let is_hang = matches!(rule, Rule::AnswerWhileWaiting | Rule::RecheckBell);
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
