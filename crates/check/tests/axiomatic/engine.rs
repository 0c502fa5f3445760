//! Parts of the engine, reduced by hand: what is left are the accesses that take part in the
//! question, in their order, each with the line that it stands for, as `function: what`. Orderings
//! are those of the engine's table of rules.
//!
//! The functions are in these files of `crates/shootdown/src`: `switch_to` in `switch.rs`;
//! `choose_global_tag`, `locked`, `roll_over`, `current_tag`, `pin_tag` and `global_tag` in
//! `tag/global.rs`; `bump`, `log` and `read` in `flush_log.rs`; `look_for_present` in `flush.rs`;
//! `catch_up` in `switch.rs`.

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
    is_wrong: fn(&Execution) -> bool,
    /// The rules without each of which the part has that outcome. The part names other rules, too,
    /// that matter to other parts.
    needs: &'static [Rule],
}

/// What CPU 1 is doing: it leaves space A for space B.
const ACTIVE_ON_A: u64 = 1;
const SWITCHING_TO_B: u64 = 2;
/// Values of `Space::tag`, as 100 × version + number, and 1000 for a pin. A loses number 5 to C,
/// and gets number 7.
const A_5: u64 = 105;
const A_7_UNVERSIONED: u64 = 7;
const A_7: u64 = 207;
const A_7_PINNED: u64 = 1207;
const B_6: u64 = 106;
const C_5_UNVERSIONED: u64 = 5;
const C_5: u64 = 205;

const ROLLOVER: Name = "CPU 2 rolls over and runs C";
const RENUMBERING: Name = "CPU 3 runs A";
const PINNING: Name = "CPU 4 pins A";

const UNVERSIONED: Name = "current_tag: store without version";
const PINNED: Name = "pin_tag: store";

fn locked(steps: Vec<Step>) -> Vec<Step> {
    let lock = compare_exchange("lock", 0, 1, Rule::TagLockAcquire).line("locked: acquire");
    let unlock = store("lock", 0, Rule::TagLockRelease).line("locked: release");
    [lock].into_iter().chain(steps).chain([unlock]).collect()
}

/// The CPU that leaves A, which it has loaded under number 5. Until it loads B's root, which comes
/// after these steps, it may walk A's page tables.
fn leaver() -> Thread {
    let steps = vec![
        store("presence", SWITCHING_TO_B, Rule::LeaveRelease).line("switch_to: presence"),
        fence(Rule::SwitchFence).line("switch_to: fence"),
        load("B.tag", Rule::AsidAcquire).line("choose_global_tag: space.tag"),
        load("version", Relaxed).only_if(&[1]).line("choose_global_tag: is_current"),
        compare_exchange("active", A_5, B_6, Relaxed).line("choose_global_tag: active"),
    ];
    ("CPU 1 leaves A for B", steps)
}

/// The CPU that finds no free number for C, begins version 2, and gives C number 5. If CPU 1 has
/// not chosen B yet, number 5 stays reserved and A keeps it, so the thread stops.
fn roll_over() -> Thread {
    let steps = locked(vec![
        store("version", 2, Relaxed).line("roll_over: version"),
        swap("active", 0, Relaxed).only_if(&[B_6]).line("roll_over: active_tag"),
        store("C.tag", C_5_UNVERSIONED, Rule::AsidRelease).line(UNVERSIONED),
        fence(Rule::NewAsidFence).line("current_tag: fence"),
        store("C.tag", C_5, Rule::AsidRelease).line("current_tag: store with version"),
    ]);
    (ROLLOVER, steps)
}

/// The CPU that runs A, finds number 5 taken, and gives A number 7.
fn renumber() -> Thread {
    let steps = locked(vec![
        load("version", Relaxed).only_if(&[2]).line("current_tag: version"),
        store("A.tag", A_7_UNVERSIONED, Rule::AsidRelease).line(UNVERSIONED),
        fence(Rule::NewAsidFence).line("current_tag: fence"),
        store("A.tag", A_7, Rule::AsidRelease).line("current_tag: store with version"),
    ]);
    let switching = fence(Rule::SwitchFence).line("switch_to: fence");
    (RENUMBERING, [switching].into_iter().chain(steps).collect())
}

