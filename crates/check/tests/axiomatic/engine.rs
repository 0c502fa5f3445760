//! Parts of the engine, reduced by hand. A part consists of the accesses that matter to one
//! question, in their order, each with the line of the engine that it stands for, as `function:
//! what`. Orderings come from the engine's table of rules.
//!
//! The functions are in these files of `crates/shootdown/src`: `switch_to` in `path/switch`;
//! `choose_asid`, `roll_over`, `current_asid`, `pin_locked` and `global_tag` in
//! `state/tag/global.rs`; `choose`, `reserved_in` and `is_reserved` in `state/tag/reserved.rs`;
//! `listed` and `write_list` in `state/tag/asids`; `bump`, `record` and `read` in
//! `parts/flush_log`; `scan` in `path/notify`; `catch_up` in `path/catch_up.rs`.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::model::{
    Enumeration, Execution, Name, Program, Site, Step, Thread, add, compare_exchange, enumerate,
    fence, load, store,
};
use shootdown::Rule;

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
/// Values of `Space::tag` and of a CPU's words, as 100 × epoch + ASID, with an odd epoch for a
/// proposed or sealed ASID, and 1000 for a pin. A loses ASID 5, and gets ASID 7.
const A_5: u64 = 205;
const A_7_PROPOSED: u64 = 507;
const A_7: u64 = 407;
const A_7_PINNED: u64 = 1407;
const B_6: u64 = 206;
const B_8: u64 = 408;
/// CPU 1 reserves ASID 5, or 6, in epoch 4.
const SEALED_5: u64 = 505;
const SEALED_6: u64 = 506;

const NEW_ASID: Name = "CPU 3 runs A";

const PROPOSED: Name = "current_asid: propose";

/// The CPU that leaves A, which it has loaded under ASID 5. Until it loads B's root, which comes
/// after these steps, it may walk A's page tables. It has found B's ASID of epoch 2. (Its word, and
/// not the epoch, decides whether it may use this ASID.)
fn leaver() -> Thread {
    let steps = vec![
        store("presence", SWITCHING_TO_B, Rule::LeaveRelease).line("switch_to: presence"),
        fence(Rule::SwitchFence).line("switch_to: fence"),
        store("chosen", B_6, Relaxed).line("choose: chosen_tag"),
        compare_exchange("active", A_5, B_6, Rule::ActiveTagRelease).line("choose: active_tag"),
    ];
    ("CPU 1 leaves A for B", steps)
}

/// The CPU that leaves A in epoch 4, after another one has sealed its word.
fn sealed_leaver() -> Thread {
    let steps = vec![
        store("presence", SWITCHING_TO_B, Rule::LeaveRelease).line("switch_to: presence"),
        fence(Rule::SwitchFence).line("switch_to: fence"),
        store("reserved", SEALED_5 - 100, Relaxed).line("choose: reserved_tag"),
        store("chosen", B_8, Relaxed).line("choose: chosen_tag"),
        compare_exchange("active", SEALED_5, B_8, Rule::ActiveTagRelease)
            .line("choose: active_tag"),
    ];
    ("CPU 1 leaves A for B", steps)
}

/// The CPU that runs A in epoch 4, and finds that CPU 1 reserves another ASID.
fn find_another_reserved() -> Vec<Step> {
    vec![
        load("active", Rule::ActiveTagAcquire).only_if(&[B_6]).line("reserved_in: active_tag"),
        compare_exchange("active", B_6, SEALED_6, Relaxed).line("reserved_in: seal"),
    ]
}

/// The CPU that runs A in epoch 4, and finds that CPU 1 reserves A's ASID, and has chosen another.
fn find_another_chosen() -> Vec<Step> {
    vec![
        load("active", Rule::ActiveTagAcquire).only_if(&[SEALED_5]).line("reserved_in: active_tag"),
        load("chosen", Rule::ChosenTagAcquire).only_if(&[B_8]).line("is_reserved: chosen_tag"),
    ]
}

/// The CPU that runs A, finds its ASID not reserved, and gives A ASID 7.
fn assign_asid(finding: Vec<Step>) -> Thread {
    let steps = vec![
        compare_exchange("A.tag", A_5, A_7_PROPOSED, Rule::AsidRelease).line(PROPOSED),
        fence(Rule::NewAsidFence).line("current_asid: fence"),
        compare_exchange("A.tag", A_7_PROPOSED, A_7, Rule::AsidRelease)
            .line("current_asid: confirm"),
    ];
    let switching = fence(Rule::SwitchFence).line("switch_to: fence");
    (NEW_ASID, [switching].into_iter().chain(finding).chain(steps).collect())
}

