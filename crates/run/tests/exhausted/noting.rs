//! A design, and how often one of its batches was full.

use std::cell::Cell;
use std::convert::Infallible;
use std::rc::Rc;

use shootdown::{BatchIsFull, Horizon, Root, StaleWrites};
use shootdown_vm::{
    Change, Coherence, EmptyTables, ExtraFlushes, FirstRead, Retired, Taking, UnmapLock,
};

#[derive(Debug)]
pub(crate) struct Noting<C> {
    design: C,
    full: Rc<Cell<u64>>,
}

impl<C> Noting<C> {
    /// Counts in `full`.
    pub(crate) const fn new(design: C, full: Rc<Cell<u64>>) -> Self {
        Self { design, full }
    }
}

impl<C: Coherence> Coherence for Noting<C> {
    type Space = C::Space;
    type Pending = C::Pending;
    type Batch = C::Batch;
    type Parked = Infallible;

    const UNMAP_LOCK: UnmapLock = C::UNMAP_LOCK;
    const EMPTY_TABLES: EmptyTables = C::EMPTY_TABLES;
    const FIRST_READ: FirstRead = C::FIRST_READ;
    const TAKING: Taking = C::TAKING;
    const EXTRA_FLUSHES: ExtraFlushes = C::EXTRA_FLUSHES;

    fn hold_back(&self, batch: &mut Self::Batch, space: &Self::Space) -> Result<(), BatchIsFull> {
        let held = self.design.hold_back(batch, space);
        self.full.set(self.full.get() + u64::from(held.is_err()));
        held
    }

    fn online(&self) {
        self.design.online();
    }
    fn space(&self, root: Root) -> Self::Space {
        self.design.space(root)
    }
    fn flush(&self, space: &Self::Space, change: &Change) -> Self::Pending {
        self.design.flush(space, change)
    }
    fn wait(&self, pending: Self::Pending) -> Horizon {
        self.design.wait(pending)
    }
    fn expel(&self, space: &Self::Space) -> Horizon {
        self.design.expel(space)
    }
    fn taken(&self, batch: &mut Self::Batch, space: &Self::Space, at: u64, writes: StaleWrites) {
        self.design.taken(batch, space, at, writes);
    }
    fn flush_batch(&self, batch: Self::Batch) {
        self.design.flush_batch(batch);
    }
    fn is_held_back(&self, space: &Self::Space) -> bool {
        self.design.is_held_back(space)
    }
    fn retire(&self, space: &Self::Space) -> Retired {
        self.design.retire(space)
    }
    fn take_dead(&self) -> Option<Root> {
        self.design.take_dead()
    }
    fn reap(&self) {
        self.design.reap();
    }
    #[expect(unsafe_code, reason = "handed on")]
    unsafe fn switch(&self, space: &Self::Space) {
        // SAFETY: as our caller promises.
        unsafe { self.design.switch(space) }
    }
    fn enter_kernel(&self) {
        self.design.enter_kernel();
    }
    #[expect(unsafe_code, reason = "handed on")]
    unsafe fn return_to_user(&self, space: &Self::Space) {
        // SAFETY: as our caller promises.
        unsafe { self.design.return_to_user(space) }
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
}
