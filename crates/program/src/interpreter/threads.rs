//! The meaning of operations on threads, and the life of a thread.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use lock_api::RawRwLock;
use shootdown_vm::Platform;

use super::memory::{MemoryHost, PlatformOf, ProcessMemory, ProcessOf};
use crate::StepError;
use crate::operation::{LockId, Operation, ProgramId, Start};

/// The machine that runs a workload: threads, and processes that they run in.
///
/// The calling thread is the one that the methods concern, unless they name another.
pub trait Host: Sized {
    /// The part that performs accesses.
    type Memory: MemoryHost;
    /// The scheduler's name of a thread.
    type Thread: Copy + Eq;
    /// A reading of the clock and the counters.
    type Reading: Clone;

    /// Returns the part that performs accesses.
    fn memory(&self) -> &Self::Memory;

    /// Calls `f` with the state that all threads share. `f` does not block.
    fn state<R>(&self, f: impl FnOnce(&mut State<Self>) -> R) -> R;

    /// Returns the steps of a program.
    fn steps(&self, program: ProgramId) -> impl Iterator<Item = Result<Operation, StepError>>;

    /// Creates a process without memory of the workload.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for the process.
    fn new_process(&self) -> Result<ProcessOf<Self::Memory>, StepError>;

    /// Adds a process, before a thread runs in it.
    fn add_process(&self, process: ProcessOf<Self::Memory>) -> Arc<ProcessOf<Self::Memory>>;

    /// Takes down the memory of a process that has lost its last thread.
    fn destroy(&self, process: &ProcessOf<Self::Memory>);

    /// Creates a thread that calls [`run_thread`], once it is [let run](Self::let_run). `cpu` is
    /// the CPU that it is bound to.
    ///
    /// # Errors
    ///
    /// Fails if the machine lacks the CPU, or has no room for another thread.
    fn create_thread(
        &self,
        process: Arc<ProcessOf<Self::Memory>>,
        program: ProgramId,
        cpu: Option<usize>,
    ) -> Result<Self::Thread, StepError>;

    /// Lets a thread run that was created.
    fn let_run(&self, thread: Self::Thread) {
        let _ = thread;
    }

    /// Returns the calling thread; `None` outside of threads.
    fn current_thread(&self) -> Option<Self::Thread>;

    /// Changes the process of the calling thread, and loads its address space.
    fn set_process(&self, process: Option<&Arc<ProcessOf<Self::Memory>>>);

    /// Wakes a thread, or lets its next [`block`](Self::block) return without waiting.
    fn wake(&self, thread: Self::Thread);

    /// Blocks the calling thread until it is woken, perhaps for another reason than `until`.
    fn block(&self, until: Until);

    /// Lets other threads of this CPU run.
    fn yield_now(&self);

    /// Sleeps for `ns` nanoseconds.
    fn sleep(&self, ns: u64);

    /// Moves the calling thread to a CPU.
    ///
    /// # Errors
    ///
    /// Fails if the machine lacks the CPU.
    fn migrate(&self, cpu: usize) -> Result<(), StepError>;

    /// Computes in user mode for `ns` nanoseconds, and yields at the end of each time slice.
    ///
    /// # Errors
    ///
    /// Fails if the machine cannot run the code that computes.
    fn compute(&self, process: &ProcessOf<Self::Memory>, ns: u64) -> Result<(), StepError>;

    /// Ends a step: the thread returns to user mode, or yields if its time slice is over.
    fn end_step(&self);

    /// Reads the clock and the counters.
    fn reading(&self) -> Self::Reading;

    /// Records that a thread has failed, which ends the run.
    fn fail(&self, program: ProgramId, error: StepError);

    /// Ends the run, after its last thread, which ran `program`.
    fn finish(&self, program: ProgramId);
}

/// The event that a blocked thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// A wake.
    Woken,
    /// The end of a thread.
    Ended(ProgramId),
}

/// The state that the threads of a run share.
#[expect(missing_debug_implementations, reason = "the locks of a platform cannot be printed")]
pub struct State<H: Host> {
    tasks: BTreeMap<ProgramId, Task<H::Thread>>,
    locks: BTreeMap<LockId, Arc<UserLock<SleepingLock<H>>>>,
    /// Number of threads that have not ended.
    unfinished: usize,
    /// The measurement.
    pub measurement: Measurement<H::Reading>,
}

type SleepingLock<H> = <PlatformOf<<H as Host>::Memory> as Platform>::SleepingLock;

/// The readings of a measurement.
#[derive(Clone, Debug)]
pub struct Measurement<R> {
    /// At the first [`Operation::Begin`].
    pub begin: Option<R>,
    /// At the first [`Operation::End`].
    pub first_end: Option<R>,
    /// At the last [`Operation::End`].
    pub end: Option<R>,
    /// Sum of the iterations of all threads.
    pub iterations: u64,
}

/// A thread, as other threads refer to it.
struct Task<T> {
    thread: Option<T>,
    /// Number of wakes that the thread has not waited for.
    wakes: u64,
    has_ended: bool,
    joining: Vec<T>,
}