/// The CPU that pins A for a device after A has got ASID 7.
fn pin() -> Thread {
    let steps = vec![
        compare_exchange("A.tag", A_7, A_7_PINNED, Rule::AsidRelease).line("pin_locked: exchange"),
        fence(Rule::NewAsidFence).line("pin_tag: fence"),
    ];
    ("CPU 4 pins A", steps)
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

fn tags(name: Name, threads: Vec<Thread>, needs: &'static [Rule], active: u64) -> Part {
    let initial = [("presence", ACTIVE_ON_A), ("A.tag", A_5), ("chosen", A_5), ("active", active)];
    let program = Program::new(&initial, threads);
    Part { name, program, is_violation: is_missed_by_broadcast, needs }
}

/// CPU 1 has chosen B's ASID before its word is sealed.
fn renumbered_space() -> Part {
    let threads = vec![leaver(), assign_asid(find_another_reserved()), flush()];
    tags("renumbered_space", threads, RENUMBERED, A_5)
}

/// `SwitchFence` and `ActiveTagRelease` both release the presence, so neither is needed here.
const RENUMBERED: &[Rule] =
    &[Rule::ActiveTagAcquire, Rule::AsidRelease, Rule::BroadcastAsidAcquire];

/// CPU 1 chooses B's ASID after its word was sealed.
fn renumbered_after_sealing() -> Part {
    let threads = vec![sealed_leaver(), assign_asid(find_another_chosen()), flush()];
    let needs =
        &[Rule::SwitchFence, Rule::ChosenTagAcquire, Rule::AsidRelease, Rule::BroadcastAsidAcquire];
    tags("renumbered_after_sealing", threads, needs, SEALED_5)
}

/// As `renumbered_space`, and another CPU pins A before the flush loads the ASID.
fn pinned_space() -> Part {
    let assigning = assign_asid(find_another_reserved());
    let threads = vec![leaver(), assigning, pin(), flush()];
    tags("pinned_space", threads, RENUMBERED, A_5)
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
        program: Program::new(&[("A.tag", A_5), ("entry", OLD_ENTRY)], threads),
        is_violation: |execution| {
            execution.value("tag") == Some(A_5) && execution.value("walk") == Some(OLD_ENTRY)
        },
        // loom shows the same (`broadcast_while_another_allocates`).
        needs: &[Rule::FlushFence, Rule::NewAsidFence, Rule::AsidAcquire],
    }
}

/// A CPU writes the list of unavailable ASIDs for epoch 4, while another one reads a word of it for
/// epoch 2. The reader must not take the new word for the old one.
fn list() -> Part {
    const NEW_WORD: u64 = 1;
    let writer = vec![
        store("listed", 0, Relaxed).line("write_list: listed"),
        fence(Rule::ListFence).line("write_list: fence"),
        store("word", NEW_WORD, Relaxed).line("write_list: word"),
    ];
    let reader = vec![
        load("listed", Rule::ListAcquire).only_if(&[2]).line("listed: listed"),
        load("word", Rule::ListAcquire).named("word").line("listed: word"),
        load("listed", Rule::ListAcquire).named("listed again").line("listed: listed again"),
    ];
    let threads = vec![("CPU 0 writes the list", writer), ("CPU 1 reads it", reader)];
    Part {
        name: "list",
        program: Program::new(&[("listed", 2)], threads),
        is_violation: |execution| {
            execution.value("word") == Some(NEW_WORD) && execution.value("listed again") == Some(2)
        },
        needs: &[Rule::ListFence, Rule::ListAcquire],
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

fn parts() -> [Part; 6] {
    let (_, assigning) = assign_asid(Vec::new());
    let renumbered = [renumbered_space(), renumbered_after_sealing(), pinned_space()];
    let [first, second, third] = renumbered;
    [log_entry(), list(), first, second, third, used_asid(assigning)]
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
const UNSEEN_BY_LOOM: [Rule; 4] =
    [Rule::StampClaim, Rule::AsidRelease, Rule::BroadcastAsidAcquire, Rule::ChosenTagAcquire];

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

/// The confirmation and the pin are read-modify-writes, which continue the proposal's release
/// sequence.
#[test]
fn asid_release_is_needed_by_the_proposal() {
    let part = pinned_space();
    let is_needed = |site: &Site| part.without(|broken| broken == *site).is_allowed();
    let sites = part.program.sites().filter(|site| site.rule == Rule::AsidRelease);
    let needed: Vec<_> = sites.filter(is_needed).map(|site| (site.thread, site.line)).collect();
    assert_eq!(needed, [(NEW_ASID, PROPOSED)]);
}

/// Shows why `current_asid` first proposes an ASID: a third CPU could otherwise use the ASID
/// although the flush has named the old one.
#[test]
fn unproposed_asid_is_used_early() {
    let assigning = vec![
        store("A.tag", A_7, Rule::AsidRelease).line("current_asid: confirm"),
        fence(Rule::NewAsidFence).line("current_asid: fence"),
    ];
    let part = used_asid(assigning);
    println!("{}", part.without(|_| false).witness.expect("the third CPU uses the ASID too early"));
}
