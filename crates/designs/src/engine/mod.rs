//! Shootdown: the engine, as a kernel embeds it.

#![expect(unsafe_code, reason = "pins CPUs, and switches to spaces")]

mod batch;
mod machine;
mod notify_by;

use core::cell::RefCell;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::rc::Rc;

pub use batch::EngineBatch;
pub use machine::{Counted, Handoff, HandoffAtReuse, Shoot, SimMachine, SpaceLifetime};
use shootdown::{
    CpuId, Extent, Horizon, LazyEntryPredictor, Machine as _, Pending, PinnedCpu, Presence, Root,
    Rule, Shootdown, Space,
};
use shootdown_sim::Sim;
use shootdown_sim::machine::Tagging;
use shootdown_vm::{
    Change, Discards, EmptyTables, ErasedCoherence, FaultLock, Flush, Freed, Lifetimes,
    PageRecords, Placement, Policy, ReclaimFlush, Replication, Retired, Scheduling, UnmapLock,
    ZeroPage,
};

pub use notify_by::NotifyBy;

/// The engine, compiled for the machine's number of CPUs.
pub(crate) fn sized(sim: Rc<Sim>, notify_by: NotifyBy, policy: Policy) -> ErasedCoherence {
    sized_for::<Handoff>(sim, notify_by, policy)
}

pub(crate) fn sized_for<L: SpaceLifetime>(
    sim: Rc<Sim>,
    notify_by: NotifyBy,
    policy: Policy,
) -> ErasedCoherence {
    match sim.machine().cpu_count() {
        ..=64 => Engine::<1, L>::on(sim, notify_by, None).with_policy(policy).into(),
        65..=256 => Engine::<4, L>::on(sim, notify_by, None).with_policy(policy).into(),
        _ => Engine::<64, L>::on(sim, notify_by, None).with_policy(policy).into(),
    }
}

/// The designs `shootdown…`, with room for `64 * WORDS` CPUs and the lifetime `L` of spaces.
#[derive(Debug)]
#[must_use]
pub struct Engine<const WORDS: usize, L: SpaceLifetime = Handoff> {
    sim: Rc<Sim>,
    policy: Policy,
    /// The predictor of each CPU.
    predictors: Vec<LazyEntryPredictor>,
    /// Spaces that were retired and that CPUs may still walk, by their roots. The memory manager
    /// may drop its references before it gets the roots.
    retired: RefCell<BTreeMap<u64, Rc<Space<SimMachine<WORDS, L>>>>>,
    /// Never freed, because a `Pending` borrows it.
    engine: &'static Shootdown<SimMachine<WORDS, L>>,
}

/// The policy that the engine makes possible: `munmap` waits without a lock, empty page tables
/// stay, the first read of a page that will probably be written does not map the zero page, a few
/// private pages are discarded in place, and CPUs load upper page tables of their own where that is
/// worth its cost. Threads map memory in regions of their own. Fork and exit request the records of
/// pages ahead. Faults lock areas, as in Linux.
pub const POLICY: Policy = Policy {
    fault_lock: FaultLock::Area,
    empty_tables: EmptyTables::Kept,
    zero_page: ZeroPage::Predicted,
    reclaim_flush: ReclaimFlush::Batched,
    write_back_flush: ReclaimFlush::Batched,
    migration_batch_pages: 512,
    placement: Placement::PerThread,
    replication: Replication::IfWorth,
    discards: Discards::InPlace,
    page_records: PageRecords::Ahead,
    ..Policy::new(UnmapLock::Released)
};

impl<const WORDS: usize, L: SpaceLifetime> Engine<WORDS, L> {
    /// Creates the engine on this machine, with [`POLICY`].
    pub fn new(sim: Rc<Sim>) -> Self {
        Self::on(sim, NotifyBy::Chosen, None)
    }

    /// Creates an engine that breaks a rule, for tests that expect the oracle to detect it.
    pub fn with_broken_rule(sim: Rc<Sim>, broken: Option<Rule>) -> Self {
        Self::on(sim, NotifyBy::Chosen, broken)
    }

    /// Returns this engine with another policy.
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

    /// Number of flushes of this CPU.
    fn flushes(&self) -> u64 {
        self.sim.read_counts(self.sim.cpu(), |counts| counts.flushes_full + counts.flushes_ranged)
    }

    /// Calls `f` with this CPU pinned.
    fn pin<R>(&self, f: impl FnOnce(PinnedCpu<'static, SimMachine<WORDS, L>>) -> R) -> R {
        self.sim.masked(|| {
            // SAFETY: interrupts are masked, so this context stays on its CPU until it unmasks
            // them, and the handler does not interrupt it.
            let result = f(unsafe { self.engine.pin() });
            if self.sim.machine().tagging != Tagging::PerCpu {
                self.count_tags();
            }
            result
        })
    }

    /// Sends a flush, and counts the CPUs that needed no interrupt because one was on its way.
    fn counting_coalesced(
        &self,
        send: impl FnOnce(
            &PinnedCpu<'static, SimMachine<WORDS, L>>,
        ) -> Pending<'static, SimMachine<WORDS, L>>,
    ) -> Pending<'static, SimMachine<WORDS, L>> {
        // The engine counts and chooses in one call: in a replay, at the time of the choice.
        self.sim.report_counted();
        let sent_before = self.sim.read_counts(self.sim.cpu(), |counts| counts.interrupts_sent);
        let pending = self.pin(|pin| send(&pin));
        self.sim.flush_sent();
        let sent =
            self.sim.read_counts(self.sim.cpu(), |counts| counts.interrupts_sent) - sent_before;
        self.sim.count_coalesced(pending.waiting().len().saturating_sub(sent as usize));
        pending
    }

