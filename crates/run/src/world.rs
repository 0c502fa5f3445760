//! A workload on a simulated machine under one design: processes, their threads, and what is
//! measured.

use core::cell::{Cell, RefCell};
use core::fmt;
use std::collections::HashMap;
use std::rc::Rc;

use lock_api::RawRwLock;
use shootdown_sim::{
    Affinity, Counts, FlushWaits, Kernel, Machine, RunEnd, Sim, SleepingLock, SwitchedTo, ThreadId,
    ThreadSpec, Time, Violation,
};
use shootdown_vm::{ErasedCoherence, Flush, HeldStats, Scheduling, Stats};

use crate::contents::{Contents, WrongContent};
use crate::instrumented::Unmaps;
use crate::platform::Traffic;
use crate::process::{Memory, Process, Vm};
use shootdown_program::operation::{LockId, Operation, ProgramId, Refusals, Workload};
use shootdown_program::step::{Step, StepError};

/// How large a simulation may become.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Frames of 4 KiB.
    pub frames: usize,
    /// Threads at any one time.
    pub threads: usize,
    /// Simulated time.
    pub time: Time,
    /// Whether memory is reclaimed when it is short.
    pub memory: Memory,
    /// Among how many nodes memory is divided.
    pub nodes: usize,
    /// Whether what memory holds is checked.
    pub contents: Contents,
    /// What becomes of who uses or changes memory that it may not.
    pub refusals: Refusals,
}

impl Limits {
    /// 16 GiB in one node, which are enough; 4096 threads, one hour.
    pub const DEFAULT: Self = Self {
        frames: 4 << 20,
        threads: 4096,
        time: Time::from_ms(3_600_000),
        memory: Memory::Enough,
        nodes: 1,
        contents: Contents::Unchecked,
        refusals: Refusals::Fatal,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// What a run found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// From the first [`Operation::Begin`] to the last [`Operation::End`].
    pub time: Time,
    /// From the first [`Operation::End`] to the last.
    pub time_range: Time,
    /// How often all threads together did what is measured.
    pub iterations: u64,
    /// What all CPUs did in that time.
    pub counts: Counts,
    /// What became of `munmap`s, in all of the run.
    pub unmaps: Unmaps,
    /// How long flushes took, in all of the run.
    pub waits: FlushWaits,
    /// Uses of what must not be used any more, in all of the run.
    pub violations: u64,
    /// Page tables freed that could still be walked, in all of the run.
    pub hazards: u64,
    /// The first of both.
    pub first_violations: Vec<Violation>,
    /// What memory held that it must not, in all of the run, if that was
    /// [checked](Limits::contents).
    pub wrong_contents: u64,
    /// The first of it.
    pub first_wrong_contents: Vec<WrongContent>,
    /// What became of pages, in all of the run.
    pub traffic: Traffic,
    /// What was done to the memory of all processes that have ended.
    pub memory: Stats,
    /// Page tables that were held back because a CPU could still walk them, in all of the run.
    pub held_tables: HeldStats,
}

impl Outcome {
    /// Of all that happened.
    pub(crate) fn of(vm: &Vm) -> Self {
        let sim = vm.sim();
        let contents = vm.contents.as_ref().map(|contents| contents.borrow());
        Self {
            time: sim.time(),
            time_range: Time::ZERO,
            iterations: 0,
            counts: sim.counts(),
            unmaps: vm.design().unmaps(),
            waits: sim.flush_waits(),
            violations: sim.violations(),
            hazards: sim.hazards(),
            first_violations: sim.first_violations(),
            wrong_contents: contents.as_ref().map_or(0, |contents| contents.wrong()),
            first_wrong_contents: contents.map_or(Vec::new(), |model| model.first().to_vec()),
            traffic: vm.platform().traffic(),
            memory: vm.ended.get(),
            held_tables: vm.held_tables(),
        }
    }
}

/// Why a run came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunError {
    /// A thread did what it must not.
    Step {
        /// Which thread.
        program: ProgramId,
        /// What.
        error: StepError,
    },
    /// So many threads wait for each other for ever.
    Deadlock(usize),
    /// It takes more simulated time than it may.
    TimeUp,
    /// The host has no room: its own words.
    Host(String),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step { program, error } => write!(f, "thread {}: {error}", program.0),
            Self::Deadlock(threads) => write!(f, "{threads} threads wait for ever"),
            Self::TimeUp => f.write_str("it takes more simulated time than it may"),
            Self::Host(error) => write!(f, "the host has no room: {error}"),
        }
    }
}

