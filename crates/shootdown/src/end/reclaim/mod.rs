//! *Reclaim*: unmapping many pages of running programs with one flush. (Linux:
//! `tlbflush_unmap_batch`.)
//!
//! Reclaim unmaps pages of many spaces, one by one and in no particular order. A flush of each page
//! would interrupt every CPU once per page. A [`Batch`] defers these flushes: it records which
//! pages of which space were unmapped. When the batch is sent, each CPU that could be using one of
//! the pages is interrupted once, and this CPU flushes its own TLB at the same time. An interrupted
//! CPU catches up with the space that it runs, range by range. It catches up with each other space
//! when it next runs that space.
//!
//! # Until the batch is done
//!
//! From when an entry is cleared until the batch is done, other CPUs may still use the page. Three
//! operations must take this into account:
//!
//! - *Reuse or write-back of the page.* The page may still change, so it must neither be reused nor
//!   written back. The batch keeps it in a bag, and returns it when the batch is done.
//! - *An operation that finds the entry empty*, and would have flushed it if it had mapped a page:
//!   `munmap`, `mprotect`, `mremap`, `madvise`. Its caller relies on no CPU using the page
//!   afterwards. Such an operation must call [`flush_if_batched`](PinnedCpu::flush_if_batched),
//!   which flushes the extent if the space has unflushed pages in a batch.
//! - *An operation that treats the page as clean* because the entry was not dirty. A CPU might
//!   still write to the page. On most machines it cannot: before its first write, the CPU walks the
//!   page tables again, and faults ([`Machine::traps_stale_writes`]). On other machines, a page
//!   that could be written is flushed immediately.
//!
//! Clearing an accessed bit needs no flush: a CPU that has cached the entry as accessed does not
//! set the bit again, so the page merely seems older than it is.
//!
//! The protocol between the batch and an operation that finds an entry empty is in
//! [`rules`](crate::base::rules).

mod mark;
mod sent;
mod unflushed;

use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::Deref;

use crate::base::ids::DeviceTicket;
use crate::parts::extent::Extent;
use crate::parts::extent_set::ExtentSet;
use crate::parts::trace_event::{FlushCause, TraceScope};
use crate::path::notify::NotifiedBy;
use crate::path::pending::Pending;
use crate::path::trace::pages_of;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

pub use sent::SentBatch;
pub use unflushed::{CleanBatch, CleanEntry, CleanExtent, Unflushed};

/// Default number of spaces in a batch: the number of pages that Linux reclaims at a time
/// (`SWAP_CLUSTER_MAX`), which is enough if each page is mapped once.
pub const BATCH_SPACES: usize = 32;

/// Pages of up to `SPACES` spaces that were unmapped and not flushed yet. Each space has an
/// [`ExtentSet`].
///
/// `S` is a pointer to a space that keeps the space at its address: a reference, or an `Arc`. `B`
/// is a collection of pages, as in [`Gather`](crate::Gather). A batch takes 48 bytes for each
/// space, so it fits on a kernel's stack.
///
/// If a batch is dropped before it is [sent](Self::send), it leaks its pages. Its spaces then stay
/// marked, and each later [`flush_if_batched`](PinnedCpu::flush_if_batched) of them flushes.
#[must_use = "unmapped pages must be flushed"]
pub struct Batch<S, B, const SPACES: usize = BATCH_SPACES> {
    /// The first `count` are in use, each for another space. The one added last is the most likely
    /// to be used again.
    spaces: [Option<BatchedSpace<S>>; SPACES],
    count: usize,
    pages: ManuallyDrop<B>,
}

/// The unmapped extents of one space.
#[derive(Debug)]
struct BatchedSpace<S> {
    space: S,
    extents: ExtentSet,
}

/// Error of a batch that has no room for another space: send the batch, and begin another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchIsFull;

/// A space in a batch: the caller may clear entries of this space.
#[must_use = "add each cleared extent to the batch with `unmapped`"]
pub struct BatchEntry<'b, M: Machine, S> {
    extents: &'b mut ExtentSet,
    space: &'b S,
    machine: PhantomData<M>,
}

/// Possibility that a CPU which has cached a cleared entry still writes to the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaleWrites {
    /// The entry was read-only.
    Impossible,
    /// The entry was writable, whether dirty or not.
    Possible,
}

impl<S, B: Default, const SPACES: usize> Batch<S, B, SPACES> {
    /// An empty batch.
    pub fn new() -> Self {
        let spaces = core::array::from_fn(|_| None);
        Self { spaces, count: 0, pages: ManuallyDrop::new(B::default()) }
    }

    /// Returns `true` if the batch has no space: then it does not have to be sent.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The pages to free when the batch is done.
    pub fn pages(&self) -> &B {
        &self.pages
    }

    /// Defers the freeing of a page until the batch is done.
    pub fn defer_free<F>(&mut self, page: F)
    where
        B: Extend<F>,
    {
        self.pages.extend([page]);
    }

    /// Adds a space to the batch, unless it has been added already, and marks it: from now on,
    /// [`Space::is_batched`] returns `true` for operations that change its page tables.
    ///
    /// Call this *before* clearing the first entry of the space in this batch. Another call for the
    /// same space costs a search of the batch.
    ///
    /// # Errors
    ///
    /// [`BatchIsFull`] if the batch already has `SPACES` other spaces.
    pub fn space<M: Machine>(
        &mut self,
        machine: &M,
        space: &S,
    ) -> Result<BatchEntry<'_, M, S>, BatchIsFull>
    where
        S: Deref<Target = Space<M>> + Clone,
    {
        let index = match self.index_of(space) {
            Some(index) => index,
            None if self.count == SPACES => return Err(BatchIsFull),
            None => {
                space.mark_batched(machine);
                self.spaces[self.count] =
                    Some(BatchedSpace { space: space.clone(), extents: ExtentSet::new() });
                self.count += 1;
                self.count - 1
            }
        };
        Ok(self.entry(index))
    }

