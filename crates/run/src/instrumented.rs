//! A design under the oracle: every flush is reported when it begins and when it is complete.
//!
//! The design is erased here, so that the memory manager, the executor and the replays are compiled
//! once for all designs.

use core::any::Any;
use core::ops::Range;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use shootdown::{BatchIsFull, Extent, Horizon, Root, StaleWrites};
use shootdown_sim::{Cause as TimeCause, FlushRecord, Sim, Time};
use shootdown_vm::{
    Batching, Cause, Change, Defer, DynCoherence, ErasedBatch, Flush, Later, Lifetimes, PAGE_BYTES,
    Policy, ReclaimFlush, Retired, Scheduling,
};

/// A design of any type, on a simulated machine. The machine's oracle receives every flush.
pub struct Instrumented {
    sim: Rc<Sim>,
    design: Box<dyn DynCoherence>,
    unmaps: RefCell<Unmaps>,
}

/// The flushes of `munmap`s, and of mappings that replaced others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unmaps {
    /// Number of flushes of ranges.
    pub ranged: u64,
    /// Number of flushes of the whole space, because the change exceeded the machine's ceiling, or
    /// because its extents were not counted.
    pub whole: u64,
}

/// An address space of an erased design.
#[derive(Debug)]
pub struct Space {
    space: Box<dyn Any>,
    root: u64,
}

/// A flush that was sent or deferred, and may not be complete.
#[derive(Debug)]
pub struct Flushing {
    flush: Box<dyn Any>,
    reported: Reported,
}

/// The oracle's records of a flush.
#[derive(Debug)]
struct Reported {
    records: Vec<FlushRecord>,
    began_at: Time,
    sent_at: Time,
}

/// Pages that were unmapped, but not flushed yet.
#[derive(Debug, Default)]
pub struct Batch {
    batch: ErasedBatch,
    records: Vec<FlushRecord>,
}

impl Instrumented {
    /// Instruments `design`, which runs on this machine. From now on the machine classifies
    /// interrupts.
    pub fn new(sim: Rc<Sim>, design: impl Into<Box<dyn DynCoherence>>) -> Self {
        sim.classify_interrupts();
        Self { sim, design: design.into(), unmaps: RefCell::default() }
    }

    /// Returns the number of `munmap`s so far, by the kind of flush that they requested.
    pub fn unmaps(&self) -> Unmaps {
        *self.unmaps.borrow()
    }

    fn count(&self, change: &Change) {
        if change.cause != Cause::Unmap {
            return;
        }
        let ceiling = self.sim.machine().tlb.flush_ceiling;
        let mut unmaps = self.unmaps.borrow_mut();
        if change.extents.is_whole() || change.extents.page_count() > ceiling {
            unmaps.whole += 1;
        } else {
            unmaps.ranged += 1;
        }
    }

    /// Spends the time in which the memory manager prepares a flush.
    fn prepare(&self) {
        let cost = self.sim.machine().kernel.flush;
        if cost != Time::ZERO {
            self.sim.spend(cost);
        }
    }

    /// Reports a flush to the oracle before `send` sends it.
    fn report<F>(&self, space: &Space, change: &Change, send: impl FnOnce() -> F) -> (F, Reported) {
        self.count(change);
        self.prepare();
        // One record for each extent: addresses between the extents were not changed.
        let began = |&extent: &Extent| match addresses(extent) {
            range if extent.frees_tables() => self.sim.flush_of_tables_began(space.root, range),
            range => self.sim.flush_began(space.root, range),
        };
        let began_at = self.sim.now();
        let records = change.extents.as_slice().iter().map(began).collect();
        let flush = send();
        self.sim.flush_sent();
        (flush, Reported { records, began_at, sent_at: self.sim.now() })
    }
}

