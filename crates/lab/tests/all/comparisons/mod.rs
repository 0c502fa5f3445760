//! Shootdown compared with models of Linux, on workloads that `designs.rs` does not have: pages
//! that migrate between nodes, and many processes on each CPU.

mod migration;
mod time_shared;

use std::rc::Rc;

use shootdown_designs::Design;
use shootdown_program::Workload;
use shootdown_run::{Outcome, Settings};
use shootdown_sim::Machine;

fn machine(name: &str, cpus: usize) -> Machine {
    let text = match name {
        "arm64-2s" => include_str!("../../../../../machines/arm64-2s.toml"),
        "desktop-1s" => include_str!("../../../../../machines/desktop-1s.toml"),
        "skylake" => include_str!("../../../../../machines/skylake-laptop-kvm.toml"),
        "xeon-2s" => include_str!("../../../../../machines/xeon-2s.toml"),
        other => panic!("no machine file for {other}"),
    };
    Machine::from_toml(text).unwrap().with_cpus(cpus).unwrap()
}

/// Runs a workload, in which no CPU may use a stale translation.
fn run(
    design: Design,
    machine: &Machine,
    settings: Settings,
    workload: &Rc<dyn Workload>,
) -> Outcome {
    let name = workload.name();
    let result =
        shootdown_run::run(machine.clone(), settings, Rc::clone(workload), |sim| design.on(sim));
    let outcome = result.unwrap_or_else(|error| panic!("{name} under {design}: {error}"));
    let first = outcome.first_violations.first();
    assert_eq!((outcome.violations, outcome.hazards), (0, 0), "{name}, {design}: {first:?}");
    outcome
}
