//! For each rule of the engine, a small program that goes wrong without it, and never with it.
//!
//! loom runs each program in every interleaving, with every value that each load may return. The
//! programs use the engine as a kernel does; what can go wrong is a page or a page table that is
//! used after it was given away, which the software machine notices, and an answer that never
//! comes.
//!
//! What loom does not see: more than four threads, or all that four can do (`AsidRelease` and
//! `BroadcastAsidAcquire` need that); stores to one word that take effect in another order than that in
//! which they were executed (`StampClaim` needs that); loads that return what is stored later. For
//! the last, pages are cells whose every use must be *ordered* before the reuse, which is the same
//! question asked differently. For the three rules, `crates/check/tests/axiomatic` enumerates the
//! executions of a reduced program. Nor does loom have page-table walks that pass a store, or
//! invalidations that pass a load: `crates/check/tests/engine.rs` has programs for these.

#![expect(unsafe_code, reason = "switching is unsafe, and loom's cells are")]

mod casts;
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
mod system;
mod tags;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread;
use std::time::Instant;

use casts::Part;
use ends::*;
use programs::*;
use reclaim::*;
use shootdown::Rule;
use shootdown::soft::Config;
use tags::*;

type Program = fn(Config);

/// A program that goes wrong without each rule, by name.
macro_rules! programs_against {
    ($($rule:ident $(| $other:ident)* => $program:ident,)* ; none: $($unseen:ident),*) => {
        /// The program that goes wrong without `rule`, and its name; `None` where loom cannot show
        /// it, and `crates/check/tests/axiomatic` has the rule.
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
    BumpRelease | GenerationAcquire => first_switch,
    LeaveRelease | PresenceAcquire => enter_lazy,
    BellAcquire => answer_by_polling,
    AnswerRelease | WaitAcquire => answer,
    QuietRelease | QuietAcquire => answer,
    DisconnectRelease | DisconnectAcquire => go_offline,
    ExtentRelease | ExtentAcquire => read_entry_being_overwritten,
    StampRelease | StampAcquire => read_entry_being_written,
    TrimFence => move_roster_while_switching,
    TrimRelease | PhaseAcquire => move_roster_once,
    TrimmingRelease => move_roster_to_a_used_set,
    ClearRelease | ScanAcquire => move_roster_twice,
    HazardRelease | HazardAcquire => retire_while_leaving,
    SeenRelease | SeenAcquire => free_what_was_seen,
    DropRefRelease | DropRefAcquire => two_let_go,
    RetireRelease => retire_after_walking,
    RetireAcquire => retire_while_leaving,
    FlushWalkersFence => flush_walkers_and_unhook,
    OrphanRelease => reap_what_was_left,
    QuarantineTables => hold_back_under_lazy,
    InterruptWalkers => flush_walkers_lazy,
    MarkHazards => retire_under_lazy,
    CheckMark => retire_under_lazy,
    LeaveDeadSpace => reap_idle,
    BatchedRelease | BatchedAcquire => unmap_what_was_taken,
    MarkBatched => unmap_what_was_taken,
    RingPresent => flush_active,
    RingSwitching => switch_with_kept_tag,
    RingLeaving => switch_away_from_freed_tables,
    RingLazy => lazy_on_freed_tables,
    FlushLocally => flush_own,
    Wait => flush_active,
    AnswerWhileWaiting => wait_for_each_other,
    RecheckBell => ring_while_answering,
    CatchUpOnSwitch => switch_with_kept_tag,
    CatchUpOnResume => resume,
    KnowEveryRange => resume,
    DiscardReusedTag => share_a_tag,
    DiscardFreedTables => return_to_freed_tables,
    RecheckPhase => move_roster_while_registering,
    KeepPresent => move_roster_while_switching,
    KeepHazards => switch_away_from_moved_roster,
    RecheckScan => move_roster_twice,
    NewAsidFence => broadcast_while_renumbered,
    AsidAcquire => broadcast_while_another_renumbers,
    TagLockAcquire => two_take_numbers,
    TagLockRelease => two_take_one_number,
    ReserveTags => run_out_under_active,
    FlushOnRollover => take_over_a_number,
    FlushOnWrap => come_round,
    CompleteBroadcasts => broadcast_to_active,
    CompleteForOthers => wait_elsewhere,
    BroadcastForDevices => flush_under_a_device,
    KeepGaps => miss_one_that_was_not_broadcast,
    FlushOnOnline => come_online,
    RingOnline => flush_kernel,
    // In loom's memory, page-table walks are never late: the hostile machine of `crates/check`
    // shows the last one.
    ; none: StampClaim, AsidRelease, BroadcastAsidAcquire, PublishTables
}

/// How loom is to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Search {
    /// Every interleaving that loom finds by itself.
    Unbounded,
    /// Those of them with up to so many preemptions.
    Bounded(usize),
    /// Every interleaving with up to so many preemptions, found with [`platform::with_witnesses`].
    Witnessed(usize),
    /// The first of these, up to three preemptions: so many.
    Some(usize),
}

