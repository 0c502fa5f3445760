//! The execution of a workload on a simulated machine, under one design.

use core::cell::RefCell;
use std::io::ErrorKind;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use shootdown_program::StepError;
use shootdown_program::interpreter::{Host, MemoryHost as _, State, Until, run_thread, start};
use shootdown_program::operation::{Operation, ProgramId, Workload};
use shootdown_sim::{
    Affinity, Counts, Machine, RunEnd, Sim, ThreadId, ThreadSpec, Time, TimeByCause,
};
use shootdown_vm::ErasedCoherence;

use crate::kernel::{SimKernel, SimProcess};
use crate::outcome::{Outcome, RunError};
use crate::settings::{Settings, Supply};

/// Runs a workload on a machine under the design that `design` makes.
///
/// The same arguments give the same outcome, on any host.
///
/// # Errors
///
/// Fails if an operation of the workload fails, or the host lacks room.
pub fn run<D: Into<ErasedCoherence>>(
    machine: Machine,
    settings: Settings,
    workload: Rc<dyn Workload>,
    design: impl FnOnce(Rc<Sim>) -> D,
) -> Result<Outcome, RunError> {
    let Settings { memory, limits, .. } = settings;
    let sim = Sim::with_nodes(machine, memory.frames, memory.nodes, limits.threads);
    let sim = Rc::new(sim.map_err(host_error)?);
    let design = design(Rc::clone(&sim)).into();
    run_on(sim, &settings, workload, design)
}

/// Runs a workload, compiled once for all designs.
fn run_on(
    sim: Rc<Sim>,
    settings: &Settings,
    workload: Rc<dyn Workload>,
    design: ErasedCoherence,
) -> Result<Outcome, RunError> {
    let kernel = SimKernel::new(Rc::clone(&sim), settings, design);
    let kernel = kernel.map_err(|error| RunError::Step { program: ProgramId(0), error })?;
    let kernel = Rc::new(kernel);
    if let Some(seed) = settings.jitter {
        sim.set_jitter(seed);
    }
    let starts = workload.processes();
    let (state, failure) = (RefCell::default(), RefCell::new(None));
    let executor = Rc::new_cyclic(|this| Executor {
        this: Weak::clone(this),
        sim,
        kernel,
        workload,
        state,
        failure,
    });
    executor.sim.install(Rc::clone(&executor.kernel) as _);
    if settings.memory.supply != Supply::Enough {
        executor.start_reclaimers().map_err(host_error)?;
    }
    let end = match start(&*executor, starts) {
        Ok(()) => executor.sim.run_until(settings.limits.time),
        Err((program, error)) => {
            executor.fail(program, error);
            RunEnd::Done
        }
    };
    // The kernel refers to the machine, and the machine to the kernel.
    executor.sim.uninstall();
    executor.outcome(end)
}

fn host_error(error: std::io::Error) -> RunError {
    RunError::Host(error.to_string())
}

/// A run of a workload.
struct Executor {
    /// A reference to this executor, for its threads.
    this: Weak<Self>,
    sim: Rc<Sim>,
    kernel: Rc<SimKernel>,
    workload: Rc<dyn Workload>,
    state: RefCell<State<Self>>,
    failure: RefCell<Option<RunError>>,
}

impl Executor {
    /// Starts a reclaim thread for each node. They end after the last thread of the workload.
    fn start_reclaimers(&self) -> std::io::Result<()> {
        (0..self.sim.node_count()).try_for_each(|node| {
            let spec = ThreadSpec { space: None, affinity: Affinity::Any };
            let kernel = Rc::clone(&self.kernel);
            self.sim.spawn(spec, move || kernel.keep_memory_free(node)).map(drop)
        })
    }

    fn outcome(&self, end: RunEnd) -> Result<Outcome, RunError> {
        if let Some(failure) = self.failure.borrow_mut().take() {
            return Err(failure);
        }
        RunError::check(end)?;
        let measured = self.state.borrow().measurement.clone();
        let begin = measured.begin.unwrap_or_else(|| Rc::new(Reading::start(&self.sim)));
        let end = measured.end.unwrap_or_else(|| Rc::new(Reading::of(&self.sim, self.sim.time())));
        let causes = end.causes.iter().zip(&begin.causes);
        Ok(Outcome {
            time: end.time - begin.time,
            time_range: end.time - measured.first_end.map_or(end.time, |first| first.time),
            iterations: measured.iterations,
            counts: end.counts.since(&begin.counts),
            causes: causes.map(|(end, begin)| end.since(begin)).collect(),
            ..Outcome::of(&self.kernel)
        })
    }
}

