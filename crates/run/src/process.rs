//! Processes: their memory, and the operations on it.

use core::cell::{Cell, RefCell};
use core::ops::Range;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use shootdown_sim::{PageFault, Sim, SwitchedTo, Time};
use shootdown_vm::{
    AddressSpace, BadRange, ErasedCoherence, FaultError, File, HeldStats, OutOfMemory, PAGE_BYTES,
    Place, Scheduling, Sharing, Stats, System, X86_64,
};

use crate::checked::Backed;
use crate::contents::{Contents, MemoryId, Model, Shown};
use crate::instrumented::Instrumented;
use crate::platform::SimPlatform;
use shootdown_program::operation::{Access, AreaId, FileId, Mapping, Operation, Refusals};
use shootdown_program::step::{FAULTS_MAX, Step, StepError};

/// How long a reclaim thread that finds nothing waits. (Linux, when it is woken in vain: 100 ms.)
const RECLAIM_PAUSE: Time = Time::from_ms(1);

/// How much a read fault in a file maps at once, and how many pages are read at once, where files
/// are stored. (Linux's `fault_around_bytes` and `read_ahead_kb`.)
const FAULT_AROUND_BYTES: u64 = 64 << 10;
const READ_AHEAD_PAGES: u64 = 32;

/// Whether there is memory for everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// There is; and nobody keeps account of where pages are mapped.
    #[default]
    Enough,
    /// Pages are reclaimed, and files are stored somewhere.
    Reclaimed,
    /// The same; and files are read ahead, and mapped around what is read, as Linux does it.
    ReclaimedReadAhead,
}

/// The one system of all simulations: the design is erased.
#[derive(Debug)]
pub(crate) struct Simulated;

impl System for Simulated {
    type Platform = SimPlatform;
    type Coherence = Instrumented;
    type Format = X86_64;
}

pub(crate) type Space = AddressSpace<Simulated>;

/// The memory manager of a simulated machine, under one design.
pub(crate) struct Vm {
    sim: Rc<Sim>,
    vm: shootdown_vm::Vm<Simulated>,
    memory: Memory,
    files: RefCell<HashMap<FileId, Arc<File<SimPlatform>>>>,
    /// What is written next: each write is another value.
    pub(crate) stamp: Cell<u64>,
    /// What memory must hold, if that is checked.
    pub(crate) contents: Option<RefCell<Model>>,
    /// How many files there were without a name.
    pub(crate) fresh_files: Cell<u64>,
    /// What was done to spaces that have ended.
    pub(crate) ended: Cell<Stats>,
}

/// A process.
pub(crate) struct Process {
    /// The number under which the scheduler knows its space.
    pub(crate) number: Cell<u64>,
    pub(crate) threads: Cell<u32>,
    /// The number under which the model knows its memory.
    pub(crate) memory: Option<MemoryId>,
    space: Space,
    /// Where its areas begin.
    areas: RefCell<HashMap<AreaId, u64>>,
}

impl Vm {
    pub(crate) fn new(
        sim: Rc<Sim>,
        memory: Memory,
        contents: Contents,
        design: ErasedCoherence,
    ) -> Result<Self, StepError> {
        let platform = SimPlatform::new(Rc::clone(&sim));
        let design = Instrumented::new(Rc::clone(&sim), design);
        let vm = shootdown_vm::Vm::new(platform, design)?;
        Ok(Self {
            vm: match memory {
                Memory::Enough => vm,
                Memory::Reclaimed => vm.with_reclaim(),
                Memory::ReclaimedReadAhead => vm
                    .with_reclaim()
                    .with_fault_around(FAULT_AROUND_BYTES)
                    .with_read_ahead(READ_AHEAD_PAGES),
            },
            memory,
            sim,
            files: RefCell::default(),
            stamp: Cell::new(0),
            contents: (contents == Contents::Checked).then(RefCell::default),
            fresh_files: Cell::new(0),
            ended: Cell::default(),
        })
    }

    pub(crate) fn design(&self) -> &Instrumented {
        self.vm.coherence()
    }

    pub(crate) fn sim(&self) -> &Sim {
        &self.sim
    }

    pub(crate) fn platform(&self) -> &SimPlatform {
        self.vm.platform()
    }

