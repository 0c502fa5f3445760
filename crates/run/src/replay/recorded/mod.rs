//! The replay of a recording under its own schedule: every step happens on its recorded CPU, and
//! not before the step that was recorded before it.
//!
//! One simulated thread holds each CPU, and performs the CPU's recorded steps. Steps *begin* in
//! their recorded order; long steps on different CPUs overlap. The time at which a step begins
//! depends on its CPU:
//!
//! - If a thread of the program computed before the step, the step begins when the CPU has finished
//!   its last step and then computed for the recorded time.
//! - If the CPU was idle or ran another program, the step begins after the previous step of the
//!   recording, on any CPU, by the recorded time between the two: the CPU waited for that step, or
//!   for an event that is not in the recording.
//!
//! A call that flushed is recorded when its flush chose its targets. The steps after it begin when
//! the flush of the replay has chosen: what other CPUs run then decides whom it interrupts. If the
//! recorded CPUs were emulated, such a call begins when its flush was counted, and the choice is a
//! step of its own ([`Action::ChoosesTargets`]).
//!
//! A slower design therefore delays all later steps on the same CPU, and the steps of other CPUs
//! that wait for them. Idle time remains idle time.

use core::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use shootdown_sim::{Affinity, Machine, RunEnd, Sim, ThreadId, ThreadSpec, Time, WaitMode};
use shootdown_vm::{ErasedCoherence, Flush as _};

use crate::kernel::{SimKernel, SimProcess};
use crate::outcome::{Outcome, RunError};
use crate::settings::{Memory, Settings, Supply};
use shootdown_program::StepError;
use shootdown_program::interpreter::{MemoryHost as _, ProcessMemory};
use shootdown_program::operation::ProgramId;
use shootdown_recording::record::{Owner, SpaceId, TaskId};
use shootdown_recording::{ReadError, Reader, Task};
use thiserror::Error;

use super::steps::{Action, Step, Steps, Targets};
use super::survey::Survey;
use lateness::{Late, kernel_time};

mod lateness;
mod targets;

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

/// Replays a recording under its own schedule, on a machine under the design that `design` makes.
/// `survey` must be of the same recording. `progress` is called at regular intervals with the
/// number of records that were replayed.
///
/// # Errors
///
/// Fails if the recording cannot be read, does not fit the machine, or the host lacks room.
pub fn replay<D: Into<ErasedCoherence>>(
    mut machine: Machine,
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
    let kernel_time = kernel_time(survey);
    let late = Late::on(&mut machine, survey, kernel_time);
    let sim = Rc::new(Sim::new(machine, frames, cpus).map_err(host)?);
    let design = design(Rc::clone(&sim)).into();
    let mut steps = Steps::new(reader, survey, kernel_time, progress);
    let supply = if survey.reclaims { Supply::Reclaimed } else { Supply::Enough };
    let memory = Memory { supply, ..Memory::of_frames(frames) };
    let settings = Settings { memory, ..Settings::DEFAULT };
    replay_on(sim, cpus, Box::new(move || steps.next_step()), late, &settings, design)
}

/// Reads the next step.
type NextStep = Box<dyn FnMut() -> Result<Option<Step>, ReadError>>;

fn host(error: std::io::Error) -> ReplayError {
    ReplayError::Run(RunError::Host(error.to_string()))
}

