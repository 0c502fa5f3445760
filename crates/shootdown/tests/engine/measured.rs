//! A machine without a TLB, whose one thread is each CPU in turn. It counts hints to the cache,
//! measures delays, and records the steps that the engine takes.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use std::sync::{Mutex, MutexGuard};

use shootdown::{
    BellState, Broadcast, Broadcaster, CpuBits, CpuId, CpuSet, CpuState, CpuStats, Entries, Extent,
    Machine, Memory, NotifyCosts, PinnedCpu, Presence, Reach, Refused, Root, Shootdown, Space,
    StallReport, Tag, TagSlot, Tagging, Unanswered,
};

pub(crate) const PAGE: Extent = Extent::page(0x1000);

/// Number of hints, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hints {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
}

/// A step that the engine takes on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A full barrier.
    Fence,
    /// Page-table writes are published.
    Publish,
    /// Page-table writes are ordered before the CPU's walks.
    Synchronize,
    /// A space's page tables are loaded.
    Load,
    /// The kernel's own page tables are loaded on this CPU, which has this presence.
    LoadKernel(Presence),
    /// An extent is invalidated on this CPU, whose bell is in this state.
    Invalidate(Extent, BellState),
    /// A tag is dropped on this CPU, whose bell is in this state.
    InvalidateTag(BellState),
    /// An extent of the kernel is invalidated on this CPU.
    InvalidateKernel(Extent),
    /// Everything is dropped on this CPU.
    InvalidateAll,
    /// Other CPUs are interrupted.
    Ring,
    /// An extent is invalidated on all CPUs.
    Broadcast(Extent),
    /// This CPU waits until its broadcasts are complete.
    Complete,
}

/// Properties of the machine.
#[derive(Clone, Copy)]
pub(crate) struct Config {
    pub(crate) cpus: u32,
    pub(crate) answers_early: bool,
    /// The costs by which the engine chooses; `None` if the machine cannot broadcast.
    pub(crate) costs: Option<NotifyCosts>,
    /// The extent of which broadcasts are refused.
    pub(crate) refused: Option<Extent>,
    /// Time that CPUs take to answer.
    pub(crate) answer_ns: u64,
    /// Time that a broadcast takes to complete.
    pub(crate) completion_ns: u64,
}

pub(crate) const CONFIG: Config = Config {
    cpus: 2,
    answers_early: false,
    costs: None,
    refused: None,
    answer_ns: 0,
    completion_ns: 0,
};

pub(crate) struct Measured {
    config: Config,
    cpus: Vec<CpuState<Self>>,
    current: AtomicU32,
    reads: AtomicU64,
    writes: AtomicU64,
    now_ns: AtomicU64,
    steps: Mutex<Vec<Step>>,
    during_wait: Mutex<Option<Turn>>,
    after_invalidation: Mutex<Option<Turn>>,
}

/// An operation of another CPU while this one waits, or when it has just invalidated.
type Turn = Box<dyn FnOnce() + Send>;

impl Measured {
    fn steps(&self) -> MutexGuard<'_, Vec<Step>> {
        self.steps.lock().unwrap()
    }

    fn note(&self, step: Step) {
        self.steps().push(step);
    }

    /// Notes an invalidation, and runs the operation that comes after the first one.
    fn note_invalidation(&self, step: Step) {
        self.note(step);
        let turn = self.after_invalidation.lock().unwrap().take();
        turn.into_iter().for_each(|turn| self.take_turn(turn));
    }

    /// Runs an operation of another CPU.
    fn take_turn(&self, turn: Turn) {
        let this = self.current.load(Relaxed);
        turn();
        self.current.store(this, Relaxed);
    }

    /// This CPU, as other CPUs observe it.
    fn observed(&self) -> Unanswered {
        let mut this = CpuSet::new();
        this.insert(self.cpu());
        StallReport::new(self, &this).cpus().next().unwrap()
    }
}

// SAFETY: there is one thread, and the words are the host's atomics.
unsafe impl Memory for Measured {
    type Word = AtomicU64;

    const PREFETCHES_FOR_WRITE: bool = true;

    fn fence(&self) {
        fence(SeqCst);
        self.note(Step::Fence);
    }
    fn prefetch(&self, _: &AtomicU64) {
        self.reads.fetch_add(1, Relaxed);
    }
    fn prefetch_for_write(&self, _: &AtomicU64) {
        self.writes.fetch_add(1, Relaxed);
    }
}

// SAFETY: there is one thread and no TLB. The tests take the interrupts.
unsafe impl Machine for Measured {
    type CpuBits = [u64; 1];
    type TagSlots = [TagSlot; 2];
    type TagWords = [AtomicU64; 2];
    type Broadcaster = Self;

