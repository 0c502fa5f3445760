//! Tags: more spaces run than the hardware can tell apart, while memory is short.

use shootdown::Rule;
use shootdown_designs::Engine;
use shootdown_program::operation::{AreaId, FileId, Mapping, Operation};
use shootdown_run::{Limits, Outcome, RunError};
use shootdown_sim::{Counts, Machine};

use crate::exhausted::{LIMITS, map, must_be_right, read, run_under, write};

/// Many more than there are tags.
const PROCESSES: u64 = 16;
const ROUNDS: u64 = 12;

/// Writes to its own memory and to a file that all share, gives some of it back, and lets others
/// run in between.
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

/// Reads more than there is room for.
fn reader() -> Vec<Operation> {
    let laps = (0..6).flat_map(|_| (0..400).step_by(8).map(|page| read(0, page..page + 8)));
    [map(0, 400, Mapping::SharedFile(FileId(2)))].into_iter().chain(laps).collect()
}

fn outcome(machine: Machine, broken: Option<Rule>) -> Result<Outcome, RunError> {
    let programs = (0..PROCESSES).map(process).chain([reader()]);
    let limits = Limits { frames: 330, ..LIMITS };
    let design = |sim| Engine::<1>::with_broken_rule(sim, broken);
    run_under(machine.with_cpus(4).unwrap(), limits, programs, design)
}

fn counts(machine: Machine) -> Counts {
    let outcome = outcome(machine, None).unwrap();
    must_be_right(&outcome);
    assert!(outcome.traffic.read_in_again > 0, "memory was not short");
    outcome.counts
}

/// A machine with so many tags that are given so. The text of one has them once.
pub(crate) fn machine(text: &str, tagging: &str, tags: u32) -> Machine {
    let is_tags = |line: &&str| line.starts_with("tags = ");
    let line = text.lines().find(is_tags).expect("it says how many tags it has");
    let text = text.replace(line, &format!("tags = {{ value = {tags}, source = \"few\" }}"));
    Machine::from_toml(&format!("{tagging}{text}")).unwrap()
}

pub(crate) const ROUND: &str = include_str!("../../../../sim/tests/round.toml");
const MILAN: &str = include_str!("../../../../../machines/amd-invlpgb.toml");
pub(crate) const GLOBAL: &str = "tagging = \"global\"\n";
const RENAMED: &str = "tagging = \"renamed\"\n";

/// Each CPU tells so many spaces apart. Who takes over another's slot begins with an empty TLB.
#[test]
fn more_spaces_than_a_cpu_has_tags_take_over_each_others() {
    let emptied = |tags| {
        let Counts { root_loads, root_loads_kept, .. } = counts(machine(ROUND, "", tags));
        root_loads - root_loads_kept
    };
    let (few, enough) = (emptied(2), emptied(64));
    // Each space is new to each CPU once.
    assert!(enough <= 4 * (PROCESSES + 1), "{enough}");
    assert!(few > 2 * enough, "{few} loads emptied a TLB, and {enough} where there is room");
}

/// Where all CPUs have the same tags, and there are none left, a new round of them begins.
#[test]
fn more_spaces_than_there_are_global_tags_roll_over() {
    for tags in [5, 6, 9] {
        let rollovers = counts(machine(ROUND, GLOBAL, tags)).rollovers;
        assert!(rollovers > PROCESSES / 9, "{tags} tags: {rollovers}");
    }
    assert_eq!(counts(machine(ROUND, GLOBAL, 64)).rollovers, 0);
}

/// A machine with fewer of them than CPUs runs some spaces without any.
#[test]
fn fewer_global_tags_than_cpus_will_do() {
    for tags in [0, 1, 2, 3] {
        counts(machine(ROUND, GLOBAL, tags));
    }
}

/// Others are told by broadcasts that name a tag, which may be another space's by the next round.
#[test]
fn more_spaces_than_there_are_tags_to_broadcast_roll_over() {
    let found = counts(machine(MILAN, "", 6));
    assert!(found.rollovers > 0 && found.broadcasts > 0, "{found:?}");
}

/// A space that is flushed gets another tag, until there are none left on that CPU.
#[test]
fn spaces_that_are_renamed_more_often_than_there_are_tags_roll_over() {
    let found = counts(machine(ROUND, RENAMED, 3));
    assert!(found.rollovers > 0 && found.tags_taken > 3 * found.rollovers, "{found:?}");
}

/// What keeps it all right, left out: some CPU uses what it must not, or an access faults for ever.
#[test]
fn tags_that_are_given_again_without_care_are_noticed() {
    for (machine, rule) in [
        (machine(ROUND, "", 2), Rule::DiscardReusedTag),
        (machine(ROUND, GLOBAL, 5), Rule::FlushOnRollover),
        (machine(MILAN, "", 6), Rule::FlushOnRollover),
        (machine(ROUND, RENAMED, 3), Rule::FlushOnWrap),
    ] {
        assert!(is_noticed(machine, rule), "{rule:?}");
    }
    // It takes a CPU that goes on with its number through a rollover, and one that gets the number
    // then, on its way past the first: with some numbers of tags that happens, with others not.
    for (text, tagging) in [(ROUND, GLOBAL), (MILAN, "")] {
        let noticed =
            (4..12).filter(|&tags| is_noticed(machine(text, tagging, tags), Rule::ReserveTags));
        assert_ne!(noticed.count(), 0, "{tagging}");
    }
}

/// Whether some CPU uses what it must not, or an access faults for ever, without a rule.
fn is_noticed(machine: Machine, rule: Rule) -> bool {
    let is_wrong = |outcome: Outcome| outcome.violations + outcome.wrong_contents != 0;
    outcome(machine, Some(rule)).map_or(true, is_wrong)
}
