//! Machine files: the values that are read, and the files that are rejected.

use shootdown_sim::machine::{MixedSizes, Refill, StaleWrites, Tagging};
use shootdown_sim::{Machine, MachineError};

const ROUND: &str = include_str!("../round.toml");
const GLOBAL: &str = "tagging = \"global\"";
const BROADCAST: &str = "
[broadcast]
issue_ns = { value = 10, source = \"made up for tests\" }
complete_ns = { value = 1000, source = \"made up for tests\" }
occupy_ns = { value = 300, source = \"made up for tests\" }
victim_ns = { value = 0, source = \"made up for tests\" }
pages_per_operation = { value = 8, source = \"made up for tests\" }
page_ceiling = { value = 64, source = \"made up for tests\" }
";
const REMOTE_FENCE: &str = "
[remote_fence]
call_ns = { value = 200, source = \"made up for tests\" }
each_ns = { value = 100, source = \"made up for tests\" }
target_ns = { value = 300, source = \"made up for tests\" }
deliver_ns = { value = 1000, source = \"made up for tests\" }
page_ceiling = { value = 1, source = \"made up for tests\" }
";

/// The round machine with `keys` before its sections, `sections` after them, and `tags` tags.
fn machine(keys: &str, sections: &str, tags: u32) -> Result<Machine, MachineError> {
    let text = ROUND
        .replace("[topology]", &format!("{keys}\n\n[topology]"))
        .replace("tags = { value = 6.0", &format!("tags = {{ value = {tags}"));
    Machine::from_toml(&(text + sections))
}

#[test]
fn defaults_are_those_of_x86() {
    let machine = machine("", "", 6).unwrap();
    assert_eq!((machine.tagging, machine.refill), (Tagging::PerCpu, Refill::Hardware));
    assert!(machine.broadcast.is_none() && machine.remote_fence.is_none());
    assert_eq!(machine.stale_writes, StaleWrites::Trapped);
}

#[test]
fn tagging_refill_and_notify_methods_are_read() {
    let sections = format!("{BROADCAST}{REMOTE_FENCE}");
    let all = machine(GLOBAL, &sections, 65_535).unwrap();
    assert_eq!(all.tagging, Tagging::Global);
    assert_eq!(all.broadcast.as_ref().unwrap().occupy.ns(), 300);
    assert_eq!(all.remote_fence.as_ref().unwrap().deliver.ns(), 1000);
    for section in ["broadcast", "remote_fence"] {
        assert!(all.numbers().iter().any(|number| number.section == section));
    }
    let unnoticed = machine("stale_writes = \"unnoticed\"", "", 6).unwrap();
    assert_eq!(unnoticed.stale_writes, StaleWrites::Unnoticed);
    assert_eq!(unnoticed.mixed_sizes, MixedSizes::Refused);
    let tolerant = machine("mixed_sizes = \"tolerated\"", "", 6).unwrap();
    assert_eq!(tolerant.mixed_sizes, MixedSizes::Tolerated);
    let renamed = machine("tagging = \"renamed\"\nrefill = \"software\"", "", 255).unwrap();
    assert_eq!((renamed.tagging, renamed.refill), (Tagging::Renamed, Refill::Software));
    assert!(machine(GLOBAL, BROADCAST, 0).is_ok(), "all spaces use one tag");
}

#[test]
fn impossible_machines_are_rejected_with_a_remedy() {
    let no_pages = BROADCAST.replace("operation = { value = 8", "operation = { value = 0");
    let refused = [
        (machine(GLOBAL, "", 65_536), "65536 tags"),
        (machine("tagging = \"renamed\"", "", 0), "no tags"),
        (machine("", BROADCAST, 6), "another space's"),
        (machine("tagging = \"renamed\"", BROADCAST, 6), "another space's"),
        (machine("", REMOTE_FENCE, 6), "another space's"),
        (machine(&format!("{GLOBAL}\nrefill = \"software\""), BROADCAST, 6), "without it"),
        (machine(GLOBAL, &no_pages, 6), "pages_per_operation"),
    ];
    for (result, expected) in refused {
        let Err(MachineError::Impossible { cause, remedy }) = result else {
            panic!("not rejected, or for another reason: {expected}");
        };
        assert!(cause.contains(expected), "{cause}");
        assert!(!remedy.is_empty());
    }
    assert!(matches!(machine("tagging = \"x86\"", "", 6), Err(MachineError::Syntax(_))));
}
