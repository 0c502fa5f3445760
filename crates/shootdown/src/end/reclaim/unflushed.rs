//! *Flush at reuse*: clean pages that were unmapped, and whose flush waits until their frames are
//! reused.
//!
//! A page that no CPU can write through its old translation keeps its contents for as long as its
//! frame is left alone. A CPU that still reads it reads what it would have read before. So the
//! flush of such a page does not have to come when it is unmapped, but before its frame is used for
//! anything else. By then, most CPUs have caught up by themselves: they have switched, or were
//! interrupted for another flush. (Linux: LUF, "lazy unmap flush", posted since 2024 and not
//! merged.)
//!
//! [`CleanBatch::defer`] counts and logs the flush of each space, and interrupts no CPU.
//! [`Unflushed::reuse`] interrupts the CPUs that use one of the spaces and have not published that
//! they have seen that generation. Only then are the frames handed out.

use core::ops::Deref;

use super::{BATCH_SPACES, Batch, BatchEntry, BatchIsFull, BatchedSpace, SentBatch, StaleWrites};
use crate::base::ids::{DeviceTicket, SpaceId};
use crate::base::rules::Rule;
use crate::parts::cpu_set::CpuSet;
use crate::parts::extent::Extent;
use crate::parts::flush_log::Cause;
use crate::parts::trace_event::{FlushCause, TraceScope};
use crate::path::notify::{Flush, NotifiedBy, WalkerPolicy};
use crate::path::pending::Pending;
use crate::path::trace::pages_of;
use crate::state::broadcaster::Refused;
use crate::state::cpu_state::CpuState;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

/// An extent whose entries no CPU can have cached as writable, and that freed no page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanExtent(Extent);

impl CleanExtent {
    /// An extent of pages that no CPU can write any more; `None` if stale writes are possible, or
    /// if the extent [frees tables](Extent::frees_tables). Flush such an extent when you unmap it.
    ///
    /// An entry that was made read-only counts as writable until that change is flushed.
    #[must_use]
    pub const fn new(extent: Extent, stale_writes: StaleWrites) -> Option<Self> {
        match stale_writes {
            StaleWrites::Impossible if !extent.frees_tables() => Some(Self(extent)),
            _ => None,
        }
    }
}

/// Clean pages of up to `SPACES` spaces that were unmapped, and whose flush is to be
/// [deferred](Self::defer) until their frames are reused. `S` and `B` are as in [`Batch`].
///
/// If it is dropped before, it leaks its pages, and its spaces stay marked.
#[derive(Debug)]
#[must_use = "unmapped pages must be flushed before their frames are reused"]
pub struct CleanBatch<S, B, const SPACES: usize = BATCH_SPACES>(Unflushed<S, B, SPACES>);

/// A space in a [`CleanBatch`]: the caller may clear entries of this space.
#[derive(Debug)]
#[must_use = "add each cleared extent to the batch with `unmapped`"]
pub struct CleanEntry<'b, M: Machine, S>(BatchEntry<'b, M, S>);

/// Frames that CPUs may still read through translations which are in no page table any more.
///
/// The frames are out of reach until [`reuse`](Self::reuse) has been waited for. The kernel must
/// neither write to them nor take one back in that time, not even for the page that it holds: each
/// CPU may be reading it. A kernel whose page cache keeps the page puts a reference to the frame
/// into the batch for each cleared entry, instead of the frame. It may map the page again for the
/// same contents, and free the frame when all references are dropped. If `Unflushed` is dropped, it
/// leaks the frames.
#[derive(Debug)]
#[must_use = "the frames are lost unless they are reused"]
pub struct Unflushed<S, B, const SPACES: usize = BATCH_SPACES> {
    batch: Batch<S, B, SPACES>,
    /// The generation that covers the extents of each space of the batch.
    generations: [u64; SPACES],
}

impl<S, B: Default, const SPACES: usize> CleanBatch<S, B, SPACES> {
    /// An empty batch.
    pub fn new() -> Self {
        Self(Unflushed { batch: Batch::new(), generations: [0; SPACES] })
    }

    /// Adds a page, which no page table maps any more.
    pub fn defer_free<F>(&mut self, page: F)
    where
        B: Extend<F>,
    {
        self.0.batch.defer_free(page);
    }

    /// Adds a space to the batch and marks it, as [`Batch::space`] does. Call this *before*
    /// clearing the first entry of the space in this batch.
    ///
    /// # Errors
    ///
    /// [`BatchIsFull`] if the batch already has `SPACES` other spaces.
    pub fn space<M: Machine>(
        &mut self,
        machine: &M,
        space: &S,
    ) -> Result<CleanEntry<'_, M, S>, BatchIsFull>
    where
        S: Deref<Target = Space<M>> + Clone,
    {
        self.0.batch.space(machine, space).map(CleanEntry)
    }

