//! The engine on the hostile machine: small programs in every schedule, and the same programs with
//! a broken rule, which must be detected.
//!
//! A test with many programs runs a fixed part of them, unless `CHECK_ALL` is set: `cargo xtask
//! soak` and `cargo xtask mutants` set it.

use std::collections::BTreeSet;
use std::time::Duration;

use shootdown::{Lifetime, Rule};
use shootdown_check::engine::Op::{self, *};
use shootdown_check::engine::{Config, Fault, Programs, Tags};
use shootdown_check::{
    Budget, Detail, Found, Profile, Scenario, Search, Sometimes, Violation, at_random,
    by_priorities, search, shortest,
};

/// Far more than any search here needs. The time allows for a host that is busy with other work.
const BUDGET: Budget = Budget { time: Duration::from_secs(3600), states: 4_000_000 };
const CONFIG: Config = Config::new(2);
const HARDWARE: [Profile; 2] = [Profile::X86, Profile::ARM64];

fn programs(broken: Option<Rule>, ops: [&[Op]; 2]) -> Programs {
    let ops = ops.map(<[Op]>::to_vec).to_vec();
    Programs { config: Config { broken, ..CONFIG }, ops }
}

/// Every `of`-th item, beginning with the first; all items if `CHECK_ALL` is set.
fn part<T>(of: usize, all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let is_all = std::env::var_os("CHECK_ALL").is_some();
    all.into_iter().step_by(if is_all { 1 } else { of })
}

/// Pairs of each text with each kind of hardware. Every second pair has each text once, with both
/// kinds in turn.
fn on_hardware<'t>(texts: &[&'t str]) -> impl Iterator<Item = (&'t str, Profile)> {
    texts
        .iter()
        .enumerate()
        .flat_map(|(index, text)| [index % 2, 1 - index % 2].map(|kind| (*text, HARDWARE[kind])))
}

fn everything(scenario: &dyn Scenario, profile: Profile) -> Search {
    search(scenario, profile, None, BUDGET)
}

/// Programs of two CPUs: the first runs spaces, and the second changes them.
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
    [&[Run(0), Idle, Run(0)], &[FreeDiscarded(0, 0)]],
    [&[Run(0), Unmap(0, 1)], &[FreeDiscarded(0, 0)]],
    [&[Run(0), Run(1)], &[ReclaimBoth(0, 0)]],
    [&[Run(0), Run(1), Run(0)], &[TrimCpumask(0)]],
    [&[Run(0), Unmap(0, 0)], &[Attach(0)]],
    [&[FreeTable(0, 0)], &[Attach(0)]],
    [&[Run(0), Stop], &[Unmap(0, 0)]],
    [&[Run(0), Stop], &[UnmapTable(0, 0)]],
    [&[Run(0), Stop], &[UnmapKernel(0)]],
    [&[Attach(0)], &[UnmapKernelTable]],
    [&[Run(0), OfflineOnline], &[UnmapKernelTable]],
    [&[Run(0), StopInWalk(0, 0)], &[UnmapTable(0, 0)]],
    [&[Run(0), StopInWalk(0, 0)], &[FreeTable(0, 0)]],
    [&[Run(0), OfflineOnline], &[UnmapAsleep(0, 0)]],
    [&[StayInUser], &[UnmapKernel(0)]],
    [&[StayInUser], &[UnmapKernel(1)]],
    [&[StayInUser], &[UnmapKernelTable]],
    [&[Run(0), StayInUser], &[Unmap(0, 0)]],
    [&[Run(0)], &[DeferAndReuse(0, 0)]],
    [&[Run(0), Run(1), Run(0)], &[DeferAndReuse(0, 0)]],
    [&[Shadow(0, 0)], &[Unmap(0, 0)]],
    [&[Shadow(0, 0)], &[Reclaim(0, 0)]],
];

