//! Parts of the engine, reduced by hand. A part consists of the accesses that matter to one
//! question, in their order, each with the line of the engine that it stands for, as `function:
//! what`. Orderings come from the engine's table of rules.
//!
//! The functions are in these files of `crates/shootdown/src`: `switch_to` in `switch.rs`;
//! `choose_asid`, `roll_over`, `current_asid`, `pin_tag` and `global_tag` in `tag/global.rs`;
//! `with_lock` in `tag/asids.rs`; `bump`, `record` and `read` in `flush_log.rs`; `scan` in
//! `notify.rs`; `catch_up` in `catch_up.rs`.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use shootdown::Rule;
use shootdown_check::axiomatic::{
    Enumeration, Execution, Name, Program, Site, Step, Thread, add, compare_exchange, enumerate,
    fence, load, store, swap,
};

/// A part of the engine.
struct Part {
    name: Name,
    program: Program,
    /// The outcome that the part must not have.
    is_violation: fn(&Execution) -> bool,
    /// The rules without which the part has that outcome. The part also names other rules, which
    /// matter to other parts.
    needs: &'static [Rule],
}

/// The states of CPU 1, which leaves space A for space B.
const ACTIVE_ON_A: u64 = 1;
const SWITCHING_TO_B: u64 = 2;
/// Values of `Space::tag`, as 100 × epoch + ASID, and 1000 for a pin. A loses ASID 5 to C, and gets
/// ASID 7.
const A_5: u64 = 105;
const A_7_NO_EPOCH: u64 = 7;
const A_7: u64 = 207;
const A_7_PINNED: u64 = 1207;
const B_6: u64 = 106;
const C_5_NO_EPOCH: u64 = 5;
const C_5: u64 = 205;

const ROLLOVER: Name = "CPU 2 rolls over and runs C";
const NEW_ASID: Name = "CPU 3 runs A";
const PINNING: Name = "CPU 4 pins A";

const NO_EPOCH: Name = "current_asid: store without epoch";
const PINNED: Name = "pin_tag: store";

fn locked(steps: Vec<Step>) -> Vec<Step> {
    let lock = compare_exchange("lock", 0, 1, Rule::TagLockAcquire).line("with_lock: acquire");
    let unlock = store("lock", 0, Rule::TagLockRelease).line("with_lock: release");
    [lock].into_iter().chain(steps).chain([unlock]).collect()
}

/// The CPU that leaves A, which it has loaded under ASID 5. Until it loads B's root, which comes
/// after these steps, it may walk A's page tables.
fn leaver() -> Thread {
    let steps = vec![
        store("presence", SWITCHING_TO_B, Rule::LeaveRelease).line("switch_to: presence"),
        fence(Rule::SwitchFence).line("switch_to: fence"),
        load("B.tag", Rule::AsidAcquire).line("choose_asid: space.tag"),
        load("epoch", Relaxed).only_if(&[1]).line("choose_asid: is_current"),
        compare_exchange("active", A_5, B_6, Relaxed).line("choose_asid: active"),
    ];
    ("CPU 1 leaves A for B", steps)
}

/// The CPU that finds no free ASID for C, begins epoch 2, and gives C ASID 5. If CPU 1 has not
/// chosen B yet, ASID 5 stays reserved and A keeps it, so the thread stops.
fn roll_over() -> Thread {
    let steps = locked(vec![
        store("epoch", 2, Relaxed).line("roll_over: epoch"),
        swap("active", 0, Relaxed).only_if(&[B_6]).line("roll_over: active_tag"),
        store("C.tag", C_5_NO_EPOCH, Rule::AsidRelease).line(NO_EPOCH),
        fence(Rule::NewAsidFence).line("current_asid: fence"),
        store("C.tag", C_5, Rule::AsidRelease).line("current_asid: store with epoch"),
    ]);
    (ROLLOVER, steps)
}

/// The CPU that runs A, finds ASID 5 taken, and gives A ASID 7.
fn assign_asid() -> Thread {
    let steps = locked(vec![
        load("epoch", Relaxed).only_if(&[2]).line("current_asid: epoch"),
        store("A.tag", A_7_NO_EPOCH, Rule::AsidRelease).line(NO_EPOCH),
        fence(Rule::NewAsidFence).line("current_asid: fence"),
        store("A.tag", A_7, Rule::AsidRelease).line("current_asid: store with epoch"),
    ]);
    let switching = fence(Rule::SwitchFence).line("switch_to: fence");
    (NEW_ASID, [switching].into_iter().chain(steps).collect())
}

/// The CPU that pins A for a device after A has got ASID 7.
fn pin() -> Thread {
    let mut steps = locked(vec![
        load("A.tag", Relaxed).only_if(&[A_7]).line("current_asid: space.tag"),
        store("A.tag", A_7_PINNED, Rule::AsidRelease).line(PINNED),
    ]);
    steps.push(fence(Rule::NewAsidFence).line("pin_tag: fence"));
    (PINNING, steps)
}

