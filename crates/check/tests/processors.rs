//! The engine on processors with errata, and with guests as its spaces, in every schedule of small
//! programs: nothing is wrong with the workaround, and a violation is found without it.

use std::time::Duration;

use shootdown::Rule;
use shootdown_check::engine::{Config, Fault, Programs, Tags};
use shootdown_check::{
    Budget, Campaign, CounterExample, Detail, Profile, Search, Sometimes, Violation, search,
    shortest,
};

const BUDGET: Budget = Budget { time: Duration::from_secs(3600), states: 4_000_000 };

/// A mistake, the processor and the tags with which it is one, programs that are correct without
/// it, and the violation of the first of them with it.
struct Case {
    fault: Fault,
    profile: Profile,
    tags: Tags,
    texts: &'static [&'static str],
    finds: fn(&Violation) -> bool,
}

const fn is_stale(violation: &Violation) -> bool {
    matches!(violation, Violation::UsesReused { .. } | Violation::UsesFlushed { .. })
}

const fn is_foreign(violation: &Violation) -> bool {
    matches!(violation, Violation::UsesForeign { .. })
}

const fn is_of_kernel(violation: &Violation) -> bool {
    matches!(violation, Violation::UsesReusedKernel { .. })
}

const fn device_walks_freed(violation: &Violation) -> bool {
    matches!(violation, Violation::DeviceWalksFreed)
}

/// Cases without a workaround.
const fn erratum(
    profile: Profile,
    tags: Tags,
    texts: &'static [&'static str],
    finds: fn(&Violation) -> bool,
) -> Case {
    Case { fault: Fault::NoWorkaround, profile, tags, texts, finds }
}

