//! For each rule of the engine, a small program that fails without the rule, and never with it.
//!
//! loom runs each program in every interleaving, with every value that each load may return. The
//! programs use the engine as a kernel does. A program fails if a CPU uses a page or a page table
//! after it was freed, which the software machine detects, or if a flush is never answered.
//!
//! loom does not explore the following:
//!
//! - more than four threads, or everything that four threads can do (`AsidRelease`,
//!   `BroadcastAsidAcquire`, `ChosenTagAcquire` and `ListFence` need that);
//! - stores to one word that take effect in another order than they were executed in (`StampClaim`
//!   needs that);
//! - loads that return a value stored later. Instead, pages are cells whose every use must be
//!   *ordered* before the reuse, which is an equivalent condition;
//! - page-table walks that pass a store, or invalidations that pass a load.
//!   `crates/check/tests/engine.rs` has programs for these.
//!
//! For the five rules named above, `crates/check/tests/axiomatic` enumerates the executions of a
//! reduced program.

#![expect(unsafe_code, reason = "switching is unsafe, and loom's cells are")]

mod actions;
mod away;
mod devices;
mod ends;
#[path = "../platforms/lifetimes.rs"]
mod lifetimes;
mod matrix;
#[path = "../platforms/loom.rs"]
mod platform;
mod policies;
mod programs;
mod reclaim;
mod sites;
mod stopped;
mod system;
mod tags;
mod unflushed;
mod user_mode;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;
use std::time::Instant;

use actions::Action;
use away::*;
use devices::*;
use ends::*;
use programs::*;
use reclaim::*;
use shootdown::Rule;
use shootdown::soft::Config;
use stopped::*;
use tags::*;
use unflushed::*;
use user_mode::*;

type Program = fn(Config);

/// Maps each rule to the name of a program that fails without it.
macro_rules! programs_against {
    ($($rule:ident $(| $other:ident)* => $program:ident,)* ; none: $($unseen:ident),*) => {
        /// The program that fails without `rule`, and its name; `None` if loom cannot show that the
        /// rule is needed, and `crates/check` does.
        fn program_against<const W: usize>(rule: Rule) -> Option<(&'static str, Program)> {
            match rule {
                $(Rule::$rule $(| Rule::$other)* => Some((stringify!($program), $program::<W>)),)*
                $(Rule::$unseen)|* => None,
            }
        }
    };
}