    /// Flushes one of several trees that lead to the same tables. If tables are freed, interrupts
    /// the CPUs that could walk them: there is no horizon for several trees.
    fn flush_tree(
        &self,
        pin: &PinnedCpu<'static, SimMachine<WORDS, L>>,
        space: &Space<SimMachine<WORDS, L>>,
        change: &Change,
    ) -> Pending<'static, SimMachine<WORDS, L>> {
        if change.freed == Freed::Pages {
            return change.flush_by_engine(self.engine.machine(), pin, space);
        }
        let extents = change.extents.as_slice().iter();
        let flushes = extents.map(|extent| pin.flush(space, extent.freeing_tables()));
        let all = flushes.reduce(|mut all, next| {
            all.join(next);
            all
        });
        all.unwrap_or_else(|| Pending::done(self.engine))
    }

    /// Copies the engine's counts of tags and rollovers on this CPU to the simulation's.
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
        let machine = self.engine.machine();
        self.counting_coalesced(|pin| change.flush_by_engine(machine, pin, space))
    }

    fn replica(&self, _: &Self::Space, root: Root) -> Option<Self::Space> {
        let machine = self.engine.machine();
        // A broadcast reaches CPUs by the tag, which a replica would need for itself; and a page
        // that a CPU could write to unnoticed is flushed before its batch.
        let is_possible = self.sim.machine().tagging == Tagging::PerCpu
            && machine.broadcaster().is_none()
            && machine.traps_stale_writes();
        is_possible.then(|| Rc::new(self.engine.space(root)))
    }

    fn flush_replicas(
        &self,
        space: &Self::Space,
        replicas: &[&Self::Space],
        change: &Change,
    ) -> Self::Pending {
        self.counting_coalesced(|pin| {
            let mut pending = self.flush_tree(pin, space, change);
            for replica in replicas {
                pending.join(self.flush_tree(pin, replica, change));
            }
            pending
        })
    }

    fn flush_also(&self, pending: &mut Self::Pending, replica: &Self::Space, change: &Change) {
        let sent = self.counting_coalesced(|pin| self.flush_tree(pin, replica, change));
        pending.join(sent);
    }

    fn drop_replica(&self, replica: &Self::Space) {
        let everything = Extent::whole().freeing_tables();
        let pending = self.counting_coalesced(|pin| pin.flush(replica, everything));
        self.wait(pending);
    }

    fn notifications_max(&self, space: &Self::Space) -> Option<usize> {
        self.pin(|pin| pin.notifications_max(space))
    }

    fn is_used_elsewhere(&self, space: &Self::Space) -> bool {
        self.pin(|pin| pin.is_used_elsewhere(space))
    }

    fn wait(&self, mut pending: Self::Pending) -> Horizon {
        // The wait handles this CPU's own doorbell, so the CPU needs no interrupts.
        self.sim.masked(|| pending.wait());
        pending.horizon()
    }
}

impl<const WORDS: usize, L: SpaceLifetime> Lifetimes for Engine<WORDS, L> {
    fn retire(&self, space: &Self::Space) -> Retired {
        self.retired.borrow_mut().insert(space.root().0, Rc::clone(space));
        let retiring = self.pin(|pin| {
            // The caller's thread was the last one of the space, or has switched to another space.
            let presence = self.engine.cpu(pin.id()).presence(self.engine.machine());
            if presence == Presence::Active(space.id()) {
                pin.enter_lazy();
            }
            // SAFETY: the caller guarantees that no thread uses the space, and `retired` keeps it
            // until `take_dead` returns its root.
            unsafe { pin.retire(NonNull::from(&**space)) }
        });
        self.sim.masked(|| retiring.wait());
        // `take_dead` returns the root, on this CPU if no other CPU can walk the space.
        Retired::Loaded
    }

    fn take_dead(&self) -> Option<Root> {
        let root = self.engine.machine().take_dead()?;
        self.retired.borrow_mut().remove(&root.0);
        Some(root)
    }

    fn reap(&self) {
        let reaping = self.pin(|pin| pin.reap());
        self.sim.masked(|| reaping.wait());
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
            // SAFETY: the CPU is online since its idle loop began; the caller guarantees the rest
            // of the contract.
            unsafe { pin.switch(space) };
            // The thread is in the kernel, and needs no notification until it leaves the kernel.
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
            // SAFETY: the same as in `switch`. Only a comparison, if the CPU is not lazy.
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