/// A lock of the workload.
struct UserLock<L> {
    lock: L,
    /// The number of the holder's program plus 1; 0 if there is no holder.
    holder: AtomicU32,
}

impl<H: Host> Default for State<H> {
    fn default() -> Self {
        let measurement = Measurement { begin: None, first_end: None, end: None, iterations: 0 };
        Self { tasks: BTreeMap::new(), locks: BTreeMap::new(), unfinished: 0, measurement }
    }
}

impl<H: Host> State<H> {
    fn task(&mut self, program: ProgramId) -> &mut Task<H::Thread> {
        let new = || Task { thread: None, wakes: 0, has_ended: false, joining: Vec::new() };
        self.tasks.entry(program).or_insert_with(new)
    }
}

/// Starts the threads that start with a workload, each in a process of its own.
///
/// # Errors
///
/// Fails if there is no memory or no CPU for one of them.
pub fn start<H: Host>(
    host: &H,
    starts: impl IntoIterator<Item = Start>,
) -> Result<(), (ProgramId, StepError)> {
    starts.into_iter().try_for_each(|Start { program, cpu }| {
        let process = host.new_process().map(|process| host.add_process(process));
        process
            .and_then(|process| start_thread(host, process, program, cpu))
            .map_err(|error| (program, error))
    })
}

fn start_thread<H: Host>(
    host: &H,
    process: Arc<ProcessOf<H::Memory>>,
    program: ProgramId,
    cpu: Option<usize>,
) -> Result<(), StepError> {
    process.enter();
    let thread = host.create_thread(process, program, cpu)?;
    // Publishes the thread before it runs: it may block before this function returns, and another
    // thread must find it here to wake it.
    host.state(|state| {
        state.unfinished += 1;
        // Threads may have woken the program before it was started, so that it has an entry.
        let task = state.task(program);
        (task.thread, task.has_ended) = (Some(thread), false);
    });
    host.let_run(thread);
    Ok(())
}

/// Runs the steps of a thread. This is the body of the thread.
pub fn run_thread<H: Host>(host: &H, process: Arc<ProcessOf<H::Memory>>, program: ProgramId) {
    let memory = host.memory();
    memory.return_to_user(&process);
    let mut thread = Thread { host, process, program };
    for step in host.steps(program) {
        if let Err(error) = step.and_then(|operation| thread.perform(operation)) {
            host.fail(program, error);
            break;
        }
        host.end_step();
        // If another thread ran at the end of the step, this one was in the kernel.
        memory.return_to_user(&thread.process);
    }
    host.set_process(None);
    thread.leave(&thread.process);
    drop(thread);
    let joining = host.state(|state| {
        let task = state.task(program);
        task.has_ended = true;
        core::mem::take(&mut task.joining)
    });
    joining.into_iter().for_each(|thread| host.wake(thread));
    let is_last = host.state(|state| {
        state.unfinished -= 1;
        state.unfinished == 0
    });
    if is_last {
        host.finish(program);
    }
}

/// The calling thread.
struct Thread<'h, H: Host> {
    host: &'h H,
    process: Arc<ProcessOf<H::Memory>>,
    program: ProgramId,
}