const CASES: &[Case] = &[
    erratum(
        Profile::ARM64_4118414,
        Tags::Broadcast(3),
        &[
            "run 0 | unmap 0.0",
            "run 0, idle, run 0 | unmap 0.0",
            "run 0, idle | unmap-table 0.0",
            "run 0 | reclaim-both 0.0",
            "run 0 | pin 0",
        ],
        is_stale,
    ),
    erratum(Profile::ARM64_4118414, Tags::Broadcast(3), &["idle | unmap-kernel 0"], is_of_kernel),
    erratum(
        Profile::X86_1718,
        Tags::Broadcast(3),
        &["run 0 | unmap 0.0", "run 0, idle | unmap-table 0.0"],
        is_stale,
    ),
    erratum(Profile::X86_1718, Tags::Broadcast(3), &["run 0 | unmap-kernel 0"], is_of_kernel),
    erratum(
        Profile::RISCV_CIP_1200,
        Tags::Global(3),
        &[
            "run 0 | unmap 0.0",
            "run 0, run 1, run 0 | unmap 0.0",
            "run 0, idle | unmap-table 0.0",
            "run 0, run 1, run 2, run 3 | idle",
            "run 0, run 1, unmap-table 0.0, run 0 | idle",
        ],
        is_stale,
    ),
    erratum(Profile::RISCV_CIP_1200, Tags::Global(3), &["idle | unmap-kernel 0"], is_of_kernel),
    erratum(
        Profile::RISCV_CIP_1200,
        Tags::PerCpu(0),
        &["run 0, run 1 | idle", "run 0, leave, unmap-table 0.0, run 0 | idle"],
        is_foreign,
    ),
    erratum(
        Profile::X86_INVLPG,
        Tags::PerCpu(2),
        &["run 0 | unmap-kernel 0", "run 0, idle, run 0 | unmap 0.0"],
        is_of_kernel,
    ),
    erratum(
        Profile::ARM64_1003,
        Tags::Broadcast(3),
        &["run 0, run 1 | idle", "run 0, run 1, run 0 | unmap 0.0", "run 0, idle | retire 0"],
        is_foreign,
    ),
    erratum(
        Profile::ARM64_4193714,
        Tags::Broadcast(4),
        &[
            "run 0 | unmap 0.0",
            "run 0 | run 0, unmap 0.0",
            "run 0, run 1 | reclaim 0.0",
            "pin 0 | unmap 0.0",
        ],
        is_stale,
    ),
    erratum(
        Profile::X86_KNL,
        Tags::PerCpu(2),
        &["run 0 | unmap 0.3, unmap 0.3", "run 0 | migrate 0.3"],
        is_stale,
    ),
    Case {
        fault: Fault::CombinedKept,
        profile: Profile::ARM64_STAGE2,
        tags: Tags::Global(3),
        texts: &[
            "run 0 | unmap 0.0",
            "run 0, idle, run 0 | unmap 0.0",
            "run 0, run 1, run 0 | protect 0.0",
            "run 0, idle | unmap-table 0.0",
        ],
        finds: is_stale,
    },
    Case {
        fault: Fault::CombinedEarly,
        profile: Profile::ARM64_STAGE2,
        tags: Tags::Broadcast(3),
        texts: &[
            "run 0 | unmap 0.0",
            "run 0, idle, run 0 | unmap 0.0",
            "run 0, idle | unmap-table 0.0",
            "run 0, run 1 | retire 0",
        ],
        finds: is_stale,
    },
    Case {
        fault: Fault::OneNameInvalidated,
        profile: Profile::X86_EPT,
        tags: Tags::PerCpu(2),
        texts: &[
            "run 0 | unmap 0.0",
            "run 0, idle, run 0 | unmap 0.0",
            "run 0, run 1, run 0 | protect 0.0",
            "run 0, idle | unmap-table 0.0",
            "run 0, run 1 | retire 0",
        ],
        finds: is_stale,
    },
    Case {
        fault: Fault::InterruptedKept,
        profile: Profile::X86_NPT,
        tags: Tags::PerCpu(1),
        texts: &["run 0 | unmap 0.0", "run 0, run 1, run 0 | unmap 0.0"],
        finds: is_stale,
    },
    Case {
        fault: Fault::EntriesForgotten,
        profile: Profile::X86_NPT,
        tags: Tags::PerCpu(2),
        texts: &[
            "run 0, unmap 0.0, run 1, run 0 | idle",
            "run 0 | unmap 0.0",
            "run 0, run 1, run 0 | unmap 0.0",
            "run 0, idle, run 0 | unmap 0.0",
            "run 0, run 1, run 2, run 0 | protect 0.0",
            "run 0, idle | unmap-table 0.0",
            "run 0, run 1 | retire 0",
        ],
        finds: is_stale,
    },
    Case {
        fault: Fault::LargeStride,
        profile: Profile::X86,
        tags: Tags::Broadcast(3),
        texts: &["run 0 | unmap-table 0.0"],
        finds: is_stale,
    },
    Case {
        fault: Fault::WrongDomains,
        profile: Profile::ARM64_TLBID,
        tags: Tags::Domains(3),
        texts: &[
            "run 0 | unmap 0.0",
            "run 0, idle, run 0 | unmap 0.0",
            "run 0, run 1, run 0 | unmap 0.0",
            "run 0, idle | unmap-table 0.0",
            "run 0 | reclaim-both 0.0",
            "run 0, run 1 | retire 0",
        ],
        finds: is_stale,
    },
    Case {
        fault: Fault::KernelTableOnDevice,
        profile: Profile::X86,
        tags: Tags::PerCpu(2),
        texts: &["attach 0 | unmap-kernel-table", "unmap-kernel 0 | unmap-kernel-table"],
        finds: device_walks_freed,
    },
    Case {
        fault: Fault::KernelTableOnDevice,
        profile: Profile::ARM64,
        tags: Tags::Global(3),
        texts: &["attach 0 | unmap-kernel-table", "run 0, offline-online | unmap-kernel-table"],
        finds: device_walks_freed,
    },
];

fn programs(case: &Case, text: &str, fault: Option<Fault>) -> Programs {
    let config = Config { tags: case.tags, spaces: 2, fault, ..Config::new(2) };
    Programs::parse(config, text).expect("the text is valid")
}

