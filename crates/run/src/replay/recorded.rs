//! A recording by its own schedule: every step on its recorded CPU, and none before the one that
//! was recorded before it.
//!
//! One simulated thread holds each CPU, and does what the recording says that the CPU did. Steps
//! *begin* in their recorded order, on different CPUs at the same time if they take long. When a
//! step begins:
//!
//! - where a thread of the program computed before it, when it has computed for as long as it did
//!   when it was recorded, and its CPU is done with the step before;
//! - where the CPU was idle, or another program's, as long after the step that was recorded before
//!   it, on whichever CPU, as it did when it was recorded: it was waiting for that, or for
//!   something that is not in the recording.
//!
//! So what a design makes slower delays all that comes after on the same CPU, and what waits for
//! it elsewhere; and what was idle time stays idle time.

use core::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use shootdown_sim::{Affinity, Machine, RunEnd, Sim, ThreadId, ThreadSpec, Time, WaitMode};
use shootdown_vm::ErasedCoherence;

use crate::kernel::{SimKernel, SimProcess};
use crate::outcome::{Limits, Outcome, RunError};
use shootdown_program::StepError;
use shootdown_program::interpreter::{MemoryHost as _, ProcessMemory};
use shootdown_program::operation::ProgramId;
use shootdown_recording::record::{Owner, SpaceId, TaskId};
use shootdown_recording::{ReadError, Reader};
use thiserror::Error;

use super::steps::{Action, Step, Steps};
use super::survey::{PROGRESS_RECORDS, Survey};

/// The reason why a replay has no outcome.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The recording cannot be read.
    #[error(transparent)]
    Read(ReadError),
    /// The simulation failed.
    #[error(transparent)]
    Run(RunError),
    /// The machine has fewer CPUs than the recording.
    #[error("{recorded} CPUs were recorded, and the machine has {machine}")]
    TooFewCpus {
        /// Number of CPUs of the recording.
        recorded: usize,
        /// Number of CPUs of the machine.
        machine: usize,
    },
}

/// Replays a recording, of which `survey` was made, by its own schedule, on a machine under the
/// design that `design` makes. `progress` is told now and then how many records were replayed.
///
/// # Errors
///
/// If the recording cannot be read, does not fit the machine, or the host has no room.
pub fn replay<D: Into<ErasedCoherence>>(
    machine: Machine,
    frames: usize,
    reader: Reader<'static>,
    survey: &Survey,
    progress: impl Fn(u64) + 'static,
    design: impl FnOnce(Rc<Sim>) -> D,
) -> Result<Outcome, ReplayError> {
    let cpus = survey.header.cpus as usize;
    if machine.cpu_count() < cpus {
        let machine = machine.cpu_count();
        return Err(ReplayError::TooFewCpus { recorded: cpus, machine });
    }
    let sim = Rc::new(Sim::new(machine, frames, cpus).map_err(host)?);
    let design = design(Rc::clone(&sim)).into();
    let mut steps = Steps::new(reader, survey);
    let next_step = Box::new(move || (steps.next_step(), steps.records_read()));
    replay_on(sim, cpus, next_step, Box::new(progress), design)
}

/// Reads a step, and returns it with the number of records that were read.
type NextStep = Box<dyn FnMut() -> (Result<Option<Step>, ReadError>, u64)>;

fn host(error: std::io::Error) -> ReplayError {
    ReplayError::Run(RunError::Host(error.to_string()))
}

/// Replays a recording, compiled once for all designs and all kinds of files.
fn replay_on(
    sim: Rc<Sim>,
    cpus: usize,
    next_step: NextStep,
    progress: Box<dyn Fn(u64)>,
    design: ErasedCoherence,
) -> Result<Outcome, ReplayError> {
    let kernel = SimKernel::new(Rc::clone(&sim), &Limits::DEFAULT, design).map_err(step_error)?;
    let replay = Rc::new(Replay {
        kernel: Rc::new(kernel),
        cursor: RefCell::new(Cursor { next_step, next: None, told: 0, progress }),
        tasks: RefCell::default(),
        on_cpus: RefCell::new(vec![None; cpus]),
        holders: RefCell::default(),
        before: Cell::default(),
        under_way: Cell::new(0),
        failure: RefCell::default(),
        sim: Rc::clone(&sim),
    });
    sim.install(Rc::clone(&replay.kernel) as _);
    let end = replay.start(cpus).map(|()| sim.run_until(Time::END));
    // The kernel refers to the machine, and the machine to the kernel.
    sim.uninstall();
    replay.outcome(end.map_err(host)?)
}

