//! A grid of runs: numbers of CPUs, designs and seeds.

use rayon::prelude::*;
use shootdown_designs::Design;
use shootdown_sim::{Machine, MachineError};
use thiserror::Error;

use super::{Cell, CellError, Row, Text};

/// The runs of a workload on a machine with several numbers of CPUs, under several designs, each
/// with several seeds.
#[derive(Clone, Debug)]
pub struct Grid {
    workload: Text,
    machines: Vec<Machine>,
    designs: Vec<Design>,
    seeds: Vec<u64>,
}

/// A run of a grid failed.
#[derive(Clone, Debug, Error)]
#[error("on {cpus} CPUs under {design}: {error}")]
pub struct GridError {
    /// Number of CPUs.
    pub cpus: usize,
    /// The design.
    pub design: Design,
    /// The seed.
    pub seed: u64,
    /// The reason.
    pub error: CellError,
}

impl Grid {
    /// Creates a grid. `cpus` are the numbers of CPUs to which the machine is resized.
    ///
    /// # Errors
    ///
    /// If the machine cannot have one of these numbers of CPUs.
    pub fn new(
        workload: Text,
        machine: &Machine,
        cpus: &[usize],
        designs: Vec<Design>,
        seeds: Vec<u64>,
    ) -> Result<Self, MachineError> {
        let machines =
            cpus.iter().map(|&cpus| machine.with_cpus(cpus)).collect::<Result<_, _>>()?;
        Ok(Self { workload, machines, designs, seeds })
    }

    /// Returns the cells, in the order of numbers of CPUs, then of designs, then of seeds.
    pub fn cells(&self) -> impl Iterator<Item = Cell<'_>> {
        let Self { workload, machines, designs, seeds } = self;
        machines.iter().flat_map(move |machine| {
            designs.iter().flat_map(move |&design| {
                seeds.iter().map(move |&seed| Cell { workload, machine, design, seed })
            })
        })
    }

    /// Runs all cells on all CPUs of the host, and returns the rows in the order of the cells.
    /// Calls `done` after each cell.
    ///
    /// # Errors
    ///
    /// Returns the error of the first cell that failed.
    pub fn run(&self, done: impl Fn() + Sync) -> Result<Vec<Row>, GridError> {
        let cells: Vec<_> = self.cells().collect();
        let rows = |cell: &Cell<'_>| {
            let rows = cell.run();
            done();
            rows
        };
        // The largest machines run first, because they take the longest.
        let mut results: Vec<_> = cells.par_iter().rev().with_max_len(1).map(rows).collect();
        results.reverse();
        let mut all = Vec::new();
        for (cell, result) in cells.iter().zip(results) {
            let error = |error| GridError {
                cpus: cell.machine.cpu_count(),
                design: cell.design,
                seed: cell.seed,
                error,
            };
            all.extend(result.map_err(error)?);
        }
        Ok(all)
    }
}