fn is_all() -> bool {
    std::env::var_os("CHECK_ALL").is_some()
}

/// The first program of each case is searched in every schedule, and the others with one change
/// of CPU, unless `CHECK_ALL` is set.
#[test]
fn engine_with_workaround_has_no_violation() {
    for case in CASES {
        for (index, text) in case.texts.iter().enumerate() {
            let changes = (index > 0 && !is_all()).then_some(1);
            let Search { states, is_complete, found, .. } =
                search(&programs(case, text, None), case.profile, changes, BUDGET);
            println!("{} {text}: {states} states", case.profile.name);
            if let Some(found) = found {
                panic!("{} {text}\n{}", case.profile.name, found.timeline(Detail::Accesses));
            }
            assert!(is_complete, "{} {text}: {states} states", case.profile.name);
        }
    }
}

/// Programs of eight CPUs with a dozen operations each, at random; twelve times as many if
/// `CHECK_ALL` is set.
#[test]
fn random_programs_have_no_violation_on_any_processor() {
    let profiles = Profile::ERRATA.into_iter().chain(Profile::GUESTS).chain([Profile::ARM64_TLBID]);
    let seeds = if is_all() { 96 } else { 8 };
    for (profile, seed) in profiles.flat_map(|profile| (0..seeds).map(move |seed| (profile, seed)))
    {
        let (profiles, time) = (vec![profile], Duration::ZERO);
        let seed = seed * 1000;
        let campaign = Campaign { profiles, cpus: 8, time, seed, broken: None };
        // The tasks before the first short program, which takes longer.
        let (verdict, _) = campaign.run_tasks(0..20);
        if let Some(CounterExample { programs, found, .. }) = verdict.counter_example {
            panic!("{} {programs}\n{}", profile.name, found.timeline(Detail::Events));
        }
        assert!(verdict.runs >= 80, "{} runs", verdict.runs);
    }
}

#[test]
fn each_fault_is_detected() {
    for case in CASES {
        let faulty = programs(case, case.texts[0], Some(case.fault));
        let search = shortest(&faulty, case.profile, 3, BUDGET);
        // Less than a second on any host.
        assert!(search.steps < 1_000_000, "{}: {} steps", case.profile.name, search.steps);
        let found = search.found.unwrap_or_else(|| {
            panic!("{} {:?}: no violation is found", case.profile.name, case.fault)
        });
        println!("{} {:?}: {}", case.profile.name, case.fault, found.violation);
        assert!((case.finds)(&found.violation), "{}: {}", case.profile.name, found.violation);
    }
}

#[test]
fn each_erratum_has_a_case() {
    for profile in Profile::ERRATA {
        let mut cases = CASES.iter();
        assert!(cases.any(|case| case.profile == profile), "{}", profile.name);
    }
    assert_eq!(Profile::every().count(), 15);
}

/// The broadcast names the domain of CPU 0, which runs the space; CPU 1 has left the space, and
/// comes back. (With one change of CPU more, the search takes two minutes.)
#[test]
fn cpu_outside_of_the_domains_catches_up() {
    let config = Config { tags: Tags::Domains(4), spaces: 2, ..Config::new(3) };
    let text = "run 0 | run 0, run 1, run 0 | unmap 0.0";
    let mut programs = Programs::parse(config, text).expect("the text is valid");
    let intact = search(&programs, Profile::ARM64_TLBID, Some(0), BUDGET);
    assert!(intact.found.is_none() && intact.is_complete, "{} states", intact.states);
    assert!(intact.reached.contains(&Sometimes::BroadcastInDomains));
    programs.config.broken = Some(Rule::CatchUpUnreached);
    let found = shortest(&programs, Profile::ARM64_TLBID, 3, BUDGET).found.expect("it is stale");
    println!("{} states; without the rule: {}", intact.states, found.violation);
    assert!(is_stale(&found.violation), "{}", found.violation);
}
