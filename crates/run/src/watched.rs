//! A design under the oracle's eyes: every flush is reported when it begins and when it is said to
//! be done, and nothing else is changed.

use core::ops::Range;
use std::cell::Cell;
use std::rc::Rc;

use shootdown::{BatchIsFull, Extent, Horizon, Root, StaleWrites};
use shootdown_sim::{FlushRecord, Sim, Time};
use shootdown_vm::{
    Cause, Change, Coherence, EmptyTables, ExtraFlushes, FirstRead, Later, PAGE_BYTES, Retired,
    Taking, UnmapLock,
};

/// A design, watched.
#[derive(Debug)]
pub struct Watched<C> {
    sim: Rc<Sim>,
    design: C,
    unmaps: Cell<Unmaps>,
}

/// What became of each `munmap`, and of each mapping that replaced another, that took anything
/// away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unmaps {
    /// Flushed in ranges.
    pub ranged: u64,
    /// Flushed as all of the space: it was more than the machine's ceiling, or nobody kept count.
    pub whole: u64,
}

/// A space of a watched design.
#[derive(Debug)]
pub struct WatchedSpace<S> {
    space: S,
    root: u64,
}

/// A flush that was sent, or put off, and may not yet be done.
#[derive(Debug)]
pub struct WatchedFlush<F> {
    flush: F,
    records: Vec<FlushRecord>,
    began_at: Time,
    sent_at: Time,
}

/// Pages that were taken, and not flushed yet.
#[derive(Debug, Default)]
pub struct WatchedBatch<B> {
    batch: B,
    records: Vec<FlushRecord>,
}

impl<C> Watched<C> {
    /// `design`, on this machine.
    pub const fn new(sim: Rc<Sim>, design: C) -> Self {
        Self { sim, design, unmaps: Cell::new(Unmaps { ranged: 0, whole: 0 }) }
    }
}

impl<C> Watched<C> {
    /// What became of `munmap`s so far, as their designs were asked.
    pub const fn unmaps(&self) -> Unmaps {
        self.unmaps.get()
    }

    fn note(&self, change: &Change) {
        if change.cause != Cause::Unmap {
            return;
        }
        let ceiling = self.sim.machine().tlb.flush_ceiling;
        let is_whole = change.extents.is_whole() || change.extents.page_count() > ceiling;
        let Unmaps { ranged, whole } = self.unmaps.get();
        self.unmaps.set(if is_whole {
            Unmaps { ranged, whole: whole + 1 }
        } else {
            Unmaps { ranged: ranged + 1, whole }
        });
    }
}

impl<C: Coherence> Watched<C> {
    /// Tells the oracle of a flush before it is sent.
    fn watch<F>(
        &self,
        space: &WatchedSpace<C::Space>,
        change: &Change,
        send: impl FnOnce(&C::Space) -> F,
    ) -> WatchedFlush<F> {
        self.note(change);
        // What lies between the extents was not changed, and need not be forgotten.
        let began = |&extent: &Extent| self.sim.flush_began(space.root, addresses(extent));
        let began_at = self.sim.now();
        let records = change.extents.as_slice().iter().map(began).collect();
        let flush = send(&space.space);
        self.sim.flush_sent();
        WatchedFlush { flush, records, began_at, sent_at: self.sim.now() }
    }
}

impl<C: Coherence> Coherence for Watched<C> {
    type Space = WatchedSpace<C::Space>;
    type Pending = WatchedFlush<C::Pending>;
    type Batch = WatchedBatch<C::Batch>;
    type Parked = WatchedFlush<C::Parked>;

    const UNMAP_LOCK: UnmapLock = C::UNMAP_LOCK;
    const EMPTY_TABLES: EmptyTables = C::EMPTY_TABLES;
    const FIRST_READ: FirstRead = C::FIRST_READ;
    const TAKING: Taking = C::TAKING;
    const EXTRA_FLUSHES: ExtraFlushes = C::EXTRA_FLUSHES;
    const TICK_NS: Option<u64> = C::TICK_NS;

    fn online(&self) {
        self.design.online();
    }

    fn space(&self, root: Root) -> Self::Space {
        WatchedSpace { space: self.design.space(root), root: root.0 >> 12 }
    }

    fn flush(&self, space: &Self::Space, change: &Change) -> Self::Pending {
        self.watch(space, change, |space| self.design.flush(space, change))
    }