/// A reading of the clock and the counters.
struct Reading {
    time: Time,
    counts: Counts,
    /// The times of each CPU.
    causes: Vec<TimeByCause>,
}

impl Reading {
    fn of(sim: &Sim, time: Time) -> Self {
        Self { time, counts: sim.counts(), causes: sim.time_by_cause(time) }
    }

    /// Returns the reading at the start of the simulation.
    fn start(sim: &Sim) -> Self {
        let causes = vec![TimeByCause::default(); sim.machine().cpu_count()];
        Self { time: Time::ZERO, counts: Counts::default(), causes }
    }
}

impl Host for Executor {
    type Memory = SimKernel;
    type Thread = ThreadId;
    type Reading = Rc<Reading>;

    fn memory(&self) -> &SimKernel {
        &self.kernel
    }

    fn state<R>(&self, f: impl FnOnce(&mut State<Self>) -> R) -> R {
        f(&mut self.state.borrow_mut())
    }

    fn steps(&self, program: ProgramId) -> impl Iterator<Item = Result<Operation, StepError>> {
        // A thread that went on after the failure of another could start threads without end.
        let has_not_failed = |_: &Operation| self.failure.borrow().is_none();
        self.workload.steps(program).take_while(has_not_failed).map(Ok)
    }

    fn new_process(&self) -> Result<SimProcess, StepError> {
        self.kernel.new_process()
    }

    fn add_process(&self, process: SimProcess) -> Arc<SimProcess> {
        self.kernel.add(process)
    }

    fn destroy(&self, process: &SimProcess) {
        self.kernel.destroy(process);
    }

    fn create_thread(
        &self,
        process: Arc<SimProcess>,
        program: ProgramId,
        cpu: Option<usize>,
    ) -> Result<ThreadId, StepError> {
        let affinity = cpu.map_or(Affinity::Any, Affinity::Cpu);
        let spec = ThreadSpec { space: Some(process.data.number.get()), affinity };
        let executor = self.this.upgrade().expect("`run` holds the executor");
        let thread = self.sim.spawn(spec, move || {
            executor.sim.delay_start();
            run_thread(&*executor, process, program);
        });
        thread.map_err(|error| {
            if error.kind() != ErrorKind::QuotaExceeded {
                self.failure.borrow_mut().get_or_insert(host_error(error));
            }
            StepError::NoThread
        })
    }

    fn current_thread(&self) -> Option<ThreadId> {
        self.sim.current_thread()
    }

    fn set_process(&self, process: Option<&Arc<SimProcess>>) {
        self.sim.set_space(process.map(|process| process.data.number.get()));
    }

    fn wake(&self, thread: ThreadId) {
        self.sim.wake(thread);
    }

    fn block(&self, _: Until) {
        self.sim.block();
    }

    fn yield_now(&self) {
        self.sim.yield_now();
    }

    fn sleep(&self, ns: u64) {
        self.sim.sleep(Time::from_ns(ns));
    }

    fn migrate(&self, cpu: usize) -> Result<(), StepError> {
        self.sim.migrate(cpu);
        Ok(())
    }

    fn compute(&self, process: &SimProcess, ns: u64) -> Result<(), StepError> {
        let mut left = self.sim.jittered(Time::from_ns(ns));
        loop {
            left = self.sim.spend_in_slice(left);
            if left == Time::ZERO {
                return Ok(());
            }
            self.sim.preemption_point();
            self.kernel.return_to_user(process);
        }
    }

    fn end_step(&self) {
        self.sim.preemption_point();
    }

    fn reading(&self) -> Rc<Reading> {
        Rc::new(Reading::of(&self.sim, self.sim.now()))
    }

    fn fail(&self, program: ProgramId, error: StepError) {
        self.failure.borrow_mut().get_or_insert(RunError::Step { program, error });
    }

    fn finish(&self, program: ProgramId) {
        if self.kernel.model.is_some() {
            let now = self.reading();
            self.state(|state| {
                state.measurement.end.get_or_insert(now);
            });
            if let Err(error) = self.kernel.check_files() {
                self.fail(program, error);
            }
        }
        self.kernel.platform().end_reclaimers();
    }
}
