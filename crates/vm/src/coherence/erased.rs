//! The seam without types: a memory manager that is compiled once can drive any coherence.

use alloc::boxed::Box;
use core::any::Any;

use shootdown::{BatchIsFull, Horizon, Root, StaleWrites};

use super::{Change, Coherence, Later, Policy, Retired};

/// A coherence of any type.
pub type ErasedCoherence = Box<dyn DynCoherence>;
/// A batch of any coherence. `None` stands for an empty one.
pub type ErasedBatch = Option<Box<dyn Any>>;

/// A [`Coherence`] behind a pointer, with its spaces, flushes and batches erased. The methods are
/// those of the seam.
///
/// Every coherence is one. A decorator implements [`inner`](Self::inner) and the methods that it
/// changes; the others forward.
///
/// # Panics
///
/// The methods panic when they are given a space, flush or batch of another coherence.
pub trait DynCoherence {
    /// The coherence that the methods forward to by default.
    fn inner(&self) -> &dyn DynCoherence;

    /// See [`Flush::policy`](super::Flush::policy).
    fn policy(&self) -> Policy {
        self.inner().policy()
    }
    /// See [`Flush::space`](super::Flush::space).
    fn space(&self, root: Root) -> Box<dyn Any> {
        self.inner().space(root)
    }
    /// See [`Flush::flush`](super::Flush::flush).
    fn flush(&self, space: &dyn Any, change: &Change) -> Box<dyn Any> {
        self.inner().flush(space, change)
    }
    /// See [`Flush::wait`](super::Flush::wait).
    fn wait(&self, pending: Box<dyn Any>) -> Horizon {
        self.inner().wait(pending)
    }
    /// See [`Defer::flush_later`](super::Defer::flush_later).
    fn flush_later(&self, space: &dyn Any, change: &Change) -> Later<Box<dyn Any>, Box<dyn Any>> {
        self.inner().flush_later(space, change)
    }
    /// See [`Defer::is_complete`](super::Defer::is_complete).
    fn is_complete(&self, deferred: &dyn Any) -> bool {
        self.inner().is_complete(deferred)
    }
    /// See [`Defer::complete`](super::Defer::complete).
    fn complete(&self, deferred: Box<dyn Any>) {
        self.inner().complete(deferred);
    }
    /// See [`Batching::add_space`](super::Batching::add_space).
    ///
    /// # Errors
    ///
    /// As there.
    fn add_space(&self, batch: &mut ErasedBatch, space: &dyn Any) -> Result<(), BatchIsFull> {
        self.inner().add_space(batch, space)
    }
    /// See [`Batching::unmapped`](super::Batching::unmapped).
    fn unmapped(&self, batch: &mut ErasedBatch, space: &dyn Any, address: u64, stale: StaleWrites) {
        self.inner().unmapped(batch, space, address, stale);
    }
    /// See [`Batching::flush_batch`](super::Batching::flush_batch).
    fn flush_batch(&self, batch: ErasedBatch) {
        self.inner().flush_batch(batch);
    }
    /// See [`Batching::is_batched`](super::Batching::is_batched).
    fn is_batched(&self, space: &dyn Any) -> bool {
        self.inner().is_batched(space)
    }
    /// See [`Lifetimes::retire`](super::Lifetimes::retire).
    fn retire(&self, space: &dyn Any) -> Retired {
        self.inner().retire(space)
    }
    /// See [`Lifetimes::take_dead`](super::Lifetimes::take_dead).
    fn take_dead(&self) -> Option<Root> {
        self.inner().take_dead()
    }
    /// See [`Lifetimes::reap`](super::Lifetimes::reap).
    fn reap(&self) {
        self.inner().reap();
    }
    /// See [`Lifetimes::flush_walkers`](super::Lifetimes::flush_walkers).
    fn flush_walkers(&self, space: &dyn Any) -> Horizon {
        self.inner().flush_walkers(space)
    }
    /// See [`Scheduling::online`](super::Scheduling::online).
    fn online(&self) {
        self.inner().online();
    }
    /// See [`Scheduling::switch`](super::Scheduling::switch).
    ///
    /// # Safety
    ///
    /// As there.
    #[expect(unsafe_code, reason = "as in the seam")]
    unsafe fn switch(&self, space: &dyn Any) {
        // SAFETY: as our caller promises.
        unsafe { self.inner().switch(space) }
    }
    /// See [`Scheduling::enter_kernel`](super::Scheduling::enter_kernel).
    fn enter_kernel(&self) {
        self.inner().enter_kernel();
    }
    /// See [`Scheduling::return_to_user`](super::Scheduling::return_to_user).
    ///
    /// # Safety
    ///
    /// As there.
    #[expect(unsafe_code, reason = "as in the seam")]
    unsafe fn return_to_user(&self, space: &dyn Any) {
        // SAFETY: as our caller promises.
        unsafe { self.inner().return_to_user(space) }
    }
    /// See [`Scheduling::enter_lazy`](super::Scheduling::enter_lazy).
    fn enter_lazy(&self) {
        self.inner().enter_lazy();
    }
    /// See [`Scheduling::leave_space`](super::Scheduling::leave_space).
    fn leave_space(&self) {
        self.inner().leave_space();
    }
    /// See [`Scheduling::interrupt`](super::Scheduling::interrupt).
    fn interrupt(&self) {
        self.inner().interrupt();
    }
    /// See [`Scheduling::tick`](super::Scheduling::tick).
    fn tick(&self) {
        self.inner().tick();
    }
}

