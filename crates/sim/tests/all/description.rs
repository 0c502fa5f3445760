//! Machine files: the values that are read, and the files that are rejected.

use shootdown_sim::machine::{Idle, MixedSizes, Refill, StaleWrites, Tagging};
use shootdown_sim::{Machine, MachineError};

const ROUND: &str = include_str!("../round.toml");
const GLOBAL: &str = "tagging = \"global\"";
const BROADCAST: &str = "
[broadcast]
issue_ns = { value = 10, source = \"made up for tests\" }
complete_ns = { value = 1000, source = \"made up for tests\" }
cross_ns = { value = 0, source = \"made up for tests\" }
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

/// Returns the machine of a file that extends the round machine.
fn extending(own: &str) -> Result<Machine, MachineError> {
    let clocked = "[clock]\nghz = { value = 2, source = \"made up for tests\" }\n";
    let measured = "[measured]\nsyscall_ns = { value = 90, source = \"made up for tests\" }\n";
    let text = format!("name = \"own\"\nabout = \"a test\"\nextends = \"round\"\n{own}");
    Machine::from_toml_extending(&text, |base| {
        assert_eq!(base, "round");
        machine("", &format!("{clocked}{measured}"), 6)
    })
}

/// Returns the value and the source of a number.
fn number(machine: &Machine, section: &str, key: &str) -> (f64, String) {
    let mut numbers = machine.numbers().iter();
    let number = numbers.find(|it| it.section == section && it.key == key);
    number.map(|it| (it.value, it.source.clone())).unwrap_or_else(|| panic!("{section}.{key}"))
}

#[test]
fn extending_file_replaces_single_numbers() {
    let own = extending("[kernel]\nfault_ns = { value = 7, source = \"measured\" }").unwrap();
    assert_eq!((own.name.as_str(), own.cpu_count()), ("own", 8));
    assert_eq!(own.kernel.fault.ns(), 7);
    assert_eq!(number(&own, "kernel", "fault_ns").1, "measured");
    assert_eq!(number(&own, "kernel", "areas_ns"), (200.0, "round: made up for tests".into()));
    assert!(own.measured.is_empty(), "measurements are of one machine");
}

#[test]
fn inherited_times_of_core_scale_with_clock() {
    let own = extending("[clock]\nghz = { value = 4, source = \"twice\" }").unwrap();
    let (value, source) = number(&own, "kernel", "areas_ns");
    assert_eq!((value, own.kernel.areas.ns()), (100.0, 100));
    assert_eq!(source, "round's 200 x 2 GHz / 4 GHz: made up for tests");
    assert_eq!(own.cache.socket.ns(), 50, "the interconnect has a clock of its own");
    assert_eq!(
        number(&own, "tlb", "entries").0,
        number(&machine("", "", 6).unwrap(), "tlb", "entries").0
    );
}

#[test]
fn extending_file_lacks_sections_that_it_is_without() {
    let idle = "
[[idle]]
name = \"C1\"
tlb = \"kept\"
after_us = { value = 0, source = \"made up for tests\" }
exit_us = { value = 1, source = \"made up for tests\" }
";
    let find = |without: &str| {
        let text =
            format!("name = \"own\"\nabout = \"\"\nextends = \"round\"\nwithout = {without}");
        Machine::from_toml_extending(&text, |_| machine("", idle, 6))
    };
    assert_ne!(find("[]").unwrap().idle, Idle::Poll);
    assert_eq!(find("[\"idle\"]").unwrap().idle, Idle::Poll);
    assert!(find("[\"storage\"]").is_err(), "the base has none");
    assert!(find("[\"kernel\"]").is_err(), "every machine has a kernel");
    assert!(find("3").is_err());
    let clock = "[clock]\nghz = { value = 4, source = \"made up for tests\" }";
    assert!(find(&format!("[]\n{clock}")).is_err(), "the base states no clock");
}

#[test]
fn single_number_is_replaced_by_its_name() {
    let round = machine("", "", 6).unwrap().with_cpus(3).unwrap();
    let other = round.with_number("tlb.invalidate_page_ns", 1234.0).unwrap();
    assert_eq!((other.tlb.invalidate_page.ns(), other.cpu_count()), (1234, 3));
    assert_eq!(round.with_number("topology.sockets", 1.0).unwrap().cpu_count(), 4);
    for (key, value) in [("tlb.nothing", 1.0), ("tlb", 1.0), ("", 1.0), ("tlb.entries", 0.5)] {
        assert!(round.with_number(key, value).is_err(), "{key}");
    }
}
