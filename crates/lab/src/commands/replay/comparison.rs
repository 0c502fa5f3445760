//! A recording under the usual designs, by both schedules.

use std::path::Path;

use shootdown_designs::Design;
use shootdown_sim::Machine;

use super::replays::{DEFAULT_RUNS, ReplayError, Request, TooFewCpus, run};
use super::verdict::{Schedule, Verdict};
use crate::error::Violations;

/// Linux before the published changes, Linux of today, and this engine.
pub(super) const DESIGNS: [Design; 3] = [Design::LINUX_4_12, Design::LINUX_7_0, Design::SHOOTDOWN];

/// A recording, replayed by both schedules on one machine.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// The verdict of each schedule. That of the recorded schedule is the first, if the machine
    /// has enough CPUs for it.
    pub(super) verdicts: Vec<Verdict>,
    /// The reason why there is no verdict of the recorded schedule.
    pub(super) too_few_cpus: Option<TooFewCpus>,
}

impl Comparison {
    /// Replays a recording, and shows progress meanwhile.
    ///
    /// # Errors
    ///
    /// If it cannot be read or not be replayed. A machine with fewer CPUs than the recorder's is no
    /// error: the page reports it.
    pub(crate) fn of(trace: &Path, machine: &Machine, seed: u64) -> Result<Self, ReplayError> {
        let by = |schedule: Schedule| {
            let runs = schedule.runs(DEFAULT_RUNS);
            run(&Request { trace, machine, designs: &DESIGNS, schedule, seed, runs })
        };
        let mut comparison = Self { verdicts: Vec::new(), too_few_cpus: None };
        match by(Schedule::Recorded) {
            Ok(verdict) => comparison.verdicts.push(verdict),
            Err(ReplayError::TooFewCpus(error)) => comparison.too_few_cpus = Some(error),
            Err(error) => return Err(error),
        }
        comparison.verdicts.push(by(Schedule::Simulated)?);
        Ok(comparison)
    }

    pub(crate) fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter()
    }

    /// Fails if this engine let a dead translation be used.
    pub(crate) fn violated(&self) -> Result<(), Violations> {
        self.verdicts.iter().try_for_each(Verdict::violated)
    }

    /// The verdict that an overview shows.
    pub(super) fn main(&self) -> &Verdict {
        &self.verdicts[0]
    }
}
