//! The interface between a memory manager and a method to keep TLBs coherent, split by caller.
//! Shootdown's engine implements it, and so do the designs that the engine is compared with.
//!
//! All methods concern the CPU that calls them. The caller must stay on that CPU until they return.

mod change;
mod erased;
mod policy;

pub use change::{Cause, Change, Freed};
pub use erased::{DynCoherence, ErasedBatch, ErasedCoherence};
pub use policy::{
    CleanPages, Discards, EmptyTables, ExecuteLoss, ExtraFlushes, FaultLock, FirstUse,
    PREDICTED_IN_VAIN_MAX, PageRecords, Placement, Policy, RECLAIM_PAGES, ReclaimFlush, Refault,
    Replication, UnmapLock, WriteGrant, ZeroPage,
};

use shootdown::{BatchIsFull, Horizon, Root, StaleWrites};

/// All parts of the interface. Every type that implements the parts implements this trait.
pub trait Coherence: Defer + Batching + Lifetimes + Scheduling {}

impl<C: Defer + Batching + Lifetimes + Scheduling> Coherence for C {}

/// Flushes. Every operation that removes translations calls these methods.
pub trait Flush {
    /// The record of one address space.
    type Space;
    /// A flush that was sent and may not be complete.
    type Pending;

    /// Returns the choices that the coherence makes for the memory manager. They never change.
    fn policy(&self) -> Policy;

    /// Creates the record of a space whose page tables start at `root`.
    fn space(&self, root: Root) -> Self::Space;

    /// Starts a flush. Call this after page tables were changed, and before the pages that they
    /// mapped are reused.
    fn flush(&self, space: &Self::Space, change: &Change) -> Self::Pending;

    /// Creates the record of a replica of a space: upper page tables that start at `root`, and that
    /// link to the space's own tables of the last level. `None` if the coherence cannot flush
    /// replicas, or would gain nothing.
    ///
    /// To a coherence, a replica is a space that one CPU uses.
    fn replica(&self, of: &Self::Space, root: Root) -> Option<Self::Space> {
        let _ = (of, root);
        None
    }

    /// Starts a flush of a space and of some of its replicas, as [`flush`](Self::flush). If page
    /// tables are freed, notifies the CPUs that could walk them, and none of them waits for a
    /// [horizon](Self::wait).
    ///
    /// Never called for a coherence that makes no replicas.
    fn flush_replicas(
        &self,
        space: &Self::Space,
        replicas: &[&Self::Space],
        change: &Change,
    ) -> Self::Pending {
        let _ = replicas;
        self.flush(space, change)
    }

    /// Adds a replica to a flush that [`flush_replicas`](Self::flush_replicas) has started.
    fn flush_also(&self, pending: &mut Self::Pending, replica: &Self::Space, change: &Change) {
        let _ = (pending, replica, change);
    }

    /// Makes the CPU of a replica drop everything that it has cached by way of the replica: when
    /// this returns, the CPU cannot use any of it.
    fn drop_replica(&self, replica: &Self::Space) {
        let _ = replica;
    }

    /// Waits until no CPU can use a translation that the flush covered. Returns which of the
    /// space's unhooked page tables a CPU can still walk.
    fn wait(&self, pending: Self::Pending) -> Horizon;

    /// Records that `munmap`, `mprotect` or `madvise` begins to gather translations of the space,
    /// before the first entry is changed. (Linux: `inc_tlb_flush_pending`.)
    fn gather_begins(&self, space: &Self::Space) {
        let _ = space;
    }

    /// Records that such an operation has flushed what it gathered, and freed it.
    fn gather_ends(&self, space: &Self::Space) {
        let _ = space;
    }

    /// Returns `true` if an operation that gathers must flush the whole space at its end, whatever
    /// it found, because another operation gathers at the same time. (Linux:
    /// `mm_tlb_flush_nested`.)
    fn is_nested(&self, space: &Self::Space) -> bool {
        let _ = space;
        false
    }

    /// Returns the largest number of notifications that a flush of the space would send now, as
    /// [`PinnedCpu::notifications_max`](shootdown::PinnedCpu::notifications_max). Pages are
    /// discarded [in place](Discards::InPlace) only if the answer is a number.
    fn notifications_max(&self, space: &Self::Space) -> Option<usize> {
        let _ = space;
        None
    }