impl core::error::Error for RunError {}

/// Runs a workload on a machine under the design that `design` makes.
///
/// The same arguments give the same outcome, on any host.
///
/// # Errors
///
/// If the workload is not sound, or the host has no room.
pub fn run<D: Into<ErasedCoherence>>(
    machine: Machine,
    limits: Limits,
    workload: Rc<dyn Workload>,
    design: impl FnOnce(Rc<Sim>) -> D,
) -> Result<Outcome, RunError> {
    let sim = Sim::with_nodes(machine, limits.frames, limits.nodes, limits.threads);
    let sim = Rc::new(sim.map_err(|error| RunError::Host(error.to_string()))?);
    let design = design(Rc::clone(&sim)).into();
    run_on(sim, limits, workload, design)
}

fn run_on(
    sim: Rc<Sim>,
    limits: Limits,
    workload: Rc<dyn Workload>,
    design: ErasedCoherence,
) -> Result<Outcome, RunError> {
    let vm = Vm::new(Rc::clone(&sim), limits.memory, limits.contents, design);
    let vm = vm.map_err(|error| RunError::Step { program: ProgramId(0), error })?;
    let world = Rc::new(World {
        vm,
        workload,
        refusals: limits.refusals,
        processes: RefCell::default(),
        tasks: RefCell::default(),
        locks: RefCell::default(),
        measure: Cell::default(),
        unfinished: Cell::default(),
        failure: RefCell::new(None),
        sim: Rc::clone(&sim),
    });
    sim.install(world.clone());
    if limits.memory != Memory::Enough {
        world.start_reclaimers()?;
    }
    let end = world.start().map(|()| sim.run_until(limits.time));
    // The world holds the machine, and the machine the world.
    sim.uninstall();
    world.outcome(end?)
}

/// Everything that a run consists of.
struct World {
    sim: Rc<Sim>,
    vm: Vm,
    workload: Rc<dyn Workload>,
    refusals: Refusals,
    /// By the number under which the scheduler knows their spaces.
    processes: RefCell<Vec<Rc<Process>>>,
    tasks: RefCell<HashMap<ProgramId, Task>>,
    locks: RefCell<HashMap<LockId, Rc<UserLock>>>,
    measure: Cell<Measure>,
    /// How many threads of the workload there are.
    unfinished: Cell<usize>,
    failure: RefCell<Option<RunError>>,
}

/// A thread, as others know it.
#[derive(Debug, Default)]
struct Task {
    thread: Option<ThreadId>,
    /// Wakes that it has not waited for yet.
    tokens: u64,
    done: bool,
    joining: Vec<ThreadId>,
}

/// A lock of the program's own.
struct UserLock {
    lock: SleepingLock,
    holder: Cell<Option<ProgramId>>,
}

