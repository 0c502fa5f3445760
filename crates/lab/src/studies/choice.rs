//! Interrupt or broadcast: the engine's choice, compared with either method alone, on machines that
//! have both.
//!
//! There are no published figures for this comparison. The workloads are those of the other
//! comparisons, and workloads in which the methods differ most: many processes that flush at the
//! same time, and a thread that flushes beside other threads that compute. No design discards pages
//! in place here, which would leave nothing to notify of, and no CPU loads page tables of its own.

use std::rc::Rc;

use rayon::prelude::*;
use serde::Serialize;
use shootdown_designs::{Design, discarding_immediately, without_replicas};
use shootdown_program::Workload;
use shootdown_run::programs::{Crowd, Kind, Loop, MadviseAndCompute, MprotectThreaded, Tasks};
use shootdown_run::{Limits, Outcome, Settings, run};
use shootdown_sim::Time;

use super::experiment::Scale;
use crate::error::{Failure, SimulationError};
use crate::machines::Embedded;
use crate::render::displayed;

/// The results of all workloads on all machines.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Choice {
    pub(crate) cells: Vec<Cell>,
}

/// The results of one workload on one machine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    pub(crate) machine: &'static str,
    pub(crate) workload: String,
    /// The additional time of the choice over the better of the two methods, in percent.
    pub(crate) percent_worse: f64,
    /// The engine with interrupts alone, with broadcasts alone, and with the choice; then the
    /// designs of kernels.
    designs: Vec<Cost>,
}

/// The costs of a workload under one design.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Cost {
    #[serde(serialize_with = "displayed")]
    pub(crate) design: Design,
    pub(crate) time_us: f64,
    pub(crate) interrupts_sent: u64,
    /// Number of broadcast operations, plus the number of CPUs that firmware was asked to reach.
    pub(crate) broadcasts: u64,
    pub(crate) violations: u64,
}

/// The machines that have both methods, each with the designs of kernels that use them.
const MACHINES: [(Embedded, &[Design]); 4] = [
    (Embedded::AMPERE_EMAG_32, &[Design::ARM64, Design::ARM64_SKIP]),
    (Embedded::ARM64_2S, &[Design::ARM64, Design::ARM64_SKIP]),
    (Embedded::AMD_INVLPGB, &[Design::LINUX_INVLPGB]),
    (Embedded::RISCV_64, &[Design::RISCV]),
];

const OURS: [Design; 3] =
    [Design::SHOOTDOWN_INTERRUPTS, Design::SHOOTDOWN_BROADCASTS, Design::SHOOTDOWN];

impl Cell {
    pub(super) fn new(machine: &'static str, workload: String, designs: Vec<Cost>) -> Self {
        let better = designs[0].time_us.min(designs[1].time_us);
        let percent_worse = 100.0 * (designs[2].time_us / better - 1.0);
        Self { machine, workload, percent_worse, designs }
    }

    /// Returns the engine with interrupts alone, with broadcasts alone, and with the choice.
    pub(crate) fn ours(&self) -> &[Cost] {
        &self.designs[..OURS.len()]
    }

    /// Returns the engine with the choice.
    pub(crate) fn chosen(&self) -> &Cost {
        &self.designs[OURS.len() - 1]
    }

    /// Returns the designs of kernels.
    pub(crate) fn peers(&self) -> &[Cost] {
        &self.designs[OURS.len()..]
    }

    /// Returns `true` if the choice takes longer than [`Choice::PERCENT_MAX`] allows.
    pub(crate) fn is_bad(&self) -> bool {
        self.percent_worse > Choice::PERCENT_MAX
    }

    /// Returns the number of translations that were used after their flush, under any design.
    pub(crate) fn violations(&self) -> u64 {
        self.designs.iter().map(|cost| cost.violations).sum()
    }
}

impl Choice {
    /// The largest acceptable [`Cell::percent_worse`].
    pub(crate) const PERCENT_MAX: f64 = 5.0;

    /// Returns the number of simulations that [`Choice::of`] runs.
    pub(crate) fn runs() -> usize {
        runs().len()
    }

