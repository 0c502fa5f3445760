//! Interrupt or broadcast: what the engine chooses, held against either way alone, on the machines
//! that have both.
//!
//! Nobody has published such figures. The workloads are those of the other comparisons and some in
//! which the ways differ most: processes that all flush at once, and a thread that flushes beside
//! others that want to compute.

use std::rc::Rc;

use rayon::prelude::*;
use shootdown_designs::Design;
use shootdown_program::Workload;
use shootdown_run::programs::{Beside, Crowd, Kind, Loop, MprotectThreaded, Tasks};
use shootdown_run::{Limits, run};
use shootdown_sim::{Machine, Time};

use super::Scale;
use crate::error::Failure;
use crate::machines;

/// All workloads on all machines.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(crate) cells: Vec<Cell>,
}

/// One workload on one machine.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) machine: &'static str,
    pub(crate) workload: String,
    /// The engine with interrupts alone.
    pub(crate) interrupts: Told,
    /// The engine with broadcasts alone.
    pub(crate) broadcasts: Told,
    /// The engine.
    pub(crate) chosen: Told,
    /// What kernels do there.
    pub(crate) peers: Vec<(&'static str, Told)>,
}

/// What it took under one design.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Told {
    pub(crate) time_us: f64,
    pub(crate) interrupts_sent: u64,
    /// Operations, or CPUs that firmware was asked to reach.
    pub(crate) broadcasts: u64,
    pub(crate) violations: u64,
}

/// The machines that have both ways, with the designs of kernels that know of them.
const MACHINES: [(&str, &[Design]); 4] = [
    ("ampere-emag-32", &[Design::ARM64, Design::ARM64_SKIP]),
    ("arm64-2s", &[Design::ARM64, Design::ARM64_SKIP]),
    ("amd-invlpgb", &[Design::LINUX_INVLPGB]),
    ("riscv-64", &[Design::RISCV]),
];

const OURS: [Design; 3] =
    [Design::SHOOTDOWN_INTERRUPTS, Design::SHOOTDOWN_BROADCASTS, Design::SHOOTDOWN];

impl Cell {
    /// By how much the choice took longer than the better of the two ways, in percent.
    pub(crate) fn percent_worse(&self) -> f64 {
        let better = self.interrupts.time_us.min(self.broadcasts.time_us);
        100.0 * (self.chosen.time_us / better - 1.0)
    }

    /// All designs with what it took under them, ours first.
    pub(crate) fn designs(&self) -> impl Iterator<Item = (&'static str, Told)> {
        let names = OURS.into_iter().map(Design::name);
        let ours = names.zip([self.interrupts, self.broadcasts, self.chosen]);
        ours.chain(self.peers.iter().copied())
    }
}

impl Choice {
    /// More than this is too much.
    pub(crate) const PERCENT_MAX: f64 = 5.0;

    /// How many simulations it takes.
    pub(crate) fn runs(scale: Scale) -> usize {
        runs(1, scale).len()
    }

    /// Simulates all; `done` is called after each simulation.
    pub(crate) fn of(seed: u64, scale: Scale, done: impl Fn() + Sync) -> Result<Self, Failure> {
        let simulate = |run: &Run| {
            let told = run.simulate(seed, scale)?;
            done();
            Ok(told)
        };
        let all = runs(seed, scale);
        let found: Result<Vec<_>, Failure> = all.par_iter().map(simulate).collect();
        let found: Vec<_> = all.iter().zip(found?).collect();
        let of_a_cell = |one: &(&Run, Told), other: &(&Run, Told)| one.0.is_beside(other.0);
        Ok(Self { cells: found.chunk_by(of_a_cell).map(cell).collect() })
    }

    /// Those in which the choice is too much worse.
    pub(crate) fn worse(&self) -> impl Iterator<Item = &Cell> {
        self.cells.iter().filter(|cell| cell.percent_worse() > Self::PERCENT_MAX)
    }

    /// Dead translations that were used, under this engine.
    pub(crate) fn violations(&self) -> u64 {
        let ours = |cell: &Cell| [cell.interrupts, cell.broadcasts, cell.chosen];
        self.cells.iter().flat_map(ours).map(|told| told.violations).sum()
    }
}

/// One simulation.
struct Run {
    machine: &'static str,
    /// In the order of [`workloads`].
    index: usize,
    design: Design,
}

impl Run {
    fn is_beside(&self, other: &Self) -> bool {
        (self.machine, self.index) == (other.machine, other.index)
    }

    /// Where many compete, who collides with whom is chance: so it is the sum over several seeds.
    fn simulate(&self, seed: u64, scale: Scale) -> Result<Told, Failure> {
        let machine = machines::find(self.machine)?;
        let seeds = if scale == Scale::Quick { 1 } else { 2 };
        let mut sum = Told::default();
        for seed in seed..seed + seeds {
            let workload = workloads(seed, scale).swap_remove(self.index);
            sum = sum.and(self.simulate_one(&machine, workload)?);
        }
        Ok(sum)
    }

