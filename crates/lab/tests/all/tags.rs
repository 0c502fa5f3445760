//! The designs for hardware other than x86, on machines with few tags, so that tags run out all the
//! time. No design uses flushed translations or frees page tables that a CPU can walk.

use std::rc::Rc;

use shootdown_designs::{Design, Purpose, designs_for};
use shootdown_program::Workload;
use shootdown_program::operation::{
    Access, AreaId, Mapping, Operation, Permission, ProgramId, Start, Steps,
};
use shootdown_run::programs::{ExitStorm, Kind, Loop, MadviseMigrate, PthreadMmap, Tasks, Touched};
use shootdown_run::{Limits, Memory, Outcome, Settings};
use shootdown_sim::{Machine, Time};

use crate::common::is_soak;

const SETTINGS: Settings = Settings {
    memory: Memory::of_frames(1 << 20),
    limits: Limits { threads: 512, time: Time::from_ms(60_000) },
    ..Settings::DEFAULT
};

/// The difference between a machine and an x86 machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hardware {
    /// No difference.
    Plain,
    /// Hardware broadcasts, one page per operation.
    Broadcast,
    /// Firmware invalidates on other CPUs.
    Fence,
    /// Tags are renamed, and software refills the TLB.
    Renamed,
}

impl Hardware {
    const ALL: [Self; 4] = [Self::Plain, Self::Broadcast, Self::Fence, Self::Renamed];

    fn machine(self, tags: usize, cpus: usize) -> Machine {
        let text = include_str!("../../../../machines/xeon-2s.toml");
        let text = text.replace("tags = { value = 6", &format!("tags = {{ value = {tags}"));
        let text = text.replace("timeslice_us = { value = 9000", "timeslice_us = { value = 20");
        let section = |name: &str, keys: &[(&str, f64)]| {
            let key = |&(key, value): &(&str, f64)| {
                format!("{key} = {{ value = {value:?}, source = \"made up for tests\" }}\n")
            };
            format!("\n[{name}]\n{}", keys.iter().map(key).collect::<String>())
        };
        let (head, tail) = match self {
            Self::Plain => ("", String::new()),
            Self::Broadcast => {
                let keys = [
                    ("issue_ns", 10.0),
                    ("complete_ns", 300.0),
                    ("cross_ns", 0.0),
                    ("occupy_ns", 100.0),
                    ("victim_ns", 10.0),
                    ("pages_per_operation", 1.0),
                    ("page_ceiling", 512.0),
                ];
                ("tagging = \"global\"\n", section("broadcast", &keys))
            }
            Self::Fence => {
                let keys = [
                    ("call_ns", 500.0),
                    ("each_ns", 50.0),
                    ("target_ns", 300.0),
                    ("deliver_ns", 1000.0),
                    ("page_ceiling", 64.0),
                ];
                ("tagging = \"global\"\n", section("remote_fence", &keys))
            }
            Self::Renamed => ("tagging = \"renamed\"\nrefill = \"software\"\n", String::new()),
        };
        Machine::from_toml(&format!("{head}{text}{tail}")).unwrap().with_cpus(cpus).unwrap()
    }
}

fn run(design: Design, machine: &Machine, workload: &Rc<dyn Workload>) -> Outcome {
    let result =
        shootdown_run::run(machine.clone(), SETTINGS, Rc::clone(workload), |sim| design.on(sim));
    result.unwrap_or_else(|error| panic!("{} under {design}: {error}", workload.name()))
}

/// Returns all generators with more tasks than CPUs, and processes that start and end.
fn workloads(cpus: u32, seed: u64) -> Vec<Rc<dyn Workload>> {
    let pthread_mmap = PthreadMmap {
        threads: 2 * cpus,
        rounds: 2,
        mappings: 10,
        pages: 1 << 12,
        touched: Touched::First,
        seed,
    };
    let mut workloads: Vec<Rc<dyn Workload>> = vec![
        Rc::new(MadviseMigrate { cpus: cpus as usize, iterations: 100 }),
        Rc::new(pthread_mmap),
        Rc::new(ExitStorm { cpus, processes: 6, threads: 3, seed }),
        Rc::new(Families),
    ];
    for kind in Kind::ALL {
        for tasks in [Tasks::Threads, Tasks::Processes] {
            for count in [2, 2 * cpus] {
                workloads.push(Rc::new(Loop { kind, tasks, count, iterations: 40, seed }));
            }
        }
    }
    workloads
}

#[test]
fn designs_are_sound_with_few_tags() {
    for hardware in Hardware::ALL {
        for &tags in if is_soak() { &[0, 6, 15][..] } else { &[6] } {
            if tags == 0 && hardware == Hardware::Renamed {
                continue;
            }
            let machine = hardware.machine(tags, 4);
            for workload in workloads(4, 1) {
                for design in designs_for(Purpose::OtherHardware) {
                    let outcome = run(design, &machine, &workload);
                    let name = workload.name();
                    let first = outcome.first_violations.first();
                    assert_eq!(
                        (outcome.violations, outcome.hazards),
                        (0, 0),
                        "{name} under {design}, {hardware:?} with {tags} tags: {first:?}"
                    );
                }
            }
        }
    }
}

/// More processes than tags, with three threads each, that use the same addresses. They write,
/// discard pages, fork and end, each at another speed.
struct Families;

impl Workload for Families {
    fn name(&self) -> String {
        "families".to_owned()
    }
    fn processes(&self) -> Vec<Start> {
        (0..24).map(|family| Start { program: ProgramId(10 * family), cpu: None }).collect()
    }
    fn steps(&self, program: ProgramId) -> Steps {
        let area = AreaId(0);
        let (family, member) = (u64::from(program.0) / 10, program.0 % 10);
        let touch = move |pages, access| Operation::Touch { area, pages, access };
        let turn = move |round: u64| {
            [
                touch(0..4, Access::Read),
                Operation::Compute(1000 + (family * 7 + round * 13) % 17 * 500),
                touch(0..4, Access::Write),
                Operation::Discard { area, pages: round % 4..round % 4 + 1 },
                Operation::Yield,
            ]
        };
        let turns = (0..30).flat_map(turn);
        if member != 0 {
            return Box::new(turns);
        }
        let (permission, mapping) = (Permission::ReadWrite, Mapping::Anonymous);
        let start = [Operation::Map { area, pages: 4, permission, mapping }];
        let others = [1, 2].map(|member| ProgramId(program.0 + member));
        let child = ProgramId(program.0 + 3);
        let end = [touch(0..4, Access::Write), Operation::Unmap { area, pages: 0..4 }];
        let join = [others[0], others[1], child].map(Operation::Join);
        Box::new(
            start
                .into_iter()
                .chain(others.map(Operation::Spawn))
                .chain([touch(0..4, Access::Write), Operation::Fork(child)])
                .chain(turns)
                .chain(join)
                .chain(end),
        )
    }
}