    /// Returns `true` if another CPU is in user mode in the space or the replica now, as
    /// [`PinnedCpu::is_used_elsewhere`](shootdown::PinnedCpu::is_used_elsewhere). Spaces get
    /// [replicas](super::Replication::IfWorth) only if this is `true` at times.
    fn is_used_elsewhere(&self, space: &Self::Space) -> bool {
        let _ = space;
        false
    }
}

/// Flushes that CPUs perform by themselves later. `munmap` calls these methods.
pub trait Defer: Flush {
    /// A flush that CPUs perform by themselves later. A coherence that defers nothing uses
    /// [`Infallible`](core::convert::Infallible).
    type Deferred;

    /// Flushes what `munmap` removed, either immediately or later. The memory manager keeps the
    /// pages and the addresses of a deferred flush from reuse until the flush [is
    /// complete](Self::is_complete). Until then a CPU may continue to use them, as a program that
    /// accesses memory it unmaps may observe.
    fn flush_later(
        &self,
        space: &Self::Space,
        change: &Change,
    ) -> Later<Self::Pending, Self::Deferred> {
        Later::Sent(self.flush(space, change))
    }

    /// Returns `true` if every CPU has performed the flush.
    fn is_complete(&self, deferred: &Self::Deferred) -> bool {
        let _ = deferred;
        true
    }

    /// Waits until every CPU has performed the flush. Notifies the CPUs that have not.
    fn complete(&self, deferred: Self::Deferred) {
        let _ = deferred;
    }
}

/// Flushes of many pages of several spaces together. Reclaim and migration call these methods.
///
/// A batch is either flushed, or [deferred](Self::defer_batch). Entries are added to the latter by
/// the methods with `clean` in their names.
pub trait Batching: Defer {
    /// Pages that were unmapped and not yet flushed.
    type Batch: Default;

    /// Prepares the batch for entries of `space`. Call this before the entries are cleared. From
    /// this call on the space [is batched](Self::is_batched), until the batch is
    /// [flushed](Self::flush_batch).
    ///
    /// # Errors
    ///
    /// [`BatchIsFull`] if there is no room for another space. Flush the batch, and call this again.
    fn add_space(&self, batch: &mut Self::Batch, space: &Self::Space) -> Result<(), BatchIsFull> {
        let _ = (batch, space);
        Ok(())
    }

    /// Adds the page at `address`, whose entry was cleared, of a space that is in the batch. When
    /// this returns, no CPU can write to the page unnoticed, provided that its entry was not marked
    /// as dirty.
    ///
    /// The default implementation flushes the page.
    fn unmapped(
        &self,
        batch: &mut Self::Batch,
        space: &Self::Space,
        address: u64,
        stale_writes: StaleWrites,
    ) {
        let _ = (batch, stale_writes);
        self.wait(self.flush(space, &Change::reclaimed(address)));
    }

    /// Adds the same page in a replica of the space. The space is in the batch, and stays marked as
    /// batched until the replica is flushed also.
    ///
    /// # Errors
    ///
    /// [`BatchIsFull`] if there is no room for the replica. Add the space to another batch, flush
    /// this one, and call this for the other one.
    fn unmapped_in_replica(
        &self,
        batch: &mut Self::Batch,
        replica: &Self::Space,
        address: u64,
    ) -> Result<(), BatchIsFull> {
        let _ = (batch, replica, address);
        Ok(())
    }

    /// Waits until no CPU can use a page of the batch.
    fn flush_batch(&self, batch: Self::Batch) {
        let _ = batch;
    }

    /// Prepares the batch, which is to be deferred, for entries of `space`, as
    /// [`add_space`](Self::add_space) does.
    ///
    /// # Errors
    ///
    /// Those of [`add_space`](Self::add_space).
    fn add_clean_space(
        &self,
        batch: &mut Self::Batch,
        space: &Self::Space,
    ) -> Result<(), BatchIsFull> {
        self.add_space(batch, space)
    }

    /// Adds the page at `address`, whose entry was cleared, and through whose entry no CPU could
    /// write. [`add_clean_space`](Self::add_clean_space) was called.
    fn clean_unmapped(&self, batch: &mut Self::Batch, space: &Self::Space, address: u64) {
        self.unmapped(batch, space, address, StaleWrites::Impossible);
    }