    fn simulate_one(&self, machine: &Machine, workload: Rc<dyn Workload>) -> Result<Told, Failure> {
        let name = workload.name();
        let limits = Limits { time: Time::from_ms(60_000), ..Limits::default() };
        let found = run(machine.clone(), limits, workload, |sim| self.design.on(sim));
        let found = found.map_err(|error| Failure::Simulation {
            workload: name,
            design: self.design.name().to_owned(),
            cause: error.to_string(),
        })?;
        let counts = &found.counts;
        Ok(Told {
            time_us: found.time.us(),
            interrupts_sent: counts.interrupts_sent,
            broadcasts: counts.broadcasts + counts.remote_fences,
            violations: found.violations,
        })
    }
}

impl Told {
    fn and(self, other: Self) -> Self {
        Self {
            time_us: self.time_us + other.time_us,
            interrupts_sent: self.interrupts_sent + other.interrupts_sent,
            broadcasts: self.broadcasts + other.broadcasts,
            violations: self.violations + other.violations,
        }
    }
}

fn runs(seed: u64, scale: Scale) -> Vec<Run> {
    let count = workloads(seed, scale).len();
    let on = |(machine, peers): (&'static str, &'static [Design])| {
        let designs = move || OURS.into_iter().chain(peers.iter().copied());
        let of = move |index| designs().map(move |design| Run { machine, index, design });
        (0..count).flat_map(of)
    };
    MACHINES.into_iter().flat_map(on).collect()
}

/// Of the runs of one workload on one machine, in the order of [`runs`].
fn cell(found: &[(&Run, Told)]) -> Cell {
    let told = |design| {
        let of_it = found.iter().find(|(run, _)| run.design == design);
        of_it.map_or_else(Told::default, |&(_, told)| told)
    };
    let Run { machine, index, .. } = found[0].0;
    let [interrupts, broadcasts, chosen] = OURS.map(told);
    Cell {
        machine,
        workload: workloads(1, Scale::Full)[*index].name(),
        interrupts,
        broadcasts,
        chosen,
        peers: found[OURS.len()..].iter().map(|(run, told)| (run.design.name(), *told)).collect(),
    }
}

/// Between 2 and 32 threads that flush. The names and their order do not depend on the scale.
fn workloads(seed: u64, scale: Scale) -> Vec<Rc<dyn Workload>> {
    let part = if scale == Scale::Quick { 6 } else { 1 };
    let alike = |kind, count, iterations| -> Rc<dyn Workload> {
        let tasks = Tasks::Threads;
        Rc::new(Loop { kind, tasks, count, iterations: iterations / part, seed })
    };
    let crowd = |kind, processes, threads| -> Rc<dyn Workload> {
        Rc::new(Crowd { kind, processes, threads, iterations: 360 / part, seed })
    };
    let beside = |others| -> Rc<dyn Workload> {
        Rc::new(Beside { others, iterations: 360 / part, compute_ns: 4000, seed })
    };
    vec![
        alike(Kind::Madvise, 2, 600),
        alike(Kind::Madvise, 8, 360),
        alike(Kind::Madvise, 32, 180),
        alike(Kind::Mmap, 2, 360),
        alike(Kind::Mmap, 8, 180),
        alike(Kind::Mprotect, 2, 600),
        alike(Kind::Mprotect, 8, 360),
        alike(Kind::PageFault, 8, 24),
        alike(Kind::ContextSwitch, 8, 240),
        crowd(Kind::Madvise, 4, 2),
        crowd(Kind::Madvise, 16, 2),
        crowd(Kind::Madvise, 4, 8),
        crowd(Kind::Madvise, 2, 16),
        crowd(Kind::Mprotect, 4, 2),
        crowd(Kind::Mprotect, 16, 2),
        beside(1),
        beside(7),
        beside(31),
        Rc::new(MprotectThreaded { copies: 32, iterations: 240 / part }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_design_has_run_on_every_machine_that_has_both_ways() {
        let all = runs(1, Scale::Quick);
        assert_eq!(all.len(), Choice::runs(Scale::Full));
        for name in machines::with_cpus(1) {
            let machine = machines::find(name).expect("an embedded machine");
            let has_both = machine.broadcast.is_some() || machine.remote_fence.is_some();
            let runs = all.iter().filter(|run| run.machine == machine.name);
            let count = runs.filter(|run| run.design == Design::SHOOTDOWN).count();
            let wanted = if has_both { workloads(1, Scale::Full).len() } else { 0 };
            assert_eq!(count, wanted, "{}", machine.name);
        }
    }

    #[test]
    fn worse_is_worse_than_the_better_way() {
        let told = |time_us| Told { time_us, ..Told::default() };
        let cell = |chosen| Cell {
            machine: "",
            workload: String::new(),
            interrupts: told(200.0),
            broadcasts: told(100.0),
            chosen: told(chosen),
            peers: vec![],
        };
        let choice = Choice { cells: [90.0, 104.0, 106.0, 200.0].map(cell).to_vec() };
        assert_eq!(choice.worse().count(), 2);
        assert!((choice.cells[3].percent_worse() - 100.0).abs() < 1e-9);
        assert!(choice.cells[0].percent_worse() < 0.0);
    }
}