    /// The body of a node's reclaim thread: waits until memory is short, and takes pages until it
    /// is not, or nothing more can be had.
    pub(crate) fn keep_memory_free(&self, node: usize) {
        while self.platform().wait_for_shortage(node) {
            while self.platform().is_below_high(node) {
                let reclaimed = self.vm.reclaim(node, shootdown_vm::RECLAIM_PAGES);
                self.sim.preemption_point();
                if reclaimed.freed == 0 {
                    // Somebody may let go of something.
                    self.sim.sleep(RECLAIM_PAUSE);
                    break;
                }
            }
        }
    }

    /// A process without memory.
    pub(crate) fn process(&self) -> Result<Process, StepError> {
        let space = self.space()?;
        let memory = self.contents.as_ref().map(|contents| contents.borrow_mut().process());
        Ok(Process::new(space, memory, HashMap::new()))
    }

    /// A space without memory.
    pub(crate) fn space(&self) -> Result<Space, OutOfMemory> {
        AddressSpace::new(&self.vm)
    }

    /// A copy of a process, without its threads.
    pub(crate) fn fork(&self, process: &Process) -> Result<Process, StepError> {
        let (space, memory) = self.fork_space(process)?;
        Ok(Process::new(space, memory, process.areas.borrow().clone()))
    }

    /// Takes down the memory of a process that has no thread any more.
    pub(crate) fn destroy(&self, process: &Process) {
        self.check_at_end(process);
        process.space.exit();
        let mut ended = self.ended.get();
        ended += process.space.stats();
        self.ended.set(ended);
    }

    /// Frees the page tables of dead spaces that this CPU was the last to hold: when it has nothing
    /// better to do, or there are many.
    pub(crate) fn free_dead_tables(&self, next: SwitchedTo) {
        if next == SwitchedTo::Nothing || self.vm.holds_many() {
            self.vm.free_dead_tables();
        }
    }

    /// How many page tables were held back because a CPU could still walk them.
    pub(crate) fn held_tables(&self) -> HeldStats {
        self.vm.held_tables()
    }

    /// Makes a process's space current on this CPU.
    pub(crate) fn switch(&self, process: &Process) {
        // SAFETY: processes are kept in place until the machine is gone, and `destroy` retires the
        // space before its page tables are freed.
        #[expect(unsafe_code, reason = "the seam's `switch` is unsafe")]
        unsafe {
            self.design().switch(process.space.coherent());
        }
    }

    /// Does what concerns memory.
    pub(crate) fn perform(
        &self,
        process: &Process,
        operation: Operation,
        refusals: Refusals,
    ) -> Result<Step, StepError> {
        match self.try_to_perform(process, operation, refusals) {
            Err(error) if error.is_admitted(refusals) => Ok(Step::Done),
            performed => performed,
        }
    }

    fn try_to_perform(
        &self,
        process: &Process,
        operation: Operation,
        refusals: Refusals,
    ) -> Result<Step, StepError> {
        match operation {
            Operation::Touch { area, pages, access } => {
                for address in process.addresses(area, &pages)?.step_by(PAGE_BYTES as usize) {
                    match self.touch(process, address, access) {
                        // The handler returns to what comes next.
                        Err(error) if error.is_admitted(refusals) => {
                            self.enter_kernel();
                            self.return_to_user(process);
                        }
                        touched => touched?,
                    }
                }
                return Ok(Step::Done);
            }
            Operation::Segfault { area, page } => {
                let page = process.addresses(area, &(page..page + 1))?;
                self.segfault(process, page.start)?;
                return Ok(Step::Done);
            }
            Operation::Map { .. }
            | Operation::Unmap { .. }
            | Operation::Protect { .. }
            | Operation::Discard { .. }
            | Operation::MovePages { .. } => self.enter_kernel(),
            Operation::ByAddress(operation) => {
                self.perform_by_address(process, operation)?;
                return Ok(Step::Done);
            }
            other => return Ok(Step::NotOfMemory(other)),
        }
        match operation {
            Operation::Map { area, pages, permission, mapping } => {
                let place = Place::Anywhere { length: pages * PAGE_BYTES };
                let start = self.map(process, place, permission, self.backing(mapping))?;
                process.areas.borrow_mut().insert(area, start);
            }
            Operation::Unmap { area, pages } => {
                self.unmap(process, process.addresses(area, &pages)?)?;
            }
            Operation::Protect { area, pages, permission } => {
                let range = process.addresses(area, &pages)?;
                process.space.protect(range, permission.into())?;
            }
            Operation::Discard { area, pages } => {
                self.discard(process, process.addresses(area, &pages)?)?;
            }
            Operation::MovePages { area, pages, node } => {
                self.migrate(process, process.addresses(area, &pages)?, node)?;
            }
            _ => {}
        }
        self.return_to_user(process);
        Ok(Step::Done)
    }