/// Everything that a replay consists of.
struct Replay {
    sim: Rc<Sim>,
    kernel: Rc<SimKernel>,
    cursor: RefCell<Cursor>,
    /// The space of each task, by the task's number in the recording. The kernel has the processes
    /// by the numbers of their spaces in the recording.
    tasks: RefCell<Vec<Option<InSpace>>>,
    /// The space that each CPU's task runs in.
    on_cpus: RefCell<Vec<Option<SpaceId>>>,
    /// The thread that holds each CPU.
    holders: RefCell<Vec<ThreadId>>,
    /// When the last step was recorded, and when it began now.
    before: Cell<(u64, Time)>,
    /// How many steps have begun and are not done.
    under_way: Cell<usize>,
    failure: RefCell<Option<ReplayError>>,
}

/// Where the replay is in the recording.
struct Cursor {
    next_step: NextStep,
    /// The step that begins next, whoever's it is.
    next: Option<Step>,
    /// How often `progress` was called.
    told: u64,
    progress: Box<dyn Fn(u64)>,
}

#[derive(Clone, Copy, Debug)]
struct InSpace {
    owner: Owner,
    space: SpaceId,
}

/// A CPU, between two steps.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// Which task runs on it; `None` for the kernel's.
    running: Option<InSpace>,
    /// When it was done with its last step.
    done_at: Time,
    /// How long it had been interrupted, all in all, by then.
    interrupted: Time,
}

impl Held {
    fn meanwhile(&self) -> WaitMode {
        match self.running {
            Some(_) => WaitMode::Busy,
            None => WaitMode::Idle,
        }
    }

    /// Whether the program runs on it, whose times are known.
    fn is_recorded(&self) -> bool {
        self.running.is_some_and(|running| running.owner == Owner::Recorded)
    }
}

impl Replay {
    fn start(self: &Rc<Self>, cpus: usize) -> std::io::Result<()> {
        self.advance();
        for cpu in 0..cpus {
            let spec = ThreadSpec { space: None, affinity: Affinity::Cpu(cpu) };
            let replay = Rc::clone(self);
            let holder = self.sim.spawn(spec, move || replay.hold(cpu))?;
            self.holders.borrow_mut().push(holder);
        }
        Ok(())
    }

    /// All that a CPU does, from beginning to end.
    fn hold(self: Rc<Self>, cpu: usize) {
        self.sim.keep_cpu();
        let mut held = Held { running: None, done_at: self.sim.now(), interrupted: Time::ZERO };
        while !self.is_over() {
            let Some(turn) = self.turn_of(cpu) else {
                self.sim.wait_on_cpu(held.meanwhile(), None);
                continue;
            };
            self.wait_for_time(&turn, &held);
            let Some(step) = self.cursor.borrow_mut().next.take() else { break };
            self.before.set((step.at_ns, self.sim.now()));
            self.under_way.set(self.under_way.get() + 1);
            self.advance();
            if let Err(error) = self.perform(&step, &mut held) {
                self.fail(step_error(error));
            }
            held.done_at = self.sim.now();
            held.interrupted = self.interrupted();
            self.under_way.set(self.under_way.get() - 1);
            if self.is_over() {
                // Whoever still waits has nothing to wait for.
                self.wake_all();
            }
        }
    }

    /// Whether every step was begun and is done. Until then no CPU leaves the place where the
    /// recording has it, for the steps under way may concern it.
    fn is_over(&self) -> bool {
        self.under_way.get() == 0 && self.cursor.borrow().next.is_none()
    }

