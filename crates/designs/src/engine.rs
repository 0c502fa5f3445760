//! Shootdown itself: the engine, as a kernel would embed it.

#![expect(unsafe_code, reason = "makes tokens, and switches to spaces")]

use core::cell::RefCell;
use core::convert::Infallible;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::rc::Rc;

use shootdown::{
    Batch, BatchIsFull, CpuId, Extent, Here, Horizon, LazyEntryPredictor, Lifetime, Pending,
    Presence, Root, Rule, Shootdown, Space, StaleWrites,
};
use shootdown_sim::machine::Tagging;
use shootdown_sim::{EngineOptions, Sim, SimMachine, Tell};
use shootdown_vm::{
    Change, Coherence, EmptyTables, ExtraFlushes, FirstRead, Retired, Taking, UnmapLock,
};

/// The design, with room for `64 * WORDS` CPUs.
#[derive(Debug)]
pub struct Engine<const WORDS: usize, P: Policy = Ours> {
    sim: Rc<Sim>,
    /// For each CPU.
    predictors: Vec<LazyEntryPredictor>,
    /// Spaces that were retired and may still be held, by their roots: whoever made them may drop
    /// them meanwhile.
    retired: RefCell<BTreeMap<u64, Rc<Space<SimMachine<WORDS, P>>>>>,
    /// For ever: a `Pending` borrows it.
    engine: &'static Shootdown<SimMachine<WORDS, P>>,
}

/// What the memory manager does with locks, page tables and pages of zeros: not the engine's doing,
/// but made possible by it, so that it can be told apart.
pub trait Policy: EngineOptions {
    /// See [`Coherence::UNMAP_LOCK`].
    const UNMAP_LOCK: UnmapLock;
    /// See [`Coherence::EMPTY_TABLES`].
    const EMPTY_TABLES: EmptyTables;
    /// See [`Coherence::FIRST_READ`].
    const FIRST_READ: FirstRead;
    /// See [`Coherence::EXTRA_FLUSHES`].
    const EXTRA_FLUSHES: ExtraFlushes;
}

/// Locks are let go of before the wait, empty page tables kept, and pages that are likely to be
/// written not shared at the first read.
#[derive(Debug)]
pub struct Ours;

/// The same, and who exits interrupts those who are lazy on the space, instead of leaving it to
/// the last of them to free it.
#[derive(Debug)]
pub struct Shooting;

/// The same, and who goes lazy on a space counts itself there.
#[derive(Debug)]
pub struct Counting;

/// The same, and other CPUs are told by interrupts, whatever else the machine has.
#[derive(Debug)]
pub struct Interrupting;

/// The same, and other CPUs are told by broadcasts, where the machine has them.
#[derive(Debug)]
pub struct Broadcasting;

/// As under Linux 7.0.
#[derive(Debug)]
pub struct LinuxPolicy;

impl EngineOptions for Ours {}
impl EngineOptions for LinuxPolicy {}
impl EngineOptions for Shooting {
    const LIFETIME: Lifetime = Lifetime::Shoot;
}
impl EngineOptions for Counting {
    const LIFETIME: Lifetime = Lifetime::Counted;
}
impl EngineOptions for Interrupting {
    const TELL: Tell = Tell::Interrupts;
}
impl EngineOptions for Broadcasting {
    const TELL: Tell = Tell::Broadcasts;
}

macro_rules! ours {
    ($($policy:ident),*) => {$(
        impl Policy for $policy {
            const UNMAP_LOCK: UnmapLock = UnmapLock::Released;
            const EMPTY_TABLES: EmptyTables = EmptyTables::Kept;
            const FIRST_READ: FirstRead = FirstRead::Guessed;
            const EXTRA_FLUSHES: ExtraFlushes = ExtraFlushes::None;
        }
    )*};
}

ours!(Ours, Shooting, Counting, Interrupting, Broadcasting);

impl Policy for LinuxPolicy {
    const UNMAP_LOCK: UnmapLock = UnmapLock::Shared;
    const EMPTY_TABLES: EmptyTables = EmptyTables::Freed;
    const FIRST_READ: FirstRead = FirstRead::ZeroPage;
    const EXTRA_FLUSHES: ExtraFlushes = ExtraFlushes::AsLinux;
}

impl<const WORDS: usize, P: Policy> Engine<WORDS, P> {
    /// On this machine.
    #[must_use]
    pub fn new(sim: Rc<Sim>) -> Self {
        Self::with_broken_rule(sim, None)
    }

    /// An engine that breaks a rule, for tests that expect the oracle to notice.
    #[must_use]
    pub fn with_broken_rule(sim: Rc<Sim>, broken: Option<Rule>) -> Self {
        let engine = Box::leak(Box::new(SimMachine::engine(&sim, broken)));
        let predictors =
            (0..sim.machine().cpu_count()).map(|_| LazyEntryPredictor::new()).collect();
        Self { sim, predictors, retired: RefCell::default(), engine }
    }

    fn predictor(&self) -> &LazyEntryPredictor {
        &self.predictors[self.sim.cpu()]
    }

    /// How often this CPU has flushed.
    fn flushes(&self) -> u64 {
        let counts = self.sim.counts_of(self.sim.cpu());
        counts.flushes_full + counts.flushes_ranged
    }

    /// Waits with interrupts masked: the CPU answers its own bell meanwhile, and is sent none.
    fn masked(&self, wait: impl FnOnce()) {
        self.sim.mask();
        wait();
        self.sim.unmask();
    }

