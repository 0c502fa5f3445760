//! Shootdown itself: the engine, as a kernel would embed it.

#![expect(unsafe_code, reason = "makes tokens, and switches to spaces")]

mod machine;
mod notify_by;

use core::cell::RefCell;
use core::convert::Infallible;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::rc::Rc;

pub use machine::{Counted, Handoff, Shoot, SimMachine, SpaceLifetime};
use shootdown::{
    Batch, BatchIsFull, CpuId, Extent, Horizon, LazyEntryPredictor, Pending, PinnedCpu, Presence,
    Root, Rule, Shootdown, Space, StaleWrites,
};
use shootdown_sim::Sim;
use shootdown_sim::machine::Tagging;
use shootdown_vm::{
    Batching, Change, Defer, EmptyTables, ErasedCoherence, Flush, Lifetimes, Policy, ReclaimFlush,
    Retired, Scheduling, UnmapLock, ZeroPage,
};

use crate::design::{Design, Purpose};
use crate::linux;
pub use notify_by::NotifyBy;

impl Design {
    /// The engine of this repository.
    pub const SHOOTDOWN: Self =
        Self::new("shootdown", Purpose::General, |sim| sized(sim, NotifyBy::Chosen, POLICY));
    /// The engine, with the policy of Linux 7.0.
    pub const SHOOTDOWN_ALONE: Self = Self::new("shootdown-alone", Purpose::General, |sim| {
        sized(sim, NotifyBy::Chosen, linux::POLICY)
    });
    /// The engine, which notifies other CPUs by interrupts alone.
    pub const SHOOTDOWN_INTERRUPTS: Self =
        Self::new("shootdown-interrupts", Purpose::OtherHardware, |sim| {
            sized(sim, NotifyBy::Interrupts, POLICY)
        });
    /// The engine, which notifies other CPUs by broadcasts where the machine has them.
    pub const SHOOTDOWN_BROADCASTS: Self =
        Self::new("shootdown-broadcasts", Purpose::OtherHardware, |sim| {
            sized(sim, NotifyBy::Broadcasts, POLICY)
        });
}

/// The engine, as a kernel would be built for the number of CPUs of the machine.
fn sized(sim: Rc<Sim>, notify_by: NotifyBy, policy: Policy) -> ErasedCoherence {
    match sim.machine().cpu_count() {
        ..=64 => Engine::<1>::notifying(sim, notify_by).with_policy(policy).into(),
        65..=256 => Engine::<4>::notifying(sim, notify_by).with_policy(policy).into(),
        _ => Engine::<64>::notifying(sim, notify_by).with_policy(policy).into(),
    }
}

/// The design, with room for `64 * WORDS` CPUs. Spaces live as `L` says.
#[derive(Debug)]
pub struct Engine<const WORDS: usize, L: SpaceLifetime = Handoff> {
    sim: Rc<Sim>,
    policy: Policy,
    /// For each CPU.
    predictors: Vec<LazyEntryPredictor>,
    /// Spaces that were retired and may still be held, by their roots. The memory manager may drop
    /// them before their roots are handed out.
    retired: RefCell<BTreeMap<u64, Rc<Space<SimMachine<WORDS, L>>>>>,
    /// Never freed: a `Pending` borrows it.
    engine: &'static Shootdown<SimMachine<WORDS, L>>,
}

/// The policy that the engine makes possible: `munmap` waits without a lock, empty page tables
/// stay, and a page that is likely to be written is not shared at its first read.
pub const POLICY: Policy = Policy {
    empty_tables: EmptyTables::Kept,
    zero_page: ZeroPage::Predicted,
    reclaim_flush: ReclaimFlush::Batched,
    ..Policy::new(UnmapLock::Released)
};

impl<const WORDS: usize, L: SpaceLifetime> Engine<WORDS, L> {
    /// The engine on this machine, with [`POLICY`].
    #[must_use]
    pub fn new(sim: Rc<Sim>) -> Self {
        Self::on(sim, NotifyBy::Chosen, None)
    }

    /// An engine that notifies other CPUs in one of the ways that the machine has.
    #[must_use]
    pub fn notifying(sim: Rc<Sim>, notify_by: NotifyBy) -> Self {
        Self::on(sim, notify_by, None)
    }

    /// An engine that breaks a rule, for tests that expect the oracle to notice.
    #[must_use]
    pub fn with_broken_rule(sim: Rc<Sim>, broken: Option<Rule>) -> Self {
        Self::on(sim, NotifyBy::Chosen, broken)
    }

    /// The same engine with another policy.
    #[must_use]
    pub fn with_policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    fn on(sim: Rc<Sim>, notify_by: NotifyBy, broken: Option<Rule>) -> Self {
        let engine = Box::leak(Box::new(SimMachine::engine(&sim, notify_by, broken)));
        let predictors =
            (0..sim.machine().cpu_count()).map(|_| LazyEntryPredictor::new()).collect();
        Self { sim, policy: POLICY, predictors, retired: RefCell::default(), engine }
    }

    fn predictor(&self) -> &LazyEntryPredictor {
        &self.predictors[self.sim.cpu()]
    }

    /// How often this CPU has flushed.
    fn flushes(&self) -> u64 {
        self.sim.read_counts(self.sim.cpu(), |counts| counts.flushes_full + counts.flushes_ranged)
    }

    /// Waits with interrupts masked: the CPU answers its own bell meanwhile, and is sent none.
    fn masked(&self, wait: impl FnOnce()) {
        self.sim.mask();
        wait();
        self.sim.unmask();
    }