#[test]
fn small_programs_have_no_violation() {
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
        // Some events require three CPUs, other tags, sets of two words, or a longer program.
        let elsewhere = [
            Sometimes::Coalesced,
            Sometimes::Broadcast,
            Sometimes::BroadcastInDomains,
            Sometimes::RolledOverDuringFlush,
            Sometimes::PinnedForDevice,
            Sometimes::RangInSecondWord,
            Sometimes::Reaped,
        ];
        all_reached.extend(elsewhere);
        let missing: Vec<_> = Sometimes::all().filter(|what| !all_reached.contains(what)).collect();
        assert!(missing.is_empty(), "{}: {missing:?} never happens", profile.name);
    }
}

/// Programs of two CPUs with `CHECK_LENGTH` operations each (default 1; 2 takes hours): every
/// tenth, or all.
#[test]
fn all_short_programs_have_no_violation() {
    let length = number("CHECK_LENGTH", 1);
    let (mut count, mut states) = (0, 0);
    let all: Vec<_> = Programs::all_short(CONFIG, length as u32).collect();
    assert!(all.len() >= 170);
    for programs in part(10, all) {
        let found = everything(&programs, Profile::X86);
        if let Some(found) = found.found {
            panic!("{programs}\n{}", found.timeline(Detail::Accesses));
        }
        assert!(found.is_complete, "{programs}: {} states", found.states);
        (count, states) = (count + 1, states + found.states);
    }
    println!("{count} programs, {states} states");
}

/// Programs of three CPUs: two flush and the third uses the space; one flushes and two use the
/// space; a CPU goes offline and comes back; a ring finds an interrupt pending.
const OF_THREE: [&str; 5] = [
    "unmap 0.0 | run 0 | idle",
    "unmap 0.0 | leave | run 0",
    "unmap-kernel 0 | run 0 | leave",
    "retire 0 | run 0, idle | run 0",
    "unmap-kernel 0 | idle | run 0, offline-online",
];

#[test]
fn three_cpu_programs_have_no_violation() {
    for (text, profile) in part(2, on_hardware(&OF_THREE)) {
        let programs = Programs::parse(CONFIG, text).expect("the text is valid");
        let found = everything(&programs, profile);
        println!("{} {text}: {} states", profile.name, found.states);
        if let Some(found) = found.found {
            panic!("{} {text}\n{}", profile.name, found.timeline(Detail::Accesses));
        }
        assert!(found.is_complete, "{} {text}: {} states", profile.name, found.states);
    }
}

