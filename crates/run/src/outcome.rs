//! The outcome of a run.

use shootdown_program::StepError;
use shootdown_program::interpreter::MemoryHost as _;
use shootdown_program::operation::ProgramId;
use shootdown_sim::{Counts, FlushWaits, HotSpot, RunEnd, Time, TimeByCause, Violation};
use shootdown_vm::{DiscardStats, QuarantineStats, Stats};
use thiserror::Error;

use crate::instrumented::Unmaps;
use crate::kernel::SimKernel;
use crate::platform::Traffic;

/// The outcome of a run. The first five fields describe the measurement, the others the whole run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Time from the first [`Begin`](shootdown_program::operation::Operation::Begin) to the last
    /// [`End`](shootdown_program::operation::Operation::End).
    pub time: Time,
    /// Time from the first `End` to the last.
    pub time_range: Time,
    /// Sum of the iterations of all threads.
    pub iterations: u64,
    /// Counts of all CPUs, from the first `Begin` to the last `End`.
    pub counts: Counts,
    /// The time of each CPU by its cause, from the first `Begin` to the last `End`. The times of a
    /// CPU add up to [`time`](Self::time).
    pub causes: Vec<TimeByCause>,
    /// The waits for lines and locks, by name, in the whole run.
    pub hot_spots: Vec<HotSpot>,
    /// The flushes of `munmap`s.
    pub unmaps: Unmaps,
    /// The durations of flushes.
    pub waits: FlushWaits,
    /// Number of uses of a translation after the flush that removed it.
    pub violations: u64,
    /// Number of page tables that were freed while a CPU could walk them.
    pub hazards: u64,
    /// The first violations and hazards.
    pub first_violations: Vec<Violation>,
    /// Number of wrong words in memory, if [contents](crate::Settings::contents) were checked.
    pub wrong_contents: u64,
    /// The first wrong words.
    pub first_wrong_contents: Vec<String>,
    /// The traffic of pages.
    pub traffic: Traffic,
    /// Statistics of the memory of all processes that have ended.
    pub memory: Stats,
    /// Statistics of the page tables whose release was deferred, because a CPU could still walk
    /// them.
    pub quarantined_tables: QuarantineStats,
    /// Statistics of the pages that were discarded in place.
    pub discards: DiscardStats,
    /// Number of steps of a recording that had no effect, because the replay lacked their task or
    /// their space. The counts are then too low.
    pub dropped_steps: u64,
}

impl Outcome {
    /// Returns the outcome of a run that is measured as a whole.
    pub(crate) fn of(kernel: &SimKernel) -> Self {
        let sim = kernel.sim();
        let model = kernel.model.as_ref().map(|model| model.borrow());
        Self {
            time: sim.time(),
            time_range: Time::ZERO,
            iterations: 0,
            counts: sim.counts(),
            causes: sim.time_by_cause(sim.time()),
            hot_spots: sim.hot_spots(),
            unmaps: kernel.design().unmaps(),
            waits: sim.flush_waits(),
            violations: sim.violations(),
            hazards: sim.hazards(),
            first_violations: sim.first_violations(),
            wrong_contents: model.as_ref().map_or(0, |model| model.wrong()),
            first_wrong_contents: model.map_or(Vec::new(), |model| model.first()),
            traffic: kernel.platform().traffic(),
            memory: kernel.ended(),
            quarantined_tables: kernel.vm().quarantined_tables(),
            discards: kernel.vm().discard_stats(),
            dropped_steps: 0,
        }
    }
}

/// The reason why a run has no outcome.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RunError {
    /// An operation failed.
    #[error("thread {}: {error}", program.0)]
    Step {
        /// The program of the thread.
        program: ProgramId,
        /// The failure.
        error: StepError,
    },
    /// All remaining threads wait, and none can wake another. The field is their number.
    #[error("deadlock: no thread can wake the {0} that wait")]
    Deadlock(usize),
    /// The run takes longer than its [limit](crate::Limits::time).
    #[error("the run exceeds its limit of simulated time")]
    TimeUp,
    /// The host lacks room for the simulation. The field is the host's error message.
    #[error("the host has no room: {0}")]
    Host(String),
}

impl RunError {
    /// Checks that all threads of a simulation have ended.
    pub(crate) const fn check(end: RunEnd) -> Result<(), Self> {
        match end {
            RunEnd::Done => Ok(()),
            RunEnd::TimeUp => Err(Self::TimeUp),
            RunEnd::Deadlock(threads) => Err(Self::Deadlock(threads)),
        }
    }
}