/// The CPU that pins A for a device when A has got number 7.
fn pin() -> Thread {
    let mut steps = locked(vec![
        load("A.tag", Relaxed).only_if(&[A_7]).line("current_tag: space.tag"),
        store("A.tag", A_7_PINNED, Rule::AsidRelease).line(PINNED),
    ]);
    steps.push(fence(Rule::NewAsidFence).line("pin_tag: fence"));
    (PINNING, steps)
}

/// The CPU that has unhooked page tables of A: it loads the number to broadcast, and then the
/// presence of CPU 1.
fn flush() -> Thread {
    let steps = vec![
        add("A.generation", 1, Rule::BumpRelease).line("bump: fetch_add"),
        fence(Rule::FlushFence).line("bump: fence"),
        load("A.tag", Rule::BroadcastAsidAcquire).named("tag").line("global_tag: load"),
        load("presence", Rule::PresenceAcquire).named("presence of CPU 1").line("scan: presence"),
    ];
    ("CPU 0 flushes A", steps)
}

/// The flush takes CPU 1 to have A loaded under A's new number, and broadcasts that. CPU 1 walks
/// A's tables under the old number, so the broadcast does not reach it, and it is not interrupted.
/// The flush that finds CPU 1 *switching* interrupts it.
fn is_overlooked(execution: &Execution) -> bool {
    execution.value("tag").is_some_and(|tag| tag != A_5)
        && execution.value("presence of CPU 1") == Some(ACTIVE_ON_A)
}