    fn wait(&self, flush: Self::Pending) -> Horizon {
        let horizon = self.design.wait(flush.flush);
        self.sim.batch_ended(flush.records, flush.began_at);
        horizon
    }

    fn flush_later(&self, space: &Self::Space, change: &Change) -> Later<Self> {
        let sent = self.watch(space, change, |space| self.design.flush_later(space, change));
        let WatchedFlush { flush, records, began_at, sent_at } = sent;
        match flush {
            Later::Sent(flush) => Later::Sent(WatchedFlush { flush, records, began_at, sent_at }),
            Later::Parked(flush) => {
                Later::Parked(WatchedFlush { flush, records, began_at, sent_at })
            }
        }
    }

    fn is_over(&self, parked: &Self::Parked) -> bool {
        self.design.is_over(&parked.flush)
    }

    fn get_over(&self, parked: Self::Parked) {
        let WatchedFlush { flush, records, began_at, sent_at } = parked;
        let asked_at = self.sim.now();
        self.design.get_over(flush);
        self.sim.flush_sent();
        // Nobody has waited for it between the two.
        self.sim.batch_ended(records, asked_at - (sent_at - began_at));
    }

    fn expel(&self, space: &Self::Space) -> Horizon {
        self.sim.expelling(Some(space.root));
        let horizon = self.design.expel(&space.space);
        self.sim.flush_sent();
        horizon
    }

    fn hold_back(&self, batch: &mut Self::Batch, space: &Self::Space) -> Result<(), BatchIsFull> {
        self.design.hold_back(&mut batch.batch, &space.space)
    }

    fn taken(
        &self,
        batch: &mut Self::Batch,
        space: &Self::Space,
        address: u64,
        stale_writes: StaleWrites,
    ) {
        let record = self.sim.flush_began(space.root, Some(address..address + PAGE_BYTES));
        self.design.taken(&mut batch.batch, &space.space, address, stale_writes);
        self.sim.flush_sent();
        match C::TAKING {
            Taking::FlushedAtOnce => self.sim.flush_ended(record),
            Taking::Batched => batch.records.push(record),
        }
    }

    fn flush_batch(&self, batch: Self::Batch) {
        let WatchedBatch { batch, records } = batch;
        let began_at = self.sim.now();
        self.sim.batch_began(&records);
        self.design.flush_batch(batch);
        self.sim.flush_sent();
        if !records.is_empty() {
            self.sim.batch_ended(records, began_at);
        }
    }

    fn is_held_back(&self, space: &Self::Space) -> bool {
        self.design.is_held_back(&space.space)
    }

    fn retire(&self, space: &Self::Space) -> Retired {
        // Nobody uses the space any more. When its tables are freed, the oracle looks by itself.
        let record = self.sim.flush_began(space.root, None);
        let retired = self.design.retire(&space.space);
        self.sim.flush_sent();
        self.sim.flush_ended(record);
        retired
    }

    fn take_dead(&self) -> Option<Root> {
        self.design.take_dead()
    }

    fn reap(&self) {
        self.sim.expelling(None);
        self.design.reap();
        self.sim.flush_sent();
    }

    #[expect(unsafe_code, reason = "handed on")]
    unsafe fn switch(&self, space: &Self::Space) {
        // SAFETY: as our caller promises.
        self.sim.switching(|| unsafe { self.design.switch(&space.space) });
    }

    fn enter_kernel(&self) {
        self.design.enter_kernel();
    }

    #[expect(unsafe_code, reason = "handed on")]
    unsafe fn return_to_user(&self, space: &Self::Space) {
        // SAFETY: as our caller promises.
        self.sim.switching(|| unsafe { self.design.return_to_user(&space.space) });
    }

    fn enter_lazy(&self) {
        self.design.enter_lazy();
    }

    fn leave(&self) {
        self.design.leave();
    }

    fn interrupt(&self) {
        self.design.interrupt();
    }

    fn tick(&self) {
        self.design.tick();
    }
}

/// The addresses of an extent; `None` for all of the space.
fn addresses(extent: Extent) -> Option<Range<u64>> {
    let bytes = extent.page_count() as u64 * extent.page_size().bytes();
    (!extent.is_whole()).then(|| extent.start()..extent.start() + bytes)
}
