//! Everything that a run consists of: processes, their threads, and what is measured.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use shootdown_program::operation::{FileId, LockId, Operation, ProgramId, Refusals};
use shootdown_program::step::{Step, StepError};
use shootdown_program::stream::Stream;
use shootdown_vm::{AddressSpace, Backing, File, PAGE_BYTES, Place, Protection, Sharing, Stats};

use crate::kernel::arch::{Arch, Architecture, Status};
use crate::kernel::coherence::Engine;
use crate::kernel::console::println;
use crate::kernel::counts;
use crate::kernel::end::end;
use crate::kernel::platform::{ThisMachine, USER_CODE};
use crate::kernel::process::{Process, Space, Vm};
use crate::kernel::report;
use crate::kernel::scheduler::{self, Affinity, Next, Settings};
use crate::kernel::sync::{Mutex, Once};
use crate::kernel::tasks::{Task, UserLock};
use crate::kernel::totals::Totals;
use crate::kernel::user;

static WORLD: Once<World> = Once::new();

/// The one world there is.
pub(crate) fn world() -> &'static World {
    WORLD.get()
}

/// Frees page tables whose space is dead, if the CPU has nothing better to do, or there are many.
pub(crate) fn after_switch(next: Next) {
    let vm = &world().vm;
    if next == Next::NoSpace || vm.holds_many() {
        vm.bury();
    }
}

/// Everything.
pub(crate) struct World {
    pub(crate) vm: Vm,
    pub(crate) settings: Settings,
    pub(crate) refusals: Refusals,
    pub(crate) stream: Stream<'static>,
    /// The code of user threads.
    code: Arc<File<ThisMachine>>,
    files: Mutex<BTreeMap<FileId, Arc<File<ThisMachine>>>>,
    next_process: AtomicU32,
    pub(crate) tasks: Mutex<BTreeMap<ProgramId, Task>>,
    pub(crate) locks: Mutex<BTreeMap<LockId, Arc<UserLock>>>,
    measure: Mutex<Measure>,
    /// How many threads of the workload there are.
    unfinished: AtomicUsize,
    /// What was done to the memory of processes that have ended.
    ended: Mutex<Stats>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measure {
    pub(crate) begin: Option<(u64, Totals)>,
    pub(crate) first_end_ns: Option<u64>,
    pub(crate) end: Option<(u64, Totals)>,
    pub(crate) iterations: u64,
}

impl World {
    /// Makes it. Once, by the first CPU.
    pub(crate) fn set_up(settings: Settings, refusals: Refusals, stream: Stream<'static>) {
        let vm = Vm::new(ThisMachine, Engine).unwrap_or_else(|error| fail(None, error.into()));
        WORLD.set(Self {
            vm,
            settings,
            refusals,
            stream,
            code: Arc::new(File::stored(ThisMachine, USER_CODE)),
            files: Mutex::new(BTreeMap::new()),
            next_process: AtomicU32::new(0),
            tasks: Mutex::new(BTreeMap::new()),
            locks: Mutex::new(BTreeMap::new()),
            measure: Mutex::new(Measure::default()),
            unfinished: AtomicUsize::new(0),
            ended: Mutex::new(Stats::default()),
        });
    }

    /// Makes the processes that run from the beginning. Without any, that was all.
    pub(crate) fn start(&'static self) {
        self.calibrate().unwrap_or_else(|error| fail(None, error));
        for start in self.stream.processes() {
            let process = self.process();
            let started = process.and_then(|process| {
                let affinity = self.affinity(start.cpu)?;
                self.start_thread(Arc::new(process), start.program, affinity);
                Ok(())
            });
            started.unwrap_or_else(|error| fail(Some(start.program), error));
        }
        if self.stream.processes().next().is_none() {
            report::finish(self, &self.measure.lock());
        }
    }

    /// Finds out how fast user threads compute.
    fn calibrate(&self) -> Result<(), StepError> {
        let process = self.process()?;
        scheduler::load_space(Some(process.space().coherent()));
        user::calibrate(&process)?;
        process.space().exit();
        Ok(())
    }

    /// The file with this number.
    pub(crate) fn file(&self, id: FileId) -> Arc<File<ThisMachine>> {
        let mut files = self.files.lock();
        Arc::clone(files.entry(id).or_insert_with(|| Arc::new(File::new(ThisMachine))))
    }

    /// What was done to the memory of all processes that have ended.
    pub(crate) fn ended(&self) -> Stats {
        *self.ended.lock()
    }

    /// A process with nothing but the code of user threads.
    fn process(&self) -> Result<Process, StepError> {
        let space = AddressSpace::new(&self.vm)?;
        let place = Place::Fixed(user::CODE..user::CODE + PAGE_BYTES);
        let backing = Backing::File { file: Arc::clone(&self.code), first_page: 0 };
        space.map(place, Protection::READ | Protection::EXECUTE, Sharing::Shared, backing)?;
        Ok(Process::new(self.next_number(), space))
    }