programs_against! {
    FlushFence => switch_with_kept_tag,
    SwitchFence => switch_with_kept_tag,
    ResumeFence => resume,
    RegisterFence => first_switch,
    OnlineSync => come_online,
    LeaveOnlineRelease => go_offline_from_kernel,
    EnterKernelFence | CatchUpOnEntry => enter_kernel,
    EnterUserRelease | InUserAcquire => enter_user,
    RingInUserForTables => free_kernel_tables_in_user,
    RingInUserForEntry => use_entry_page,
    BumpRelease | GenerationAcquire => first_switch,
    LeaveRelease | PresenceAcquire => enter_lazy,
    BellAcquire => poll_bell,
    AnswerRelease | WaitAcquire => handle_interrupt,
    QuietRelease | QuietAcquire => handle_interrupt,
    DisconnectRelease | DisconnectAcquire => go_offline,
    WakeRelease | RecheckAnswer => sleep_while_handling,
    ExtentRelease | ExtentAcquire => read_entry_being_overwritten,
    StampRelease | StampAcquire => read_entry_being_written,
    TrimFence => trim_while_switching,
    TrimRelease | PhaseAcquire => trim_once,
    TrimmingRelease => trim_to_a_used_set,
    ClearRelease | ScanAcquire => trim_twice,
    HazardRelease | HazardAcquire => retire_while_leaving,
    SeenRelease | SeenAcquire => free_after_catch_up,
    DropRefRelease | DropRefAcquire => two_cpus_leave_dead_space,
    RetireRelease => retire_after_walking,
    RetireAcquire => retire_while_leaving,
    PushDeadRelease | TakeDeadAcquire => free_from_list,
    FlushWalkersFence => flush_walkers_and_unhook,
    OrphanRelease => reap_orphan,
    QuarantineTables => quarantine_under_lazy,
    InterruptWalkers => flush_walkers_lazy,
    MarkHazards => retire_under_lazy,
    CheckMark => retire_under_lazy,
    LeaveDeadSpace => reap_idle,
    BatchedRelease | BatchedAcquire => unmap_batched_page,
    MarkBatched => unmap_batched_page,
    RingPresent => flush_active,
    RingSwitching => switch_with_kept_tag,
    RingLeaving => switch_away_from_freed_tables,
    SkipAway => flush_while_stopped,
    StopRelease | DeferAcquire => stop_while_flushing,
    ReturnAcquire => return_while_flushing,
    KeepRequest => stop_again_while_flushing,
    WaitForWalks | WalkRelease | WalkAcquire => stop_in_walk,
    RingLazy => lazy_on_freed_tables,
    FlushLocally => flush_own,
    Wait => flush_active,
    AnswerWhileWaiting => wait_for_each_other,
    AnswerTablesLate => answer_early_for_freed_tables,
    DenyNmi => take_nmi_in_handler,
    RecheckBell => ring_during_handler,
    CatchUpOnSwitch => switch_with_kept_tag,
    CatchUpOnResume => resume,
    KnowEveryRange => resume,
    DiscardReusedTag => reuse_a_tag,
    DiscardFreedTables => return_to_freed_tables,
    RecheckPhase => trim_while_registering,
    KeepPresent => trim_while_switching,
    KeepHazards => switch_away_after_trim,
    RecheckScan => trim_twice,
    NewAsidFence | UncountedFence => broadcast_while_asid_changes,
    AsidAcquire => broadcast_while_another_allocates,
    ActiveTagRelease | ActiveTagAcquire => leave_reserved_asid,
    ListRelease | ListAcquire => allocate_beside_reserved,
    TagLockAcquire | TagLockRelease => two_unpin_asids,
    PinFence | ReserveFence => pin_while_tags_run_out,
    UnpinRelease | UnpinAcquire => unpin_while_flushing,
    ReserveTags => rollover_under_active,
    FlushOnRollover => reuse_an_asid,
    ReadEpoch => come_online_while_tags_run_out,
    RecycleOwnTag => end_space_of_two_cpus,
    FlushOnWrap => wrap_around,
    CompleteBroadcasts => broadcast_to_active,
    CompleteForOthers => wait_on_another_cpu,
    AttachFence => attach_while_flushing,
    DetachRelease => detach_while_flushing,
    FlushDevices | CompleteDevices => flush_under_attached_device,
    RefuseDuringChange | RecheckChange => fault_while_primary_changes,
    EndChangeRelease | BeginFaultAcquire => fault_while_primary_changes,
    RingIfRefused => refused_broadcast,
    BroadcastForDevices => flush_under_a_device,
    KeepGaps => miss_a_flush_without_broadcast,
    CatchUpUnreached => come_back_outside_of_domains,
    CountUnflushed => reuse_while_returning,
    RingAtReuse => reuse_under_active,
    SeenWhileActive => reuse_while_switching,
    FlushOnOnline => come_online,
    RingOnline => flush_kernel,
    // loom's page-table walks are never late, so PublishTables is tested on the hostile machine of
    // `crates/check`.
    ; none: StampClaim, AsidRelease, BroadcastAsidAcquire, ChosenTagAcquire, ListFence,
        PublishTables
}

/// The interleavings that loom explores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Search {
    /// Every interleaving that loom finds by itself.
    Unbounded,
    /// As `Unbounded`, with at most this number of preemptions.
    Bounded(usize),
    /// As `Bounded`, with [`platform::with_witnesses`].
    Witnessed(usize),
    /// The first interleavings of `Witnessed(3)`, up to this number.
    First(usize),
}

