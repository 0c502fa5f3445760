//! Loops on machines with 2 to 128 CPUs, under the newest Linux for the machine and under the
//! engine: the curves over CPUs of the report page.

use std::ffi::OsStr;
use std::fmt::Display;

use shootdown_designs::Design;
use shootdown_run::text::{Grid, Row};

use super::experiment::Scale;
use crate::error::{CannotRun, Failure};
use crate::machines::Embedded;
use crate::workloads;

/// A loop, and the machine that it runs on.
struct Loop {
    workload: &'static str,
    parameters: &'static [(&'static str, &'static str)],
    machine: Embedded,
    linux: Design,
}

/// Loops with one task for each CPU. On the last two machines, all CPUs share the tags.
const LOOPS: [Loop; 5] = [
    Loop {
        workload: "page-discards",
        parameters: &[("pages", "64")],
        machine: Embedded::ICELAKE_2S_128,
        linux: Design::LINUX_7_0,
    },
    Loop {
        workload: "file-discards",
        parameters: &[("pages", "50")],
        machine: Embedded::ICELAKE_2S_128,
        linux: Design::LINUX_7_0,
    },
    Loop {
        workload: "thread-starts",
        parameters: &[],
        machine: Embedded::ICELAKE_2S_128,
        linux: Design::LINUX_7_0,
    },
    Loop {
        workload: "process-starts",
        parameters: &[],
        machine: Embedded::AMD_INVLPGB,
        linux: Design::LINUX_INVLPGB,
    },
    Loop {
        workload: "process-starts",
        parameters: &[],
        machine: Embedded::ARM64_2S,
        linux: Design::ARM64,
    },
];

/// Powers of two, and the numbers of CPUs on both sides of one at which a set of CPUs needs another
/// word.
const SIZES: [usize; 12] = [2, 4, 8, 16, 32, 48, 64, 65, 66, 72, 96, 128];
const QUICK: [usize; 4] = [2, 16, 64, 66];

/// The curves of a loop.
#[derive(Clone, Debug)]
pub(crate) struct Curves {
    pub(crate) workload: &'static str,
    /// What the workload does, in one line.
    pub(crate) about: String,
    pub(crate) machine: &'static str,
    pub(crate) linux: Design,
    pub(crate) points: Vec<Point>,
}

/// The results with one number of CPUs.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) cpus: usize,
    pub(crate) linux: Rate,
    pub(crate) ours: Rate,
    /// Number of interrupts for each operation that the engine would send if it knew each TLB.
    pub(crate) bound: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    /// Number of operations in a second.
    pub(crate) rate: f64,
    /// Number of interrupts for each operation.
    pub(crate) interrupts: f64,
    pub(crate) violations: u64,
}

impl From<&Row> for Rate {
    fn from(row: &Row) -> Self {
        let operations = row.operations as f64;
        Self {
            rate: operations / (row.time_ns as f64 / 1e9),
            interrupts: row.interrupts as f64 / operations,
            violations: row.violations,
        }
    }
}

impl Curves {
    /// Simulates all loops.
    pub(crate) fn all(seed: u64, scale: Scale) -> Result<Vec<Self>, Failure> {
        let sizes = if scale == Scale::Quick { &QUICK[..] } else { &SIZES };
        LOOPS.iter().map(|it| it.curves(seed, sizes)).collect()
    }

    /// Returns the number of translations that were used after their flush, under the engine.
    pub(crate) fn violations(&self) -> u64 {
        self.points.iter().map(|point| point.ours.violations).sum()
    }
}

impl Loop {
    fn curves(&self, seed: u64, sizes: &[usize]) -> Result<Curves, Failure> {
        let mut found = workloads::find(OsStr::new(self.workload))?;
        for (name, value) in self.parameters {
            found.text.set(name, value).map_err(|error| self.failed(error))?;
        }
        let designs = vec![self.linux, Design::SHOOTDOWN];
        let about = found.text.source().lines().next().unwrap_or_default();
        let about = about.trim_start_matches("# ").to_owned();
        let grid = Grid::new(found.text, &self.machine.machine()?, sizes, designs, vec![seed]);
        let rows = grid.map_err(|error| self.failed(error))?.run(|| ());
        let rows = rows.map_err(|error| self.failed(error))?;
        let point = |pair: &[Row]| Point {
            cpus: pair[0].cpus,
            linux: Rate::from(&pair[0]),
            ours: Rate::from(&pair[1]),
            bound: pair[1].classes.bound as f64 / pair[1].operations as f64,
        };
        Ok(Curves {
            workload: self.workload,
            about,
            machine: self.machine.name,
            linux: self.linux,
            points: rows.chunks(2).map(point).collect(),
        })
    }

    fn failed(&self, error: impl Display) -> CannotRun {
        CannotRun::simulation(self.workload, Design::SHOOTDOWN, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_has_rate_for_each_size() {
        let sizes = [2, 8];
        for it in &LOOPS {
            let curves = it.curves(1, &sizes).unwrap_or_else(|error| panic!("{error}"));
            let cpus: Vec<_> = curves.points.iter().map(|point| point.cpus).collect();
            assert_eq!(cpus, sizes, "{}", curves.workload);
            assert_eq!(curves.violations(), 0, "{}", curves.workload);
            for Point { linux, ours, bound, .. } in &curves.points {
                assert!(linux.rate > 0.0 && ours.rate > 0.0, "{}", curves.workload);
                assert!(*bound <= ours.interrupts, "{}", curves.workload);
            }
        }
    }
}
