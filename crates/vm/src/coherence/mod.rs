//! The seam between a memory manager and a way to keep TLBs coherent, split by caller. Shootdown's
//! engine is behind it, and so are the designs that the engine is compared with.
//!
//! All methods concern the CPU that calls them. The caller stays on that CPU until they return.

mod change;
mod erased;
mod policy;

pub use change::{Cause, Change, Freed};
pub use erased::{DynCoherence, ErasedBatch, ErasedCoherence};
pub use policy::{EmptyTables, ExtraFlushes, Policy, ReclaimFlush, Refault, UnmapLock, ZeroPage};

use shootdown::{BatchIsFull, Horizon, Root, StaleWrites};

/// The whole seam: implemented by every type that implements its parts.
pub trait Coherence: Defer + Batching + Lifetimes + Scheduling {}

impl<C: Defer + Batching + Lifetimes + Scheduling> Coherence for C {}

/// Flushes: called by every operation that removes translations.
pub trait Flush {
    /// The record of one address space.
    type Space;
    /// A flush that was sent and may not be complete.
    type Pending;

    /// The choices made for the memory manager. They never change.
    fn policy(&self) -> Policy;

    /// Makes the record of a space whose page tables start at `root`.
    fn space(&self, root: Root) -> Self::Space;

    /// Starts a flush. Call this after page tables were changed, and before the pages that they
    /// mapped are reused.
    fn flush(&self, space: &Self::Space, change: &Change) -> Self::Pending;

    /// Waits until no CPU can use a translation that the flush covered. Returns which of the
    /// space's unhooked page tables a CPU can still walk.
    fn wait(&self, pending: Self::Pending) -> Horizon;
}

/// Flushes that CPUs come to by themselves: called by `munmap`.
pub trait Defer: Flush {
    /// A flush that CPUs come to by themselves. A coherence that defers nothing names
    /// [`Infallible`](core::convert::Infallible).
    type Deferred;

    /// Flushes what `munmap` removed, at once or later. The memory manager puts the pages and the
    /// addresses of a deferred flush aside until it [is complete](Self::is_complete). Until then a
    /// CPU may go on using them, as a program that uses what it unmaps may find.
    fn flush_later(
        &self,
        space: &Self::Space,
        change: &Change,
    ) -> Later<Self::Pending, Self::Deferred> {
        Later::Sent(self.flush(space, change))
    }

    /// Whether every CPU has come to the flush.
    fn is_complete(&self, deferred: &Self::Deferred) -> bool {
        let _ = deferred;
        true
    }

    /// Waits until every CPU has come to the flush, and notifies the CPUs that have not.
    fn complete(&self, deferred: Self::Deferred) {
        let _ = deferred;
    }
}

/// Flushes of many pages of several spaces at once: called by reclaim and migration.
pub trait Batching: Flush {
    /// Pages that were unmapped and not flushed yet.
    type Batch: Default;

    /// Prepares the batch for entries of `space`, which the caller is about to clear. From now on
    /// the space [is batched](Self::is_batched), until the batch is [flushed](Self::flush_batch).
    ///
    /// # Errors
    ///
    /// If there is no room for another space: flush the batch first.
    fn add_space(&self, batch: &mut Self::Batch, space: &Self::Space) -> Result<(), BatchIsFull> {
        let _ = (batch, space);
        Ok(())
    }

    /// Adds the page at `address`, whose entry was cleared, of a space that is in the batch. When
    /// this returns, no CPU can write to the page unnoticed, if its entry was not marked as
    /// written.
    ///
    /// The default flushes the page.
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

    /// Waits until no CPU can use a page of the batch.
    fn flush_batch(&self, batch: Self::Batch) {
        let _ = batch;
    }

    /// Whether a page of the space may be in a batch. An operation that finds an entry without a
    /// page must then flush the addresses that it was asked to change, as if there had been one.
    fn is_batched(&self, space: &Self::Space) -> bool {
        let _ = space;
        false
    }
}

/// Ends of spaces and of page tables: called by `exit`, and when memory can be freed.
pub trait Lifetimes: Flush {
    /// Retires a space that has no user left and is never switched to again. This CPU may still
    /// have it loaded, and so may CPUs that are lazy on it. The caller may drop the space after
    /// that: a coherence that needs it for longer keeps it.
    fn retire(&self, space: &Self::Space) -> Retired;

    /// Returns the root of a retired space whose tables no CPU can walk any more, for this CPU to
    /// free. Call this when memory can be freed, some time after a switch or any other event that
    /// may have released a space: when the CPU idles, or when much is to be freed.
    fn take_dead(&self) -> Option<Root> {
        None
    }

    /// Makes every CPU leave spaces that are dead. When it returns, spaces that were dead before
    /// have been handed out.
    fn reap(&self) {}

    /// Makes CPUs that could walk unhooked page tables of the space forget them. When it returns,
    /// no CPU can walk the tables of any flush that was waited for before.
    ///
    /// Called when more tables are held back than is wanted; never under a coherence that holds
    /// none back.
    fn flush_walkers(&self, space: &Self::Space) -> Horizon {
        let _ = space;
        Horizon::CLEAR
    }
}

/// The scheduler's hooks.
pub trait Scheduling: Flush {
    /// Called once on each CPU, before anything else: it can be interrupted from now on.
    fn online(&self) {}

    /// Makes a space current on this CPU: a thread of it is about to run, in the kernel to begin
    /// with.
    ///
    /// # Safety
    ///
    /// The space must not be dropped before it was [retired](Lifetimes::retire). Until `retire`
    /// returns [`Retired::Free`], or the root is [handed out](Lifetimes::take_dead), the root must
    /// be a valid page table.
    #[expect(unsafe_code, reason = "the root must be a page table, which no type can prove")]
    unsafe fn switch(&self, space: &Self::Space);

    /// The thread that this CPU runs enters the kernel, by a system call or a fault. Until it
    /// [returns](Self::return_to_user) it touches no user address: the kernel finds the thread's
    /// memory by its frames.
    fn enter_kernel(&self) {}

    /// The thread of `space` that this CPU runs goes on to user mode.
    ///
    /// Called before a thread first does so, and whenever it does after
    /// [`enter_kernel`](Self::enter_kernel) or [`switch`](Self::switch), on whatever CPU the thread
    /// is by then: a thread that was preempted was in the kernel.
    ///
    /// # Safety
    ///
    /// As [`switch`](Self::switch).
    #[expect(unsafe_code, reason = "as for `switch`")]
    unsafe fn return_to_user(&self, space: &Self::Space) {
        let _ = space;
    }

    /// This CPU goes on to a kernel thread, or to idle, with the space still loaded.
    fn enter_lazy(&self);

    /// This CPU is about to enter an idle state in which its TLB is lost.
    fn leave_space(&self);

    /// The body of the flush interrupt's handler.
    fn interrupt(&self);

    /// Called in the handler of the timer's interrupt: see [`Policy::tick_ns`].
    fn tick(&self) {}
}

/// Where a space stands after [`retire`](Lifetimes::retire).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retired {
    /// No CPU can walk its page tables: they can be freed.
    Free,
    /// CPUs still have it loaded. [`take_dead`](Lifetimes::take_dead) returns its root on the last
    /// of them.
    Held,
}

/// A flush that did not have to be sent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Later<P, D> {
    /// It was sent as any other flush.
    Sent(P),
    /// CPUs come to it by themselves.
    Deferred(D),
}