/// Larger programs in all schedules with `CHECK_CHANGES` changes of CPU (default 1; 2 takes ten
/// minutes). A change away from a CPU that cannot continue does not count, and neither does an
/// interrupt or a store that becomes visible.
#[test]
fn larger_programs_with_few_changes_have_no_violation() {
    let texts = [
        "unmap 0.0 | run 0 | run 0",
        "unmap 0.0 | unmap 0.1 | run 0",
        "unmap-table 0.0 | run 0, idle | run 0, run 1",
        "unmap 0.0 | unmap-masked 0.1 | run 0, idle, run 0",
        "reclaim 0.0 | unmap 0.0 | run 0, idle, run 0",
        "retire 0 | run 0, idle, leave | run 0, idle, run 1",
    ];
    let changes = number("CHECK_CHANGES", 1) as u32;
    let budget = Budget { states: 20_000_000, ..BUDGET };
    let mut reached = BTreeSet::new();
    for (text, profile) in part(2, on_hardware(&texts)) {
        let programs = Programs::parse(CONFIG, text).expect("the text is valid");
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

/// Hardware with few tags or none, with tags that all CPUs share, with broadcasts, and with renamed
/// tags, each with one of the lifetime policies.
#[test]
fn small_programs_have_no_violation_on_any_hardware() {
    let kinds = [
        (Profile::X86, Tags::PerCpu(0)),
        (Profile::X86, Tags::PerCpu(1)),
        (Profile::RISCV, Tags::PerCpu(0)),
        (Profile::RISCV, Tags::Global(3)),
        (Profile::ARM64, Tags::Broadcast(3)),
        (Profile::ARM64, Tags::Refused(3)),
        (Profile::ARM64_TLBID, Tags::Domains(3)),
        (Profile::ARC, Tags::Renamed(2)),
        (Profile::ARM64, Tags::Assigned(2)),
    ];
    let lifetimes = [Lifetime::Handoff, Lifetime::Shoot, Lifetime::Counted];
    for ((profile, tags), lifetime) in kinds.into_iter().zip(lifetimes.into_iter().cycle()) {
        for ops in part(4, [SMALL[3], SMALL[0], SMALL[5], SMALL[9]]) {
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

/// The kinds of hardware for large programs, with various lifetime policies.
const KINDS: [(Profile, Config); 8] = [
    (Profile::RISCV, Config { tags: Tags::Assigned(2), spaces: 5, ..CONFIG }),
    (Profile::X86, CONFIG),
    (Profile::X86, Config { lifetime: Lifetime::Shoot, ..CONFIG }),
    (Profile::X86, Config { cpu_words: 2, ..CONFIG }),
    (Profile::ARM64, Config { tags: Tags::Broadcast(10), spaces: 12, ..CONFIG }),
    (Profile::ARM64_TLBID, Config { tags: Tags::Domains(10), spaces: 12, ..CONFIG }),
    (
        Profile::RISCV,
        Config { tags: Tags::Global(4), lifetime: Lifetime::Counted, spaces: 5, ..CONFIG },
    ),
    (Profile::ARC, Config { tags: Tags::Renamed(3), cpu_words: 2, ..CONFIG }),
];

/// Programs of eight CPUs with a dozen operations each, in random schedules. `CHECK_PROGRAMS` is
/// their number (default 600), and `CHECK_SEED` the first of their seeds (default 0).
#[test]
fn large_random_programs_have_no_violation() {
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
    let missing: Vec<_> = Sometimes::all().filter(|what| !reached.contains(what)).collect();
    assert!(missing.is_empty(), "{missing:?} never happens");
}

/// Programs on the maximum number of CPUs.
#[test]
fn random_programs_have_no_violation_on_64_cpus() {
    for (profile, config) in KINDS {
        let config = Config { cpus: 64, ..config };
        for seed in 0..6 {
            let programs = Programs::at_random(config, 6, seed);
            let budget = Budget { states: 2, ..BUDGET };
            let found = at_random(&programs, profile, seed, budget).found;
            assert!(found.is_none(), "{}", found.unwrap().violation);
            let found = by_priorities(&programs, profile, 5, seed, budget).found;
            assert!(found.is_none(), "{}", found.unwrap().violation);
        }
    }
}

/// Rules whose absence random schedules detect in random programs.
const EASY: [Rule; 3] = [Rule::RingPresent, Rule::CatchUpOnSwitch, Rule::FlushLocally];

#[test]
fn broken_rule_is_detected_at_random() {
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

/// A counter-example is shrunk until an engineer can read it.
#[test]
fn random_counter_example_shrinks() {
    let budget = Budget { states: 500, ..BUDGET };
    let is_found = |programs: &Programs| {
        at_random(programs, Profile::X86, 1, budget).found.is_some()
            || by_priorities(programs, Profile::X86, 3, 1, budget).found.is_some()
    };
    let config = Config { broken: Some(Rule::RingPresent), ..Config::new(8) };
    let mut programs = (0..60).map(|seed| Programs::at_random(config, 12, seed));
    let found = programs.find(&is_found).expect("one of them fails");
    let small = found.shrink(is_found);
    println!("{small}");
    // One CPU runs the space, and the other unmaps a page of it.
    assert_eq!((small.len(), small.config.cpus), (2, 2), "{small}");
}

/// Schedules with few changes detect bugs that need few, in random programs.
#[test]
fn broken_rule_is_detected_by_priorities() {
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

/// A CPU writes to a page between the test and the flush, and the write would be lost.
#[test]
fn zero_test_before_the_flush_is_detected() {
    let ops = [vec![Run(0)], vec![FreeDiscarded(0, 0)]].to_vec();
    let config = Config { fault: Some(Fault::EarlyZeroTest), ..CONFIG };
    for profile in HARDWARE {
        let found = everything(&Programs { config, ops: ops.clone() }, profile).found;
        let Found { violation, .. } = found.expect("the test is too early");
        assert!(matches!(violation, Violation::WritesLate { .. }), "{violation}");
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Returns the violation of an engine that breaks a rule, by a run that is as short as possible.
fn found(rule: Rule, profile: Profile, ops: [&[Op]; 2]) -> Found {
    let broken = programs(Some(rule), ops);
    let found = shortest(&broken, profile, 3, Budget { states: 400_000, ..BUDGET }).found;
    found.or_else(|| everything(&broken, profile).found).unwrap_or_else(|| {
        panic!("{rule:?} is broken, and no violation is found");
    })
}

/// Programs that fail without a rule: each with the rule and the architecture.
const NEEDED: &[(Rule, Profile, [&[Op]; 2])] = &[
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
    (Rule::WakeRelease, Profile::ARM64, [&[Run(0)], &[UnmapAsleep(0, 0)]]),
    (Rule::RecheckAnswer, Profile::X86, [&[Run(0)], &[UnmapAsleep(0, 0)]]),
    (Rule::CatchUpOnSwitch, Profile::X86, [&[Run(0), Run(1), Run(0)], &[Unmap(0, 0)]]),
    (Rule::CatchUpOnResume, Profile::X86, [&[Run(0), Idle, Run(0)], &[Unmap(0, 0)]]),
    (Rule::KnowEveryRange, Profile::X86, [&[Run(0), Idle, Run(0)], &[Unmap(0, 0)]]),
    (Rule::DiscardReusedTag, Profile::X86, [&[Run(0), Run(1), Run(2), Run(0)], &[Unmap(0, 0)]]),
    (Rule::DiscardFreedTables, Profile::X86, [&[Run(0), Run(1), Run(0)], &[UnmapTable(0, 0)]]),
    (Rule::AnswerTablesLate, Profile::X86, [&[Run(0)], &[UnmapTable(0, 0)]]),
    (Rule::FlushDevices, Profile::X86, [&[Attach(0)], &[Unmap(0, 0)]]),
    (Rule::FlushDevices, Profile::ARM64, [&[Attach(0)], &[FreeTable(0, 0)]]),
    (Rule::CompleteDevices, Profile::X86, [&[Attach(0)], &[Unmap(0, 0)]]),
    (Rule::CompleteDevices, Profile::ARM64, [&[Attach(0)], &[FreeTable(0, 0)]]),
    (Rule::MarkBatched, Profile::X86, [&[Run(0), Unmap(0, 0), Run(0)], &[Reclaim(0, 0)]]),
    (Rule::MarkHazards, Profile::X86, [&[Run(0), Idle], &[Run(0), Idle, Retire(0)]]),
    (Rule::PublishTables, Profile::ARM64, [&[Run(0), Unmap(0, 0), Run(0)], &[]]),
    (Rule::PublishTables, Profile::ARM64, [&[UnmapKernel(0)], &[]]),
    (Rule::OnlineSync, Profile::ARM64, [&[OfflineOnline], &[UnmapKernel(0)]]),
    (Rule::EnterKernelFence, Profile::X86, [&[StayInUser], &[UnmapKernel(0)]]),
    (Rule::CatchUpOnEntry, Profile::X86, [&[StayInUser], &[UnmapKernel(0)]]),
    (Rule::RingInUserForTables, Profile::X86, [&[StayInUser], &[UnmapKernelTable]]),
    (Rule::RingInUserForEntry, Profile::X86, [&[StayInUser], &[UnmapKernel(1)]]),
    (Rule::CountUnflushed, Profile::X86, [&[Run(0), Run(1), Run(0)], &[DeferAndReuse(0, 0)]]),
    (Rule::RingAtReuse, Profile::X86, [&[Run(0)], &[DeferAndReuse(0, 0)]]),
    (
        Rule::SeenWhileActive,
        Profile::X86,
        [&[Run(0), Run(1), Unmap(1, 0), Run(0)], &[DeferAndReuse(0, 0)]],
    ),
    (Rule::RefuseDuringChange, Profile::X86, [&[Shadow(0, 0)], &[Unmap(0, 0)]]),
    (Rule::RecheckChange, Profile::X86, [&[Shadow(0, 0)], &[Unmap(0, 0)]]),
    (Rule::KeepRequest, Profile::X86, [&[Run(0), Stop], &[Unmap(0, 0)]]),
    (Rule::WaitForWalks, Profile::X86, [&[Run(0), StopInWalk(0, 0)], &[UnmapTable(0, 0)]]),
    (Rule::WaitForWalks, Profile::ARM64, [&[Run(0), StopInWalk(0, 0)], &[FreeTable(0, 0)]]),
];

#[test]
fn each_rule_broken_is_detected() {
    for &(rule, profile, ops) in NEEDED {
        let Found { violation, .. } = found(rule, profile, ops);
        println!("{rule:?} on {}: {violation}", profile.name);
        let is_hang = matches!(
            rule,
            Rule::AnswerWhileWaiting | Rule::RecheckBell | Rule::WakeRelease | Rule::RecheckAnswer
        );
        assert_eq!(violation == Violation::Stuck, is_hang, "{rule:?}: {violation}");
    }
}

/// All spaces have one tag, which the kernel has assigned: living spaces, and one that is retired.
#[test]
fn assigned_tag_is_shared_without_flushes() {
    let config = Config { tags: Tags::Assigned(1), ..CONFIG };
    for text in ["run 0, run 1, run 0 | unmap 0.0", "run 0, idle, run 1 | retire 0"] {
        for profile in HARDWARE {
            let intact = everything(&Programs::parse(config, text).unwrap(), profile);
            assert!(intact.found.is_none() && intact.is_complete, "{text}");
            println!("{}: {text}: {} states", profile.name, intact.states);
            let broken = Config { broken: Some(Rule::DiscardReusedTag), ..config };
            let programs = Programs::parse(broken, text).unwrap();
            let found = shortest(&programs, profile, 3, BUDGET).found;
            println!("{text}: {}", found.expect("the tag is kept").violation);
        }
    }
}

/// The hardware refuses three of four broadcasts, which have reached no CPU, some and all.
#[test]
fn refused_broadcasts_are_followed_by_interrupts() {
    let config = Config { tags: Tags::Refused(3), ..CONFIG };
    for text in ["run 0 | unmap 0.0", "idle | unmap-kernel 0, unmap-kernel 1"] {
        let mut programs = Programs::parse(config, text).expect("the text is valid");
        let intact = everything(&programs, Profile::ARM64);
        assert!(intact.found.is_none() && intact.is_complete, "{text}");
        programs.config.broken = Some(Rule::RingIfRefused);
        let found = shortest(&programs, Profile::ARM64, 3, BUDGET).found.expect(text);
        println!("{text}: {} states intact; without the rule: {}", intact.states, found.violation);
    }
}

#[test]
fn search_is_deterministic() {
    let once = || found(Rule::RingPresent, Profile::X86, SMALL[0]);
    let (one, other) = (once(), once());
    assert_eq!(
        (one.violation, one.choices, one.lines),
        (other.violation, other.choices, other.lines)
    );
}

#[test]
fn counter_example_names_operations_and_violation() {
    let found = found(Rule::RingSwitching, Profile::X86, SMALL[0]);
    let expected = "\
CPU 0                                     CPU 1
────────────────────────────────────────  ────────────────────────────────────────
";
    let timeline = found.timeline(Detail::Events);
    println!("{timeline}");
    assert!(timeline.starts_with(expected));
    assert!(timeline.contains("unmaps page 0 of space 0"));
    assert!(timeline.ends_with(&format!("{}.\n", found.violation)));
}
