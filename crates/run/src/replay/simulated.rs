//! A recording by a schedule that the simulated machine chooses.
//!
//! The operations of each thread are kept, in their order, and so are the waits of threads for each
//! other. A thread that was woken by another waits until that thread has come as far. A thread that
//! was woken by a timer or a device sleeps as long as it did. The machine chooses when and where a
//! thread runs, and may have other CPUs than the one that recorded.
//!
//! The threads are kept in memory, encoded: a few bytes for most operations.

use std::collections::HashMap;

use shootdown_program::operation::{Operation, ProgramId, Start};
use shootdown_program::stream::{Encoded, Encoder};
use shootdown_recording::record::{Left, Owner, SpaceId, TaskId, Waker};
use shootdown_recording::{ReadError, Reader};
use shootdown_sim::Rng;

use super::steps::{Action, Step, Steps};
use super::survey::{PROGRESS_RECORDS, Survey};

/// Turns a recording, of which `survey` was made, into the programs of its threads.
///
/// Threads begin up to a microsecond later than recorded, and their computations and sleeps take up
/// to 1.6 % more or less, by random numbers from `seed`: the order of two events is often chance.
/// `progress` is called now and then with the number of records that were read.
///
/// # Errors
///
/// If the recording cannot be read.
pub fn threads(
    reader: Reader<'_>,
    survey: &Survey,
    seed: u64,
    progress: impl Fn(u64),
) -> Result<Encoded, ReadError> {
    let mut steps = Steps::new(reader, survey);
    let mut sorter = Sorter::new(seed);
    let mut told = 0;
    while let Some(step) = steps.next_step()? {
        sorter.step(&step);
        let read = steps.records_read();
        if read / PROGRESS_RECORDS > told {
            told = read / PROGRESS_RECORDS;
            progress(read);
        }
    }
    Ok(sorter.encoder.finish(&survey.header.command.join(" ")))
}

/// The part of a time by which it varies at most: one in this many.
const VARIATION: u64 = 64;

/// The longest time of an operation, two months: longer ones are no times.
const TIME_NS_MAX: u64 = (1 << 52) - 1;

/// The largest delay of a thread's beginning, in nanoseconds.
const LATE_NS_MAX: u64 = 1000;

/// Sorts steps by thread.
#[derive(Debug)]
struct Sorter {
    encoder: Encoder,
    /// The thread that began in each space.
    first_in: HashMap<SpaceId, ProgramId>,
    spaces: HashMap<TaskId, SpaceId>,
    rng: Rng,
    /// Since when threads are blocked.
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
            Action::Meet { task, owner: Owner::Recorded, space } => self.meet(*task, *space),
            Action::Switch { next, left } => {
                if is_recorded && *left == Left::Blocked {
                    self.blocked_at_ns.insert(step.task, step.at_ns);
                }
                // Woken by nobody whom the recording shows.
                self.slept(*next, step.at_ns);
            }
            Action::Wake { task, by: Waker::Running }
                if is_recorded && self.blocked_at_ns.remove(task).is_some() =>
            {
                self.push(*task, Operation::Block);
                self.push(step.task, Operation::Wake(program(*task)));
            }
            Action::Wake { task, .. } => self.slept(*task, step.at_ns),
            Action::Memory(operation) if is_recorded => {
                self.push(step.task, Operation::RawAddress(operation.clone()));
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
            // Of other programs, or of tasks that the recording has not introduced.
            Action::Meet { .. }
            | Action::Memory(_)
            | Action::Spawn { .. }
            | Action::Exec { .. }
            | Action::Exit => {}
        }
    }

    /// A thread that was there from the beginning.
    fn meet(&mut self, task: TaskId, space: SpaceId) {
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

    /// A time, more or less.
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