/// The CPU that has removed page tables of A: it loads the ASID to broadcast, and then the presence
/// of CPU 1.
fn flush() -> Thread {
    let steps = vec![
        add("A.generation", 1, Rule::BumpRelease).line("bump: fetch_add"),
        fence(Rule::FlushFence).line("bump: fence"),
        load("A.tag", Rule::BroadcastAsidAcquire).named("tag").line("global_tag: load"),
        load("presence", Rule::PresenceAcquire).named("presence of CPU 1").line("scan: presence"),
    ];
    ("CPU 0 flushes A", steps)
}

/// The flush assumes that CPU 1 has A loaded under A's new ASID, and broadcasts to that. CPU 1
/// walks A's tables under the old ASID, so the broadcast does not reach it, and it is not
/// interrupted. If the flush found CPU 1 *switching*, it would interrupt it.
fn is_missed_by_broadcast(execution: &Execution) -> bool {
    execution.value("tag").is_some_and(|tag| tag != A_5)
        && execution.value("presence of CPU 1") == Some(ACTIVE_ON_A)
}

/// `TagLockRelease` is not among the needed rules, because `NewAsidFence` comes before it.
fn tags(name: Name, threads: Vec<Thread>) -> Part {
    let initial =
        [("presence", ACTIVE_ON_A), ("active", A_5), ("A.tag", A_5), ("B.tag", B_6), ("epoch", 1)];
    Part {
        name,
        program: Program::new(&initial, threads),
        is_violation: is_missed_by_broadcast,
        needs: &[
            Rule::SwitchFence,
            Rule::NewAsidFence,
            Rule::TagLockAcquire,
            Rule::AsidRelease,
            Rule::BroadcastAsidAcquire,
        ],
    }
}

fn renumbered_space() -> Part {
    tags("renumbered_space", vec![leaver(), roll_over(), assign_asid(), flush()])
}

/// As `renumbered_space`, and another CPU pins A before the flush loads the ASID.
fn pinned_space() -> Part {
    tags("pinned_space", vec![leaver(), roll_over(), assign_asid(), pin(), flush()])
}

const OLD_ENTRY: u64 = 0;
const NEW_ENTRY: u64 = 1;

/// A flush of A, a CPU that gives A ASID 7, and a CPU that finds this ASID with its epoch and uses
/// it: it fills its TLB under ASID 7 from a page-table entry.
fn used_asid(assigning: Vec<Step>) -> Part {
    let flush = vec![
        store("entry", NEW_ENTRY, Relaxed).line("the kernel: page-table entry"),
        add("A.generation", 1, Rule::BumpRelease).line("bump: fetch_add"),
        fence(Rule::FlushFence).line("bump: fence"),
        load("A.tag", Rule::BroadcastAsidAcquire).named("tag").line("global_tag: load"),
    ];
    let user = vec![
        fence(Rule::SwitchFence).line("switch_to: fence"),
        load("A.tag", Rule::AsidAcquire).only_if(&[A_7]).line("choose_asid: space.tag"),
        load("entry", Relaxed).named("walk").line("the MMU: page-table entry"),
    ];
    let threads = vec![("CPU 0 flushes A", flush), (NEW_ASID, assigning), ("CPU 4 runs A", user)];
    Part {
        name: "used_asid",
        program: Program::new(&[("A.tag", A_5), ("epoch", 2), ("entry", OLD_ENTRY)], threads),
        is_violation: |execution| {
            execution.value("tag") == Some(A_5) && execution.value("walk") == Some(OLD_ENTRY)
        },
        // loom shows the same (`broadcast_while_another_allocates`).
        needs: &[Rule::FlushFence, Rule::NewAsidFence, Rule::AsidAcquire],
    }
}

/// The extents of generations 1 and 2.
const EXTENTS: [u64; 2] = [11, 12];
const WRITING: u64 = 1;
const GENERATION: u64 = 4;

/// The writers of generations 1 and 2, which share the only entry of a log, and a reader. (In the
/// engine, 16 generations separate two writers of an entry.)
fn log_entry() -> Part {
    let writer = |generation: u64, extent: u64| {
        let (before, stamp) = ((generation - 1) * GENERATION, generation * GENERATION);
        vec![
            add("generation", 1, Rule::BumpRelease)
                .only_if(&[generation - 1])
                .line("bump: fetch_add"),
            fence(Rule::FlushFence).line("bump: fence"),
            compare_exchange("stamp", before, stamp | WRITING, Rule::StampClaim)
                .line("record: claim"),
            store("extent", extent, Rule::ExtentRelease).line("record: extent"),
            store("stamp", stamp, Rule::StampRelease).line("record: stamp"),
        ]
    };
    let reader = vec![
        load("generation", Rule::GenerationAcquire).line("catch_up: generation"),
        load("stamp", Rule::StampAcquire).named("stamp").only_if(&[4, 8]).line("read: stamp"),
        load("extent", Rule::ExtentAcquire).named("extent").line("read: extent"),
        load("stamp", Relaxed).named("stamp again").line("read: stamp again"),
    ];
    let threads = vec![
        ("CPU 0 flushes, generation 1", writer(1, EXTENTS[0])),
        ("CPU 1 flushes, generation 2", writer(2, EXTENTS[1])),
        ("CPU 2 catches up", reader),
    ];
    Part {
        name: "log_entry",
        program: Program::new(&[], threads),
        is_violation: is_another_extent,
        // loom shows all but the first (`read_entry_being_written`, `…_overwritten`).
        needs: &[
            Rule::StampClaim,
            Rule::ExtentRelease,
            Rule::ExtentAcquire,
            Rule::StampRelease,
            Rule::StampAcquire,
        ],
    }
}

