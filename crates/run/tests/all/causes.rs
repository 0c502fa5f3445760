//! The time of each CPU by its cause, in whole runs.

use std::rc::Rc;

use shootdown_designs::{Design, registry};
use shootdown_run::programs::{Kind, Loop, Tasks};
use shootdown_run::{Limits, Memory, Outcome, Settings};
use shootdown_sim::{Cause, Machine, Time};

const MACHINES: [&str; 3] = [
    include_str!("../../../../machines/xeon-2s.toml"),
    include_str!("../../../../machines/arm64-2s.toml"),
    include_str!("../../../../machines/riscv-64.toml"),
];

fn outcome(machine: &str, design: Design, kind: Kind) -> Outcome {
    let machine = Machine::from_toml(machine).unwrap().with_cpus(4).unwrap();
    let workload = Loop { kind, tasks: Tasks::Threads, count: 6, iterations: 30, seed: 1 };
    let settings = Settings {
        memory: Memory::of_frames(1 << 16),
        limits: Limits { threads: 16, ..Limits::DEFAULT },
        ..Settings::DEFAULT
    };
    shootdown_run::run(machine, settings, Rc::new(workload), |sim| design.on(sim)).unwrap()
}

#[test]
fn causes_add_up_to_time_of_each_cpu() {
    for machine in MACHINES {
        for &design in registry() {
            for kind in [Kind::Madvise, Kind::Mmap, Kind::ContextSwitch] {
                let outcome = outcome(machine, design, kind);
                assert_eq!(outcome.causes.len(), 4);
                for times in &outcome.causes {
                    assert_eq!(times.total(), outcome.time, "{design}, {kind:?}: {times:?}");
                }
            }
        }
    }
}

#[test]
fn time_is_attributed_to_the_method_of_the_machine() {
    let sum = |machine: &str, design, cause| {
        let outcome = outcome(machine, design, Kind::Madvise);
        outcome.causes.iter().map(|times| times[cause]).sum::<Time>()
    };
    let [xeon, arm64, riscv] = MACHINES;
    for (machine, design) in [(xeon, Design::LINUX_7_0), (arm64, Design::ARM64)] {
        for cause in [Cause::FlushWait, Cause::Invalidations, Cause::Refills, Cause::User] {
            assert!(sum(machine, design, cause) > Time::ZERO, "{design}: {cause:?}");
        }
    }
    // Only machines with interrupts, or with firmware, take time from other CPUs.
    assert!(sum(xeon, Design::LINUX_7_0, Cause::Interrupts) > Time::ZERO);
    assert!(sum(riscv, Design::RISCV, Cause::Interrupts) > Time::ZERO);
}
