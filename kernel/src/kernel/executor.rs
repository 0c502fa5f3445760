//! The executor of a workload: the state of a run, and the parts of operations that depend on the
//! machine.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use shootdown_program::StepError;
use shootdown_program::interpreter::{
    self, Change, Ended, FileKey, Host, MemoryHost, Shown, State, Until, run_thread,
};
use shootdown_program::operation::{Access, AreaId, FileId, OnFault, Operation, ProgramId};
use shootdown_program::stream::Stream;
use shootdown_vm::{AddressSpace, Backing, File, PAGE_BYTES, Place, Protection, Sharing, Stats};

use crate::kernel::arch::{Arch, Architecture, Status};
use crate::kernel::coherence::Engine;
use crate::kernel::console::println;
use crate::kernel::contents::{Allowed, KnownContents};
use crate::kernel::counts;
use crate::kernel::end::end;
use crate::kernel::load::{Reclaim, Settings, USER_CODE_START};
use crate::kernel::platform::{KernelPlatform, USER_CODE};
use crate::kernel::process::{NamedArea, Process, ProcessData, System, Vm};
use crate::kernel::report::{self, Reading};
use crate::kernel::scheduler::{self, Affinity, Next, ThreadId, ThreadSpace, WaitReason};
use crate::kernel::sync::{Mutex, Once};
use crate::kernel::totals::Totals;
use crate::kernel::user;

static EXECUTOR: Once<Executor> = Once::new();

/// The key of all files that are not stored. Their contents are not checked.
const WRITABLE_FILES: FileKey = u64::MAX;

/// The executor of this run.
pub(crate) fn executor() -> &'static Executor {
    EXECUTOR.get()
}

/// Frees discarded pages, and the page tables of dead spaces, if this CPU has nothing else to run.
/// Frees page tables also if many wait to be freed.
pub(crate) fn after_switch(next: Next) {
    let vm = &executor().vm;
    if next == Next::NoSpace {
        vm.free_discarded();
    }
    if next == Next::NoSpace || vm.has_many_quarantined() {
        vm.free_dead_tables();
    }
}

/// The executor: the state of a workload's run.
pub(crate) struct Executor {
    pub(crate) vm: Vm,
    pub(crate) settings: Settings,
    on_fault: OnFault,
    pub(crate) stream: Stream<'static>,
    /// The file with the code of user threads.
    code: Arc<File<KernelPlatform>>,
    files: Mutex<BTreeMap<FileId, Arc<File<KernelPlatform>>>>,
    next_process: AtomicU32,
    state: Mutex<State<&'static Self>>,
    /// Sum of the memory statistics of processes that have ended.
    ended: Mutex<Stats>,
}

impl Executor {
    /// Creates the executor. Call this once, on the first CPU.
    pub(crate) fn set_up(settings: Settings, on_fault: OnFault, stream: Stream<'static>) {
        let vm = Vm::new(KernelPlatform, Engine).unwrap_or_else(|error| fail(None, error.into()));
        let vm = if settings.reclaim == Reclaim::Never { vm } else { vm.with_reclaim() };
        EXECUTOR.set(Self {
            vm,
            settings,
            on_fault,
            stream,
            code: Arc::new(File::stored(KernelPlatform, USER_CODE)),
            files: Mutex::new(BTreeMap::new()),
            next_process: AtomicU32::new(0),
            state: Mutex::new(State::default()),
            ended: Mutex::new(Stats::default()),
        });
    }

    /// Creates the processes with which the workload starts. Ends the run if there are none.
    pub(crate) fn start(&'static self) {
        self.calibrate().unwrap_or_else(|error| fail(None, error));
        interpreter::start(&self, self.stream.processes())
            .unwrap_or_else(|(program, error)| fail(Some(program), error));
        if self.stream.processes().next().is_none() {
            self.report();
        }
    }

    /// Measures how fast user threads compute.
    fn calibrate(&self) -> Result<(), StepError> {
        let process = self.user_process()?;
        scheduler::load_space(Some(&process));
        user::calibrate(&process)?;
        process.space().exit();
        Ok(())
    }

    /// Creates a process that maps the code of user threads.
    fn user_process(&self) -> Result<Process, StepError> {
        let space = AddressSpace::new(&self.vm)?;
        let place = Place::Fixed(USER_CODE_START..USER_CODE_START + PAGE_BYTES);
        let backing = Backing::File { file: Arc::clone(&self.code), first_page: 0 };
        space.map(place, Protection::READ | Protection::EXECUTE, Sharing::Shared, backing)?;
        Ok(Process::new(space, ProcessData::new(self.next_number())))
    }

