//! Process starts on all CPUs of machines whose CPUs share tags. Each process takes two tags, and
//! in a long run tags run out. Starts must not be slower than with the Linux of the machine.

use shootdown_designs::Design;
use shootdown_run::text::{Cell, Text};
use shootdown_sim::Machine;

const MACHINES: [(&str, &str, Design); 3] = [
    ("amd-invlpgb", include_str!("../../../../machines/amd-invlpgb.toml"), Design::LINUX_7_0),
    ("arm64-2s", include_str!("../../../../machines/arm64-2s.toml"), Design::ARM64),
    ("riscv-64", include_str!("../../../../machines/riscv-64.toml"), Design::RISCV),
];

/// Process starts per second.
fn rate(machine: &Machine, design: Design, starts: usize, work: &str) -> f64 {
    let source = include_str!("../../../../workloads/process-starts.workload");
    let mut text = Text::parse("process-starts", source).unwrap();
    text.set("programs", &starts.to_string()).unwrap();
    text.set("work", work).unwrap();
    let rows = Cell { workload: &text, machine, design, seed: 1 }.run().unwrap();
    assert_eq!(rows[0].violations, 0, "{rows:?}");
    rows[0].operations as f64 * 1e9 / rows[0].time_ns as f64
}

/// The least rate, for 1 of Linux. On `amd-invlpgb`, where Linux has tags for each CPU, the memory
/// manager's policies cost more than Linux's from 64 CPUs on: `shootdown-alone`, with Linux's, does
/// not fall off (`docs/tags.md`).
fn least(machine: &str, cpus: usize) -> f64 {
    match (machine, cpus) {
        ("amd-invlpgb", 128) => 0.5,
        ("amd-invlpgb", 64..) => 0.95,
        _ => 0.99,
    }
}

/// Compares the engine with the Linux of the machine.
fn assert_not_slower(cpus: &[usize], starts: usize, work: &str) {
    for (name, toml, linux) in MACHINES {
        let all = Machine::from_toml(toml).unwrap();
        for &cpus in cpus.iter().filter(|&&cpus| cpus <= all.cpu_count()) {
            let machine = all.with_cpus(cpus).unwrap();
            let [linux, engine] =
                [linux, Design::SHOOTDOWN].map(|design| rate(&machine, design, starts, work));
            println!("{name}, {cpus} CPUs, {work}: {linux:.0} and {engine:.0} starts per second");
            let least = least(name, cpus) * linux;
            assert!(engine > least, "{name}, {cpus} CPUs: {engine:.0} instead of {least:.0}");
        }
    }
}

#[test]
fn process_starts_are_not_slower_than_under_linux() {
    assert_not_slower(&[36, 64, 128], 15, "20us");
    if std::env::var_os("SHOOTDOWN_SOAK").is_some() {
        let cpus = [2, 4, 8, 16, 32, 64, 65, 66, 72, 96, 128];
        for work in ["20us", "100us", "500us", "1ms", "2ms"] {
            assert_not_slower(&cpus, 40, work);
        }
    }
}