/// Runs a program in the interleavings of a search. Returns their number, or the failure.
fn explore(search: Search, program: impl Fn() + Send + Sync + 'static) -> Result<usize, String> {
    // After a failure, loom unwinds each remaining thread, which would print a message for each.
    static QUIET: Once = Once::new();
    QUIET.call_once(|| std::panic::set_hook(Box::new(|_| ())));

    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let mut model = loom::model::Builder::new();
    model.max_branches = 20_000;
    let program = move || {
        counted.fetch_add(1, Relaxed);
        program();
    };
    let result = catch_unwind(AssertUnwindSafe(|| match search {
        Search::Unbounded => model.check(program),
        Search::Bounded(preemptions) => {
            model.preemption_bound = Some(preemptions);
            model.check(program);
        }
        Search::Witnessed(preemptions) => {
            model.preemption_bound = Some(preemptions);
            platform::with_witnesses(|| model.check(program));
        }
        Search::First(runs) => {
            (model.preemption_bound, model.max_permutations) = (Some(3), Some(runs));
            // loom compares the number of runs with the maximum at checkpoints only.
            model.checkpoint_interval = runs;
            platform::with_witnesses(|| model.check(program));
        }
    }));
    result.map_err(|cause| match cause.downcast::<String>() {
        Ok(text) => *text,
        Err(cause) => cause.downcast_ref::<&str>().map_or("?".into(), |text| (*text).into()),
    })?;
    Ok(runs.load(Relaxed))
}

/// Programs that are not in the table of rules: each tests an interaction of two CPUs that several
/// rules make correct together.
fn other_programs<const W: usize>() -> [(&'static str, Program); 51] {
    [
        ("attach a device while broadcasting", attach_while_broadcasting::<W>),
        ("enter the kernel for a while", enter_kernel_for_a_while::<W>),
        ("reuse while switching away", reuse_while_switching_away::<W>),
        ("reuse after catching up", reuse_after_catch_up::<W>),
        ("sleep while going offline", sleep_while_going_offline::<W>),
        ("switch away from a page", switch_away_from_page::<W>),
        ("flush own, gathered", flush_own_gathered::<W>),
        ("reclaim own", reclaim_own::<W>),
        ("leave unhooked tables in the handler", handler_leaves_unhooked_tables::<W>),
        ("pin while flushing", pin_while_flushing::<W>),
        ("switch while unpinning", switch_while_unpinning::<W>),
        ("go offline with a broadcast", go_offline_with_broadcast::<W>),
        ("go offline from a space", go_offline_from_space::<W>),
        ("go offline from lazy", go_offline_from_lazy::<W>),
        ("two CPUs leave a dead space", two_cpus_leave_dead_space::<W>),
        ("resume while retired", resume_while_retired::<W>),
        ("retire own", retire_own::<W>),
        ("retire active", retire_active::<W>),
        ("retire while going offline", retire_while_going_offline::<W>),
        ("retire after trimming", retire_after_cpumask_trimmed::<W>),
        ("reap", reap::<W>),
        ("leave an orphan", leave_orphan::<W>),
        ("quarantine while leaving", quarantine_while_leaving::<W>),
        ("flush walkers", flush_walkers::<W>),
        ("leave in the handler while retired", retire_while_handler_leaves::<W>),
        ("generation of another space", seen_of_another_space::<W>),
        ("quarantine while entering", quarantine_while_entering::<W>),
        ("quarantine while returning", quarantine_while_returning::<W>),
        ("quarantine while trimming", quarantine_while_trimming::<W>),
        ("unpin while tags run out", unpin_while_tags_run_out::<W>),
        ("two allocate one ASID", two_allocate_one_asid::<W>),
        ("roll over while choosing", rollover_while_choosing::<W>),
        ("wait for firmware's broadcast", wait_on_another_cpu_for_firmware::<W>),
        ("resume during broadcast", resume_during_broadcast::<W>),
        ("switch during broadcast", switch_during_broadcast::<W>),
        ("switch during broadcast in domains", switch_during_broadcast_in_domains::<W>),
        ("enter lazy during broadcast", enter_lazy_during_broadcast::<W>),
        ("flush walkers by broadcast", flush_walkers_by_broadcast::<W>),
        ("reclaim while switching", reclaim_while_switching::<W>),
        ("reclaim while switching away", reclaim_while_switching_away::<W>),
        ("reclaim active", reclaim_active::<W>),
        ("two flushes of a CPU that returns", return_while_two_flush::<W>),
        ("stop on a page", stop_on_page::<W>),
        ("stop on a page of the kernel", stop_on_kernel_page::<W>),
        ("stop on page tables", stop_on_tables::<W>),
        ("stop on a dead space", stop_on_dead_space::<W>),
        ("stop after the handler", stop_after_handler::<W>),
        ("two flush under a device", two_flush_under_device::<W>),
        ("flush while waiting for a device", flush_while_waiting_for_device::<W>),
        ("attach a device while trimming", attach_while_trimming::<W>),
        ("unhook tables under a device", unhook_tables_under_device::<W>),
    ]
}

/// All programs, each once, with the first rule that needs the program, or its name.
fn programs<const W: usize>() -> Vec<(String, Program)> {
    let mut programs: Vec<(String, Program)> = Vec::new();
    let against_rules = Rule::ALL
        .iter()
        .filter_map(|&rule| Some((format!("{rule:?}"), program_against::<W>(rule)?.1)));
    let other_programs =
        other_programs::<W>().into_iter().map(|(name, program)| (name.to_owned(), program));
    for (name, program) in against_rules.chain(other_programs) {
        if programs.iter().all(|&(_, known)| known as usize != program as usize) {
            programs.push((name, program));
        }
    }
    programs
}

fn is(program: Program, other: Program) -> bool {
    program as usize == other as usize
}

/// Returns `true` under `cargo xtask soak`, which sets `SHOOTDOWN_SOAK`: then searches may take
/// long.
///
/// Otherwise every program and every combination of actions still runs, with fewer preemptions.
/// `docs/data/searches.csv` lists the searches.
fn soaking() -> bool {
    std::env::var_os("SHOOTDOWN_SOAK").is_some()
}

/// A search of one program, by name.
struct NamedSearch {
    name: String,
    search: Search,
    program: Box<dyn Fn() + Send + Sync>,
}

impl NamedSearch {
    fn new(
        name: impl fmt::Debug,
        search: Search,
        program: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self { name: format!("{name:?}, {search:?}"), search, program: Box::new(program) }
    }
}

/// Calls `f` for every item, on as many threads as the host has CPUs.
fn in_parallel<T: Send>(items: Vec<T>, f: impl Fn(T) + Sync) {
    let items = Mutex::new(items.into_iter());
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(item) = next() {
                    f(item);
                }
            });
        }
    });
}