impl<H: Host> Thread<'_, H> {
    /// Performs an operation. The thread is in user mode before and after it.
    fn perform(&mut self, operation: Operation) -> Result<(), StepError> {
        let memory = self.host.memory();
        match self.try_to_perform(operation) {
            Err(error) if error.is_survived(memory.on_fault()) => {
                memory.change_survived(&self.process);
                Ok(())
            }
            performed => performed,
        }
    }

    fn try_to_perform(&mut self, operation: Operation) -> Result<(), StepError> {
        let host = self.host;
        let memory = ProcessMemory::new(host.memory(), &self.process);
        match operation {
            Operation::Map { area, pages, permission, mapping } => {
                memory.system_call(|| memory.map_area(area, pages, permission, mapping))
            }
            Operation::Unmap { area, pages } => memory
                .system_call(|| Ok(memory.unmap(Some(area), memory.addresses(area, &pages)?)?)),
            Operation::Protect { area, pages, permission } => {
                memory.at(area, &pages, |it| memory.protect(it, permission))
            }
            Operation::Discard { area, pages } => memory
                .system_call(|| Ok(memory.discard(Some(area), memory.addresses(area, &pages)?)?)),
            Operation::DiscardEach { area, pages, step } => memory.system_call(|| {
                Ok(memory.discard_each(area, memory.addresses(area, &pages)?, step)?)
            }),
            Operation::Offer { area, pages } => memory.at(area, &pages, |it| Ok(memory.offer(it)?)),
            Operation::Collapse { area, pages } => {
                memory.at(area, &pages, |it| memory.collapse(it))
            }
            Operation::UseLargePages { area, pages } => {
                memory.at(area, &pages, |it| memory.use_large_pages(it))
            }
            Operation::PageOut { area, pages } => memory.at(area, &pages, |it| memory.page_out(it)),
            Operation::Sync { area, pages } => memory.at(area, &pages, |it| memory.sync(it)),
            Operation::MovePages { area, pages, node } => {
                memory.at(area, &pages, |it| memory.migrate(it, node))
            }
            Operation::Truncate { file, pages } => memory.truncate(file, pages),
            Operation::Hint { area, pages } => memory.at(area, &pages, |it| memory.hint(it)),
            Operation::Remap { area, from, to, moves } => memory.remap_area(area, from..to, moves),
            Operation::Touch { area, pages, access } => memory.touch_area(area, &pages, access),
            Operation::Segfault { area, page } => memory.segfault(area, page),
            Operation::RawAddress(operation) => memory.perform_raw(operation),
            Operation::Fork(child) => memory.system_call(|| {
                let copy = host.add_process(memory.fork()?);
                start_thread(host, copy, child, None)
            }),
            Operation::Spawn(thread) => {
                memory.system_call(|| start_thread(host, Arc::clone(&self.process), thread, None))
            }
            Operation::Exec => self.exec(),
            Operation::Join(other) => memory.in_kernel(|| self.join(other)),
            Operation::Migrate(cpu) => memory.system_call(|| host.migrate(cpu)),
            Operation::Yield => memory.in_kernel(|| host.yield_now()),
            Operation::Block => memory.in_kernel(|| self.block()),
            Operation::Sleep(ns) => memory.in_kernel(|| host.sleep(ns)),
            Operation::Wake(other) => memory.in_kernel(|| self.wake(other)),
            Operation::Lock(lock) => memory.in_kernel(|| self.lock(lock)),
            Operation::Unlock(lock) => memory.system_call(|| self.unlock(lock)),
            Operation::SystemCall => memory.in_kernel(|| ()),
            Operation::Compute(ns) => host.compute(&self.process, ns),
            Operation::Begin => {
                host.state(|state| {
                    state.measurement.begin.get_or_insert_with(|| host.reading());
                });
                Ok(())
            }
            Operation::End { iterations } => {
                host.state(|state| {
                    // Reads the clock under the lock, so that a later end has a later reading.
                    let now = host.reading();
                    state.measurement.first_end.get_or_insert_with(|| now.clone());
                    state.measurement.end = Some(now);
                    state.measurement.iterations += iterations;
                });
                Ok(())
            }
        }
    }

    fn exec(&mut self) -> Result<(), StepError> {
        self.host.memory().enter_kernel();
        let fresh = self.host.add_process(self.host.new_process()?);
        fresh.enter();
        let old = core::mem::replace(&mut self.process, fresh);
        self.host.set_process(Some(&self.process));
        self.leave(&old);
        self.host.memory().return_to_user(&self.process);
        Ok(())
    }

    /// Removes the thread from a process. The last thread takes the process's memory down.
    fn leave(&self, process: &ProcessOf<H::Memory>) {
        if process.leave() {
            self.host.destroy(process);
        }
    }

    fn join(&self, other: ProgramId) {
        let Some(me) = self.host.current_thread() else { return };
        while !self.host.state(|state| {
            let task = state.task(other);
            if !task.has_ended && !task.joining.contains(&me) {
                task.joining.push(me);
            }
            task.has_ended
        }) {
            self.host.block(Until::Ended(other));
        }
    }

    fn block(&self) {
        while !self.host.state(|state| {
            let task = state.task(self.program);
            let was_woken = task.wakes > 0;
            task.wakes = task.wakes.saturating_sub(1);
            was_woken
        }) {
            self.host.block(Until::Woken);
        }
    }

    fn wake(&self, other: ProgramId) {
        let thread = self.host.state(|state| {
            let task = state.task(other);
            task.wakes += 1;
            task.thread
        });
        if let Some(thread) = thread {
            self.host.wake(thread);
        }
    }

    /// Returns the number that identifies this thread as the holder of a lock.
    const fn holder(&self) -> u32 {
        self.program.0.wrapping_add(1)
    }

    fn lock(&self, lock: LockId) {
        let new =
            || Arc::new(UserLock { lock: SleepingLock::<H>::INIT, holder: AtomicU32::new(0) });
        let lock = self.host.state(|state| Arc::clone(state.locks.entry(lock).or_insert_with(new)));
        lock.lock.lock_exclusive();
        lock.holder.store(self.holder(), Relaxed);
    }

    fn unlock(&self, lock: LockId) -> Result<(), StepError> {
        let found = self.host.state(|state| state.locks.get(&lock).cloned());
        let found = found.filter(|found| found.holder.load(Relaxed) == self.holder());
        let lock = found.ok_or(StepError::NotHeld(lock))?;
        lock.holder.store(0, Relaxed);
        // SAFETY: this thread holds the lock: `holder` is this thread's number, and only the thread
        // that holds the lock writes it.
        #[expect(unsafe_code, reason = "two operations lock and unlock: no guard lives that long")]
        unsafe {
            lock.lock.unlock_exclusive();
        }
        Ok(())
    }
}
