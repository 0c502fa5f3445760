//! A recording under the usual designs and under both schedules.

use std::path::Path;

use shootdown_designs::Design;
use shootdown_sim::Machine;

use super::replays::{DEFAULT_RUNS, Request, TooFewCpus, run};
use super::verdict::{Schedule, Unaccounted, Verdict};
use crate::error::{Failure, Violations};
use crate::studies::Scale;

/// Linux before the changes of the studies, current Linux, and shootdown.
pub(super) const DESIGNS: [Design; 3] = [Design::LINUX_4_12, Design::LINUX_7_0, Design::SHOOTDOWN];

/// A recording that was replayed under both schedules on one machine.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// The verdict for each schedule. The recorded schedule comes first, if the machine has enough
    /// CPUs for it.
    pub(super) verdicts: Vec<Verdict>,
    /// The reason why there is no verdict for the recorded schedule, if there is none.
    pub(super) too_few_cpus: Option<TooFewCpus>,
}

impl Comparison {
    /// Replays a recording and shows the progress. [`Scale::Quick`] leaves out the simulated
    /// schedule, unless the machine has too few CPUs for the recorded one.
    ///
    /// # Errors
    ///
    /// If the recording cannot be read or replayed. A machine with fewer CPUs than the recording is
    /// not an error, because the page reports it.
    pub(crate) fn of(
        recording: &Path,
        machine: &Machine,
        seed: u64,
        scale: Scale,
    ) -> Result<Self, Failure> {
        let too_few_cpus = TooFewCpus::find(recording, machine)?;
        let verdict = |schedule: Schedule| {
            let runs = schedule.runs(DEFAULT_RUNS);
            run(&Request { recording, machine, designs: &DESIGNS, schedule, seed, runs })
        };
        let recorded = too_few_cpus.is_none().then_some(Schedule::Recorded);
        // The simulated schedule takes many runs, because its results vary.
        let simulated = (scale == Scale::Full || recorded.is_none()).then_some(Schedule::Simulated);
        let schedules = recorded.into_iter().chain(simulated);
        Ok(Self { verdicts: schedules.map(verdict).collect::<Result<_, _>>()?, too_few_cpus })
    }

    pub(crate) fn verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.verdicts.iter()
    }

    /// Fails if a translation was used after its flush under shootdown.
    pub(crate) fn violated(&self) -> Result<(), Violations> {
        self.verdicts.iter().try_for_each(Verdict::violated)
    }

    /// Fails if a replay accounts for less than its recording contains.
    pub(crate) fn accounted(&self) -> Result<(), Unaccounted> {
        self.verdicts.iter().try_for_each(Verdict::accounted)
    }

    /// Returns the verdict that an overview shows.
    pub(super) fn main(&self) -> &Verdict {
        &self.verdicts[0]
    }
}
