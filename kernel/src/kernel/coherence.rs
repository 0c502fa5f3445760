//! Connects the engine to the memory manager, as `shootdown-designs` does on a simulated machine,
//! but with real CPU masks and real interrupts.

#![expect(unsafe_code, reason = "switches to spaces and retires them")]

use alloc::borrow::Cow;
use alloc::vec::Vec;
use core::convert::Infallible;

use shootdown::{
    Batch, BatchIsFull, CpuStats, Extent, ExtentSet, Horizon, LazyEntryPredictor, Pending, Root,
    Space, StaleWrites,
};
use shootdown_hw::Processor as _;
use shootdown_hw::errata::Workarounds;
use shootdown_vm::{
    Batching, Cause, Change, Defer, Discards, EmptyTables, ExecuteLoss, Flush, Lifetimes, Policy,
    ReclaimFlush, Retired, Scheduling, UnmapLock, ZeroPage,
};

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::counts::{self, CPUS_MAX, FLUSH_WAITS};
use crate::kernel::load::{DiscardMode, Reclaim, USER_CODE_START};
use crate::kernel::machine::{
    Machine, SharedSpace, discards, engine, engine_of, pop_dead, reclaim, wait_masked, with_pinned,
};
use crate::kernel::replicas;

/// The kernel's only engine, as the memory manager uses it.
#[derive(Clone, Copy)]
pub(crate) struct Engine;

/// A flush that was sent and may not be complete.
pub(crate) struct SentFlush {
    pending: Pending<'static, Machine>,
    start_ns: u64,
}

static PREDICTORS: [LazyEntryPredictor; CPUS_MAX] = [const { LazyEntryPredictor::new() }; CPUS_MAX];

fn predictor() -> &'static LazyEntryPredictor {
    &PREDICTORS[Arch::cpu() as usize]
}

/// Makes `space` current on this CPU, and counts the invalidations that the switch needed. Returns
/// `true` if it needed any.
///
/// # Safety
///
/// The contract of [`Scheduling::switch`].
unsafe fn load(space: &Space<Machine>) -> bool {
    with_pinned(|pin| {
        let stats = || engine_of(pin.id().0).stats();
        let before = stats();
        // SAFETY: the CPU has been online since its idle loop began. The caller promises the rest.
        unsafe { pin.switch(space) };
        let CpuStats { flushes_full, flushes_ranged, .. } = stats();
        let (full, ranged) =
            (flushes_full - before.flushes_full, flushes_ranged - before.flushes_ranged);
        counts::this_cpu().flushes_full_at_switch.add(full);
        counts::this_cpu().flushes_ranged_at_switch.add(ranged);
        full + ranged != 0
    })
}

/// Returns the change to flush: nothing, if this run is for a missing flush of discarded pages, and
/// this is the flush.
fn with_fault(change: &Change) -> Cow<'_, Change> {
    if discards() == DiscardMode::Unflushed && change.cause == Cause::Advise {
        Cow::Owned(Change { extents: ExtentSet::new(), ..change.clone() })
    } else {
        Cow::Borrowed(change)
    }
}

impl Flush for Engine {
    type Space = SharedSpace;
    type Pending = SentFlush;

    fn policy(&self) -> Policy {
        replicas::with_replicas(Policy {
            empty_tables: EmptyTables::Kept,
            zero_page: ZeroPage::Predicted,
            discards: match discards() {
                DiscardMode::Immediate => Discards::Immediate,
                _ => Discards::InPlace,
            },
            reclaim_flush: match reclaim() {
                Reclaim::PerPage => ReclaimFlush::PerPage,
                Reclaim::Never | Reclaim::Batched | Reclaim::Unflushed => ReclaimFlush::Batched,
            },
            execute_loss: match engine().machine().processor().workarounds() {
                some if some.contains(Workarounds::BREAK_EXECUTABLE) => {
                    ExecuteLoss::BreakBeforeMake
                }
                _ => ExecuteLoss::InPlace,
            },
            ..Policy::new(UnmapLock::Released)
        })
    }

    fn space(&self, root: Root) -> SharedSpace {
        Arch::prepare_root(root);
        SharedSpace::new(root)
    }

    fn notifications_max(&self, space: &SharedSpace) -> Option<usize> {
        with_pinned(|pin| pin.notifications_max(space))
    }

    fn is_used_elsewhere(&self, space: &SharedSpace) -> bool {
        with_pinned(|pin| pin.is_used_elsewhere(space))
    }

    fn flush(&self, space: &SharedSpace, change: &Change) -> SentFlush {
        let start_ns = Arch::now_ns();
        counts::this_cpu().flushes.add(1);
        let change = with_fault(change);
        let pending = with_pinned(|pin| change.flush_by_engine(engine().machine(), &pin, space));
        SentFlush { pending, start_ns }
    }

    fn wait(&self, mut sent: SentFlush) -> Horizon {
        wait_masked(|| sent.pending.wait());
        let waited_ns = Arch::now_ns().saturating_sub(sent.start_ns);
        counts::this_cpu().flush_wait_ns.add(waited_ns);
        FLUSH_WAITS.record(waited_ns);
        sent.pending.horizon()
    }