    /// Calls `f` with the token of this CPU.
    fn pin<R>(&self, f: impl FnOnce(PinnedCpu<'static, SimMachine<WORDS, L>>) -> R) -> R {
        self.sim.mask();
        // SAFETY: interrupts are masked, so this context stays on its CPU until it unmasks them,
        // and the handler does not interrupt it.
        let result = f(unsafe { self.engine.pin() });
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

impl<const WORDS: usize, L: SpaceLifetime> Flush for Engine<WORDS, L> {
    type Space = Rc<Space<SimMachine<WORDS, L>>>;
    type Pending = Pending<'static, SimMachine<WORDS, L>>;

    fn policy(&self) -> Policy {
        self.policy
    }

    fn space(&self, root: Root) -> Self::Space {
        Rc::new(self.engine.space(root))
    }

    fn flush(&self, space: &Self::Space, change: &Change) -> Self::Pending {
        let sent_before = self.sim.read_counts(self.sim.cpu(), |counts| counts.interrupts_sent);
        let machine = self.engine.machine();
        let pending = self.pin(|pin| change.flush_by_engine(machine, &pin, space));
        self.sim.flush_sent();
        let sent =
            self.sim.read_counts(self.sim.cpu(), |counts| counts.interrupts_sent) - sent_before;
        self.sim.count_coalesced(pending.waiting().len().saturating_sub(sent as usize));
        pending
    }

    fn wait(&self, mut pending: Self::Pending) -> Horizon {
        self.masked(|| pending.wait());
        pending.horizon()
    }
}

impl<const WORDS: usize, L: SpaceLifetime> Defer for Engine<WORDS, L> {
    type Deferred = Infallible;
}

impl<const WORDS: usize, L: SpaceLifetime> Batching for Engine<WORDS, L> {
    type Batch = Batch<Self::Space, Vec<()>>;

    fn add_space(&self, batch: &mut Self::Batch, space: &Self::Space) -> Result<(), BatchIsFull> {
        batch.space(self.engine.machine(), space).map(drop)
    }

    fn unmapped(
        &self,
        batch: &mut Self::Batch,
        space: &Self::Space,
        address: u64,
        stale_writes: StaleWrites,
    ) {
        let in_batch = batch.space(self.engine.machine(), space).expect("it was let in");
        let mut pending =
            self.pin(|pin| in_batch.unmapped(&pin, Extent::page(address), stale_writes));
        self.masked(|| pending.wait());
    }

    fn flush_batch(&self, mut batch: Self::Batch) {
        if batch.is_empty() {
            return;
        }
        let sent = self.pin(|pin| batch.send(&pin));
        self.sim.flush_sent();
        self.masked(|| drop(sent));
    }

    fn is_batched(&self, space: &Self::Space) -> bool {
        space.is_batched(self.engine.machine())
    }
}

impl<const WORDS: usize, L: SpaceLifetime> Lifetimes for Engine<WORDS, L> {
    fn retire(&self, space: &Self::Space) -> Retired {
        self.retired.borrow_mut().insert(space.root().0, Rc::clone(space));
        let retiring = self.pin(|pin| {
            // The caller's thread was the last one of the space, or has left it for another.
            let presence = self.engine.cpu(pin.id()).presence(self.engine.machine());
            if presence == Presence::Active(space.id()) {
                pin.enter_lazy();
            }
            // SAFETY: our caller promises that nobody uses the space, and it stays until its root
            // is handed out.
            unsafe { pin.retire(NonNull::from(&**space)) }
        });
        self.masked(|| retiring.wait());
        // By `take_dead`: on this CPU, if nobody held it.
        Retired::Loaded
    }

    fn take_dead(&self) -> Option<Root> {
        let root = self.engine.machine().take_dead()?;
        self.retired.borrow_mut().remove(&root.0);
        Some(root)
    }

    fn reap(&self) {
        let reaping = self.pin(|pin| pin.reap());
        self.masked(|| reaping.wait());
    }

    fn flush_walkers(&self, space: &Self::Space) -> Horizon {
        let pending = self.pin(|pin| pin.flush_walkers(space));
        self.wait(pending)
    }
}

impl<const WORDS: usize, L: SpaceLifetime> Scheduling for Engine<WORDS, L> {
    fn online(&self) {
        self.pin(|pin| pin.online());
    }

    unsafe fn switch(&self, space: &Self::Space) {
        self.pin(|pin| {
            // SAFETY: the CPU is online since its idle loop began; for the rest, as our caller
            // promises.
            unsafe { pin.switch(space) };
            // The thread is in the kernel, and need not be told of flushes until it leaves that.
            if self.predictor().switched() {
                pin.enter_lazy();
            }
        });
    }

    fn enter_kernel(&self) {
        if self.predictor().entered_kernel() {
            self.pin(|pin| pin.enter_lazy());
        }
    }

    unsafe fn return_to_user(&self, space: &Self::Space) {
        let flushes_before = self.flushes();
        self.pin(|pin| {
            // SAFETY: as above. Nothing but a comparison, if the CPU has not told.
            unsafe { pin.switch(space) };
            self.predictor().returned_to_user();
        });
        if self.flushes() != flushes_before {
            self.predictor().caught_up();
        }
    }

    fn enter_lazy(&self) {
        self.pin(|pin| pin.enter_lazy());
    }

    fn leave_space(&self) {
        self.pin(|pin| pin.leave_space());
    }

    fn interrupt(&self) {
        self.predictor().interrupted();
        self.pin(|pin| pin.handle_flush_ipi());
    }
}