/// `TagLockRelease` is not among the rules that are needed, because `NewAsidFence` comes before
/// it.
fn tags(name: Name, threads: Vec<Thread>) -> Part {
    let initial = [
        ("presence", ACTIVE_ON_A),
        ("active", A_5),
        ("A.tag", A_5),
        ("B.tag", B_6),
        ("version", 1),
    ];
    Part {
        name,
        program: Program::new(&initial, threads),
        is_wrong: is_overlooked,
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
    tags("renumbered_space", vec![leaver(), roll_over(), renumber(), flush()])
}

/// As `renumbered_space`, and another CPU pins A before the flush loads the number.
fn pinned_space() -> Part {
    tags("pinned_space", vec![leaver(), roll_over(), renumber(), pin(), flush()])
}

const OLD_ENTRY: u64 = 0;
const NEW_ENTRY: u64 = 1;

/// A flush of A, a CPU that gives A number 7, and a CPU that finds this number with its version,
/// and uses it at once: it fills its TLB under number 7 by a page-table entry.
fn used_number(renumbering: Vec<Step>) -> Part {
    let flush = vec![
        store("entry", NEW_ENTRY, Relaxed).line("the kernel: page-table entry"),
        add("A.generation", 1, Rule::BumpRelease).line("bump: fetch_add"),
        fence(Rule::FlushFence).line("bump: fence"),
        load("A.tag", Rule::BroadcastAsidAcquire).named("tag").line("global_tag: load"),
    ];
    let user = vec![
        fence(Rule::SwitchFence).line("switch_to: fence"),
        load("A.tag", Rule::AsidAcquire).only_if(&[A_7]).line("choose_global_tag: space.tag"),
        load("entry", Relaxed).named("walk").line("the MMU: page-table entry"),
    ];
    let threads =
        vec![("CPU 0 flushes A", flush), (RENUMBERING, renumbering), ("CPU 4 runs A", user)];
    Part {
        name: "used_number",
        program: Program::new(&[("A.tag", A_5), ("version", 2), ("entry", OLD_ENTRY)], threads),
        is_wrong: |execution| {
            execution.value("tag") == Some(A_5) && execution.value("walk") == Some(OLD_ENTRY)
        },
        // As loom shows (`broadcast_while_another_allocates`).
        needs: &[Rule::FlushFence, Rule::NewAsidFence, Rule::AsidAcquire],
    }
}

/// The extents of generations 1 and 2.
const EXTENTS: [u64; 2] = [11, 12];
const WRITING: u64 = 1;
const GENERATION: u64 = 4;

/// The writers of generations 1 and 2, which share the only entry of a log, and a reader. (In the
/// engine, 16 generations lie between two writers of an entry.)
fn log_entry() -> Part {
    let writer = |generation: u64, extent: u64| {
        let (before, stamp) = ((generation - 1) * GENERATION, generation * GENERATION);
        vec![
            add("generation", 1, Rule::BumpRelease)
                .only_if(&[generation - 1])
                .line("bump: fetch_add"),
            fence(Rule::FlushFence).line("bump: fence"),
            compare_exchange("stamp", before, stamp | WRITING, Rule::StampClaim).line("log: claim"),
            store("extent", extent, Rule::ExtentRelease).line("log: extent"),
            store("stamp", stamp, Rule::StampRelease).line("log: stamp"),
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
        is_wrong: is_another_extent,
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
    let (_, renumbering) = renumber();
    [log_entry(), renumbered_space(), pinned_space(), used_number(renumbering)]
}

impl Part {
    /// Enumerates the part with rules broken at some sites.
    fn without(&self, is_broken: impl Fn(Site) -> bool) -> Enumeration {
        enumerate(&self.program.without(is_broken), self.is_wrong)
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
fn parts_are_right_with_every_rule() {
    for part in parts() {
        let start = Instant::now();
        let found = part.without(|_| false);
        let Enumeration { executions, prefixes, .. } = found;
        let time = start.elapsed();
        println!("{}: {executions} executions of {prefixes} prefixes, {time:.2?}", part.name);
        assert!(found.witness.is_none(), "{}", found.witness.unwrap());
        // A part in which some thread always stops would show nothing.
        assert!(enumerate(&part.program, Execution::is_finished).is_allowed(), "{}", part.name);
    }
}

/// The rules that loom cannot break visibly: see `tests/rules` of the engine.
const UNSEEN_BY_LOOM: [Rule; 3] = [Rule::StampClaim, Rule::AsidRelease, Rule::BroadcastAsidAcquire];

#[test]
fn each_rule_broken_makes_its_part_go_wrong() {
    let mut killed = Vec::new();
    for part in parts() {
        for rule in part.rules() {
            let found = part.without(|site| site.rule == rule);
            assert_eq!(found.is_allowed(), part.needs.contains(&rule), "{rule:?}, {}", part.name);
            let Some(witness) = &found.witness else { continue };
            if UNSEEN_BY_LOOM.contains(&rule) && !killed.contains(&rule) {
                killed.push(rule);
                // `cargo xtask mutants` counts these lines.
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

/// The CPU that rolls over executes `NewAsidFence` before it releases the lock: that is why its
/// swap of the other CPU's tag can be relaxed.
#[test]
fn rollover_overlooks_a_cpu_without_its_fence() {
    for part in [renumbered_space(), pinned_space()] {
        let is_fence = |site: Site| site.rule == Rule::NewAsidFence && site.thread == ROLLOVER;
        println!("{}", part.without(is_fence).witness.expect("the fence is needed"));
    }
}

/// The store that follows `NewAsidFence` is released by that fence.
#[test]
fn number_release_is_needed_by_two_of_three_stores() {
    let part = pinned_space();
    let is_needed = |site: &Site| part.without(|broken| broken == *site).is_allowed();
    let sites = part.program.sites().filter(|site| site.rule == Rule::AsidRelease);
    let needed: Vec<_> = sites.filter(is_needed).map(|site| (site.thread, site.line)).collect();
    assert_eq!(needed, [(RENUMBERING, UNVERSIONED), (PINNING, PINNED)]);
}

/// Why `current_tag` first stores a number without its version: where the version is there before
/// the fence, a third CPU may use the number although the flush has named the old one.
#[test]
fn number_with_version_before_fence_is_used_early() {
    let renumbering = vec![
        store("A.tag", A_7, Rule::AsidRelease).line("current_tag: store with version"),
        fence(Rule::NewAsidFence).line("current_tag: fence"),
    ];
    let part = used_number(renumbering);
    println!("{}", part.without(|_| false).witness.expect("the third CPU is too early"));
}