    fn next_number(&self) -> u32 {
        self.next_process.fetch_add(1, Ordering::Relaxed)
    }

    fn cpu(&self, cpu: usize) -> Result<u32, StepError> {
        let number = u32::try_from(cpu).ok().filter(|&number| number < self.settings.cpus);
        number.ok_or(StepError::NoCpu(cpu))
    }

    /// Sum of the memory statistics of all processes that have ended.
    pub(crate) fn ended(&self) -> Stats {
        *self.ended.lock()
    }

    fn report(&'static self) -> ! {
        let measured = self.state(|state| state.measurement.clone());
        report::finish(self, &measured, &self.reading())
    }
}

impl MemoryHost for Executor {
    type System = System;
    type ProcessData = ProcessData;
    type UnderWay = ();

    fn vm(&self) -> &Vm {
        &self.vm
    }

    fn on_fault(&self) -> OnFault {
        self.on_fault
    }

    fn file(&self, file: Option<FileId>) -> (FileKey, Arc<File<KernelPlatform>>) {
        let unnamed = || Arc::new(File::new(KernelPlatform));
        let Some(id) = file else { return (WRITABLE_FILES, unnamed()) };
        // A file that reclaim may drop is stored. This kernel has no device to write to, so a
        // stored file is never written, and its contents are known.
        let (key, new) = match self.settings.reclaim {
            Reclaim::Never => (WRITABLE_FILES, unnamed()),
            Reclaim::PerPage | Reclaim::Batched | Reclaim::Unflushed => {
                let key = u64::from(id.0);
                (key, Arc::new(File::stored(KernelPlatform, shootdown_vm::FileId(key))))
            }
        };
        (key, Arc::clone(self.files.lock().entry(id).or_insert(new)))
    }

    fn name_area(&self, process: &Process, area: AreaId, start: u64, shown: Shown) {
        let (allowed, known) = match shown.moved(start / PAGE_BYTES) {
            Shown::Anonymous => (Allowed::OwnWords, KnownContents::default()),
            Shown::Private { file, offset } | Shown::Shared { file, offset }
                if file != WRITABLE_FILES =>
            {
                (Allowed::StoredFile { file, offset }, KnownContents::unknown())
            }
            Shown::Nothing | Shown::Private { .. } | Shown::Shared { .. } => {
                (Allowed::AnyWords, KnownContents::unknown())
            }
        };
        process.data.name(area, NamedArea { start, allowed, known });
    }

    fn move_area(&self, process: &Process, area: AreaId, start: u64) {
        // The area exists, because its addresses were looked up.
        let _ = process.data.with_area(area, |area| {
            if let Allowed::StoredFile { offset, .. } = &mut area.allowed {
                let by = (start / PAGE_BYTES).wrapping_sub(area.start / PAGE_BYTES);
                *offset = offset.wrapping_sub(by);
            }
            (area.start, area.known) = (start, KnownContents::unknown());
        });
    }

    fn area_start(&self, process: &Process, area: AreaId) -> Option<u64> {
        process.data.with_area(area, |area| area.start).ok()
    }

    fn touch(
        &self,
        process: &Process,
        area: Option<AreaId>,
        address: u64,
        access: Access,
    ) -> Result<(), StepError> {
        let ProcessData { words, .. } = &process.data;
        let Some(area) = area else {
            let word = user::touch(process, address, access.into())?;
            words.check(address, Allowed::AnyWords, None, word);
            return Ok(());
        };
        let with_area = |f| process.data.with_area(area, f);
        let expected = |area: &mut NamedArea| (area.allowed, area.known.expected(address));
        // Load the expected word before another thread can change it.
        let (allowed, before) = with_area(expected)?;
        if matches!(allowed, Allowed::StoredFile { .. }) && access == Access::Write {
            return Err(StepError::Unsupported("a write to a stored file"));
        }
        let word = user::touch(process, address, access.into())?;
        if access == Access::Write {
            return process.data.with_area(area, |area| area.known.record_write(address, word));
        }
        // Compare only if no other thread has used the area in the meantime.
        let (_, after) = with_area(expected)?;
        words.check(address, allowed, before.filter(|_| after.is_some()), word);
        Ok(())
    }

    fn wait_hint(&self) {
        scheduler::yield_now();
        Arch::spin_hint();
    }