/// Replays a recording; compiled once for all designs.
fn replay_on(
    sim: Rc<Sim>,
    cpus: usize,
    next_step: NextStep,
    late: Late,
    settings: &Settings,
    design: ErasedCoherence,
) -> Result<Outcome, ReplayError> {
    let kernel = SimKernel::new(Rc::clone(&sim), settings, design).map_err(step_error)?;
    let replay = Rc::new(Replay {
        kernel: Rc::new(kernel),
        cursor: RefCell::new(Cursor { next_step, next: None }),
        tasks: RefCell::default(),
        on_cpus: RefCell::new(vec![None; cpus]),
        cpu_threads: RefCell::default(),
        in_creation: RefCell::default(),
        dropped_steps: Cell::new(0),
        gathering: RefCell::default(),
        ended_early: RefCell::default(),
        before: Cell::default(),
        performing: RefCell::new(vec![Performing::default(); cpus]),
        held_by: Cell::new(None),
        in_progress: Cell::new(0),
        failure: RefCell::default(),
        sim: Rc::clone(&sim),
    });
    let observer = Rc::downgrade(&replay);
    replay.kernel.observe_sending(move || {
        if let Some(replay) = observer.upgrade() {
            replay.advance_if_held(replay.sim.cpu());
        }
    });
    let observer = Rc::downgrade(&replay);
    replay.kernel.observe_counting(move || {
        if let Some(replay) = observer.upgrade() {
            replay.wait_to_choose();
        }
    });
    let sender = Rc::downgrade(&replay);
    replay.kernel.delay_flushes(move |target| {
        let at_ns = sender.upgrade()?.performing_at_ns();
        late.nearest(target, at_ns)
    });
    sim.install(Rc::clone(&replay.kernel) as _);
    let end = replay.start(cpus).map(|()| sim.run_until(Time::END));
    // The kernel refers to the machine, and the machine to the kernel.
    sim.uninstall();
    replay.outcome(end.map_err(host)?)
}

/// The state of a replay.
struct Replay {
    sim: Rc<Sim>,
    kernel: Rc<SimKernel>,
    cursor: RefCell<Cursor>,
    /// The owner and the space of each task. The kernel numbers processes by their space in the
    /// recording.
    tasks: RefCell<HashMap<TaskId, Task>>,
    /// The space in which each CPU's task runs.
    on_cpus: RefCell<Vec<Option<SpaceId>>>,
    /// The thread that holds each CPU.
    cpu_threads: RefCell<Vec<ThreadId>>,
    /// Spaces that a CPU creates, which takes simulated time, and the threads that wait for them.
    in_creation: RefCell<HashMap<SpaceId, Vec<ThreadId>>>,
    /// Number of steps without an effect, because the replay has no task or no space for them.
    dropped_steps: Cell<u64>,
    /// Tasks in a call that gathers translations, with the process.
    gathering: RefCell<HashMap<TaskId, Arc<SimProcess>>>,
    /// Tasks that no longer gather, although they still wait for other CPUs in the replay.
    ended_early: RefCell<HashSet<TaskId>>,
    /// The recorded time and the simulated time of the last step's beginning.
    before: Cell<(u64, Time)>,
    /// The step of each CPU that began last.
    performing: RefCell<Vec<Performing>>,
    /// The CPU whose step holds back all later steps until its flush has chosen its targets.
    held_by: Cell<Option<usize>>,
    /// Number of steps that have begun and are not complete.
    in_progress: Cell<usize>,
    failure: RefCell<Option<ReplayError>>,
}

/// The position of the replay in the recording.
struct Cursor {
    next_step: NextStep,
    /// The next step of the recording, on any CPU.
    next: Option<Step>,
}

/// The state of a CPU between two steps.
#[derive(Clone, Copy, Debug)]
struct ReplayCpu {
    /// The task that runs on the CPU; `None` for the kernel's.
    running: Option<Task>,
    /// The end of the last step.
    done_at: Time,
    /// The total time of interrupts on this CPU, at the end of the last step.
    interrupted: Time,
}

/// The last step of a CPU.
#[derive(Clone, Copy, Debug, Default)]
struct Performing {
    /// The recorded time.
    at_ns: u64,
    began: Time,
    /// The step is a switch, and is not complete.
    is_switching: bool,
    /// The step is a flush that chooses its targets at a later step.
    chooses_later: bool,
}

impl ReplayCpu {
    fn wait_mode(&self) -> WaitMode {
        match self.running {
            Some(_) => WaitMode::Busy,
            None => WaitMode::Idle,
        }
    }