    /// The next step, as far as one must know it to wait for it, if it is this CPU's.
    fn turn_of(&self, cpu: usize) -> Option<Turn> {
        let cursor = self.cursor.borrow();
        let step = cursor.next.as_ref().filter(|step| step.cpu == cpu)?;
        Some(Turn { at_ns: step.at_ns, computed_ns: step.computed_ns })
    }

    fn wait_for_time(&self, turn: &Turn, held: &Held) {
        if held.is_recorded() {
            let stolen = self.interrupted() - held.interrupted;
            let due = held.done_at + Time::from_ns(turn.computed_ns) + stolen;
            // Interrupts that come now are added by themselves.
            return self.sim.spend(due.saturating_sub(self.sim.now()));
        }
        let (at_ns, began_at) = self.before.get();
        let due = began_at + Time::from_ns(turn.at_ns - at_ns);
        if due > self.sim.now() {
            self.sim.wait_on_cpu(held.meanwhile(), Some(due));
        }
    }

    /// How long this CPU has been interrupted, all in all.
    fn interrupted(&self) -> Time {
        self.sim.read_counts(self.sim.cpu(), |counts| counts.interrupted)
    }

    /// Reads the next step, and has its CPU look at it.
    fn advance(&self) {
        let (next, read) = (self.cursor.borrow_mut().next_step)();
        let next = match next {
            Ok(next) if self.failure.borrow().is_none() => next,
            Ok(_) => None,
            Err(error) => {
                self.fail(ReplayError::Read(error));
                None
            }
        };
        let turn = next.as_ref().map(|step| step.cpu);
        let mut cursor = self.cursor.borrow_mut();
        cursor.next = next;
        if read / PROGRESS_RECORDS > cursor.told {
            cursor.told = read / PROGRESS_RECORDS;
            (cursor.progress)(read);
        }
        drop(cursor);
        let holder = turn.and_then(|cpu| self.holders.borrow().get(cpu).copied());
        if let Some(holder) = holder {
            self.sim.resume_on_cpu(holder);
        }
    }

    fn wake_all(&self) {
        for &holder in &*self.holders.borrow() {
            self.sim.resume_on_cpu(holder);
        }
    }

    fn perform(&self, step: &Step, held: &mut Held) -> Result<(), StepError> {
        match &step.action {
            Action::Meet { task, owner, space } => self.meet(*task, *owner, *space)?,
            Action::Switch { next, .. } => self.switch(*next, held)?,
            Action::Memory(operation) => {
                let process = held.running.and_then(|running| self.process(running.space));
                if let Some(process) = process {
                    let memory = ProcessMemory::new(&*self.kernel, &process);
                    memory.perform_raw(operation.clone())?;
                }
            }
            Action::Spawn { task, space } => self.spawn(*task, *space, held)?,
            Action::Exec { space } => self.exec(step.task, *space, held)?,
            Action::Exit => self.exit(held),
            // When whom it woke ran, the recording says.
            Action::Wake { .. } => {}
        }
        Ok(())
    }

    fn meet(&self, task: TaskId, owner: Owner, space: SpaceId) -> Result<(), StepError> {
        let at = InSpace { owner, space };
        // Of other programs' spaces, most are never seen again.
        if owner == Owner::Recorded {
            let process = self.process_for(space)?;
            self.let_run(task, &process, at);
        } else {
            self.set_task(task, at);
        }
        Ok(())
    }

    fn process_for(&self, space: SpaceId) -> Result<Arc<SimProcess>, StepError> {
        match self.process(space) {
            Some(process) => Ok(process),
            None => Ok(self.add(space, self.kernel.new_process()?)),
        }
    }

    fn switch(&self, next: TaskId, held: &mut Held) -> Result<(), StepError> {
        let running = self.tasks.borrow().get(next.0 as usize).copied().flatten();
        self.run(running, held);
        let process = running.map(|running| self.process_for(running.space)).transpose()?;
        self.sim.switch_space(process.as_ref().map(|process| process.data.number.get()));
        if let Some(process) = process {
            self.kernel.return_to_user(&process);
        }
        Ok(())
    }