/// Implements methods by those of the design, with the same names.
macro_rules! forward {
    ($(fn $name:ident($($space:ident: &Space)?) $(-> $returned:ty)?;)*) => {$(
        fn $name(&self $(, $space: &Space)?) $(-> $returned)? {
            self.design.$name($(&*$space.space)?)
        }
    )*};
}

impl Flush for Instrumented {
    type Space = Space;
    type Pending = Flushing;

    forward! {
        fn policy() -> Policy;
        fn notifications_max(space: &Space) -> Option<usize>;
        fn is_used_elsewhere(space: &Space) -> bool;
        fn gather_begins(space: &Space);
        fn gather_ends(space: &Space);
        fn is_nested(space: &Space) -> bool;
    }

    fn space(&self, root: Root) -> Space {
        Space { space: self.design.space(root), root: root.0 >> 12 }
    }

    fn replica(&self, of: &Space, root: Root) -> Option<Space> {
        let space = self.design.replica(&*of.space, root)?;
        self.sim.replicate(of.root, root.0 >> 12);
        Some(Space { space, root: of.root })
    }

    fn flush_replicas(&self, space: &Space, replicas: &[&Space], change: &Change) -> Flushing {
        let replicas: Vec<&dyn Any> = replicas.iter().map(|replica| &*replica.space).collect();
        let send = || self.design.flush_replicas(&*space.space, &replicas, change);
        let (flush, reported) = self.report(space, change, send);
        Flushing { flush, reported }
    }

    fn flush_also(&self, flushing: &mut Flushing, replica: &Space, change: &Change) {
        self.design.flush_also(&mut flushing.flush, &*replica.space, change);
        self.sim.flush_sent();
    }

    fn drop_replica(&self, replica: &Space) {
        self.design.drop_replica(&*replica.space);
        self.sim.flush_sent();
    }

    fn flush(&self, space: &Space, change: &Change) -> Flushing {
        let send = || self.design.flush(&*space.space, change);
        let (flush, reported) = self.report(space, change, send);
        Flushing { flush, reported }
    }

    fn wait(&self, Flushing { flush, reported }: Flushing) -> Horizon {
        let horizon = self.sim.attribute(TimeCause::FlushWait, || self.design.wait(flush));
        self.sim.batch_ended(reported.records, reported.began_at);
        horizon
    }
}

impl Defer for Instrumented {
    type Deferred = Flushing;

    fn flush_later(&self, space: &Space, change: &Change) -> Later<Flushing, Flushing> {
        let send = || self.design.flush_later(&*space.space, change);
        match self.report(space, change, send) {
            (Later::Sent(flush), reported) => Later::Sent(Flushing { flush, reported }),
            (Later::Deferred(flush), reported) => Later::Deferred(Flushing { flush, reported }),
        }
    }

    fn is_complete(&self, deferred: &Flushing) -> bool {
        self.design.is_complete(&*deferred.flush)
    }

    fn complete(&self, Flushing { flush, reported }: Flushing) {
        let asked_at = self.sim.now();
        self.sim.batch_began(&reported.records);
        self.sim.attribute(TimeCause::FlushWait, || self.design.complete(flush));
        self.sim.flush_sent();
        // No thread has waited for the flush between the two.
        let sending = reported.sent_at - reported.began_at;
        self.sim.batch_ended(reported.records, asked_at - sending);
    }
}

impl Batching for Instrumented {
    type Batch = Batch;

    forward! { fn is_batched(space: &Space) -> bool; }

    fn add_space(&self, batch: &mut Batch, space: &Space) -> Result<(), BatchIsFull> {
        self.design.add_space(&mut batch.batch, &*space.space)
    }

    fn unmapped(&self, batch: &mut Batch, space: &Space, address: u64, stale: StaleWrites) {
        let record = self.sim.flush_began(space.root, Some(address..address + PAGE_BYTES));
        self.design.unmapped(&mut batch.batch, &*space.space, address, stale);
        self.sim.flush_sent();
        match self.design.policy().reclaim_flush {
            ReclaimFlush::PerPage => {
                self.prepare();
                self.sim.flush_ended(record);
            }
            ReclaimFlush::Batched => batch.records.push(record),
        }
    }

