//! The engine behind the memory manager's seam: as `shootdown-designs` has it behind the same seam
//! on a simulated machine, with real masks and real interrupts.

#![expect(unsafe_code, reason = "switches to spaces, and retires them")]

use alloc::vec::Vec;
use core::convert::Infallible;

use shootdown::{
    Batch, BatchIsFull, CpuStats, Extent, Horizon, LazyEntryPredictor, Pending, Presence, Root,
    Space, StaleWrites,
};
use shootdown_vm::{
    Batching, Change, Defer, EmptyTables, Flush, Lifetimes, Policy, ReclaimFlush, Retired,
    Scheduling, UnmapLock, ZeroPage,
};

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::counts::{self, CPUS_MAX, WAITS};
use crate::kernel::machine::{
    Machine, SharedSpace, engine, engine_of, take_dead, wait_masked, with_here,
};

/// The one engine of this kernel.
#[derive(Clone, Copy)]
pub(crate) struct Engine;

/// A flush that was sent.
pub(crate) struct Sent {
    pending: Pending<'static, Machine>,
    began_ns: u64,
}

static PREDICTORS: [LazyEntryPredictor; CPUS_MAX] = [const { LazyEntryPredictor::new() }; CPUS_MAX];

fn predictor() -> &'static LazyEntryPredictor {
    &PREDICTORS[Arch::cpu() as usize]
}

/// Loads a space, or comes back to it, and counts what that made the CPU forget. Returns whether it
/// was anything.
///
/// # Safety
///
/// As [`Scheduling::switch`].
unsafe fn load(space: &Space<Machine>) -> bool {
    with_here(|pin| {
        let stats = || engine_of(pin.id().0).stats();
        let before = stats();
        // SAFETY: the CPU is online since its idle loop began; for the rest, as our caller
        // promises.
        unsafe { pin.switch(space) };
        let CpuStats { flushes_full, flushes_ranged, .. } = stats();
        let (full, ranged) =
            (flushes_full - before.flushes_full, flushes_ranged - before.flushes_ranged);
        counts::pin().flushes_full_at_switch.add(full);
        counts::pin().flushes_ranged_at_switch.add(ranged);
        full + ranged != 0
    })
}

impl Flush for Engine {
    type Space = SharedSpace;
    type Pending = Sent;

    fn policy(&self) -> Policy {
        Policy {
            empty_tables: EmptyTables::Kept,
            zero_page: ZeroPage::Predicted,
            reclaim_flush: ReclaimFlush::Batched,
            ..Policy::new(UnmapLock::Released)
        }
    }

    fn space(&self, root: Root) -> SharedSpace {
        Arch::prepare_root(root);
        SharedSpace::new(root)
    }

    fn flush(&self, space: &SharedSpace, change: &Change) -> Sent {
        let began_ns = Arch::now_ns();
        counts::pin().flushes.add(1);
        let pending = with_here(|pin| change.flush_by_engine(engine().machine(), &pin, space));
        Sent { pending, began_ns }
    }

    fn wait(&self, mut sent: Sent) -> Horizon {
        wait_masked(|| sent.pending.wait());
        let took_ns = Arch::now_ns().saturating_sub(sent.began_ns);
        counts::pin().flush_wait_ns.add(took_ns);
        WAITS.record(took_ns);
        sent.pending.horizon()
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
        let in_batch = batch.space(engine().machine(), space).expect("it was let in");
        let page = Extent::page(address);
        let mut pending = with_here(|pin| in_batch.unmapped(&pin, page, stale_writes));
        wait_masked(|| pending.wait());
    }

    fn flush_batch(&self, mut batch: Self::Batch) {
        if !batch.is_empty() {
            let sent = with_here(|pin| batch.send(&pin));
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
        let retiring = with_here(|pin| {
            // The caller's thread was the last one of the space, or has left it for another.
            let presence = engine().cpu(pin.id()).presence(engine().machine());
            if presence == Presence::Active(space.id()) {
                pin.enter_lazy();
            }
            // SAFETY: our caller promises that nobody uses the space, and it stays until it is
            // reclaimed.
            unsafe { pin.retire(dying) }
        });
        wait_masked(|| retiring.wait());
        // By `take_dead`: on this CPU, if nobody held it.
        Retired::Loaded
    }

    fn take_dead(&self) -> Option<Root> {
        take_dead()
    }

    fn reap(&self) {
        let reaping = with_here(|pin| pin.reap());
        wait_masked(|| reaping.wait());
    }

    fn flush_walkers(&self, space: &SharedSpace) -> Horizon {
        let mut pending = with_here(|pin| pin.flush_walkers(space));
        wait_masked(|| pending.wait());
        pending.horizon()
    }
}

impl Scheduling for Engine {
    fn online(&self) {
        with_here(|pin| pin.online());
    }

    unsafe fn switch(&self, space: &SharedSpace) {
        // SAFETY: as our caller promises.
        unsafe { load(space) };
        // The thread is in the kernel, and need not be told of flushes until it leaves that.
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
        // SAFETY: as our caller promises. Nothing but a comparison, if the CPU has not told.
        let has_made_up = unsafe { load(space) };
        predictor().returned_to_user();
        if has_made_up {
            predictor().caught_up();
        }
    }

    fn enter_lazy(&self) {
        with_here(|pin| pin.enter_lazy());
    }

    fn leave_space(&self) {
        with_here(|pin| pin.leave_space());
    }

    fn interrupt(&self) {
        predictor().interrupted();
        with_here(|pin| pin.handle_flush_ipi());
    }
}
