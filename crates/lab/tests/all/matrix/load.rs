//! The workloads of the matrix, and their costs.

use std::fs;
use std::rc::Rc;

use shootdown_designs::Design;
use shootdown_program::Workload;
use shootdown_run::programs::{Kind, Loop, MadviseMigrate, PthreadMmap, Tasks, Touched};
use shootdown_run::text::{Cell, Text};
use shootdown_sim::{Counts, FlushWaits, Machine};

use crate::designs::run;

/// Numbers of tasks for each CPU.
const TASKS_PER_CPU: [usize; 3] = [1, 2, 8];

/// The texts of `workloads/` that the matrix has, each with parameters.
const TEXTS: &[(&str, &[(&str, &str)])] = &[
    ("process-starts", &[]),
    ("thread-starts", &[]),
    ("page-discards", &[("pages", "64")]),
    ("file-discards", &[("pages", "50")]),
    ("fork-of-threads", &[]),
    ("fork-server", &[]),
    ("madvise-server", &[("requests", "10")]),
];

/// Returns every generator with its name, each loop with these numbers of tasks for each CPU.
pub(crate) fn loops(cpus: usize, per_cpu: &[usize], seed: u64) -> Vec<(String, Rc<dyn Workload>)> {
    let pthread_mmap = PthreadMmap {
        threads: 2 * cpus as u32,
        rounds: 2,
        mappings: 20,
        pages: 1 << 12,
        touched: Touched::First,
        seed,
    };
    let mut workloads: Vec<(String, Rc<dyn Workload>)> = vec![
        ("madvise-migrate".to_owned(), Rc::new(MadviseMigrate { cpus, iterations: 100 })),
        ("pthread-mmap".to_owned(), Rc::new(pthread_mmap)),
    ];
    for kind in Kind::ALL {
        for tasks in [Tasks::Threads, Tasks::Processes] {
            for per_cpu in per_cpu {
                // Context switches need partners.
                let count = ((per_cpu * cpus) as u32).next_multiple_of(2);
                // Switches take less time than the start of the tasks, which must not decide.
                let iterations = match kind {
                    Kind::ContextSwitch if count <= 256 => 600,
                    _ if count > 128 => 12,
                    _ => 50,
                };
                let name = format!("{}-{}-x{per_cpu}", kind.name(), tasks.name());
                workloads.push((name, Rc::new(Loop { kind, tasks, count, iterations, seed })));
            }
        }
    }
    workloads
}

/// A workload of the matrix.
pub(super) enum Load {
    /// A generator, by its index in [`loops`].
    Loop(usize),
    Text(Text),
}

/// The costs of a case under a design, over several seeds.
#[derive(Default)]
pub(super) struct Cost {
    pub(super) interrupts: u64,
    /// Time for each operation, in nanoseconds.
    pub(super) time: f64,
    pub(super) counts: Counts,
    pub(super) waits: FlushWaits,
}

impl Load {
    /// Returns all workloads, with their names.
    pub(super) fn all(cpus: usize) -> Vec<(String, Self)> {
        let loops = loops(cpus, &TASKS_PER_CPU, 0).into_iter().enumerate();
        let texts = TEXTS.iter().map(|&(name, parameters)| {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workloads/");
            let source = fs::read_to_string(format!("{folder}{name}.workload")).unwrap();
            let mut text = Text::parse(name, &source).unwrap();
            parameters.iter().for_each(|(name, value)| text.set(name, value).unwrap());
            (name.to_owned(), Self::Text(text))
        });
        loops.map(|(index, (name, _))| (name, Self::Loop(index))).chain(texts).collect()
    }

    /// Adds the cost of a run.
    pub(super) fn run(&self, machine: &Machine, design: Design, seed: u64, cost: &mut Cost) {
        match self {
            Self::Loop(index) => {
                let (_, workload) =
                    loops(machine.cpu_count(), &TASKS_PER_CPU, seed).swap_remove(*index);
                let outcome = run(design, machine, &workload);
                let wrong = (outcome.violations, outcome.hazards);
                assert_eq!(wrong, (0, 0), "{}, {design}", workload.name());
                cost.interrupts += outcome.counts.interrupts_sent;
                cost.counts += outcome.counts;
                cost.time += outcome.time.ps() as f64 / 1000.0;
                cost.waits.add(&outcome.waits);
            }
            Self::Text(workload) => {
                let rows = Cell { workload, machine, design, seed }.run_exactly();
                for row in rows.unwrap_or_else(|error| panic!("{}: {error}", workload.name())) {
                    assert_eq!(row.violations, 0, "{}, {design}", workload.name());
                    cost.interrupts += row.interrupts;
                    cost.time += row.time_ns as f64 / row.operations.max(1) as f64;
                }
            }
        }
    }
}