    fn unmapped_in_replica(
        &self,
        batch: &mut Batch,
        replica: &Space,
        address: u64,
    ) -> Result<(), BatchIsFull> {
        self.design.unmapped_in_replica(&mut batch.batch, &*replica.space, address)
    }

    fn flush_batch(&self, Batch { batch, records }: Batch) {
        let began_at = self.sim.now();
        self.sim.batch_began(&records);
        self.design.flush_batch(batch);
        self.sim.flush_sent();
        if !records.is_empty() {
            self.prepare();
            self.sim.batch_ended(records, began_at);
        }
    }

    fn add_clean_space(&self, batch: &mut Batch, space: &Space) -> Result<(), BatchIsFull> {
        self.design.add_clean_space(&mut batch.batch, &*space.space)
    }

    fn clean_unmapped(&self, batch: &mut Batch, space: &Space, address: u64) {
        let record = self.sim.flush_began(space.root, Some(address..address + PAGE_BYTES));
        self.design.clean_unmapped(&mut batch.batch, &*space.space, address);
        batch.records.push(record);
    }

    fn defer_batch(&self, Batch { batch, records }: Batch) -> Option<Flushing> {
        let began_at = self.sim.now();
        self.sim.batch_began(&records);
        let deferred = self.design.defer_batch(batch);
        self.sim.flush_sent();
        if !records.is_empty() {
            self.prepare();
        }
        let sent_at = self.sim.now();
        if deferred.is_none() && !records.is_empty() {
            self.sim.batch_ended(records, began_at);
            return None;
        }
        deferred.map(|flush| Flushing { flush, reported: Reported { records, began_at, sent_at } })
    }
}

impl Lifetimes for Instrumented {
    forward! { fn take_dead() -> Option<Root>; }

    fn retire(&self, space: &Space) -> Retired {
        // No thread uses the space any longer. The oracle checks its tables when they are freed.
        let record = self.sim.flush_of_tables_began(space.root, None);
        let retired = self.design.retire(&*space.space);
        self.sim.flush_sent();
        self.sim.flush_ended(record);
        retired
    }

    fn reap(&self) {
        self.sim.walker_flush_began(None);
        self.design.reap();
        self.sim.flush_sent();
    }

    fn flush_walkers(&self, space: &Space) -> Horizon {
        self.sim.walker_flush_began(Some(space.root));
        let horizon = self.design.flush_walkers(&*space.space);
        self.sim.flush_sent();
        horizon
    }
}

impl Scheduling for Instrumented {
    forward! {
        fn online();
        fn enter_kernel();
        fn enter_lazy();
        fn leave_space();
        fn interrupt();
        fn tick();
    }

    #[expect(unsafe_code, reason = "the trait's `switch` is unsafe")]
    unsafe fn switch(&self, space: &Space) {
        // SAFETY: the caller fulfils the same contract.
        self.sim.count_at_switch(|| unsafe { self.design.switch(&*space.space) });
    }

    #[expect(unsafe_code, reason = "the trait's `return_to_user` is unsafe")]
    unsafe fn return_to_user(&self, space: &Space) {
        // SAFETY: the caller fulfils the same contract.
        self.sim.count_at_switch(|| unsafe { self.design.return_to_user(&*space.space) });
    }
}

/// Returns the addresses of an extent; `None` for the whole space.
fn addresses(extent: Extent) -> Option<Range<u64>> {
    let bytes = extent.page_count() as u64 * extent.page_size().bytes();
    (!extent.is_whole()).then(|| extent.start()..extent.start() + bytes)
}

impl fmt::Debug for Instrumented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instrumented").field("unmaps", &self.unmaps).finish_non_exhaustive()
    }
}