    /// The entry of a space that was [added](Self::space), as [`Batch::find`].
    pub fn find<M: Machine>(&mut self, space: &S) -> Option<CleanEntry<'_, M, S>>
    where
        S: Deref<Target = Space<M>>,
    {
        self.0.batch.find(space).map(CleanEntry)
    }

    /// Counts the flush of each space, without an interrupt. This CPU invalidates at once, and
    /// every other CPU when it next catches up.
    ///
    /// Does not compile unless the machine [flushes at reuse](Machine::FLUSHES_AT_REUSE).
    pub fn defer<M: Machine>(mut self, pin: &PinnedCpu<'_, M>) -> Unflushed<S, B, SPACES>
    where
        S: Deref<Target = Space<M>>,
    {
        self.defer_in_place(pin);
        self.0
    }

    /// Does the same without moving the batch. Nothing may be added to the batch from here on. For
    /// the C interface, which checks this.
    #[doc(hidden)]
    pub fn defer_in_place<M: Machine>(
        &mut self,
        pin: &PinnedCpu<'_, M>,
    ) -> &mut Unflushed<S, B, SPACES>
    where
        S: Deref<Target = Space<M>>,
    {
        const { assert!(M::FLUSHES_AT_REUSE, "`Machine::FLUSHES_AT_REUSE` must be `true`") }
        let _operation = pin.begin();
        let Unflushed { batch, generations } = &mut self.0;
        for (generation, batched) in generations.iter_mut().zip(batch.spaces.iter().flatten()) {
            if !batched.extents.is_empty() && !pin.machine().breaks(Rule::CountUnflushed) {
                let extents = batched.extents.up_to(pin.machine().flush_ceiling());
                *generation = pin.count_unflushed(&batched.space, extents);
            }
        }
        &mut self.0
    }

    /// What [`defer_in_place`](Self::defer_in_place) has deferred.
    #[doc(hidden)]
    pub fn deferred(&mut self) -> &mut Unflushed<S, B, SPACES> {
        &mut self.0
    }
}

impl<S, B: Default, const SPACES: usize> Default for CleanBatch<S, B, SPACES> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Machine, S> CleanEntry<'_, M, S> {
    /// Adds `extent`, in which entries were cleared.
    pub fn unmapped(self, extent: CleanExtent) {
        self.0.extents.add(extent.0);
    }
}

impl<S, B: Default, const SPACES: usize> Unflushed<S, B, SPACES> {
    /// Returns `true` if [`reuse`](Self::reuse) would notify a CPU now. An allocator that has
    /// several collections of frames takes first those that are not due.
    pub fn is_due<M: Machine>(&self, pin: &PinnedCpu<'_, M>) -> bool
    where
        S: Deref<Target = Space<M>>,
    {
        let mut others = CpuSet::new();
        self.due().any(|(batched, generation)| {
            let space = &*batched.space;
            others.clear();
            let has_devices = pin.read_others(space, &mut others);
            let machine = pin.machine();
            let may_read = |cpu| machine.state(cpu).may_use_before(machine, space.id(), generation);
            has_devices || pin.is_pinned(space) || others.iter().any(may_read)
        })
    }

    /// Flushes what is still due, and interrupts each CPU at most once. When the returned
    /// [`SentBatch`] is done, it returns the frames, and no CPU can use them any more.
    ///
    /// If all CPUs have caught up since, nothing is sent. To reuse the frames of several
    /// collections, call this for each, and wait afterwards: a CPU that was rung for one of them
    /// catches up with all.
    ///
    /// A page that another part of the kernel has pinned in the meantime, through a translation
    /// that this flush removes, must not be reused: look for pins *after* the wait.
    ///
    /// # Panics
    ///
    /// If a space is another engine's.
    pub fn reuse<'e, M: Machine>(
        &mut self,
        pin: &PinnedCpu<'e, M>,
    ) -> SentBatch<'_, 'e, M, S, B, SPACES>
    where
        S: Deref<Target = Space<M>>,
    {
        SentBatch { pending: pin.flush_due(self), batch: &mut self.batch }
    }