    fn spawn(&self, task: TaskId, space: SpaceId, held: &Held) -> Result<(), StepError> {
        let Some(running) = held.running else { return Ok(()) };
        let Some(parent) = self.process(running.space) else { return Ok(()) };
        self.kernel.enter_kernel();
        let process = match self.process(space) {
            Some(process) => process,
            None => self.add(space, ProcessMemory::new(&*self.kernel, &parent).fork()?),
        };
        self.let_run(task, &process, InSpace { owner: Owner::Recorded, space });
        self.kernel.return_to_user(&parent);
        Ok(())
    }

    fn exec(&self, task: TaskId, space: SpaceId, held: &mut Held) -> Result<(), StepError> {
        let Some(running) = held.running.filter(|_| self.process(space).is_none()) else {
            return Ok(());
        };
        self.kernel.enter_kernel();
        let old = self.process(running.space);
        let fresh = self.add(space, self.kernel.new_process()?);
        let running = InSpace { space, ..running };
        self.run(Some(running), held);
        self.let_run(task, &fresh, running);
        self.sim.set_space(Some(fresh.data.number.get()));
        if let Some(old) = old {
            self.leave(&old);
        }
        self.kernel.return_to_user(&fresh);
        Ok(())
    }

    fn exit(&self, held: &mut Held) {
        let Some(running) = held.running else { return };
        self.run(None, held);
        self.sim.set_space(None);
        if let Some(process) = self.process(running.space) {
            self.leave(&process);
        }
    }

    /// This CPU goes on with a task, or with none.
    fn run(&self, running: Option<InSpace>, held: &mut Held) {
        held.running = running;
        self.on_cpus.borrow_mut()[self.sim.cpu()] = running.map(|running| running.space);
    }

    /// A task uses the process no more; after the last one its memory is taken down. If another CPU
    /// is still said to run the process, something is missing in the recording, and it stays.
    fn leave(&self, process: &SimProcess) {
        let runs_there = |space: &Option<SpaceId>| {
            space.is_some_and(|space| u64::from(space.0) == process.data.number.get())
        };
        if process.leave() && !self.on_cpus.borrow().iter().any(runs_there) {
            self.kernel.destroy(process);
            self.kernel.forget(process);
        }
    }

    fn add(&self, space: SpaceId, process: SimProcess) -> Arc<SimProcess> {
        self.kernel.add_at(space.0 as usize, process)
    }

    fn let_run(&self, task: TaskId, process: &SimProcess, at: InSpace) {
        process.enter();
        self.set_task(task, at);
    }

    fn set_task(&self, task: TaskId, at: InSpace) {
        let (number, mut tasks) = (task.0 as usize, self.tasks.borrow_mut());
        if tasks.len() <= number {
            tasks.resize(number + 1, None);
        }
        tasks[number] = Some(at);
    }

    fn process(&self, space: SpaceId) -> Option<Arc<SimProcess>> {
        self.kernel.process(space.0 as usize)
    }

    fn fail(&self, error: ReplayError) {
        self.failure.borrow_mut().get_or_insert(error);
    }

    fn outcome(&self, end: RunEnd) -> Result<Outcome, ReplayError> {
        if let Some(failure) = self.failure.borrow_mut().take() {
            return Err(failure);
        }
        match end {
            RunEnd::Done => Ok(Outcome::of(&self.kernel)),
            RunEnd::TimeUp => Err(ReplayError::Run(RunError::TimeUp)),
            RunEnd::Deadlock(threads) => Err(ReplayError::Run(RunError::Deadlock(threads))),
        }
    }
}

/// When a step was recorded, and after how much computing.
#[derive(Clone, Copy, Debug)]
struct Turn {
    at_ns: u64,
    computed_ns: u64,
}

const fn step_error(error: StepError) -> ReplayError {
    ReplayError::Run(RunError::Step { program: ProgramId(0), error })
}