fn typed<T: 'static>(erased: &dyn Any) -> &T {
    erased.downcast_ref().expect("a value of this coherence")
}

fn owned<T: 'static>(erased: Box<dyn Any>) -> T {
    *erased.downcast().expect("a value of this coherence")
}

fn batch_of<B: Default + 'static>(batch: &mut ErasedBatch) -> &mut B {
    let batch = batch.get_or_insert_with(|| Box::new(B::default()));
    batch.downcast_mut().expect("a batch of this coherence")
}

impl<C: Coherence + 'static> DynCoherence for C {
    fn inner(&self) -> &dyn DynCoherence {
        self
    }
    fn policy(&self) -> Policy {
        self.policy()
    }
    fn space(&self, root: Root) -> Box<dyn Any> {
        Box::new(self.space(root))
    }
    fn flush(&self, space: &dyn Any, change: &Change) -> Box<dyn Any> {
        Box::new(self.flush(typed(space), change))
    }
    fn wait(&self, pending: Box<dyn Any>) -> Horizon {
        self.wait(owned(pending))
    }
    fn flush_later(&self, space: &dyn Any, change: &Change) -> Later<Box<dyn Any>, Box<dyn Any>> {
        match self.flush_later(typed(space), change) {
            Later::Sent(pending) => Later::Sent(Box::new(pending)),
            Later::Deferred(deferred) => Later::Deferred(Box::new(deferred)),
        }
    }
    fn is_complete(&self, deferred: &dyn Any) -> bool {
        self.is_complete(typed(deferred))
    }
    fn complete(&self, deferred: Box<dyn Any>) {
        self.complete(owned(deferred));
    }
    fn add_space(&self, batch: &mut ErasedBatch, space: &dyn Any) -> Result<(), BatchIsFull> {
        self.add_space(batch_of(batch), typed(space))
    }
    fn unmapped(&self, batch: &mut ErasedBatch, space: &dyn Any, address: u64, stale: StaleWrites) {
        self.unmapped(batch_of(batch), typed(space), address, stale);
    }
    fn flush_batch(&self, batch: ErasedBatch) {
        self.flush_batch(batch.map(owned).unwrap_or_default());
    }
    fn is_batched(&self, space: &dyn Any) -> bool {
        self.is_batched(typed(space))
    }
    fn retire(&self, space: &dyn Any) -> Retired {
        self.retire(typed(space))
    }
    fn take_dead(&self) -> Option<Root> {
        self.take_dead()
    }
    fn reap(&self) {
        self.reap();
    }
    fn flush_walkers(&self, space: &dyn Any) -> Horizon {
        self.flush_walkers(typed(space))
    }
    fn online(&self) {
        self.online();
    }
    #[expect(unsafe_code, reason = "as in the seam")]
    unsafe fn switch(&self, space: &dyn Any) {
        // SAFETY: as our caller promises.
        unsafe { self.switch(typed(space)) }
    }
    fn enter_kernel(&self) {
        self.enter_kernel();
    }
    #[expect(unsafe_code, reason = "as in the seam")]
    unsafe fn return_to_user(&self, space: &dyn Any) {
        // SAFETY: as our caller promises.
        unsafe { self.return_to_user(typed(space)) }
    }
    fn enter_lazy(&self) {
        self.enter_lazy();
    }
    fn leave_space(&self) {
        self.leave_space();
    }
    fn interrupt(&self) {
        self.interrupt();
    }
    fn tick(&self) {
        self.tick();
    }
}

impl<C: Coherence + 'static> From<C> for ErasedCoherence {
    fn from(coherence: C) -> Self {
        Box::new(coherence)
    }
}