    /// The entry of a space that was [added](Self::space); `None` if it was not. For a kernel that
    /// cannot keep the entry, as one in C.
    pub fn find<M: Machine>(&mut self, space: &S) -> Option<BatchEntry<'_, M, S>>
    where
        S: Deref<Target = Space<M>>,
    {
        self.index_of(space).map(|index| self.entry(index))
    }

    /// The place of a space that was added. The one added last is the first that is compared.
    fn index_of<M: Machine>(&self, space: &S) -> Option<usize>
    where
        S: Deref<Target = Space<M>>,
    {
        let address = |space: &S| &raw const **space;
        self.spaces[..self.count].iter().rposition(|batched| {
            batched.as_ref().is_some_and(|batched| address(&batched.space) == address(space))
        })
    }

    fn entry<M: Machine>(&mut self, index: usize) -> BatchEntry<'_, M, S> {
        let BatchedSpace { space, extents } =
            self.spaces[index].as_mut().expect("filled up to `count`");
        BatchEntry { extents, space, machine: PhantomData }
    }

    /// Notifies once every CPU that could be using one of the pages, and flushes this CPU's TLB.
    ///
    /// The batch is empty and can be filled again when the returned [`SentBatch`] is done. The
    /// `SentBatch` borrows the batch and does not move it, because a batch of 32 spaces is 1.5 KiB.
    pub fn send<'e, M: Machine>(
        &mut self,
        pin: &PinnedCpu<'e, M>,
    ) -> SentBatch<'_, 'e, M, S, B, SPACES>
    where
        S: Deref<Target = Space<M>>,
    {
        SentBatch { pending: pin.flush_spaces(&self.spaces[..self.count]), batch: self }
    }
}

impl<S, B: Default, const SPACES: usize> Default for Batch<S, B, SPACES> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S, B, const SPACES: usize> fmt::Debug for Batch<S, B, SPACES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extents = self.spaces.iter().flatten().map(|batched| &batched.extents);
        f.debug_list().entries(extents).finish()
    }
}

impl<M: Machine, S: Deref<Target = Space<M>>> BatchEntry<'_, M, S> {
    /// Adds `extent`, in which entries were cleared.
    ///
    /// The returned [`Pending`] is done, unless a CPU could write to the pages without a trap. Such
    /// pages are flushed immediately: wait for the `Pending` before you read whether they are
    /// dirty.
    pub fn unmapped<'e>(
        self,
        pin: &PinnedCpu<'e, M>,
        extent: Extent,
        stale_writes: StaleWrites,
    ) -> Pending<'e, M> {
        if stale_writes == StaleWrites::Possible && !pin.machine().traps_stale_writes() {
            return pin.flush(self.space, extent);
        }
        self.extents.add(extent);
        Pending::done(pin.engine)
    }
}

impl<M: Machine, S> fmt::Debug for BatchEntry<'_, M, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BatchEntry").field(&self.extents).finish()
    }
}

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Flushes the unmapped extents of several spaces, and rings each CPU at most once.
    fn flush_spaces<S>(&self, spaces: &[Option<BatchedSpace<S>>]) -> Pending<'e, M>
    where
        S: Deref<Target = Space<M>>,
    {
        let _operation = self.begin();
        let (machine, began_ns) = (self.machine(), self.begin_trace());
        let mut pending = Pending::done(self.engine);
        let (mut is_broadcast, mut devices) = (false, DeviceTicket::DONE);
        let mut own_part = None;
        for batched in spaces.iter().flatten().filter(|batched| !batched.extents.is_empty()) {
            let (space, extents) =
                (&*batched.space, batched.extents.up_to(machine.flush_ceiling()));
            let (generation, notified) =
                self.flush_one_of_several(space, extents, &mut pending.waiting, &mut devices);
            is_broadcast |= notified != NotifiedBy::Interrupts;
            // A CPU that reclaims in the middle of a page fault may be lazy on the space. Then it
            // catches up when it comes back, with one scan of the log for many batches. A broadcast
            // to all reaches this CPU.
            if notified != NotifiedBy::BroadcastToAll
                && self.presence_word().is_active_on(space.id())
            {
                own_part = Some((space, extents, generation));
            }
        }
        pending.add_devices(devices);
        self.ring_present(&mut pending);
        if is_broadcast {
            self.await_broadcast(&mut pending);
        }
        // This CPU flushes while the interrupted CPUs flush.
        if let Some((space, extents, generation)) = own_part {
            // The batch waits for this CPU as for each interrupted one, so the same ceiling
            // applies.
            let page_count: usize = extents.iter().map(|extent| extent.page_count()).sum();
            if page_count <= machine.batch_ceiling() {
                self.flush_all_here(space, extents, generation, NotifiedBy::Interrupts);
            } else {
                self.catch_up(space);
            }
        }
        let extents = spaces.iter().flatten().flat_map(|batched| batched.extents.as_slice());
        let pages = pages_of::<M>(extents);
        self.end_trace(began_ns, FlushCause::Reclaim, TraceScope::Spaces, pages, &mut pending);
        pending
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;