    fn change_begins(&self, process: &Process, area: Option<AreaId>, change: Change) {
        let data = &process.data;
        match (area, change) {
            (Some(area), Change::Unmap(pages) | Change::Discard(pages)) => {
                let Range { start, end } = pages;
                let range = start * PAGE_BYTES..end * PAGE_BYTES;
                // The area exists, because its addresses were looked up.
                let _ = data.with_area(area, |area| area.known.record_discard(&range));
            }
            // A stored file is never written, so its contents stay. Others cannot be truncated.
            (_, Change::MapAnywhere { .. } | Change::Truncate { .. } | Change::Fork) => {}
            (_, Change::Move { .. }) => {
                data.words.record_move();
                data.forget_contents();
            }
            // The memory may belong to an area that has a number.
            (
                _,
                Change::Map { .. }
                | Change::Unmap(_)
                | Change::Discard(_)
                | Change::Offer(_)
                | Change::Grow(_),
            ) => data.forget_contents(),
        }
    }

    fn change_ends(&self, (): (), _: Ended) {}

    fn fork_ends(&self, parent: &Process, (): ()) -> ProcessData {
        parent.data.copy(self.next_number())
    }

    fn change_survived(&self, process: &Process) {
        process.data.forget_contents();
    }
}

impl Host for &'static Executor {
    type Memory = Executor;
    type Thread = ThreadId;
    type Reading = Reading;

    fn memory(&self) -> &Executor {
        self
    }

    fn state<R>(&self, f: impl FnOnce(&mut State<Self>) -> R) -> R {
        f(&mut self.state.lock())
    }

    fn steps(&self, program: ProgramId) -> impl Iterator<Item = Result<Operation, StepError>> {
        self.stream.steps(program).into_iter().flatten().map(|step| Ok(step?))
    }

    fn new_process(&self) -> Result<Process, StepError> {
        self.user_process()
    }

    fn add_process(&self, process: Process) -> Arc<Process> {
        Arc::new(process)
    }

    fn destroy(&self, process: &Process) {
        process.space().exit();
        *self.ended.lock() += process.space().stats();
    }

    fn create_thread(
        &self,
        process: Arc<Process>,
        program: ProgramId,
        cpu: Option<usize>,
    ) -> Result<ThreadId, StepError> {
        let affinity = match cpu {
            Some(cpu) => Affinity::Cpu(self.cpu(cpu)?),
            None => Affinity::Any,
        };
        let (executor, space) = (*self, Arc::clone(&process) as Arc<dyn ThreadSpace>);
        let body = move || run_thread(&executor, process, program);
        Ok(scheduler::create(Some(space), affinity, program.0, body))
    }

    fn let_run(&self, thread: ThreadId) {
        scheduler::wake(thread);
    }

    fn current_thread(&self) -> Option<ThreadId> {
        scheduler::current()
    }

    fn set_process(&self, process: Option<&Arc<Process>>) {
        scheduler::set_space(process.map(|process| Arc::clone(process) as Arc<dyn ThreadSpace>));
    }

    fn wake(&self, thread: ThreadId) {
        scheduler::wake(thread);
    }

    fn block(&self, until: Until) {
        scheduler::block(match until {
            Until::Woken => WaitReason::Wake,
            Until::Ended(program) => WaitReason::Join(program.0),
        });
    }

    fn yield_now(&self) {
        scheduler::yield_now();
    }

    fn sleep(&self, ns: u64) {
        scheduler::sleep(ns);
    }

    fn migrate(&self, cpu: usize) -> Result<(), StepError> {
        scheduler::migrate(self.cpu(cpu)?);
        Ok(())
    }

    fn compute(&self, process: &Process, ns: u64) -> Result<(), StepError> {
        user::compute(process, ns)
    }

    fn end_step(&self) {
        counts::this_cpu().steps.add(1);
        scheduler::preemption_point();
    }

    fn reading(&self) -> Reading {
        (Arch::now_ns(), Totals::of_all(self.settings.cpus))
    }

    fn fail(&self, program: ProgramId, error: StepError) {
        fail(Some(program), error)
    }

    fn finish(&self, _: ProgramId) {
        Executor::report(self)
    }
}

/// Prints the error of a thread, and ends the run.
fn fail(program: Option<ProgramId>, error: StepError) -> ! {
    match program {
        Some(ProgramId(program)) => println!("error program {program}: {error}"),
        None => println!("error {error}"),
    }
    end(Status::Failed)
}