    fn fork(&self, process: &Process) -> Result<Process, StepError> {
        let space: Space = process.space().fork()?;
        Ok(process.copy(self.next_number(), space))
    }

    fn next_number(&self) -> u32 {
        self.next_process.fetch_add(1, Ordering::Relaxed)
    }

    fn affinity(&self, cpu: Option<usize>) -> Result<Affinity, StepError> {
        let Some(cpu) = cpu else { return Ok(Affinity::Any) };
        let number = u32::try_from(cpu).ok().filter(|&number| number < self.settings.cpus);
        number.map(Affinity::Cpu).ok_or(StepError::NoCpu(cpu))
    }

    fn start_thread(&'static self, process: Arc<Process>, program: ProgramId, affinity: Affinity) {
        process.threads.fetch_add(1, Ordering::Relaxed);
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        // Others may have woken it before it was made, and may have gone on since.
        self.task(program, |task| task.done = false);
        let space = process.space().coherent().clone();
        let body = move || self.thread(process, program);
        let thread = scheduler::create(Some(space), affinity, program.0, body);
        // Before it runs: who finds nobody to wake wakes nobody, and it may block at once.
        self.task(program, |task| task.thread = Some(thread));
        scheduler::wake(thread);
    }

    /// A thread, from beginning to end.
    fn thread(&'static self, mut process: Arc<Process>, program: ProgramId) {
        for step in self.stream.steps(program).into_iter().flatten() {
            let performed = step.map_err(StepError::from);
            let performed = performed.and_then(|step| self.step(&mut process, program, step));
            performed.unwrap_or_else(|error| fail(Some(program), error));
            counts::here().steps.add(1);
            scheduler::preemption_point();
        }
        scheduler::set_space(None);
        self.let_go(&process);
        drop(process);
        let joining = self.task(program, |task| {
            task.done = true;
            core::mem::take(&mut task.joining)
        });
        joining.into_iter().for_each(scheduler::wake);
        if self.unfinished.fetch_sub(1, Ordering::AcqRel) == 1 {
            report::finish(self, &self.measure.lock());
        }
    }

    /// The calling thread uses the process no more; the last one takes its memory down.
    fn let_go(&self, process: &Process) {
        if process.threads.fetch_sub(1, Ordering::AcqRel) == 1 {
            process.space().exit();
            *self.ended.lock() += process.space().stats();
        }
    }

    fn step(
        &'static self,
        process: &mut Arc<Process>,
        program: ProgramId,
        operation: Operation,
    ) -> Result<(), StepError> {
        let operation = match self.perform(process, operation)? {
            Step::Done => return Ok(()),
            Step::NotOfMemory(operation) => operation,
        };
        match operation {
            Operation::Compute(ns) => return user::compute(process, ns),
            Operation::Begin => {
                self.begin();
                return Ok(());
            }
            Operation::End { iterations } => {
                self.end(iterations);
                return Ok(());
            }
            _ => {}
        }
        match operation {
            Operation::Fork(child) => {
                let copy = Arc::new(self.fork(process)?);
                self.start_thread(copy, child, Affinity::Any);
            }
            Operation::Spawn(thread) => {
                self.start_thread(Arc::clone(process), thread, Affinity::Any);
            }
            Operation::Exec => {
                let fresh = Arc::new(self.process()?);
                fresh.threads.store(1, Ordering::Relaxed);
                let old = core::mem::replace(process, fresh);
                scheduler::set_space(Some(process.space().coherent().clone()));
                self.let_go(&old);
            }
            Operation::Join(other) => self.join(other),
            Operation::Migrate(cpu) => match self.affinity(Some(cpu))? {
                Affinity::Cpu(cpu) => scheduler::migrate(cpu),
                Affinity::Any => {}
            },
            Operation::Yield => scheduler::yield_now(),
            Operation::Block => self.block(program),
            Operation::Sleep(ns) => scheduler::sleep(ns),
            Operation::Wake(other) => self.wake(other),
            Operation::Lock(lock) => self.lock(lock, program),
            Operation::Unlock(lock) => self.unlock(lock, program)?,
            _ => {}
        }
        Ok(())
    }

    fn now(&self) -> (u64, Totals) {
        (Arch::now_ns(), Totals::of_all(self.settings.cpus))
    }

    fn begin(&self) {
        let mut measure = self.measure.lock();
        measure.begin.get_or_insert_with(|| self.now());
    }

    fn end(&self, iterations: u64) {
        // Under the lock: who comes later to it is not to say an earlier time.
        let mut measure = self.measure.lock();
        let now = self.now();
        measure.first_end_ns.get_or_insert(now.0);
        measure.end = Some(now);
        measure.iterations += iterations;
    }
}

/// A thread did what it must not, or cannot: says so, and ends the run.
fn fail(program: Option<ProgramId>, error: StepError) -> ! {
    match program {
        Some(ProgramId(program)) => println!("error program {program}: {error}"),
        None => println!("error {error}"),
    }
    end(Status::Failed)
}
