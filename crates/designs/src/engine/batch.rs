//! The batches of reclaim and migration, which are flushed together, or when frames are reused.

use std::rc::Rc;

use shootdown::{
    Batch, BatchIsFull, CleanBatch, CleanExtent, Extent, PinnedCpu, Space, StaleWrites, Unflushed,
};
use shootdown_vm::{Batching, Defer};

use super::{Engine, SimMachine, SpaceLifetime};

/// The pages are freed by the memory manager, so the batches hold none.
type Now<M> = Batch<Rc<Space<M>>, Vec<()>>;
/// A batch that can be deferred.
pub(super) type Clean<M> = CleanBatch<Rc<Space<M>>, Vec<()>>;
/// A batch that is deferred.
pub(super) type Waiting<M> = Unflushed<Rc<Space<M>>, Vec<()>>;

/// Pages that were unmapped, and not yet flushed.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "an empty batch allocates nothing")]
pub enum EngineBatch<const WORDS: usize, L: SpaceLifetime> {
    /// They are flushed together.
    Now(Now<SimMachine<WORDS, L>>),
    /// They are flushed when their frames are reused.
    Clean(Clean<SimMachine<WORDS, L>>),
}

impl<const WORDS: usize, L: SpaceLifetime> Default for EngineBatch<WORDS, L> {
    fn default() -> Self {
        Self::Now(Batch::new())
    }
}

impl<const WORDS: usize, L: SpaceLifetime> EngineBatch<WORDS, L> {
    fn now(&mut self) -> &mut Now<SimMachine<WORDS, L>> {
        match self {
            Self::Now(batch) => batch,
            Self::Clean(_) => unreachable!("the memory manager keeps clean pages apart"),
        }
    }

    /// Returns the batch that can be deferred, which an empty batch becomes.
    fn clean(&mut self) -> &mut Clean<SimMachine<WORDS, L>> {
        if matches!(self, Self::Now(batch) if batch.is_empty()) {
            *self = Self::Clean(CleanBatch::new());
        }
        match self {
            Self::Clean(batch) => batch,
            Self::Now(_) => unreachable!("the memory manager keeps clean pages apart"),
        }
    }
}

impl<const WORDS: usize, L: SpaceLifetime> Engine<WORDS, L> {
    fn defer(&self, batch: Clean<SimMachine<WORDS, L>>) -> Waiting<SimMachine<WORDS, L>> {
        self.pin(|pin| L::defer(&pin, batch))
    }
}

impl<const WORDS: usize, L: SpaceLifetime> Defer for Engine<WORDS, L> {
    type Deferred = Waiting<SimMachine<WORDS, L>>;

    fn is_complete(&self, deferred: &Self::Deferred) -> bool {
        !self.pin(|pin| deferred.is_due(&pin))
    }

    fn complete(&self, mut deferred: Self::Deferred) {
        let sent = self.pin(|pin: PinnedCpu<'static, _>| deferred.reuse(&pin));
        self.sim.flush_sent();
        self.sim.masked(|| drop(sent));
    }
}

impl<const WORDS: usize, L: SpaceLifetime> Batching for Engine<WORDS, L> {
    type Batch = EngineBatch<WORDS, L>;

    fn add_space(&self, batch: &mut Self::Batch, space: &Self::Space) -> Result<(), BatchIsFull> {
        batch.now().space(self.engine.machine(), space).map(drop)
    }

    fn unmapped(
        &self,
        batch: &mut Self::Batch,
        space: &Self::Space,
        address: u64,
        stale_writes: StaleWrites,
    ) {
        let in_batch = batch.now().space(self.engine.machine(), space);
        let in_batch = in_batch.expect("`add_space` was called");
        let mut pending =
            self.pin(|pin| in_batch.unmapped(&pin, Extent::page(address), stale_writes));
        self.sim.masked(|| pending.wait());
    }

    fn unmapped_in_replica(
        &self,
        batch: &mut Self::Batch,
        replica: &Self::Space,
        address: u64,
    ) -> Result<(), BatchIsFull> {
        let in_batch = batch.now().space(self.engine.machine(), replica)?;
        // The machine traps stale writes, so the page is not flushed here.
        drop(
            self.pin(|pin| in_batch.unmapped(&pin, Extent::page(address), StaleWrites::Impossible)),
        );
        Ok(())
    }

    fn flush_batch(&self, batch: Self::Batch) {
        match batch {
            EngineBatch::Now(batch) if batch.is_empty() => {}
            EngineBatch::Now(mut batch) => {
                let sent = self.pin(|pin| batch.send(&pin));
                self.sim.flush_sent();
                self.sim.masked(|| drop(sent));
            }
            EngineBatch::Clean(batch) => self.complete(self.defer(batch)),
        }
    }

    fn add_clean_space(
        &self,
        batch: &mut Self::Batch,
        space: &Self::Space,
    ) -> Result<(), BatchIsFull> {
        batch.clean().space(self.engine.machine(), space).map(drop)
    }

    fn clean_unmapped(&self, batch: &mut Self::Batch, space: &Self::Space, address: u64) {
        let in_batch = batch.clean().space(self.engine.machine(), space);
        let page = CleanExtent::new(Extent::page(address), StaleWrites::Impossible);
        in_batch.expect("`add_clean_space` was called").unmapped(page.expect("it frees no table"));
    }

    fn defer_batch(&self, batch: Self::Batch) -> Option<Self::Deferred> {
        match batch {
            EngineBatch::Now(_) => {
                self.flush_batch(batch);
                None
            }
            EngineBatch::Clean(batch) => Some(self.defer(batch)),
        }
    }

    fn is_batched(&self, space: &Self::Space) -> bool {
        space.is_batched(self.engine.machine())
    }
}