    /// Calls `f` with the token of this CPU.
    fn here<R>(&self, f: impl FnOnce(Here<'static, SimMachine<WORDS, P>>) -> R) -> R {
        self.sim.mask();
        // SAFETY: interrupts are masked, so this context stays on its CPU until it unmasks them,
        // and the handler does not interrupt it.
        let result = f(unsafe { self.engine.here() });
        if self.sim.machine().tagging != Tagging::PerCpu {
            self.count_tags();
        }
        self.sim.unmask();
        result
    }

    /// Has the simulation know of the tags that this CPU has taken.
    fn count_tags(&self) {
        let cpu = self.sim.cpu();
        let (known, stats) = (self.sim.counts_of(cpu), self.engine.cpu(CpuId(cpu as u32)).stats());
        (known.tags_taken..stats.tags_taken).for_each(|_| self.sim.count_tag_taken());
        (known.rollovers..stats.rollovers).for_each(|_| self.sim.count_rollover());
    }
}

impl<const WORDS: usize, P: Policy> Coherence for Engine<WORDS, P> {
    type Space = Rc<Space<SimMachine<WORDS, P>>>;
    type Pending = Pending<'static, SimMachine<WORDS, P>>;
    type Batch = Batch<Self::Space, Vec<()>>;
    type Parked = Infallible;

    const UNMAP_LOCK: UnmapLock = P::UNMAP_LOCK;
    const EMPTY_TABLES: EmptyTables = P::EMPTY_TABLES;
    const FIRST_READ: FirstRead = P::FIRST_READ;
    const EXTRA_FLUSHES: ExtraFlushes = P::EXTRA_FLUSHES;
    const TAKING: Taking = Taking::Batched;

    fn online(&self) {
        self.here(|here| here.online());
    }

    fn space(&self, root: Root) -> Self::Space {
        Rc::new(self.engine.space(root))
    }

    fn flush(&self, space: &Self::Space, change: &Change) -> Self::Pending {
        let sent_before = self.sim.counts_of(self.sim.cpu()).interrupts_sent;
        let machine = self.engine.machine();
        let pending = self.here(|here| change.flush_by_engine(machine, &here, space));
        self.sim.flush_sent();
        let sent = self.sim.counts_of(self.sim.cpu()).interrupts_sent - sent_before;
        self.sim.count_coalesced(pending.waiting().len().saturating_sub(sent as usize));
        pending
    }

    fn wait(&self, mut pending: Self::Pending) -> Horizon {
        self.masked(|| pending.wait());
        pending.horizon()
    }

    fn expel(&self, space: &Self::Space) -> Horizon {
        let pending = self.here(|here| here.expel(space));
        self.wait(pending)
    }

    fn hold_back(&self, batch: &mut Self::Batch, space: &Self::Space) -> Result<(), BatchIsFull> {
        batch.space(self.engine.machine(), space).map(drop)
    }

    fn taken(
        &self,
        batch: &mut Self::Batch,
        space: &Self::Space,
        address: u64,
        stale_writes: StaleWrites,
    ) {
        let in_batch = batch.space(self.engine.machine(), space).expect("it was let in");
        let mut pending =
            self.here(|here| in_batch.unmapped(&here, Extent::page(address), stale_writes));
        self.masked(|| pending.wait());
    }

    fn flush_batch(&self, mut batch: Self::Batch) {
        if batch.is_empty() {
            return;
        }
        let sent = self.here(|here| batch.send(&here));
        self.sim.flush_sent();
        self.masked(|| drop(sent));
    }

    fn is_held_back(&self, space: &Self::Space) -> bool {
        space.is_held_back(self.engine.machine())
    }

    fn retire(&self, space: &Self::Space) -> Retired {
        self.retired.borrow_mut().insert(space.root().0, Rc::clone(space));
        let retiring = self.here(|here| {
            // The caller's thread was the last one of the space, or has left it for another.
            let presence = self.engine.cpu(here.id()).presence(self.engine.machine());
            if presence == Presence::Active(space.id()) {
                here.enter_lazy();
            }
            // SAFETY: our caller promises that nobody uses the space, and it stays until its root
            // is handed out.
            unsafe { here.retire(NonNull::from(&**space)) }
        });
        self.masked(|| retiring.wait());
        // By `take_dead`: on this CPU, if nobody held it.
        Retired::Held
    }

    fn take_dead(&self) -> Option<Root> {
        let root = self.engine.machine().take_dead()?;
        self.retired.borrow_mut().remove(&root.0);
        Some(root)
    }

    fn reap(&self) {
        let reaping = self.here(|here| here.reap());
        self.masked(|| reaping.wait());
    }

    unsafe fn switch(&self, space: &Self::Space) {
        self.here(|here| {
            // SAFETY: the CPU is online since its idle loop began; for the rest, as our caller
            // promises.
            unsafe { here.switch(space) };
            // The thread is in the kernel, and need not be told of flushes until it leaves that.
            if self.predictor().switched() {
                here.enter_lazy();
            }
        });
    }

    fn enter_kernel(&self) {
        if self.predictor().entered_kernel() {
            self.here(|here| here.enter_lazy());
        }
    }

    unsafe fn return_to_user(&self, space: &Self::Space) {
        let flushes_before = self.flushes();
        self.here(|here| {
            // SAFETY: as above. Nothing but a comparison, if the CPU has not told.
            unsafe { here.switch(space) };
            self.predictor().returned_to_user();
        });
        if self.flushes() != flushes_before {
            self.predictor().caught_up();
        }
    }

    fn enter_lazy(&self) {
        self.here(|here| here.enter_lazy());
    }

    fn leave(&self) {
        self.here(|here| here.leave());
    }

    fn interrupt(&self) {
        self.predictor().interrupted();
        self.here(|here| here.answer());
    }
}