    /// The spaces that have something to flush, each with its generation.
    fn due(&self) -> impl Iterator<Item = (&BatchedSpace<S>, u64)> {
        let spaces = self.batch.spaces[..self.batch.count].iter().flatten();
        spaces.zip(self.generations).filter(|(batched, _)| !batched.extents.is_empty())
    }
}

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Counts and logs a flush of `extents`, which no CPU is notified of, and invalidates on this
    /// CPU. Returns the generation.
    fn count_unflushed(&self, space: &Space<M>, extents: &[Extent]) -> u64 {
        let generation = self.begin_flush(space, extents[0].is_unbounded(), extents.len() as u64);
        let mut others = CpuSet::new();
        self.read_others(space, &mut others);
        // A CPU that finds no entry discards its tag.
        if !self.is_alone(space, &others) || self.presence_word().is_lazy_on(space.id()) {
            let (walkers, cause) = (WalkerPolicy::Ignore, Cause::Reclaim);
            self.log_all(space, &Flush { extents, generation, walkers, cause });
        }
        if self.presence_word().is_active_on(space.id()) {
            self.flush_all_here(space, extents, generation, NotifiedBy::Interrupts);
        }
        generation
    }

    /// Notifies the CPUs that may read one of the frames.
    fn flush_due<S, B: Default, const SPACES: usize>(
        &self,
        unflushed: &Unflushed<S, B, SPACES>,
    ) -> Pending<'e, M>
    where
        S: Deref<Target = Space<M>>,
    {
        let _operation = self.begin();
        let began_ns = self.begin_trace();
        let mut pending = Pending::done(self.engine);
        let (mut is_broadcast, mut devices) = (false, DeviceTicket::DONE);
        for (batched, generation) in unflushed.due() {
            let extents = batched.extents.up_to(self.machine().flush_ceiling());
            let waiting = &mut pending.waiting;
            let notified =
                self.flush_unseen(&batched.space, extents, generation, waiting, &mut devices);
            is_broadcast |= notified != NotifiedBy::Interrupts;
        }
        pending.add_devices(devices);
        self.ring_present(&mut pending);
        if is_broadcast {
            self.await_broadcast(&mut pending);
        }
        // Usually in vain: the CPU that unmaps a page has invalidated at once.
        for (batched, _) in unflushed.due() {
            if self.presence_word().is_active_on(batched.space.id()) {
                self.catch_up(&batched.space);
            }
        }
        let extents = unflushed.due().flat_map(|(batched, _)| batched.extents.as_slice());
        let pages = pages_of::<M>(extents);
        self.end_trace(began_ns, FlushCause::Reclaim, TraceScope::Spaces, pages, &mut pending);
        pending
    }

    /// Does the part of a flush that follows its count, for the CPUs that have not seen
    /// `generation` since. Adds the CPUs that must be interrupted to `present`, and raises
    /// `devices` to the ticket of commands to devices. Returns the method with which CPUs are
    /// notified.
    fn flush_unseen(
        &self,
        space: &Space<M>,
        extents: &[Extent],
        generation: u64,
        present: &mut CpuSet<M::CpuBits>,
        devices: &mut DeviceTicket,
    ) -> NotifiedBy {
        let machine = self.machine();
        let mut others = CpuSet::new();
        if self.read_others(space, &mut others) {
            *devices = self.flush_devices(space, extents).max(*devices);
        }
        if self.is_alone(space, &others) {
            self.count_if_local(&others);
            return NotifiedBy::Interrupts;
        }
        let (walkers, cause) = (WalkerPolicy::Ignore, Cause::Reclaim);
        let flush = Flush { extents, generation, walkers, cause };
        let scan = self.scan(space, &flush, &mut others);
        others.retain(|cpu| machine.state(cpu).may_use_before(machine, space.id(), generation));
        let notified = self
            .try_broadcast(space, scan.tag, &others, extents, generation)
            .unwrap_or_else(|Refused| self.notify_refused(space, extents, devices));
        if notified == NotifiedBy::Interrupts {
            self.count_if_local(&others);
            present.insert_all(&others);
        }
        self.note_skipped(space, &scan, 0);
        notified
    }
}

impl<M: Machine> CpuState<M> {
    /// Returns `true` if the CPU may use a translation of `space` that the flush of `generation`
    /// covers.
    ///
    /// The presence is read first. The generation that is read then is of the space, or of a space
    /// that the CPU has loaded since; when it comes back from there, it catches up.
    fn may_use_before(&self, machine: &M, space: SpaceId, generation: u64) -> bool {
        let presence = self.presence_word(machine);
        if !presence.uses(machine, space) || machine.breaks(Rule::RingAtReuse) {
            return false;
        }
        // A CPU that is switching in has published the generation of another space.
        let is_of_space = presence.is_active_on(space) || machine.breaks(Rule::SeenWhileActive);
        !is_of_space || self.seen(machine) < generation
    }
}