/// The reader accepts an extent that is not that of the stamp's generation.
fn is_another_extent(execution: &Execution) -> bool {
    let (Some(stamp), Some(extent)) = (execution.value("stamp"), execution.value("extent")) else {
        return false;
    };
    let expected = EXTENTS[(stamp / GENERATION - 1) as usize];
    execution.value("stamp again") == Some(stamp) && extent != expected
}

fn parts() -> [Part; 4] {
    let (_, assigning) = assign_asid();
    [log_entry(), renumbered_space(), pinned_space(), used_asid(assigning)]
}

impl Part {
    /// Enumerates the part with rules broken at some sites.
    fn without(&self, is_broken: impl Fn(Site) -> bool) -> Enumeration {
        enumerate(&self.program.without(is_broken), self.is_violation)
    }

    /// The rules that the part names, each once.
    fn rules(&self) -> Vec<Rule> {
        let mut rules: Vec<Rule> = Vec::new();
        for Site { rule, .. } in self.program.sites() {
            if !rules.contains(&rule) {
                rules.push(rule);
            }
        }
        rules
    }
}

#[test]
fn complete_parts_have_no_violation() {
    for part in parts() {
        let start = Instant::now();
        let found = part.without(|_| false);
        let Enumeration { executions, prefixes, .. } = found;
        let time = start.elapsed();
        println!("{}: {executions} executions of {prefixes} prefixes, {time:.2?}", part.name);
        assert!(found.witness.is_none(), "{}", found.witness.unwrap());
        // A part would show nothing if some thread stopped in every execution.
        assert!(enumerate(&part.program, Execution::is_finished).is_allowed(), "{}", part.name);
    }
}

/// The rules that loom cannot break visibly: see `tests/rules` of the engine.
const UNSEEN_BY_LOOM: [Rule; 3] = [Rule::StampClaim, Rule::AsidRelease, Rule::BroadcastAsidAcquire];

#[test]
fn each_rule_broken_fails_its_part() {
    let mut killed = Vec::new();
    for part in parts() {
        for rule in part.rules() {
            let found = part.without(|site| site.rule == rule);
            assert_eq!(found.is_allowed(), part.needs.contains(&rule), "{rule:?}, {}", part.name);
            let Some(witness) = &found.witness else { continue };
            if UNSEEN_BY_LOOM.contains(&rule) && !killed.contains(&rule) {
                killed.push(rule);
                let Enumeration { executions, with_outcome, .. } = found;
                println!(
                    "killed {rule:?} by {}: {with_outcome} of {executions} executions",
                    part.name
                );
                println!("{witness}");
            }
        }
    }
    assert!(UNSEEN_BY_LOOM.iter().all(|rule| killed.contains(rule)), "{killed:?}");
}

/// The CPU that rolls over executes `NewAsidFence` before it releases the lock. Because of that
/// fence, its swap of the other CPU's tag can be relaxed.
#[test]
fn rollover_without_fence_misses_a_cpu() {
    for part in [renumbered_space(), pinned_space()] {
        let is_fence = |site: Site| site.rule == Rule::NewAsidFence && site.thread == ROLLOVER;
        println!("{}", part.without(is_fence).witness.expect("the fence is needed"));
    }
}

/// The store that follows `NewAsidFence` is released by that fence.
#[test]
fn asid_release_is_needed_by_two_stores() {
    let part = pinned_space();
    let is_needed = |site: &Site| part.without(|broken| broken == *site).is_allowed();
    let sites = part.program.sites().filter(|site| site.rule == Rule::AsidRelease);
    let needed: Vec<_> = sites.filter(is_needed).map(|site| (site.thread, site.line)).collect();
    assert_eq!(needed, [(NEW_ASID, NO_EPOCH), (PINNING, PINNED)]);
}

/// Shows why `current_asid` first stores an ASID without its epoch: if the epoch were stored before
/// the fence, a third CPU could use the ASID although the flush has named the old one.
#[test]
fn asid_with_epoch_before_fence_is_used_early() {
    let assigning = vec![
        store("A.tag", A_7, Rule::AsidRelease).line("current_asid: store with epoch"),
        fence(Rule::NewAsidFence).line("current_asid: fence"),
    ];
    let part = used_asid(assigning);
    println!("{}", part.without(|_| false).witness.expect("the third CPU uses the ASID too early"));
}
