//! The replay of a recording under a schedule that the simulated machine chooses.
//!
//! The replay keeps the order of each thread's operations, and the waits of threads for each other.
//! A thread that another thread woke waits until that thread reaches the wake-up. A thread that a
//! timer or a device woke sleeps for the recorded time. The machine chooses when and where a thread
//! runs, and may have other CPUs than the recorded machine.
//!
//! The threads are kept in memory, encoded in a few bytes for most operations.

use std::collections::HashMap;

use shootdown_program::operation::{Operation, ProgramId, Start};
use shootdown_program::stream::{Encoded, Encoder};
use shootdown_recording::record::{Left, Owner, SpaceId, TaskId, Waker};
use shootdown_recording::{ReadError, Reader};
use shootdown_sim::Rng;

use super::steps::{Action, KernelTime, Step, Steps};
use super::survey::Survey;

/// Converts a recording to the programs of its threads. `survey` must be of the same recording.
///
/// Threads begin up to a microsecond later than recorded, and their computations and sleeps take up
/// to 1.6 % more or less, by random numbers from `seed`, because the order of two events is often
/// random. `progress` is called at regular intervals with the number of records that were read.
///
/// # Errors
///
/// Fails if the recording cannot be read.
pub fn threads<'r>(
    reader: Reader<'r>,
    survey: &Survey,
    seed: u64,
    progress: impl Fn(u64) + 'r,
) -> Result<Encoded, ReadError> {
    let mut steps = Steps::new(reader, survey, KernelTime::Simulated, progress);
    let mut sorter = Sorter::new(seed);
    while let Some(step) = steps.next_step()? {
        sorter.step(&step);
    }
    Ok(sorter.encoder.finish(&survey.header.command.join(" ")))
}

/// The divisor of the variation of times: a time varies by at most one part in this number.
const VARIATION: u64 = 64;

/// The longest time of an operation, about two months. Longer times are errors of the recording.
const TIME_NS_MAX: u64 = (1 << 52) - 1;

/// The largest delay of a thread's beginning, in nanoseconds.
const LATE_NS_MAX: u64 = 1000;

/// Sorts steps by thread.
#[derive(Debug)]
struct Sorter {
    encoder: Encoder,
    /// The first thread of each space.
    first_in: HashMap<SpaceId, ProgramId>,
    spaces: HashMap<TaskId, SpaceId>,
    rng: Rng,
    /// The times at which blocked threads blocked.
    blocked_at_ns: HashMap<TaskId, u64>,
}

impl Sorter {
    fn new(seed: u64) -> Self {
        Self {
            encoder: Encoder::default(),
            first_in: HashMap::new(),
            spaces: HashMap::new(),
            rng: Rng::new(seed),
            blocked_at_ns: HashMap::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        let is_recorded = self.spaces.contains_key(&step.task);
        if is_recorded && step.computed_ns > 0 {
            let computed_ns = self.varied(step.computed_ns);
            self.push(step.task, Operation::Compute(computed_ns));
        }
        match &step.action {
            Action::Introduce { task, owner: Owner::Recorded, space } => {
                self.introduce(*task, *space);
            }
            Action::Switch { next, left } => {
                if is_recorded && *left == Left::Blocked {
                    self.blocked_at_ns.insert(step.task, step.at_ns);
                }
                // The recording does not show the waker.
                self.slept(*next, step.at_ns);
            }
            Action::Wake { task, by: Waker::Running }
                if is_recorded && self.blocked_at_ns.remove(task).is_some() =>
            {
                self.push(*task, Operation::Block);
                self.push(step.task, Operation::Wake(program(*task)));
            }
            Action::Wake { task, .. } => self.slept(*task, step.at_ns),
            Action::Memory(change) | Action::Flushing { change, .. } if is_recorded => {
                self.push(step.task, Operation::RawAddress(change.clone()));
            }
            Action::Spawn { task, space } if is_recorded => {
                let shares = self.spaces.get(&step.task) == Some(space);
                self.begin(*task, *space);
                let child = program(*task);
                let make = if shares { Operation::Spawn(child) } else { Operation::Fork(child) };
                self.push(step.task, make);
            }
            Action::Exec { space } if is_recorded => {
                self.spaces.insert(step.task, *space);
                self.push(step.task, Operation::Exec);
            }
            // Events of other programs, or of tasks that the recording has not introduced.
            Action::Introduce { .. }
            | Action::Memory(_)
            | Action::Flushing { .. }
            | Action::ChoosesTargets
            | Action::GatherBegins
            | Action::GatherEnds { .. }
            | Action::Spawn { .. }
            | Action::Exec { .. }
            | Action::Exit => {}
        }
    }

    /// Adds a thread that existed when the recording began.
    fn introduce(&mut self, task: TaskId, space: SpaceId) {
        self.begin(task, space);
        match self.first_in.get(&space) {
            Some(&first) => self.push(TaskId(first.0), Operation::Spawn(program(task))),
            None => {
                self.first_in.insert(space, program(task));
                self.encoder.start(Start { program: program(task), cpu: None });
            }
        }
    }

    fn begin(&mut self, task: TaskId, space: SpaceId) {
        self.spaces.insert(task, space);
        let late_ns = self.rng.below(LATE_NS_MAX);
        self.push(task, Operation::Compute(late_ns));
    }

    fn slept(&mut self, task: TaskId, to_ns: u64) {
        if let Some(from_ns) = self.blocked_at_ns.remove(&task) {
            let slept_ns = self.varied(to_ns - from_ns);
            self.push(task, Operation::Sleep(slept_ns));
        }
    }

    /// Varies a time at random.
    fn varied(&mut self, ns: u64) -> u64 {
        let most = ns / VARIATION;
        (ns - most).saturating_add(self.rng.below(2 * most + 1)).min(TIME_NS_MAX)
    }

    fn push(&mut self, task: TaskId, operation: Operation) {
        self.encoder.push(program(task), &operation);
    }
}

const fn program(task: TaskId) -> ProgramId {
    ProgramId(task.0)
}