/// Runs all searches, and asserts that none fails.
fn assert_all_pass(searches: Vec<NamedSearch>) {
    let (start, count, all_runs) = (Instant::now(), searches.len(), AtomicUsize::new(0));
    let failures = Mutex::new(Vec::new());
    in_parallel(searches, |NamedSearch { name, search, program }| {
        let start = Instant::now();
        match explore(search, program) {
            Ok(runs) => {
                println!("{runs:>8} runs {:>9.2?}  {name}", start.elapsed());
                all_runs.fetch_add(runs, Relaxed);
            }
            Err(cause) => failures.lock().unwrap().push((name, cause)),
        }
    });
    let failures = failures.into_inner().unwrap();
    // Printed, because the panic hook that silences loom also silences the assertion's message.
    let elapsed = start.elapsed();
    println!("{count} searches, {all_runs:?} runs, {elapsed:.2?}; failures: {failures:#?}");
    assert!(failures.is_empty());
}

/// Finds a failure of one of the programs, with as few preemptions as possible. Returns the name of
/// the program, and the failure.
///
/// In this order, most searches that find a failure take milliseconds. With three preemptions from
/// the start, loom would first explore everything that a late preemption can do.
fn find_failure(
    programs: &[(&'static str, Program)],
    config: Config,
) -> Option<(&'static str, String)> {
    (1..=3).flat_map(|most| [Search::Bounded(most), Search::Witnessed(most)]).find_map(|search| {
        programs.iter().find_map(|&(name, program)| {
            Some((name, explore(search, move || program(config)).err()?))
        })
    })
}

/// Searches of all programs with the intact engine.
fn intact<const W: usize>(search: impl Fn(Program) -> Option<Search>) -> Vec<NamedSearch> {
    let programs = programs::<W>().into_iter();
    programs
        .filter_map(|(name, program)| {
            let search = search(program)?;
            Some(NamedSearch::new(name, search, move || program(Config::default())))
        })
        .collect()
}

#[test]
fn every_program_passes() {
    assert_all_pass(intact::<1>(|program| {
        if !soaking() {
            // With two preemptions, each of these programs of three CPUs takes minutes.
            let is_slow = is(program, broadcast_while_another_allocates::<1>)
                || is(program, come_online_while_tags_run_out::<1>)
                || is(program, allocate_beside_reserved::<1>);
            return Some(Search::Bounded(if is_slow { 1 } else { 2 }));
        }
        if is(program, wait_for_each_other::<1>)
            || is(program, broadcast_while_another_allocates::<1>)
        {
            // The first program spins, so its search never ends without a bound. In the second,
            // three CPUs do much. The next test runs both.
            return None;
        }
        if is(program, allocate_beside_reserved::<1>)
            || is(program, come_online_while_tags_run_out::<1>)
        {
            return Some(Search::Bounded(2));
        }
        // Unbounded searches of these programs of three CPUs take too long.
        let needs_bound = is(program, flush_walkers_and_unhook::<1>)
            || is(program, quarantine_while_trimming::<1>)
            || is(program, unmap_batched_page::<1>);
        Some(if needs_bound { Search::Bounded(3) } else { Search::Unbounded })
    }));
}

#[test]
fn every_program_passes_with_witnesses() {
    assert_all_pass(intact::<1>(|program| {
        // With two preemptions, each of these takes ten seconds or more, as long as all other
        // programs together.
        let is_slow = is(program, trim_twice::<1>)
            || is(program, flush_walkers_and_unhook::<1>)
            || is(program, wait_for_each_other::<1>)
            || is(program, leave_reserved_asid::<1>)
            || is(program, pin_while_tags_run_out::<1>)
            || is(program, unpin_while_tags_run_out::<1>)
            || is(program, rollover_while_choosing::<1>)
            || is(program, come_online_while_tags_run_out::<1>)
            || is(program, broadcast_while_another_allocates::<1>);
        if is(program, allocate_beside_reserved::<1>) {
            // Its three CPUs take minutes with one preemption. So `cargo xtask soak` alone finds a
            // value that only a witness shows: a word of the list that a CPU reads before another
            // one writes it. Without witnesses, the program runs above.
            return soaking().then_some(Search::Witnessed(1));
        }
        Some(Search::Witnessed(match soaking() {
            true => 3,
            false if is_slow => 1,
            false => 2,
        }))
    }));
}

#[test]
fn every_program_passes_with_two_word_sets() {
    assert_all_pass(intact::<2>(|program| {
        // These two take six and two seconds, and all others together a fifth of a second.
        let is_slow =
            is(program, trim_twice::<2>) || is(program, broadcast_while_another_allocates::<2>);
        if is(program, allocate_beside_reserved::<2>) {
            // As above. Sets of two words are not searched beside the list.
            return soaking().then_some(Search::Witnessed(1));
        }
        match soaking() {
            true => Some(Search::Witnessed(2)),
            false => (!is_slow).then_some(Search::Witnessed(1)),
        }
    }));
}

/// Searches of a flush on CPU 0 against the actions of each group on the other CPUs, with
/// `preemptions` preemptions, or `soak` of them under `cargo xtask soak`.
fn action_searches(
    groups: impl IntoIterator<Item = &'static [Action]>,
    search: fn(usize) -> Search,
    preemptions: usize,
    soak: usize,
    config: Config,
) -> Vec<NamedSearch> {
    let search = search(if soaking() { soak } else { preemptions });
    let named = |group| NamedSearch::new(group, search, move || actions::run(group, config));
    groups.into_iter().map(named).collect()
}

/// Every unordered pair of actions.
fn pairs() -> impl Iterator<Item = &'static [Action]> {
    Action::ALL.into_iter().enumerate().flat_map(|(first, one)| {
        Action::ALL[first..].iter().map(move |&two| &*Vec::leak(vec![one, two]))
    })
}

#[test]
fn flush_passes_against_two_actions() {
    assert_all_pass(action_searches(pairs(), Search::Bounded, 2, 3, Config::default()));
}

#[test]
fn flush_passes_against_two_actions_with_witnesses() {
    assert_all_pass(action_searches(pairs(), Search::Witnessed, 1, 2, Config::default()));
}

#[test]
fn broadcast_passes_against_two_actions() {
    let config = Config::default().with_broadcasts(6);
    assert_all_pass(action_searches(pairs(), Search::Bounded, 2, 2, config));
}

#[test]
fn flush_passes_against_three_actions() {
    use Action::{FirstSwitch, Flush, GoOffline, Resume, Switch, TakeInterrupt, Trim};
    let groups: [&[Action]; 5] = [
        &[Switch, Switch, Switch],
        &[Switch, Switch, Flush],
        &[Resume, TakeInterrupt, Flush],
        &[FirstSwitch, Trim, TakeInterrupt],
        &[Switch, Trim, GoOffline],
    ];
    assert_all_pass(action_searches(groups, Search::Bounded, 1, 3, Config::default()));
}

#[test]
fn going_offline_needs_its_release() {
    let programs: [Program; 6] = [
        go_offline_from_kernel::<1>,
        go_offline_from_kernel::<2>,
        go_offline_from_space::<1>,
        go_offline_from_space::<2>,
        go_offline_from_lazy::<1>,
        go_offline_from_lazy::<2>,
    ];
    let config = Config { broken: Some(Rule::LeaveOnlineRelease), ..Config::default() };
    for program in programs {
        let (_, cause) = find_failure(&[("", program)], config).unwrap();
        assert!(cause.starts_with("Causality"), "{cause}");
    }
}

/// Disconnecting a CPU follows these rules at the places where a CPU that leaves follows them.
#[test]
fn disconnection_needs_its_rules() {
    let cases: [(Rule, Program); 5] = [
        (Rule::LeaveRelease, stop_on_page::<1>),
        (Rule::DisconnectRelease, stop_on_page::<1>),
        (Rule::AnswerRelease, stop_on_page::<1>),
        (Rule::LeaveOnlineRelease, stop_on_kernel_page::<1>),
        (Rule::HazardRelease, stop_on_tables::<1>),
    ];
    for (rule, program) in cases {
        let config = Config { broken: Some(rule), ..Config::default() };
        let (_, cause) = find_failure(&[("", program)], config)
            .unwrap_or_else(|| panic!("{rule:?} was not needed"));
        assert!(cause.starts_with("Causality"), "{rule:?}: {cause}");
    }
}

/// Rules that loom cannot break visibly: `crates/check` has a program for each, which fails without
/// the rule, in its tests `engine` (the first) and `axiomatic`.
const BY_CHECKER: [Rule; 6] = [
    Rule::PublishTables,
    Rule::StampClaim,
    Rule::AsidRelease,
    Rule::BroadcastAsidAcquire,
    Rule::ChosenTagAcquire,
    Rule::ListFence,
];

#[test]
fn each_rule_broken_fails_its_program() {
    let survivors = Mutex::new(Vec::new());
    in_parallel(Rule::ALL.to_vec(), |rule| {
        // For AsidAcquire, loom needs two minutes. The axiomatic checker shows the need at once.
        let is_slow = rule == Rule::AsidAcquire && !soaking();
        let Some((name, program)) = program_against::<1>(rule).filter(|_| !is_slow) else {
            return assert!(is_slow || BY_CHECKER.contains(&rule), "{rule:?} has no program");
        };
        let config = Config { broken: Some(rule), ..Config::default() };
        let start = Instant::now();
        let Some((_, cause)) = find_failure(&[(name, program)], config) else {
            println!("survived {rule:?}: {name}");
            return survivors.lock().unwrap().push(rule);
        };
        let (time, cause) = (start.elapsed(), cause.replace('\n', " "));
        println!("killed {rule:?} by {name} in {time:.2?}: {cause}");
        let expected = ["assertion", "Causality", "no CPU is left", "Model exceeded"];
        assert!(expected.iter().any(|start| cause.starts_with(start)), "unexpected failure");
    });
    let survivors = survivors.into_inner().unwrap();
    println!("not detected: {survivors:#?}");
    assert!(survivors.is_empty());
}