    /// Leaves the flush to CPUs that perform it by themselves, until it is
    /// [completed](Defer::complete): before the frames of the pages are reused, or their contents
    /// change. Until then CPUs may read the pages, and the spaces are
    /// [batched](Self::is_batched). Returns `None` if the flush is complete.
    ///
    /// The default implementation flushes the batch.
    fn defer_batch(&self, batch: Self::Batch) -> Option<Self::Deferred> {
        self.flush_batch(batch);
        None
    }

    /// Returns `true` if a page of the space may be in a batch. An operation that finds an empty
    /// entry must then flush the addresses that it was asked to change, as if the entry had held a
    /// page.
    fn is_batched(&self, space: &Self::Space) -> bool {
        let _ = space;
        false
    }
}

/// Ends of spaces and of page tables. `exit` calls these methods, and the kernel when memory can be
/// freed.
pub trait Lifetimes: Flush {
    /// Retires a space that has no user left and is never switched to again. This CPU may still
    /// have the space loaded, and so may CPUs that are lazy on it. The caller may drop the space
    /// after this call; a coherence that needs the space for longer keeps it.
    fn retire(&self, space: &Self::Space) -> Retired;

    /// Returns the root of a retired space whose tables no CPU can walk any more, so that this CPU
    /// can free them. Call this when memory can be freed, some time after a switch or any other
    /// event that may have released a space: when the CPU idles, or when much memory is waiting to
    /// be freed.
    fn take_dead(&self) -> Option<Root> {
        None
    }

    /// Makes every CPU leave dead spaces. When this returns, the roots of all spaces that were dead
    /// before the call are available from [`take_dead`](Self::take_dead).
    fn reap(&self) {}

    /// Makes CPUs that could walk unhooked page tables of the space drop them. When this returns,
    /// no CPU can walk the tables of any flush that was waited for before the call.
    ///
    /// The memory manager calls this when more tables are quarantined than its limit allows. It
    /// never calls it for a coherence that lets no table be quarantined.
    fn flush_walkers(&self, space: &Self::Space) -> Horizon {
        let _ = space;
        Horizon::CLEAR
    }
}

/// Hooks for the scheduler.
pub trait Scheduling: Flush {
    /// Prepares this CPU. Call this once on each CPU, before any other method: the CPU can be
    /// interrupted from now on.
    fn online(&self) {}

    /// Makes a space current on this CPU: a thread of the space is about to run, at first in the
    /// kernel.
    ///
    /// # Safety
    ///
    /// The caller must not drop the space before it has [retired](Lifetimes::retire) it. The root
    /// must be a valid page table until `retire` returns [`Retired::Free`], or until
    /// [`take_dead`](Lifetimes::take_dead) returns the root.
    #[expect(unsafe_code, reason = "the root must be a page table, which no type can prove")]
    unsafe fn switch(&self, space: &Self::Space);

    /// Records that the thread on this CPU enters the kernel, by a system call or a fault. Until it
    /// [returns](Self::return_to_user), the CPU must touch no user address: the kernel must access
    /// the thread's memory by its frames.
    fn enter_kernel(&self) {}

    /// Records that the thread of `space` on this CPU continues in user mode.
    ///
    /// Call this before a thread first enters user mode, and whenever it does so after
    /// [`enter_kernel`](Self::enter_kernel) or [`switch`](Self::switch). The thread may have moved
    /// to another CPU in between: a thread that was preempted was in the kernel.
    ///
    /// # Safety
    ///
    /// The contract of [`switch`](Self::switch).
    #[expect(unsafe_code, reason = "as for `switch`")]
    unsafe fn return_to_user(&self, space: &Self::Space) {
        let _ = space;
    }

    /// Records that this CPU continues with a kernel thread, or with idling, and keeps the space
    /// loaded.
    fn enter_lazy(&self);

    /// Records that this CPU is about to enter an idle state in which it loses its TLB.
    fn leave_space(&self);

    /// Handles the flush interrupt. Call this in the interrupt's handler.
    fn interrupt(&self);

    /// Handles a timer interrupt. Call this in the interrupt's handler: see [`Policy::tick_ns`].
    fn tick(&self) {}
}

/// The state of a space after [`retire`](Lifetimes::retire).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retired {
    /// No CPU can walk its page tables: they can be freed.
    Free,
    /// Some CPUs still have the space loaded. [`take_dead`](Lifetimes::take_dead) returns its root
    /// on the last of them.
    Loaded,
}

/// The flush of an operation that allowed its deferral.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Later<P, D> {
    /// The flush was sent, as any other.
    Sent(P),
    /// CPUs perform the flush by themselves later.
    Deferred(D),
}