    fn state(&self, cpu: CpuId) -> &CpuState<Self> {
        &self.cpus[cpu.index()]
    }
    fn cpu(&self) -> CpuId {
        CpuId(self.current.load(Relaxed))
    }
    fn interrupts_masked(&self) -> bool {
        true
    }
    fn publish(&self) {
        self.note(Step::Publish);
    }
    fn synchronize(&self) {
        self.note(Step::Synchronize);
    }
    fn answers_early(&self) -> bool {
        self.config.answers_early
    }
    fn tagging(&self) -> Tagging {
        if self.config.costs.is_some() { Tagging::Global } else { Tagging::PerCpu }
    }
    fn tag_count(&self) -> usize {
        60
    }
    fn cpu_limit(&self) -> usize {
        self.cpus.len()
    }
    unsafe fn load(&self, _: Root, _: Tag, _: Entries) {
        self.note(Step::Load);
    }
    fn load_kernel(&self) {
        self.note(Step::LoadKernel(self.observed().presence));
    }
    fn invalidate(&self, _: Tag, extent: Extent) {
        self.note_invalidation(Step::Invalidate(extent, self.observed().bell));
    }
    fn invalidate_tag(&self, _: Tag) {
        self.note_invalidation(Step::InvalidateTag(self.observed().bell));
    }
    fn invalidate_kernel(&self, extent: Extent) {
        self.note_invalidation(Step::InvalidateKernel(extent));
    }
    fn invalidate_all(&self) {
        self.note_invalidation(Step::InvalidateAll);
    }
    fn ring(&self, _: &CpuSet<Self::CpuBits>) {
        self.note(Step::Ring);
    }
    fn broadcaster(&self) -> Option<&Self> {
        self.config.costs.map(|_| self)
    }
    fn reclaim(&self, _: NonNull<Space<Self>>) {}
    fn wait_hint(&self, waiting: &CpuSet<Self::CpuBits>) {
        let turn = self.during_wait.lock().unwrap().take();
        let turn = turn.unwrap_or_else(|| {
            panic!("there is no other thread, so {waiting:?} will not answer");
        });
        self.take_turn(turn);
    }
}

// SAFETY: there is no TLB.
unsafe impl Broadcaster for Measured {
    fn capabilities(&self) -> Broadcast {
        Broadcast {
            reach: Reach::Everyone,
            pages_per_operation: 1,
            operation_ceiling: 8,
            completes_at_issue: false,
        }
    }
    fn costs(&self) -> NotifyCosts {
        self.config.costs.expect("the machine has a broadcaster")
    }
    fn broadcast<B: CpuBits>(&self, _: &CpuSet<B>, _: Tag, extent: Extent) -> Result<(), Refused> {
        self.broadcast_kernel(extent)
    }
    fn broadcast_kernel(&self, extent: Extent) -> Result<(), Refused> {
        self.note(Step::Broadcast(extent));
        if Some(extent) == self.config.refused { Err(Refused) } else { Ok(()) }
    }
    fn complete(&self) -> u64 {
        self.note(Step::Complete);
        self.config.completion_ns
    }
    /// The engine reads the clock before and after it waits for answers.
    fn clock_ns(&self) -> u64 {
        self.now_ns.fetch_add(self.config.answer_ns, Relaxed)
    }
}

/// All CPUs online. All but CPU 0 use the space.
pub(crate) struct System {
    pub(crate) engine: Shootdown<Measured>,
    /// In a box, because CPUs have its address.
    pub(crate) space: Box<Space<Measured>>,
}

impl System {
    pub(crate) fn new(config: Config) -> Self {
        let engine = Shootdown::new(Measured {
            config,
            cpus: (0..config.cpus).map(|_| CpuState::new()).collect(),
            current: AtomicU32::new(0),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            now_ns: AtomicU64::new(1),
            steps: Mutex::default(),
            during_wait: Mutex::default(),
            after_invalidation: Mutex::default(),
        });
        let space = Box::new(engine.space(Root(0)));
        let system = Self { engine, space };
        (0..config.cpus).for_each(|cpu| system.pin(cpu).online());
        for cpu in 1..config.cpus {
            // SAFETY: the space lives as long as the engine, and its box does not move it.
            unsafe { system.pin(cpu).switch(&system.space) };
        }
        system
    }

    pub(crate) fn pin(&self, cpu: u32) -> PinnedCpu<'_, Measured> {
        self.engine.machine().current.store(cpu, Relaxed);
        // SAFETY: the one thread is that CPU now, and the methods of a CPU's `PinnedCpu`s do not
        // nest.
        unsafe { self.engine.pin() }
    }

    /// Flushes a page on CPU 0. All other CPUs answer.
    pub(crate) fn flush(&self) {
        let mut pending = self.pin(0).flush(&self.space, PAGE);
        (1..self.engine.machine().config.cpus).for_each(|cpu| self.pin(cpu).handle_flush_ipi());
        self.pin(0);
        pending.wait();
    }

    pub(crate) fn stats(&self) -> CpuStats {
        self.engine.cpu(CpuId(0)).stats()
    }

    /// Number of hints that `operation` gives.
    pub(crate) fn hints<R>(&self, operation: impl FnOnce() -> R) -> (Hints, R) {
        let Measured { reads, writes, .. } = self.engine.machine();
        reads.store(0, Relaxed);
        writes.store(0, Relaxed);
        let result = operation();
        (Hints { reads: reads.load(Relaxed), writes: writes.load(Relaxed) }, result)
    }

    /// Runs an operation of another CPU when the current CPU first waits.
    pub(crate) fn during_wait(&self, turn: impl FnOnce() + Send + 'static) {
        *self.engine.machine().during_wait.lock().unwrap() = Some(Box::new(turn));
    }

    /// Runs an operation of another CPU when a CPU next invalidates.
    pub(crate) fn after_invalidation(&self, turn: impl FnOnce() + Send + 'static) {
        *self.engine.machine().after_invalidation.lock().unwrap() = Some(Box::new(turn));
    }

    /// The steps of `operation`.
    pub(crate) fn steps(&self, operation: impl FnOnce()) -> Vec<Step> {
        self.engine.machine().steps().clear();
        operation();
        std::mem::take(&mut *self.engine.machine().steps())
    }
}