    /// Returns `true` if the recorded program runs on the CPU, so that its computing time is known.
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
            let thread = self.sim.spawn(spec, move || replay.run_cpu(cpu))?;
            self.cpu_threads.borrow_mut().push(thread);
        }
        Ok(())
    }

    /// Performs the steps of a CPU, from the beginning of the replay to its end.
    fn run_cpu(self: Rc<Self>, number: usize) {
        self.sim.keep_cpu();
        let mut cpu = ReplayCpu { running: None, done_at: self.sim.now(), interrupted: Time::ZERO };
        while !self.is_over() {
            let Some((at_ns, computed_ns)) = self.next_start(number) else {
                self.sim.wait_on_cpu(cpu.wait_mode(), None);
                continue;
            };
            self.wait_to_begin(at_ns, computed_ns, &cpu);
            self.wait_for_switches(number);
            let Some(step) = self.cursor.borrow_mut().next.take() else { break };
            self.before.set((step.at_ns, self.sim.now()));
            let is_switching = matches!(step.action, Action::Switch { .. });
            self.performing.borrow_mut()[number] = Performing {
                at_ns: step.at_ns,
                began: self.sim.now(),
                is_switching,
                chooses_later: matches!(
                    step.action,
                    Action::Flushing { targets: Targets::Later, .. }
                ),
            };
            self.in_progress.set(self.in_progress.get() + 1);
            if matches!(step.action, Action::Flushing { .. }) {
                self.held_by.set(Some(number));
            } else {
                self.advance();
            }
            if let Err(error) = self.perform(&step, &mut cpu) {
                self.fail(step_error(error));
            }
            self.advance_if_held(number);
            if is_switching {
                self.performing.borrow_mut()[number].is_switching = false;
                self.wake_next();
            }
            cpu.done_at = self.sim.now();
            cpu.interrupted = self.interrupted();
            self.in_progress.set(self.in_progress.get() - 1);
            if self.is_over() {
                // No further step will wake the CPUs that still wait.
                self.wake_all();
            }
        }
    }

    /// Returns `true` if all steps have begun and are complete. Until then, no CPU leaves its
    /// recorded place, because the steps in progress may concern it.
    fn is_over(&self) -> bool {
        self.in_progress.get() == 0 && self.cursor.borrow().next.is_none()
    }

    /// Returns the recorded time of the next step and the time computed before it, if the step is
    /// on this CPU.
    fn next_start(&self, cpu: usize) -> Option<(u64, u64)> {
        let cursor = self.cursor.borrow();
        let step = cursor.next.as_ref().filter(|step| step.cpu == cpu)?;
        Some((step.at_ns, step.computed_ns))
    }

    fn wait_to_begin(&self, at_ns: u64, computed_ns: u64, cpu: &ReplayCpu) {
        if cpu.is_recorded() {
            let stolen = self.interrupted() - cpu.interrupted;
            let due = cpu.done_at + Time::from_ns(computed_ns) + stolen;
            // The simulator adds interrupts from now on to the time that is spent.
            return self.sim.spend(due.saturating_sub(self.sim.now()));
        }
        let (before_ns, began_at) = self.before.get();
        let due = began_at + Time::from_ns(at_ns - before_ns);
        while due > self.sim.now() {
            self.sim.wait_on_cpu(cpu.wait_mode(), Some(due));
        }
    }

    /// Returns the total time of interrupts on this CPU.
    fn interrupted(&self) -> Time {
        self.sim.read_counts(self.sim.cpu(), |counts| counts.interrupted)
    }

    /// Reads the next step, and wakes its CPU.
    fn advance(&self) {
        let next = (self.cursor.borrow_mut().next_step)();
        let next = match next {
            Ok(next) if self.failure.borrow().is_none() => next,
            Ok(_) => None,
            Err(error) => {
                self.fail(ReplayError::Read(error));
                None
            }
        };
        self.cursor.borrow_mut().next = next;
        self.wake_next();
    }

    /// Wakes the CPU of the next step.
    fn wake_next(&self) {
        let cpu = self.cursor.borrow().next.as_ref().map(|step| step.cpu);
        // At the end, a flush may still wait for the step at which it chooses its targets.
        let Some(cpu) = cpu else { return self.wake_all() };
        if let Some(&thread) = self.cpu_threads.borrow().get(cpu) {
            self.sim.resume_on_cpu(thread);
        }
    }

    /// Reads the next step if a step on this CPU holds it back.
    fn advance_if_held(&self, cpu: usize) {
        if self.held_by.get() == Some(cpu) {
            self.held_by.set(None);
            self.advance();
        }
    }

    fn wake_all(&self) {
        for &thread in &*self.cpu_threads.borrow() {
            self.sim.resume_on_cpu(thread);
        }
    }

    fn perform(&self, step: &Step, cpu: &mut ReplayCpu) -> Result<(), StepError> {
        match &step.action {
            Action::Introduce { task, owner, space } => self.introduce(*task, *owner, *space)?,
            Action::Switch { next, .. } => self.switch(*next, cpu)?,
            Action::Memory(change) | Action::Flushing { change, .. } => {
                let process = cpu.running.and_then(|running| self.process(running.space));
                let Some(process) = process else {
                    self.drop_step();
                    return Ok(());
                };
                self.ended_early.borrow_mut().remove(&step.task);
                let gathered = self.end_gather(step.task);
                let memory = ProcessMemory::new(&*self.kernel, &process);
                memory.perform_raw(change.clone())?;
                let goes_on =
                    matches!(step.action, Action::Flushing { goes_on_gathering: true, .. })
                        && !self.ended_early.borrow_mut().remove(&step.task);
                if gathered.is_some() || goes_on {
                    self.begin_gather(step.task, cpu);
                }
            }
            // The flush has chosen them already.
            Action::ChoosesTargets => {}
            Action::GatherBegins => self.begin_gather(step.task, cpu),
            Action::GatherEnds { task } => {
                if self.end_gather(*task).is_none() {
                    self.ended_early.borrow_mut().insert(*task);
                }
            }
            Action::Spawn { task, space } => self.spawn(*task, *space, cpu)?,
            Action::Exec { space } => self.exec(step.task, *space, cpu)?,
            Action::Exit => {
                self.end_gather(step.task);
                self.exit(cpu);
            }
            // The recording contains the switch to the task that was woken.
            Action::Wake { .. } => {}
        }
        Ok(())
    }

    /// Records that a task gathers translations until the end of its call. The operation itself is
    /// short; the recorded thread may have been preempted in it.
    fn begin_gather(&self, task: TaskId, cpu: &ReplayCpu) {
        let Some(process) = cpu.running.and_then(|running| self.process(running.space)) else {
            return;
        };
        self.kernel.design().gather_begins(process.space().coherent());
        self.gathering.borrow_mut().insert(task, process);
    }

    fn end_gather(&self, task: TaskId) -> Option<()> {
        let process = self.gathering.borrow_mut().remove(&task)?;
        self.kernel.design().gather_ends(process.space().coherent());
        Some(())
    }

    /// Adds a task. Another CPU may switch to the task before its space is complete, so the task is
    /// added before any simulated time passes.
    fn introduce(&self, task: TaskId, owner: Owner, space: SpaceId) -> Result<(), StepError> {
        self.set_task(task, Task { owner, space });
        // The spaces of other programs are created at their first switch, because most have none.
        if owner == Owner::Recorded {
            self.process_for(space)?.enter();
        }
        Ok(())
    }

    /// Returns the process with a space, and creates it if there is none.
    fn process_for(&self, space: SpaceId) -> Result<Arc<SimProcess>, StepError> {
        self.wait_for_creation(space);
        match self.process(space) {
            Some(process) => Ok(process),
            None => self.create(space, || self.kernel.new_process()),
        }
    }

    /// Adds the process that `make` makes. Until then, other CPUs that need the process wait.
    fn create(
        &self,
        space: SpaceId,
        make: impl FnOnce() -> Result<SimProcess, StepError>,
    ) -> Result<Arc<SimProcess>, StepError> {
        self.in_creation.borrow_mut().insert(space, Vec::new());
        let process = make().map(|process| self.add(space, process));
        let waiting = self.in_creation.borrow_mut().remove(&space);
        waiting.into_iter().flatten().for_each(|thread| self.sim.resume_on_cpu(thread));
        process
    }

    /// Waits while another CPU creates a space.
    fn wait_for_creation(&self, space: SpaceId) {
        let thread = self.cpu_threads.borrow()[self.sim.cpu()];
        let must_wait = || match self.in_creation.borrow_mut().get_mut(&space) {
            Some(waiting) => {
                waiting.push(thread);
                true
            }
            None => false,
        };
        // The thread is also resumed, too early, if the next step of the recording is on this CPU.
        while must_wait() {
            self.sim.wait_on_cpu(WaitMode::Busy, None);
        }
    }

    fn switch(&self, next: TaskId, cpu: &mut ReplayCpu) -> Result<(), StepError> {
        let running = self.tasks.borrow().get(&next).copied();
        if running.is_none() && next != TaskId::KERNEL {
            self.drop_step();
        }
        self.run(running, cpu);
        let process = running.map(|running| self.process_for(running.space)).transpose()?;
        self.sim.switch_space(process.as_ref().map(|process| process.data.number.get()));
        if let Some(process) = process {
            self.kernel.return_to_user(&process);
        }
        Ok(())
    }

    /// Creates a task. As in [`introduce`](Self::introduce), other CPUs can switch to it at once.
    fn spawn(&self, task: TaskId, space: SpaceId, cpu: &ReplayCpu) -> Result<(), StepError> {
        let parent = cpu.running.and_then(|running| self.process(running.space));
        let Some(parent) = parent else {
            self.drop_step();
            return Ok(());
        };
        self.set_task(task, Task { owner: Owner::Recorded, space });
        self.wait_for_creation(space);
        match self.process(space) {
            Some(process) => {
                process.enter();
                self.kernel.enter_kernel();
            }
            None => {
                let fork = || {
                    self.kernel.enter_kernel();
                    let process = ProcessMemory::new(&*self.kernel, &parent).fork()?;
                    process.enter();
                    Ok(process)
                };
                self.create(space, fork)?;
            }
        }
        self.kernel.return_to_user(&parent);
        Ok(())
    }

    fn exec(&self, task: TaskId, space: SpaceId, cpu: &mut ReplayCpu) -> Result<(), StepError> {
        let Some(running) = cpu.running.filter(|_| self.process(space).is_none()) else {
            self.drop_step();
            return Ok(());
        };
        self.kernel.enter_kernel();
        let old = self.process(running.space);
        let fresh = self.process_for(space)?;
        let running = Task { space, ..running };
        self.run(Some(running), cpu);
        fresh.enter();
        self.set_task(task, running);
        self.sim.set_space(Some(fresh.data.number.get()));
        if let Some(old) = old {
            self.leave(&old);
        }
        self.kernel.return_to_user(&fresh);
        Ok(())
    }

    fn exit(&self, cpu: &mut ReplayCpu) {
        let Some(running) = cpu.running else { return self.drop_step() };
        self.run(None, cpu);
        self.sim.set_space(None);
        if let Some(process) = self.process(running.space) {
            self.leave(&process);
        }
    }

    /// Makes this CPU run a task, or none.
    fn run(&self, running: Option<Task>, cpu: &mut ReplayCpu) {
        cpu.running = running;
        self.on_cpus.borrow_mut()[self.sim.cpu()] = running.map(|running| running.space);
    }

    /// Removes a task from a process. The last task destroys the process. If the recording still
    /// has the process on another CPU, records are missing, and the process remains.
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

    fn set_task(&self, task: TaskId, state: Task) {
        self.tasks.borrow_mut().insert(task, state);
    }

    fn process(&self, space: SpaceId) -> Option<Arc<SimProcess>> {
        self.kernel.process(space.0 as usize)
    }

    fn drop_step(&self) {
        self.dropped_steps.set(self.dropped_steps.get() + 1);
    }

    fn fail(&self, error: ReplayError) {
        self.failure.borrow_mut().get_or_insert(error);
    }

    fn outcome(&self, end: RunEnd) -> Result<Outcome, ReplayError> {
        if let Some(failure) = self.failure.borrow_mut().take() {
            return Err(failure);
        }
        RunError::check(end).map_err(ReplayError::Run)?;
        Ok(Outcome { dropped_steps: self.dropped_steps.get(), ..Outcome::of(&self.kernel) })
    }
}

const fn step_error(error: StepError) -> ReplayError {
    ReplayError::Run(RunError::Step { program: ProgramId(0), error })
}
