//! The kernel of a simulated machine: the memory manager under one design, and the processes that
//! use it.

use core::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use shootdown_program::StepError;
use shootdown_program::interpreter::{
    Change, Ended, FAULTS_MAX, FileKey, MemoryHost, Process, ProcessOf, Shown, SpaceOf,
};
use shootdown_program::operation::{Access, AreaId, FileId, OnFault};
use shootdown_sim::{Cause, Kernel, PageFault, Sim, SwitchedTo, Time, Touch};
use shootdown_vm::{
    self as vm, AddressSpace, ErasedCoherence, File, Flush as _, OutOfMemory, Scheduling as _,
    Stats, System, Vm, X86_64,
};

use crate::contents::{ContentsModel, MemoryId, UnderWay};
use crate::instrumented::Instrumented;
use crate::platform::SimPlatform;
use crate::settings::{Settings, Supply};

/// The pause of a reclaim thread that finds no page to reclaim. (Linux: 100 ms after a wake-up
/// without success.)
const RECLAIM_PAUSE: Time = Time::from_ms(1);

/// Number of bytes that a read fault in a file maps. (Linux: `fault_around_bytes`.)
const FAULT_AROUND_BYTES: u64 = 64 << 10;
/// Number of pages that are read together from the device of a file. (Linux: `read_ahead_kb`.)
const READ_AHEAD_PAGES: u64 = 32;

/// The lowest key of files without a number.
pub(crate) const UNNUMBERED: FileKey = 1 << 32;

/// The one system of all simulations: the design is erased.
#[derive(Debug)]
pub(crate) struct Simulated;

impl System for Simulated {
    type Platform = SimPlatform;
    type Coherence = Instrumented;
    type Format = X86_64;
}

/// The kernel of a simulated machine.
pub(crate) struct SimKernel {
    sim: Rc<Sim>,
    vm: Vm<Simulated>,
    supply: Supply,
    on_fault: OnFault,
    files: RefCell<HashMap<FileId, Arc<File<SimPlatform>>>>,
    /// Number of files without a number.
    unnumbered: Cell<u64>,
    /// The last word that was written. Each write writes another word.
    stamp: Cell<u64>,
    /// The model of the contents of memory, if they are checked.
    pub(crate) model: Option<RefCell<Box<dyn ContentsModel>>>,
    /// Processes by the number under which the scheduler knows their spaces.
    processes: RefCell<Vec<Option<Arc<SimProcess>>>>,
    /// Processes that were destroyed. CPUs may refer to their spaces until the run ends.
    destroyed: RefCell<Vec<Arc<SimProcess>>>,
    /// Statistics of spaces that were destroyed.
    ended: RefCell<Stats>,
    on_flush_counted: RefCell<Option<Box<dyn Fn()>>>,
    on_flush_sending: RefCell<Option<Box<dyn Fn()>>>,
    flush_delivery: RefCell<Option<Delivery>>,
}

/// Returns the least time of a flush interrupt to a CPU.
type Delivery = Box<dyn Fn(usize) -> Option<Time>>;

/// A process of a simulated machine.
pub(crate) type SimProcess = ProcessOf<SimKernel>;

/// The kernel's data of a process.
pub(crate) struct ProcessData {
    /// The scheduler's number of the process's space.
    pub(crate) number: Cell<u64>,
    /// The model's number of the process; `None` if contents are not checked.
    pub(crate) memory: Option<MemoryId>,
    /// The addresses of the areas.
    areas: RefCell<HashMap<AreaId, u64>>,
}

