//! Tags: more address spaces run than the hardware has tags for, while memory is short.

use shootdown::Rule;
use shootdown_designs::Engine;
use shootdown_program::operation::{AreaId, FileId, Mapping, Operation};
use shootdown_run::{Memory, Outcome, RunError, Settings};
use shootdown_sim::{Counts, Machine};

use crate::exhausted::{SETTINGS, map, must_be_right, read, run_under, write};

/// Number of processes, far more than tags.
const PROCESSES: u64 = 16;
const ROUNDS: u64 = 12;

/// Writes to its own memory and to a file that all processes share, discards some of its memory,
/// and yields.
fn process(number: u64) -> Vec<Operation> {
    let mut steps = vec![
        map(0, 6, Mapping::Anonymous),
        map(1, 16, Mapping::SharedFile(FileId(0))),
        map(2, 40, Mapping::PrivateFile(FileId(1))),
    ];
    for round in 0..ROUNDS {
        let page = (number + round) % 16;
        steps.extend([
            write(0, 0..6),
            write(1, page..page + 1),
            read(1, 0..16),
            read(2, 0..40),
            Operation::Discard { area: AreaId(0), pages: round % 6..round % 6 + 1 },
            Operation::Yield,
            read(0, 0..6),
            Operation::Sleep(500 * (1 + number % 7)),
        ]);
    }
    steps
}

/// Reads more than fits in memory.
fn reader() -> Vec<Operation> {
    let laps = (0..6).flat_map(|_| (0..400).step_by(8).map(|page| read(0, page..page + 8)));
    [map(0, 400, Mapping::SharedFile(FileId(2)))].into_iter().chain(laps).collect()
}

fn outcome(machine: Machine, broken: Option<Rule>) -> Result<Outcome, RunError> {
    let programs = (0..PROCESSES).map(process).chain([reader()]);
    let settings = Settings { memory: Memory { frames: 300, ..SETTINGS.memory }, ..SETTINGS };
    let design = |sim| Engine::<1>::with_broken_rule(sim, broken);
    run_under(machine.with_cpus(4).unwrap(), settings, programs, design)
}

fn counts(machine: Machine) -> Counts {
    let outcome = outcome(machine, None).unwrap();
    must_be_right(&outcome);
    assert!(outcome.traffic.read_in_again > 0, "memory was not short");
    outcome.counts
}

/// Returns a machine with this number of tags and this kind of tagging. The text of a machine has
/// one line with its number of tags.
pub(crate) fn machine(text: &str, tagging: &str, tags: u32) -> Machine {
    let is_tags = |line: &&str| line.starts_with("tags = ");
    let line = text.lines().find(is_tags).expect("the text has a number of tags");
    let text = text.replace(line, &format!("tags = {{ value = {tags}, source = \"few\" }}"));
    Machine::from_toml(&format!("{tagging}{text}")).unwrap()
}

pub(crate) const ROUND: &str = include_str!("../../../../sim/tests/round.toml");
const MILAN: &str = include_str!("../../../../../machines/amd-invlpgb.toml");
pub(crate) const GLOBAL: &str = "tagging = \"global\"\n";
const RENAMED: &str = "tagging = \"renamed\"\n";

/// Each CPU has its own tags. A space that takes over another's slot begins with an empty TLB.
#[test]
fn more_spaces_than_cpu_tags_replace_each_other() {
    let emptied = |tags| {
        let Counts { root_loads, root_loads_kept, .. } = counts(machine(ROUND, "", tags));
        root_loads - root_loads_kept
    };
    let (few, enough) = (emptied(2), emptied(64));
    // Each space is new to each CPU once. Now and then a CPU has missed so many pages of a space
    // that it comes back to an empty TLB, for example because many discarded pages were freed.
    assert!(enough <= 4 * (PROCESSES + 1) + 20, "{enough}");
    assert!(few > 2 * enough, "{few} loads emptied a TLB, and {enough} with enough tags");
}

/// When all CPUs share the tags, and none is left, all tags are assigned again.
#[test]
fn more_spaces_than_global_tags_roll_over() {
    for tags in [5, 6, 9] {
        let rollovers = counts(machine(ROUND, GLOBAL, tags)).rollovers;
        assert!(rollovers > PROCESSES / 9, "{tags} tags: {rollovers}");
    }
    assert_eq!(counts(machine(ROUND, GLOBAL, 64)).rollovers, 0);
}

/// A machine with fewer tags than CPUs runs some spaces without a tag.
#[test]
fn fewer_global_tags_than_cpus_suffice() {
    for tags in [0, 1, 2, 3] {
        counts(machine(ROUND, GLOBAL, tags));
    }
}

/// A broadcast names a tag, which may belong to another space after the next rollover.
#[test]
fn more_spaces_than_broadcast_tags_roll_over() {
    let found = counts(machine(MILAN, "", 6));
    assert!(found.rollovers > 0 && found.broadcasts > 0, "{found:?}");
}

/// A flushed space gets another tag, until the CPU has no more tags.
#[test]
fn renamed_spaces_roll_over_when_tags_run_out() {
    let found = counts(machine(ROUND, RENAMED, 3));
    assert!(found.rollovers > 0 && found.tags_taken > 3 * found.rollovers, "{found:?}");
}

/// Without one of these rules, a CPU uses a stale translation or a wrong page, or an access faults
/// without end. (`ReserveTags` is needed only if a space runs on several CPUs, which these do not.)
#[test]
fn careless_reuse_of_tags_is_detected() {
    for (machine, rule) in [
        (machine(ROUND, "", 2), Rule::DiscardReusedTag),
        (machine(ROUND, GLOBAL, 5), Rule::FlushOnRollover),
        (machine(MILAN, "", 6), Rule::FlushOnRollover),
        (machine(ROUND, RENAMED, 3), Rule::FlushOnWrap),
    ] {
        assert!(is_detected(machine, rule), "{rule:?}");
    }
}

/// Returns `true` if a run without a rule violates the oracle or the model, or does not end.
fn is_detected(machine: Machine, rule: Rule) -> bool {
    let is_wrong = |outcome: Outcome| outcome.violations + outcome.wrong_contents != 0;
    outcome(machine, Some(rule)).map_or(true, is_wrong)
}