impl Default for UserLock {
    fn default() -> Self {
        Self { lock: <SleepingLock as RawRwLock>::INIT, holder: Cell::new(None) }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Measure {
    begin: Option<(Time, Counts)>,
    first_end: Option<Time>,
    end: Option<(Time, Counts)>,
    iterations: u64,
}

impl World {
    fn start(self: &Rc<Self>) -> Result<(), RunError> {
        for start in self.workload.processes() {
            let affinity = start.cpu.map_or(Affinity::Any, Affinity::Cpu);
            let process = self.vm.process().map_err(|error| self.step_error(start.program, error));
            self.start_thread(&self.add(process?), start.program, affinity)?;
        }
        Ok(())
    }

    /// One thread for each node, until the last of the workload's is done.
    fn start_reclaimers(self: &Rc<Self>) -> Result<(), RunError> {
        for node in 0..self.sim.node_count() {
            let spec = ThreadSpec { space: None, affinity: Affinity::Any };
            let world = Rc::clone(self);
            let thread = self.sim.spawn(spec, move || world.vm.keep_memory_free(node));
            thread.map_err(|error| RunError::Host(error.to_string()))?;
        }
        Ok(())
    }

    fn add(&self, process: Process) -> Rc<Process> {
        let mut processes = self.processes.borrow_mut();
        process.number.set(processes.len() as u64);
        processes.push(Rc::new(process));
        Rc::clone(&processes[processes.len() - 1])
    }

    fn start_thread(
        self: &Rc<Self>,
        process: &Rc<Process>,
        program: ProgramId,
        affinity: Affinity,
    ) -> Result<(), RunError> {
        process.threads.set(process.threads.get() + 1);
        // Others may have woken it before it was made, and may have gone on since.
        self.task(program, |task| task.done = false);
        let spec = ThreadSpec { space: Some(process.number.get()), affinity };
        let (world, process) = (Rc::clone(self), Rc::clone(process));
        let thread = self.sim.spawn(spec, move || world.thread(process, program));
        let thread = thread.map_err(|error| RunError::Host(error.to_string()))?;
        self.unfinished.set(self.unfinished.get() + 1);
        self.task(program, |task| task.thread = Some(thread));
        Ok(())
    }

    /// A thread, from beginning to end.
    fn thread(self: Rc<Self>, mut process: Rc<Process>, program: ProgramId) {
        self.vm.return_to_user(&process);
        for operation in self.workload.steps(program) {
            if let Err(error) = self.perform(&mut process, program, operation) {
                self.failure.borrow_mut().get_or_insert(error);
                break;
            }
            self.sim.preemption_point();
            // Where another thread ran meanwhile, this one was in the kernel.
            self.vm.return_to_user(&process);
        }
        self.leave(&process);
        let joining = self.task(program, |task| {
            task.done = true;
            core::mem::take(&mut task.joining)
        });
        for thread in joining {
            self.sim.wake(thread);
        }
        self.unfinished.set(self.unfinished.get() - 1);
        if self.unfinished.get() == 0 {
            self.finish(program);
        }
    }

    /// The last thread is done.
    fn finish(&self, program: ProgramId) {
        if self.vm.contents.is_some() {
            let mut measure = self.measure.get();
            measure.end.get_or_insert((self.sim.now(), self.sim.counts()));
            self.measure.set(measure);
            if let Err(error) = self.vm.check_files() {
                self.failure.borrow_mut().get_or_insert(self.step_error(program, error));
            }
        }
        self.vm.platform().end_reclaimers();
    }

    /// The calling thread uses the process no more; the last one destroys its space.
    fn leave(&self, process: &Process) {
        self.sim.set_space(None);
        process.threads.set(process.threads.get() - 1);
        if process.threads.get() == 0 {
            self.vm.destroy(process);
        }
    }

    fn perform(
        self: &Rc<Self>,
        process: &mut Rc<Process>,
        program: ProgramId,
        operation: Operation,
    ) -> Result<(), RunError> {
        let step_error = |error| self.step_error(program, error);
        let performed = self.vm.perform(process, operation, self.refusals);
        let operation = match performed.map_err(step_error)? {
            Step::Done => return Ok(()),
            Step::NotOfMemory(operation) => operation,
        };
        let in_user_mode =
            matches!(operation, Operation::Compute(_) | Operation::Begin | Operation::End { .. });
        if !in_user_mode {
            self.vm.enter_kernel();
        }
        match operation {
            Operation::Fork(child) => {
                let copy = self.vm.fork(process).map_err(step_error)?;
                self.start_thread(&self.add(copy), child, Affinity::Any)?;
            }
            Operation::Spawn(thread) => self.start_thread(process, thread, Affinity::Any)?,
            Operation::Exec => {
                let fresh = self.add(self.vm.process().map_err(step_error)?);
                let old = core::mem::replace(process, fresh);
                process.threads.set(1);
                self.sim.set_space(Some(process.number.get()));
                old.threads.set(old.threads.get() - 1);
                if old.threads.get() == 0 {
                    self.vm.destroy(&old);
                }
            }
            Operation::Join(other) => self.join(other),
            Operation::Migrate(cpu) => self.sim.migrate(cpu),
            Operation::Yield => self.sim.yield_now(),
            Operation::Block => self.block(program),
            Operation::Sleep(ns) => self.sim.sleep(Time::from_ns(ns)),
            Operation::Wake(other) => self.wake(other),
            Operation::Lock(lock) => self.lock(lock, program),
            Operation::Unlock(lock) => self.unlock(lock, program).map_err(step_error)?,
            Operation::Compute(ns) => self.compute(process, Time::from_ns(ns)),
            Operation::Begin => self.begin(),
            Operation::End { iterations } => self.end(iterations),
            _ => {}
        }
        if !in_user_mode {
            self.vm.return_to_user(process);
        }
        Ok(())
    }

    /// Computes, and gives the CPU up at the end of each timeslice.
    fn compute(&self, process: &Process, mut left: Time) {
        loop {
            left = self.sim.spend_in_slice(left);
            if left == Time::ZERO {
                return;
            }
            self.sim.preemption_point();
            self.vm.return_to_user(process);
        }
    }

    fn join(&self, other: ProgramId) {
        let Some(me) = self.sim.current_thread() else { return };
        while !self.task(other, |task| {
            if !task.done && !task.joining.contains(&me) {
                task.joining.push(me);
            }
            task.done
        }) {
            self.sim.block();
        }
    }

    fn block(&self, program: ProgramId) {
        while !self.task(program, |task| {
            let has_token = task.tokens > 0;
            task.tokens = task.tokens.saturating_sub(1);
            has_token
        }) {
            self.sim.block();
        }
    }

    fn wake(&self, other: ProgramId) {
        let thread = self.task(other, |task| {
            task.tokens += 1;
            task.thread
        });
        if let Some(thread) = thread {
            self.sim.wake(thread);
        }
    }

    fn lock(&self, lock: LockId, program: ProgramId) {
        let held = Rc::clone(self.locks.borrow_mut().entry(lock).or_default());
        held.lock.lock_exclusive();
        held.holder.set(Some(program));
    }

    fn unlock(&self, lock: LockId, program: ProgramId) -> Result<(), StepError> {
        let held = self.locks.borrow().get(&lock).cloned();
        let held = held.filter(|held| held.holder.get() == Some(program));
        let held = held.ok_or(StepError::NotHeld(lock))?;
        held.holder.set(None);
        // SAFETY: this thread holds it.
        #[expect(unsafe_code, reason = "a raw lock: who takes it and who lets go are two steps")]
        unsafe {
            held.lock.unlock_exclusive();
        }
        Ok(())
    }

    fn task<R>(&self, program: ProgramId, f: impl FnOnce(&mut Task) -> R) -> R {
        f(self.tasks.borrow_mut().entry(program).or_default())
    }

    fn begin(&self) {
        let mut measure = self.measure.get();
        measure.begin.get_or_insert((self.sim.now(), self.sim.counts()));
        self.measure.set(measure);
    }

    fn end(&self, iterations: u64) {
        let mut measure = self.measure.get();
        measure.first_end.get_or_insert(self.sim.now());
        measure.end = Some((self.sim.now(), self.sim.counts()));
        measure.iterations += iterations;
        self.measure.set(measure);
    }

    fn step_error(&self, program: ProgramId, error: StepError) -> RunError {
        RunError::Step { program, error }
    }

    fn outcome(&self, end: RunEnd) -> Result<Outcome, RunError> {
        if let Some(failure) = self.failure.borrow_mut().take() {
            return Err(failure);
        }
        match end {
            RunEnd::Done => {}
            RunEnd::TimeUp => return Err(RunError::TimeUp),
            RunEnd::Deadlock(threads) => return Err(RunError::Deadlock(threads)),
        }
        let measure = self.measure.get();
        let (begin, counts_before) = measure.begin.unwrap_or_default();
        let (end, counts) = measure.end.unwrap_or((self.sim.time(), self.sim.counts()));
        Ok(Outcome {
            time: end - begin,
            time_range: end - measure.first_end.unwrap_or(end),
            iterations: measure.iterations,
            counts: counts.since(&counts_before),
            ..Outcome::of(&self.vm)
        })
    }
}

impl Kernel for World {
    fn online(&self) {
        self.vm.design().online();
    }
    fn switch(&self, space: u64) {
        let process = Rc::clone(&self.processes.borrow()[space as usize]);
        self.vm.switch(&process);
    }
    fn enter_lazy(&self) {
        self.vm.design().enter_lazy();
    }
    fn leave(&self) {
        self.vm.design().leave_space();
    }
    fn after_switch(&self, to: SwitchedTo) {
        self.vm.free_dead_tables(to);
    }
    fn flush_interrupt(&self) {
        self.vm.design().interrupt();
    }
    fn tick_interval(&self) -> Option<Time> {
        self.vm.design().policy().tick_ns.map(Time::from_ns)
    }
    fn tick(&self) {
        self.vm.design().tick();
    }
}