/// Runs a program in the interleavings of a search. Returns how many, or what went wrong.
fn explore(search: Search, program: impl Fn() + Send + Sync + 'static) -> Result<usize, String> {
    // loom unwinds through each thread that is left over, and would tell of each.
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
        Search::Some(runs) => {
            (model.preemption_bound, model.max_permutations) = (Some(3), Some(runs));
            // Between these, loom does not look at the maximum.
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

/// Programs that no single rule needs: each looks at a meeting of two CPUs that several rules get
/// right together.
fn meetings<const W: usize>() -> [(&'static str, Program); 31] {
    [
        ("switch away from a page", switch_away_from_page::<W>),
        ("flush own, gathered", flush_own_gathered::<W>),
        ("reclaim own", reclaim_own::<W>),
        ("the handler leaves unhooked tables", handler_leaves_unhooked_tables::<W>),
        ("pin while flushing", pin_while_flushing::<W>),
        ("switch while unpinning", switch_while_unpinning::<W>),
        ("go offline with a broadcast", go_offline_with_broadcast::<W>),
        ("go offline from a space", go_offline_from_space::<W>),
        ("go offline from lazy", go_offline_from_lazy::<W>),
        ("two let go", two_let_go::<W>),
        ("come back while retired", come_back_while_retired::<W>),
        ("retire own", retire_own::<W>),
        ("retire while going offline", retire_while_going_offline::<W>),
        ("retire after the cpumask was trimmed", retire_after_cpumask_trimmed::<W>),
        ("reap", reap::<W>),
        ("leave what was left", leave_what_was_left::<W>),
        ("defer while leaving", hold_back_while_leaving::<W>),
        ("flush walkers", flush_walkers::<W>),
        ("the handler leaves while retired", retire_while_handler_leaves::<W>),
        ("seen of another space", seen_of_another_space::<W>),
        ("defer while coming", hold_back_while_coming::<W>),
        ("defer while returning", hold_back_while_returning::<W>),
        ("defer after the cpumask was trimmed", hold_back_after_cpumask_trimmed::<W>),
        ("run out while choosing", run_out_while_choosing::<W>),
        ("resume and broadcast", resume_and_broadcast::<W>),
        ("switch and broadcast", switch_and_broadcast::<W>),
        ("enter lazy and broadcast", enter_lazy_and_broadcast::<W>),
        ("flush walkers by broadcast", flush_walkers_by_broadcast::<W>),
        ("reclaim while switching", reclaim_while_switching::<W>),
        ("reclaim while moving", reclaim_while_moving::<W>),
        ("reclaim active", reclaim_active::<W>),
    ]
}

/// The programs, each once, with the first rule that needs it.
fn programs<const W: usize>() -> Vec<(String, Program)> {
    let mut programs: Vec<(String, Program)> = Vec::new();
    let against_rules = Rule::ALL
        .iter()
        .filter_map(|&rule| Some((format!("{rule:?}"), program_against::<W>(rule)?.1)));
    let meetings = meetings::<W>().into_iter().map(|(name, program)| (name.to_owned(), program));
    for (name, program) in against_rules.chain(meetings) {
        if programs.iter().all(|&(_, known)| known as usize != program as usize) {
            programs.push((name, program));
        }
    }
    programs
}

fn is(program: Program, other: Program) -> bool {
    program as usize == other as usize
}

/// Whether there is time: `cargo xtask soak` sets `SHOOTDOWN_SOAK`.
///
/// Without it, every program, cast and pair of roles still runs, with fewer preemptions.
/// `docs/checking.md` says what runs where, and how long it takes.
fn soaking() -> bool {
    std::env::var_os("SHOOTDOWN_SOAK").is_some()
}

/// A search of one program, by name.
struct Named {
    name: String,
    search: Search,
    program: Box<dyn Fn() + Send + Sync>,
}

impl Named {
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

/// Runs all searches, and asserts that nothing goes wrong.
fn all_right(searches: Vec<Named>) {
    let (start, count, all_runs) = (Instant::now(), searches.len(), AtomicUsize::new(0));
    let wrong = Mutex::new(Vec::new());
    in_parallel(searches, |Named { name, search, program }| {
        let start = Instant::now();
        match explore(search, program) {
            Ok(runs) => {
                println!("{runs:>8} runs {:>9.2?}  {name}", start.elapsed());
                all_runs.fetch_add(runs, Relaxed);
            }
            Err(cause) => wrong.lock().unwrap().push((name, cause)),
        }
    });
    let wrong = wrong.into_inner().unwrap();
    // The hook that keeps loom quiet keeps an assertion's message, too.
    println!("{count} searches, {all_runs:?} runs, {:.2?}; wrong: {wrong:#?}", start.elapsed());
    assert!(wrong.is_empty());
}

/// Finds the program that goes wrong with the fewest preemptions, and what goes wrong.
///
/// Most searches that find something end after milliseconds this way. With three preemptions from
/// the start, loom first tries all that a late preemption can do.
fn find_wrong(
    programs: &[(&'static str, Program)],
    config: Config,
) -> Option<(&'static str, String)> {
    (1..=3).flat_map(|most| [Search::Bounded(most), Search::Witnessed(most)]).find_map(|search| {
        programs.iter().find_map(|&(name, program)| {
            Some((name, explore(search, move || program(config)).err()?))
        })
    })
}

/// Searches of all programs intact.
fn intact<const W: usize>(search: impl Fn(Program) -> Option<Search>) -> Vec<Named> {
    let programs = programs::<W>().into_iter();
    programs
        .filter_map(|(name, program)| {
            let search = search(program)?;
            Some(Named::new(name, search, move || program(Config::default())))
        })
        .collect()
}

#[test]
fn every_program_is_right() {
    all_right(intact::<1>(|program| {
        if !soaking() {
            return Some(Search::Bounded(2));
        }
        if is(program, wait_for_each_other::<1>)
            || is(program, broadcast_while_another_renumbers::<1>)
        {
            // The first spins, and never ends without a bound, and in the second three CPUs have
            // much to do: the next test runs them.
            return None;
        }
        // Three CPUs that all do something: unbounded, these take too long.
        let endless = is(program, flush_walkers_and_unhook::<1>)
            || is(program, hold_back_after_cpumask_trimmed::<1>)
            || is(program, unmap_what_was_taken::<1>);
        Some(if endless { Search::Bounded(3) } else { Search::Unbounded })
    }));
}

#[test]
fn every_program_is_right_with_witnesses() {
    all_right(intact::<1>(|program| {
        // Ten seconds or more each with two preemptions, as long as all others together.
        let long = is(program, move_roster_twice::<1>)
            || is(program, flush_walkers_and_unhook::<1>)
            || is(program, wait_for_each_other::<1>)
            || is(program, broadcast_while_another_renumbers::<1>);
        Some(Search::Witnessed(match soaking() {
            true => 3,
            false if long => 1,
            false => 2,
        }))
    }));
}

#[test]
fn every_program_is_right_with_sets_of_two_words() {
    all_right(intact::<2>(|_| Some(Search::Witnessed(if soaking() { 2 } else { 1 }))));
}

/// Searches of casts, with so many preemptions, or as many as `soak` says if there is time.
fn casts(
    casts: impl IntoIterator<Item = &'static [Part]>,
    search: fn(usize) -> Search,
    preemptions: usize,
    soak: usize,
    config: Config,
) -> Vec<Named> {
    let search = search(if soaking() { soak } else { preemptions });
    let named = |parts| Named::new(parts, search, move || casts::play(parts, config));
    casts.into_iter().map(named).collect()
}

/// Every two parts beside the flush, in an order that does not matter.
fn pairs() -> impl Iterator<Item = &'static [Part]> {
    let parts = Part::ALL.into_iter().enumerate();
    parts.flat_map(|(first, one)| {
        Part::ALL[first..].iter().map(move |&two| &*Vec::leak(vec![one, two]))
    })
}

#[test]
fn every_cast_of_three_is_right() {
    all_right(casts(pairs(), Search::Bounded, 2, 3, Config::default()));
}

#[test]
fn every_cast_of_three_is_right_with_witnesses() {
    all_right(casts(pairs(), Search::Witnessed, 1, 2, Config::default()));
}

#[test]
fn every_cast_of_three_is_right_with_broadcasts() {
    all_right(casts(pairs(), Search::Bounded, 2, 2, Config::default().with_broadcasts(6)));
}

#[test]
fn casts_of_four_are_right() {
    use Part::{Answer, FirstSwitch, Flush, GoOffline, MoveRoster, Resume, Switch};
    let of_four: [&[Part]; 5] = [
        &[Switch, Switch, Switch],
        &[Switch, Switch, Flush],
        &[Resume, Answer, Flush],
        &[FirstSwitch, MoveRoster, Answer],
        &[Switch, MoveRoster, GoOffline],
    ];
    all_right(casts(of_four, Search::Bounded, 1, 3, Config::default()));
}

#[test]
fn every_way_offline_needs_the_release() {
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
        let (_, cause) = find_wrong(&[("", program)], config).unwrap();
        assert!(cause.starts_with("Causality"), "{cause}");
    }
}

#[test]
fn pinning_needs_its_rules() {
    for rule in [Rule::NewAsidFence, Rule::BroadcastForDevices] {
        let config = Config { broken: Some(rule), ..Config::default() };
        let found = find_wrong(&[("pin_while_flushing", pin_while_flushing::<1>)], config);
        assert!(found.is_some(), "{rule:?}");
    }
}

#[test]
fn each_rule_broken_makes_its_program_go_wrong() {
    let survivors = Mutex::new(Vec::new());
    in_parallel(Rule::ALL.to_vec(), |rule| {
        // `cargo xtask mutants` counts these lines.
        let Some((name, program)) = program_against::<1>(rule) else {
            println!("survived {rule:?}");
            return;
        };
        let config = Config { broken: Some(rule), ..Config::default() };
        let start = Instant::now();
        let Some((_, cause)) = find_wrong(&[(name, program)], config) else {
            println!("survived {rule:?}: {name}");
            return survivors.lock().unwrap().push(rule);
        };
        let (time, cause) = (start.elapsed(), cause.replace('\n', " "));
        println!("killed {rule:?} by {name} in {time:.2?}: {cause}");
        let expected = ["assertion", "Causality", "nobody is left", "Model exceeded"];
        assert!(expected.iter().any(|start| cause.starts_with(start)), "the test is wrong");
    });
    let survivors = survivors.into_inner().unwrap();
    println!("not detected: {survivors:#?}");
    assert!(survivors.is_empty());
}
