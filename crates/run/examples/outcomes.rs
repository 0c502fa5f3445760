//! Prints the outcome of every loop under every design, on two machines with two and eight CPUs.
//! `cargo xtask test bytes` compares what two builds print.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::error::Error;
use std::rc::Rc;

use shootdown_designs::registry;
use shootdown_program::Workload;
use shootdown_run::programs::{ExitStorm, Kind, Loop, MadviseMigrate, Tasks};
use shootdown_run::{Settings, run};
use shootdown_sim::Machine;

const MACHINES: [&str; 2] = [
    include_str!("../../../machines/skylake-laptop-kvm.toml"),
    include_str!("../../../machines/xeon-2s.toml"),
];

fn workloads(cpus: usize) -> Vec<Rc<dyn Workload>> {
    let mut workloads: Vec<Rc<dyn Workload>> = vec![
        Rc::new(MadviseMigrate { cpus, iterations: 50 }),
        Rc::new(ExitStorm { cpus: cpus as u32, processes: 2, threads: 1, seed: 1 }),
    ];
    for kind in Kind::ALL {
        for tasks in [Tasks::Threads, Tasks::Processes] {
            let count = 2 * cpus as u32;
            workloads.push(Rc::new(Loop { kind, tasks, count, iterations: 10, seed: 1 }));
        }
    }
    workloads
}

fn main() -> Result<(), Box<dyn Error>> {
    for machine in MACHINES {
        for cpus in [2, 8] {
            let machine = Machine::from_toml(machine)?.with_cpus(cpus)?;
            for workload in workloads(cpus) {
                for design in registry() {
                    let outcome =
                        run(machine.clone(), Settings::DEFAULT, Rc::clone(&workload), |sim| {
                            design.on(sim)
                        })?;
                    println!("{} {cpus} {design} {outcome:?}", workload.name());
                }
            }
        }
    }
    Ok(())
}