    /// Simulates all workloads on all machines. Calls `done` after each simulation.
    pub(crate) fn of(seed: u64, scale: Scale, done: impl Fn() + Sync) -> Result<Self, Failure> {
        let simulate = |run: &Run| {
            let cost = run.simulate(seed, scale)?;
            done();
            Ok(cost)
        };
        let runs = runs();
        let costs: Result<Vec<_>, Failure> = runs.par_iter().map(simulate).collect();
        let costs: Vec<_> = runs.iter().zip(costs?).collect();
        let cells = costs.chunk_by(|(one, _), (other, _)| one.is_beside(other));
        let cell = |costs: &[(&Run, Cost)]| {
            let (run, _) = costs[0];
            let workload = workloads(1, Scale::Full)[run.index].name();
            Cell::new(run.machine.name, workload, costs.iter().map(|(_, cost)| *cost).collect())
        };
        Ok(Self { cells: cells.map(cell).collect() })
    }

    /// Returns the number of translations that were used after their flush, under shootdown.
    pub(crate) fn violations(&self) -> u64 {
        self.cells.iter().flat_map(Cell::ours).map(|cost| cost.violations).sum()
    }
}

/// One simulation.
struct Run {
    machine: Embedded,
    /// The index into [`workloads`].
    index: usize,
    design: Design,
}

impl Run {
    fn is_beside(&self, other: &Self) -> bool {
        (self.machine, self.index) == (other.machine, other.index)
    }

    /// Returns the sum over several seeds, because collisions between many competing threads are
    /// random.
    fn simulate(&self, seed: u64, scale: Scale) -> Result<Cost, Failure> {
        let machine = self.machine.machine()?;
        let design = self.design;
        let mut sum =
            Cost { design, time_us: 0.0, interrupts_sent: 0, broadcasts: 0, violations: 0 };
        for seed in seed..seed + if scale == Scale::Quick { 1 } else { 2 } {
            let workload = workloads(seed, scale).swap_remove(self.index);
            let name = workload.name();
            let settings = Settings {
                limits: Limits { time: Time::from_ms(60_000), ..Limits::DEFAULT },
                ..Settings::DEFAULT
            };
            let outcome = run(machine.clone(), settings, workload, |sim| {
                without_replicas(discarding_immediately(design.on(sim)))
            });
            let Outcome { time, counts, violations, .. } =
                outcome.map_err(|error| SimulationError::new(&name, design, error))?;
            sum.time_us += time.us();
            sum.interrupts_sent += counts.interrupts_sent;
            sum.broadcasts += counts.broadcasts + counts.remote_fences;
            sum.violations += violations;
        }
        Ok(sum)
    }
}

/// Returns all runs. The runs of one cell are adjacent, in the order of [`Cell::designs`].
fn runs() -> Vec<Run> {
    let count = workloads(1, Scale::Quick).len();
    let on = |(machine, peers): (Embedded, &'static [Design])| {
        let designs = move || OURS.into_iter().chain(peers.iter().copied());
        let of = move |index| designs().map(move |design| Run { machine, index, design });
        (0..count).flat_map(of)
    };
    MACHINES.into_iter().flat_map(on).collect()
}

/// Returns workloads with 2 to 32 threads that flush. Their names and their order do not depend on
/// the scale.
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
        Rc::new(MadviseAndCompute { others, iterations: 360 / part, compute_ns: 4000, seed })
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
        Rc::new(MprotectThreaded::new(32, 240 / part)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_with_both_methods_is_simulated() {
        let all = runs();
        for embedded in Embedded::ALL {
            let machine = embedded.machine().expect("an embedded machine");
            let broadcasts = machine.broadcast.is_some() || machine.remote_fence.is_some();
            // No processor has domains: a choice by assumed costs shows nothing.
            let has_both = broadcasts && machine.domains.is_none();
            let runs = all.iter().filter(|run| run.machine == *embedded);
            let count = runs.filter(|run| run.design == Design::SHOOTDOWN).count();
            let wanted = if has_both { workloads(1, Scale::Full).len() } else { 0 };
            assert_eq!(count, wanted, "{}", embedded.name);
        }
    }

    #[test]
    fn percent_worse_compares_with_better_method() {
        let cost = |(design, time_us)| Cost {
            design,
            time_us,
            interrupts_sent: 0,
            broadcasts: 0,
            violations: 0,
        };
        let cell = |chosen| {
            let times = OURS.into_iter().zip([200.0, 100.0, chosen]);
            Cell::new("", String::new(), times.map(cost).collect())
        };
        let cells = [90.0, 104.0, 106.0, 200.0].map(cell);
        assert_eq!(cells.iter().filter(|cell| cell.is_bad()).count(), 2);
        assert!((cells[3].percent_worse - 100.0).abs() < 1e-9);
        assert!(cells[0].percent_worse < 0.0);
    }
}