    fn replica(&self, _: &SharedSpace, root: Root) -> Option<SharedSpace> {
        replicas::are_possible().then(|| self.space(root))
    }

    fn flush_replicas(
        &self,
        space: &SharedSpace,
        sharers: &[&SharedSpace],
        change: &Change,
    ) -> SentFlush {
        let start_ns = Arch::now_ns();
        counts::this_cpu().flushes.add(1);
        let pending = replicas::flush(space, sharers, &with_fault(change));
        SentFlush { pending, start_ns }
    }

    fn flush_also(&self, sent: &mut SentFlush, replica: &SharedSpace, change: &Change) {
        replicas::flush_also(&mut sent.pending, replica, &with_fault(change));
    }

    fn drop_replica(&self, replica: &SharedSpace) {
        replicas::drop_cached(replica);
    }
}

impl Defer for Engine {
    type Deferred = Infallible;
}

impl Batching for Engine {
    type Batch = Batch<SharedSpace, Vec<()>>;

    fn add_space(&self, batch: &mut Self::Batch, space: &SharedSpace) -> Result<(), BatchIsFull> {
        batch.space(engine().machine(), space).map(drop)
    }

    fn unmapped(
        &self,
        batch: &mut Self::Batch,
        space: &SharedSpace,
        address: u64,
        stale_writes: StaleWrites,
    ) {
        match reclaim() {
            // The fault that this run is for. Without the code, user threads would crash.
            Reclaim::Unflushed if address != USER_CODE_START => return,
            Reclaim::PerPage => {
                let _ = self.wait(self.flush(space, &Change::reclaimed(address)));
                return;
            }
            Reclaim::Never | Reclaim::Batched | Reclaim::Unflushed => {}
        }
        let entry = batch.space(engine().machine(), space).expect("`add_space` has added it");
        let page = Extent::page(address);
        let mut pending = with_pinned(|pin| entry.unmapped(&pin, page, stale_writes));
        wait_masked(|| pending.wait());
    }

    fn unmapped_in_replica(
        &self,
        batch: &mut Self::Batch,
        replica: &SharedSpace,
        address: u64,
    ) -> Result<(), BatchIsFull> {
        if replicas::leaves_out(address) {
            return Ok(());
        }
        let entry = batch.space(engine().machine(), replica)?;
        let page = Extent::page(address);
        // A machine with replicas traps stale writes, so the page can wait for its batch.
        drop(with_pinned(|pin| entry.unmapped(&pin, page, StaleWrites::Impossible)));
        Ok(())
    }

    fn flush_batch(&self, mut batch: Self::Batch) {
        if !batch.is_empty() {
            let sent = with_pinned(|pin| batch.send(&pin));
            wait_masked(|| drop(sent));
        }
    }

    fn is_batched(&self, space: &SharedSpace) -> bool {
        space.is_batched(engine().machine())
    }
}

impl Lifetimes for Engine {
    fn retire(&self, space: &SharedSpace) -> Retired {
        let dying = space.clone().into_dying();
        let retiring = with_pinned(|pin| {
            // SAFETY: the caller promises that no thread uses the space. The space stays allocated
            // until it is reclaimed.
            unsafe { pin.retire(dying) }
        });
        wait_masked(|| retiring.wait());
        // If no CPU held the space, `take_dead` returns its root on this CPU.
        Retired::Loaded
    }

    fn take_dead(&self) -> Option<Root> {
        pop_dead()
    }

    fn reap(&self) {
        let reaping = with_pinned(|pin| pin.reap());
        wait_masked(|| reaping.wait());
    }

    fn flush_walkers(&self, space: &SharedSpace) -> Horizon {
        let mut pending = with_pinned(|pin| pin.flush_walkers(space));
        wait_masked(|| pending.wait());
        pending.horizon()
    }
}

impl Scheduling for Engine {
    fn online(&self) {
        // SAFETY: interrupts are masked, and the CPU was set up for the processor's features.
        unsafe { engine().machine().processor().set_up_cpu() };
        with_pinned(|pin| pin.online());
    }

    unsafe fn switch(&self, space: &SharedSpace) {
        // SAFETY: the caller promises what `load` requires.
        unsafe { load(space) };
        // The thread is in the kernel. Flush interrupts can wait until it returns to user mode.
        if predictor().switched() {
            self.enter_lazy();
        }
    }

    fn enter_kernel(&self) {
        if predictor().entered_kernel() {
            self.enter_lazy();
        }
    }

    unsafe fn return_to_user(&self, space: &SharedSpace) {
        // SAFETY: the caller promises what `load` requires. If the CPU is not lazy, this is only a
        // comparison.
        let caught_up = unsafe { load(space) };
        predictor().returned_to_user();
        if caught_up {
            predictor().caught_up();
        }
    }

    fn enter_lazy(&self) {
        with_pinned(|pin| pin.enter_lazy());
    }

    fn leave_space(&self) {
        with_pinned(|pin| pin.leave_space());
    }

    fn interrupt(&self) {
        predictor().interrupted();
        with_pinned(|pin| pin.handle_flush_ipi());
    }
}