    /// Moves pages, in which everything stays as it is. A node that is not there has no room.
    pub(crate) fn migrate(
        &self,
        process: &Process,
        range: Range<u64>,
        node: usize,
    ) -> Result<(), BadRange> {
        if node < self.sim.node_count() {
            process.space.migrate(range, node)?;
        }
        Ok(())
    }

    /// A write that is refused. Nobody is told of anything: the kernel finds that the area does not
    /// allow it, and the thread goes on in its handler, which returns by a system call.
    fn segfault(&self, process: &Process, address: u64) -> Result<(), StepError> {
        match self.touch(process, address, Access::Write) {
            Err(StepError::Fault(FaultError::NotPermitted)) => {
                self.enter_kernel();
                self.return_to_user(process);
                Ok(())
            }
            Ok(()) => Err(StepError::NotRefused),
            Err(error) => Err(error),
        }
    }

    /// The calling thread makes a system call.
    pub(crate) fn enter_kernel(&self) {
        self.design().enter_kernel();
        self.sim.spend(self.sim.machine().kernel.syscall);
    }

    pub(crate) fn touch(
        &self,
        process: &Process,
        address: u64,
        access: Access,
    ) -> Result<(), StepError> {
        let (touch, needs) = self.next_touch(access);
        let mut faults = 0;
        while self.touch_checked(process, address, touch, faults) == Err(PageFault) {
            faults += 1;
            if faults > FAULTS_MAX {
                return Err(StepError::Stuck);
            }
            self.design().enter_kernel();
            let fault = process.space.fault(address, needs);
            self.return_to_user(process);
            if let Err(error) = fault {
                self.give_up(process, address, touch);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// The calling thread goes on in user mode.
    pub(crate) fn return_to_user(&self, process: &Process) {
        // SAFETY: as in `switch`.
        #[expect(unsafe_code, reason = "as for `switch`")]
        unsafe {
            self.design().return_to_user(process.space.coherent());
        }
    }

    fn backing(&self, mapping: Mapping) -> Backed {
        let key = |file: FileId| u64::from(file.0);
        match mapping {
            Mapping::Anonymous => Backed::anonymous(),
            Mapping::PrivateFile(file) => {
                let shown = Shown::Private { file: key(file), offset: 0 };
                Backed::file(Sharing::Private, self.file(file), shown)
            }
            Mapping::SharedFile(file) => {
                let shown = Shown::Shared { file: key(file), offset: 0 };
                Backed::file(Sharing::Shared, self.file(file), shown)
            }
        }
    }

    /// The file with this number.
    #[expect(clippy::arc_with_non_send_sync, reason = "a simulation stays on its thread")]
    pub(crate) fn file(&self, file: FileId) -> Arc<File<SimPlatform>> {
        let mut files = self.files.borrow_mut();
        let id = shootdown_vm::FileId(u64::from(file.0));
        let platform = self.vm.platform().clone();
        let new = || {
            Arc::new(match self.memory {
                Memory::Enough => File::new(platform),
                Memory::Reclaimed | Memory::ReclaimedReadAhead => File::stored(platform, id),
            })
        };
        Arc::clone(files.entry(file).or_insert_with(new))
    }
}

impl Process {
    const fn new(space: Space, memory: Option<MemoryId>, areas: HashMap<AreaId, u64>) -> Self {
        let (number, threads) = (Cell::new(0), Cell::new(0));
        Self { number, threads, memory, space, areas: RefCell::new(areas) }
    }

    pub(crate) const fn space(&self) -> &Space {
        &self.space
    }

    fn addresses(&self, area: AreaId, pages: &Range<u64>) -> Result<Range<u64>, StepError> {
        let areas = self.areas.borrow();
        let start = areas.get(&area).ok_or(StepError::UnknownArea(area))?;
        Ok(start + pages.start * PAGE_BYTES..start + pages.end * PAGE_BYTES)
    }
}