impl SimKernel {
    pub(crate) fn new(
        sim: Rc<Sim>,
        settings: &Settings,
        design: ErasedCoherence,
    ) -> Result<Self, StepError> {
        let platform = SimPlatform::new(Rc::clone(&sim), settings.kept_free_frames);
        let design = Instrumented::new(Rc::clone(&sim), design);
        let vm = Vm::new(platform, design)?;
        Ok(Self {
            vm: match settings.memory.supply {
                Supply::Enough => vm,
                Supply::Reclaimed => vm.with_reclaim(),
                Supply::ReclaimedReadAhead => vm
                    .with_reclaim()
                    .with_fault_around(FAULT_AROUND_BYTES)
                    .with_read_ahead(READ_AHEAD_PAGES),
            },
            supply: settings.memory.supply,
            on_fault: settings.on_fault,
            sim,
            files: RefCell::default(),
            unnumbered: Cell::new(0),
            stamp: Cell::new(0),
            model: settings.contents.map(|new| RefCell::new(new())),
            processes: RefCell::default(),
            destroyed: RefCell::default(),
            ended: RefCell::default(),
            on_flush_counted: RefCell::default(),
            on_flush_sending: RefCell::default(),
            flush_delivery: RefCell::default(),
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

    /// Returns the statistics of all spaces that were destroyed.
    pub(crate) fn ended(&self) -> Stats {
        *self.ended.borrow()
    }

    /// Calls `observer` from now on when a flush has been counted and chooses its targets next.
    /// `linux-7.0`, its variants and the engine report that.
    pub(crate) fn observe_counting(&self, observer: impl Fn() + 'static) {
        self.on_flush_counted.replace(Some(Box::new(observer)));
    }

    /// Calls `observer` from now on when a flush has chosen its targets.
    pub(crate) fn observe_sending(&self, observer: impl Fn() + 'static) {
        self.on_flush_sending.replace(Some(Box::new(observer)));
    }

    /// Makes flush interrupts to a CPU take the time that `delivery` returns, if it is longer than
    /// on the machine.
    pub(crate) fn delay_flushes(&self, delivery: impl Fn(usize) -> Option<Time> + 'static) {
        self.flush_delivery.replace(Some(Box::new(delivery)));
    }

    /// Waits until memory is short, and reclaims pages until memory suffices or no more pages can
    /// be reclaimed, repeatedly. This is the body of a node's reclaim thread.
    pub(crate) fn keep_memory_free(&self, node: usize) {
        while self.platform().wait_for_shortage(node) {
            while self.platform().is_below_high(node) {
                let reclaimed = self.vm.reclaim(node, vm::RECLAIM_PAGES);
                self.sim.preemption_point();
                if reclaimed.freed == 0 {
                    // A thread may free memory, or release a page that cannot be reclaimed now.
                    self.sim.sleep(RECLAIM_PAUSE);
                    break;
                }
            }
        }
    }

    /// Creates a process without memory.
    pub(crate) fn new_process(&self) -> Result<SimProcess, StepError> {
        let space = self.new_space()?;
        let memory = self.model.as_ref().map(|model| model.borrow_mut().process());
        let (number, areas) = (Cell::new(0), RefCell::default());
        Ok(Process::new(space, ProcessData { number, memory, areas }))
    }

    /// Creates a space without memory.
    pub(crate) fn new_space(&self) -> Result<SpaceOf<Self>, OutOfMemory> {
        AddressSpace::new(&self.vm)
    }

    /// Adds a process, with the lowest number above those of all others.
    pub(crate) fn add(&self, process: SimProcess) -> Arc<SimProcess> {
        let number = self.processes.borrow().len();
        self.add_at(number, process)
    }

    /// Adds a process with a number.
    #[expect(clippy::arc_with_non_send_sync, reason = "a simulation stays on its thread")]
    pub(crate) fn add_at(&self, number: usize, process: SimProcess) -> Arc<SimProcess> {
        let mut processes = self.processes.borrow_mut();
        process.data.number.set(number as u64);
        if processes.len() <= number {
            processes.resize_with(number + 1, || None);
        }
        let process = Arc::new(process);
        processes[number] = Some(Arc::clone(&process));
        process
    }

    /// Returns the process with a number, if there is one.
    pub(crate) fn process(&self, number: usize) -> Option<Arc<SimProcess>> {
        self.processes.borrow().get(number).cloned().flatten()
    }

    /// Frees the memory of a process whose last thread has ended.
    pub(crate) fn destroy(&self, process: &SimProcess) {
        self.check_at_end(process);
        process.space().exit();
        let stats = process.space().stats();
        *self.ended.borrow_mut() += stats;
    }

    /// Frees the number of a destroyed process, and keeps the process until the run ends.
    pub(crate) fn forget(&self, process: &SimProcess) {
        let number = process.data.number.get() as usize;
        let process = self.processes.borrow_mut()[number].take();
        self.destroyed.borrow_mut().extend(process);
    }

    fn new_file(&self, platform: SimPlatform, key: FileKey) -> File<SimPlatform> {
        match self.supply {
            Supply::Enough => File::new(platform),
            Supply::Reclaimed | Supply::ReclaimedReadAhead => {
                File::stored(platform, vm::FileId(key))
            }
        }
    }

    /// Records that the calling thread has entered the kernel.
    fn begin_kernel_work(&self) {
        self.sim.set_cause(Cause::Kernel);
        self.design().enter_kernel();
    }

    /// Returns the access for the machine and the access for the memory manager.
    pub(crate) fn next_touch(&self, access: Access) -> (Touch, vm::Access) {
        match access {
            Access::Read => (Touch::Read, vm::Access::Read),
            Access::Write => {
                self.stamp.set(self.stamp.get() + 1);
                (Touch::Write(self.stamp.get()), vm::Access::Write)
            }
        }
    }

    /// Calls `f` with the model and the process's number in it, if contents are checked.
    pub(crate) fn with_model<R>(
        &self,
        process: &SimProcess,
        f: impl FnOnce(&mut dyn ContentsModel, MemoryId) -> R,
    ) -> Option<R> {
        let (model, memory) = self.model.as_ref().zip(process.data.memory)?;
        Some(f(model.borrow_mut().as_mut(), memory))
    }
}

impl MemoryHost for SimKernel {
    type System = Simulated;
    type ProcessData = ProcessData;
    type UnderWay = Option<UnderWay>;

    fn vm(&self) -> &Vm<Simulated> {
        &self.vm
    }

    fn on_fault(&self) -> OnFault {
        self.on_fault
    }

    #[expect(clippy::arc_with_non_send_sync, reason = "a simulation stays on its thread")]
    fn file(&self, file: Option<FileId>) -> (FileKey, Arc<File<SimPlatform>>) {
        let platform = self.platform().clone();
        let Some(file) = file else {
            let number = self.unnumbered.get();
            self.unnumbered.set(number + 1);
            let key = UNNUMBERED + number;
            return (key, Arc::new(self.new_file(platform, key)));
        };
        let key = FileKey::from(file.0);
        let new = || Arc::new(self.new_file(platform, key));
        (key, Arc::clone(self.files.borrow_mut().entry(file).or_insert_with(new)))
    }

    fn name_area(&self, process: &SimProcess, area: AreaId, start: u64, _: Shown) {
        process.data.areas.borrow_mut().insert(area, start);
    }

    fn move_area(&self, process: &SimProcess, area: AreaId, start: u64) {
        process.data.areas.borrow_mut().insert(area, start);
    }

    fn area_start(&self, process: &SimProcess, area: AreaId) -> Option<u64> {
        process.data.areas.borrow().get(&area).copied()
    }

    fn touch(
        &self,
        process: &SimProcess,
        _: Option<AreaId>,
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
            self.begin_kernel_work();
            let fault = process.space().fault(address, needs);
            self.return_to_user(process);
            if let Err(error) = fault {
                self.give_up(process, address, touch);
                return Err(error.into());
            }
        }
        Ok(())
    }

    fn wait_hint(&self) {
        self.sim.spin_hint();
    }

    fn enter_kernel(&self) {
        self.begin_kernel_work();
        self.sim.spend(self.sim.jittered(self.sim.machine().kernel.syscall));
    }

    fn return_to_user(&self, process: &SimProcess) {
        // SAFETY: as in `switch`.
        #[expect(unsafe_code, reason = "as for `switch`")]
        unsafe {
            process.space().return_to_user_here();
        }
        self.sim.set_cause(Cause::User);
    }

    fn change_begins(
        &self,
        process: &SimProcess,
        _: Option<AreaId>,
        change: Change,
    ) -> Option<UnderWay> {
        self.with_model(process, |model, memory| model.begin(memory, change))
    }

    fn change_ends(&self, under_way: Option<UnderWay>, ended: Ended) {
        if let (Some(model), Some(under_way)) = (&self.model, under_way) {
            model.borrow_mut().end(under_way, ended);
        }
    }

    fn fork_ends(&self, parent: &SimProcess, under_way: Option<UnderWay>) -> ProcessData {
        let memory = self.model.as_ref().zip(under_way);
        ProcessData {
            number: Cell::new(0),
            memory: memory.map(|(model, fork)| model.borrow_mut().end_fork(fork)),
            areas: parent.data.areas.clone(),
        }
    }
}

impl Kernel for SimKernel {
    fn online(&self) {
        self.design().online();
    }
    fn switch(&self, space: u64) {
        let Some(process) = self.process(space as usize) else { return };
        // SAFETY: processes are not moved or dropped before the machine is, and `destroy` retires
        // the space before its page tables are freed.
        #[expect(unsafe_code, reason = "`Scheduling::switch` is unsafe")]
        unsafe {
            process.space().switch_here();
        }
    }
    fn enter_lazy(&self) {
        self.design().enter_lazy();
    }
    fn leave_space(&self) {
        self.design().leave_space();
    }
    fn after_switch(&self, to: SwitchedTo) {
        // Frees discarded pages when the CPU is idle, and dead tables also when there are many.
        if to == SwitchedTo::Nothing {
            self.vm.free_discarded();
        }
        if to == SwitchedTo::Nothing || self.vm.has_many_quarantined() {
            self.vm.free_dead_tables();
        }
    }
    fn flush_interrupt(&self) {
        self.design().interrupt();
    }
    fn flush_counted(&self) {
        if let Some(observer) = &*self.on_flush_counted.borrow() {
            observer();
        }
    }
    fn flush_sending(&self) {
        if let Some(observer) = &*self.on_flush_sending.borrow() {
            observer();
        }
    }
    fn flush_delivery(&self, target: usize) -> Option<Time> {
        self.flush_delivery.borrow().as_ref().and_then(|delivery| delivery(target))
    }
    fn tick_interval(&self) -> Option<Time> {
        self.design().policy().tick_ns.map(Time::from_ns)
    }
    fn tick(&self) {
        self.design().tick();
    }
}
