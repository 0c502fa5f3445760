//! *Reclaim*: pages that are taken from running programs, many at a time. (Linux:
//! `tlbflush_unmap_batch`.)
//!
//! Who needs memory takes pages from many spaces, one by one and in no order. To tell other CPUs of
//! each costs an interrupt for each page and CPU. A [`Batch`] puts that off: it notes what was
//! taken from which space, and when it is sent, each CPU that could be using any of it is
//! interrupted once, while this one does its own part. A CPU that is told makes up for what it has
//! missed of the space that it runs, range by range; of all others, when it next runs them.
//!
//! # What must not happen meanwhile
//!
//! From the moment that an entry is cleared until the batch is done, other CPUs may go on using the
//! page. Three things must wait for that, or see to it:
//!
//! - *Whatever becomes of the page*: it must not be reused, nor written out to where it came from,
//!   for it may still change. It is in the batch's bag, and comes out when the batch is done.
//! - *Who finds the entry empty*, and would have flushed it had it held a page: `munmap` and
//!   `mprotect`, `mremap` and `madvise`. Their callers rely on nobody using it afterwards. They
//!   [settle](PinnedCpu::flush_if_batched): what a batch holds back, they flush themselves.
//! - *Whoever takes a page for clean*, because its entry said so: a CPU might yet write to it. On
//!   most machines it can't: it walks the page tables again before its first write, and finds
//!   nothing ([`Machine::traps_stale_writes`]). On others, what could be written is flushed at
//!   once.
//!
//! To take away the mark that a page was accessed needs no flush at all: a CPU that remembers it
//! as marked does not mark it again, and the page is taken for older than it is.
//!
//! The protocol between the first and the second is in [`rules`](crate::rules).

use core::fmt;
use core::marker::PhantomData;
use core::mem::{self, ManuallyDrop};
use core::ops::Deref;
use core::sync::atomic::Ordering::Relaxed;

use crate::extent::Extent;
use crate::extent_set::ExtentSet;
use crate::flush::Notified;
use crate::machine::Machine;
use crate::memory::{Word, order};
use crate::pending::Pending;
use crate::pinned_cpu::PinnedCpu;
use crate::rules::Rule;
use crate::space::Space;

/// Of how many spaces a batch can hold pages, unless it says otherwise: as many as Linux takes
/// pages at a time (`SWAP_CLUSTER_MAX`), if each is mapped once.
pub const BATCH_SPACES: usize = 32;

/// Pages that were unmapped, and not flushed yet: of up to `SPACES` spaces, each with a few extents
/// that grow where they must.
///
/// `S` is what points to a space and keeps it in place: a reference, an `Arc`. `B` is what the
/// pages are kept in, as in [`Gather`](crate::Gather). Takes 48 bytes for each of the spaces, so
/// that it fits a kernel's stack.
///
/// Dropped before it is [sent](Self::send), it leaks its pages, and its spaces are flushed by all
/// who [settle](PinnedCpu::flush_if_batched) from then on.
#[must_use = "what was unmapped must be flushed"]
pub struct Batch<S, B, const SPACES: usize = BATCH_SPACES> {
    /// Those of a space that comes again are with the others; the last one is the likeliest.
    spaces: [Option<BatchedSpace<S>>; SPACES],
    count: usize,
    pages: ManuallyDrop<B>,
}

/// What was unmapped of one space.
struct BatchedSpace<S> {
    space: S,
    extents: ExtentSet,
}

/// There is no room for another space: the batch is to be sent, and another one begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchIsFull;

/// A space in a batch: its entries may be cleared.
#[must_use = "what is cleared must be noted"]
pub struct BatchEntry<'b, M: Machine, S> {
    extents: &'b mut ExtentSet,
    space: &'b S,
    machine: PhantomData<M>,
}

/// Whether a CPU that remembers an entry as it was could still write to the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaleWrites {
    /// The entry let nobody write.
    Impossible,
    /// It did, marked as written or not.
    Possible,
}

impl<S, B: Default, const SPACES: usize> Batch<S, B, SPACES> {
    /// Nothing yet.
    pub fn new() -> Self {
        let spaces = core::array::from_fn(|_| None);
        Self { spaces, count: 0, pages: ManuallyDrop::new(B::default()) }
    }

    /// Whether nothing was unmapped: then nothing need be sent.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The pages.
    pub fn pages(&self) -> &B {
        &self.pages
    }

    /// A page is to come out when the batch is done.
    pub fn free_later<F>(&mut self, page: F)
    where
        B: Extend<F>,
    {
        self.pages.extend([page]);
    }

    /// Says that entries of a space are about to be cleared: from now on, those who change its page
    /// tables find that something may be held back.
    ///
    /// To be called *before* the first of them is cleared, where it was not called for the space
    /// since the batch began; calling it again costs a look.
    ///
    /// # Errors
    ///
    /// If there are `SPACES` others in the batch already.
    #[expect(clippy::missing_panics_doc, reason = "the lot has just been filled")]
    pub fn space<M: Machine>(
        &mut self,
        machine: &M,
        space: &S,
    ) -> Result<BatchEntry<'_, M, S>, BatchIsFull>
    where
        S: Deref<Target = Space<M>> + Clone,
    {
        let known = self.spaces[..self.count].iter().rposition(|batched| {
            batched
                .as_ref()
                .is_some_and(|batched| core::ptr::eq(&raw const *batched.space, &raw const **space))
        });
        let index = match known {
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
        let BatchedSpace { space, extents } =
            self.spaces[index].as_mut().expect("filled up to `count`");
        Ok(BatchEntry { extents, space, machine: PhantomData })
    }

    /// Notifies every CPU that could be using any of it, once, and does this CPU's own part.
    ///
    /// When the returned [`SentBatch`] is done, the batch is empty, and can be filled again. It
    /// stays where it is: a batch of 32 spaces is 1.5 KiB.
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
    /// Entries in `extent` were cleared.
    ///
    /// The returned [`Pending`] is done, except where a CPU could write to the pages unnoticed:
    /// there they are flushed at once, and the caller waits for that before it looks whether they
    /// were written.
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

/// A batch whose flush is on its way.
///
/// Dropping it waits, and drops the pages then.
#[must_use = "what was unmapped is handed out by `wait`"]
pub struct SentBatch<'b, 'e, M, S, B, const SPACES: usize = BATCH_SPACES>
where
    M: Machine,
    S: Deref<Target = Space<M>>,
    B: Default,
{
    pending: Pending<'e, M>,
    /// Its spaces are marked until the flush is done.
    batch: &'b mut Batch<S, B, SPACES>,
}

impl<M: Machine, S, B: Default, const SPACES: usize> SentBatch<'_, '_, M, S, B, SPACES>
where
    S: Deref<Target = Space<M>>,
{
    /// Returns when no CPU can use the pages any more, and hands them out. As [`Pending::wait`].
    pub fn wait(mut self) -> B {
        self.finish()
    }

    /// Whether no CPU can, without waiting. As [`Pending::poll`].
    pub fn poll(&mut self) -> bool {
        self.pending.poll()
    }

    fn finish(&mut self) -> B {
        self.pending.wait();
        let machine = &self.pending.engine.machine;
        let Batch { spaces, count, pages } = &mut *self.batch;
        for batched in spaces[..mem::take(count)].iter_mut().filter_map(Option::take) {
            batched.space.unmark_batched(machine);
        }
        mem::take(&mut **pages)
    }
}

impl<M: Machine, S, B: Default, const SPACES: usize> Drop for SentBatch<'_, '_, M, S, B, SPACES>
where
    S: Deref<Target = Space<M>>,
{
    fn drop(&mut self) {
        drop(self.finish());
    }
}

impl<M: Machine, S, B: Default, const SPACES: usize> fmt::Debug
    for SentBatch<'_, '_, M, S, B, SPACES>
where
    S: Deref<Target = Space<M>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SentBatch").field(&self.pending).finish()
    }
}

impl<M: Machine> Space<M> {
    /// Whether a batch holds back what it has taken from this space: to be asked by who has changed
    /// page tables, after that; see [`PinnedCpu::flush_if_batched`]. See [`Rule::BatchedAcquire`].
    #[inline]
    pub fn is_batched(&self, machine: &M) -> bool {
        self.batched.load(order(machine, Rule::BatchedAcquire)) != 0
    }

    /// A batch is about to take something. Ordered by the clearing of the entry, which comes after.
    fn mark_batched(&self, machine: &M) {
        if !machine.breaks(Rule::MarkBatched) {
            // Relaxed: the kernel clears the entry with release, after this.
            self.batched.fetch_add(1, Relaxed);
        }
    }

    /// Nobody uses what a batch had taken. See [`Rule::BatchedRelease`].
    fn unmark_batched(&self, machine: &M) {
        if !machine.breaks(Rule::MarkBatched) {
            self.batched.fetch_add(1_u64.wrapping_neg(), order(machine, Rule::BatchedRelease));
        }
    }
}

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Flushes `extent` of `space`, if a [`Batch`] holds back anything of the space.
    ///
    /// For who has changed page tables, and found nothing to flush where another may just have
    /// taken a page away: when the returned [`Pending`] is done, nobody uses what was there. Where
    /// something *was* to be flushed, too, one [`flush`](Self::flush) of all that was to be changed
    /// does both, if the space [is held back](Space::is_batched).
    pub fn flush_if_batched(&self, space: &Space<M>, extent: Extent) -> Pending<'e, M> {
        if space.is_batched(self.machine()) {
            self.flush(space, extent)
        } else {
            Pending::done(self.engine)
        }
    }

    /// Flushes what was taken from several spaces, and rings each CPU once.
    fn flush_spaces<S>(&self, spaces: &[Option<BatchedSpace<S>>]) -> Pending<'e, M>
    where
        S: Deref<Target = Space<M>>,
    {
        let machine = self.machine();
        let mut pending = Pending::done(self.engine);
        let mut is_broadcast = false;
        let mut own_part = None;
        for batched in spaces.iter().flatten().filter(|batched| !batched.extents.is_empty()) {
            let (space, extents) =
                (&*batched.space, batched.extents.up_to(machine.flush_ceiling()));
            let (generation, notified) =
                self.flush_one_of_several(space, extents, &mut pending.waiting);
            is_broadcast |= notified == Notified::ByBroadcast;
            // If we are lazy on it, as a CPU that reclaims in the middle of a page fault may be,
            // there is time until we come back, and one look at the log then stands for many
            // batches.
            if self.presence_word().is_active_on(space.id()) {
                own_part = Some((space, extents, generation));
            }
        }
        self.ring_present(&mut pending);
        if is_broadcast {
            self.await_broadcast(&mut pending);
        }
        // While the others do theirs.
        if let Some((space, extents, generation)) = own_part {
            // It holds up the batch as the others' parts do.
            let page_count: usize = extents.iter().map(|extent| extent.page_count()).sum();
            if page_count <= machine.batch_ceiling() {
                self.flush_all_here(space, extents, generation);
            } else {
                self.catch_up(space);
            }
        }
        pending
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::engine::Shootdown;
    use crate::ids::{CpuId, Root};
    use crate::soft::{Config, Host, OnCpu, Soft, Touch};
    use core::cell::Cell;
    use std::vec;
    use std::vec::Vec;

    type Spaces<'s> = &'s Space<Soft<Host>>;
    type Pages = Vec<usize>;

    const PAGES: usize = 40;
    /// A CPU that comes online drops everything.
    const ONLINE: u64 = 1;
    const CONFIG: Config = Config { cpus: 3, tables: 3, pages: PAGES, ..Config::DEFAULT };

    struct System {
        engine: Shootdown<Soft<Host>>,
        spaces: [Space<Soft<Host>>; 3],
    }

    impl System {
        fn new(config: Config) -> Self {
            let engine = Soft::engine(config);
            let spaces = [0, 1, 2].map(|root| engine.space(Root(root)));
            for space in &spaces {
                (0..PAGES).for_each(|page| engine.machine().map(space, page));
            }
            (0..config.cpus).for_each(|cpu| engine.enter(CpuId(cpu)).pin().online());
            Self { engine, spaces }
        }

        /// CPU `cpu` uses some pages of a space.
        fn run(&self, cpu: u32, space: usize) -> OnCpu<'_, Host> {
            let cpu = self.engine.enter(CpuId(cpu));
            #[expect(unsafe_code, reason = "the spaces live as long as the machine")]
            // SAFETY: see the reason.
            unsafe {
                cpu.pin().switch(&self.spaces[space]);
            }
            (0..PAGES).for_each(|page| assert_eq!(cpu.touch(page), Touch::Ok));
            cpu
        }

        /// Takes a page, and says what it was to wait for.
        fn take<'s, const SPACES: usize>(
            &'s self,
            batch: &mut Batch<Spaces<'s>, Pages, SPACES>,
            cpu: &OnCpu<'s, Host>,
            space: usize,
            page: usize,
        ) -> Result<Pending<'s, Soft<Host>>, BatchIsFull> {
            let in_batch = batch.space(self.engine.machine(), &&self.spaces[space])?;
            assert!(self.engine.machine().take(&self.spaces[space], page));
            let extent = Extent::page((page as u64) << 12);
            let pending = in_batch.unmapped(&cpu.pin(), extent, StaleWrites::Possible);
            batch.free_later(page);
            Ok(pending)
        }
    }

    #[test]
    fn each_cpu_is_interrupted_once_and_drops_what_was_taken_of_its_space_alone() {
        let system = System::new(CONFIG);
        let (zero, one, two) = (system.run(0, 0), system.run(1, 0), system.run(2, 1));
        let mut batch: Batch<_, Pages> = Batch::new();
        for (space, page) in [(0, 3), (1, 5), (0, 9), (0, 4), (1, 30), (2, 1)] {
            system.take(&mut batch, &zero, space, page).unwrap().wait();
        }
        let mut sent = batch.send(&zero.pin());
        assert!(!sent.poll());
        one.interrupt_point();
        two.interrupt_point();
        assert_eq!(sent.wait(), [3, 5, 9, 4, 30, 1]);
        let faults = |cpu: &OnCpu<'_, Host>| {
            let pages = 0..PAGES;
            pages.filter(|&page| cpu.touch(page) == Touch::Fault).collect::<Vec<_>>()
        };
        assert_eq!(faults(&zero), [3, 4, 9]);
        assert_eq!(faults(&one), [3, 4, 9]);
        assert_eq!(faults(&two), [5, 30]);
        let stats = system.engine.machine().total_stats();
        assert_eq!((stats.interrupts_sent, stats.flushes_full), (2, ONLINE * 3));
        assert_eq!(stats.pages_invalidated, 3 + 3 + 2);
    }

    #[test]
    fn who_finds_a_page_taken_flushes_it_until_the_batch_is_done() {
        let system = System::new(CONFIG);
        let (zero, one) = (system.run(0, 0), system.run(1, 0));
        let pin = zero.pin();
        let settles = |space: &Space<_>| {
            let before = space.stats(system.engine.machine()).flushes_ranged;
            let mut pending = pin.flush_if_batched(space, Extent::page(0x3000));
            one.interrupt_point();
            assert!(pending.poll());
            space.stats(system.engine.machine()).flushes_ranged - before
        };
        let mut batch: Batch<_, Pages> = Batch::new();
        assert_eq!(settles(&system.spaces[0]), 0);
        system.take(&mut batch, &zero, 0, 3).unwrap().wait();
        assert_eq!(settles(&system.spaces[0]), 1);
        assert_eq!(one.touch(3), Touch::Fault);
        assert_eq!(settles(&system.spaces[1]), 0, "nothing of it was taken");
        let sent = batch.send(&zero.pin());
        assert_eq!(settles(&system.spaces[0]), 1, "sent is not done");
        // Waits as well, though everyone has answered.
        drop(sent);
        assert_eq!(settles(&system.spaces[0]), 0);
    }

    #[test]
    fn too_many_spaces_are_refused_and_too_many_pages_are_all_of_them() {
        let system = System::new(CONFIG);
        let zero = system.run(0, 0);
        let mut batch: Batch<_, Pages, 2> = Batch::new();
        for page in 0..PAGES {
            system.take(&mut batch, &zero, 0, page).unwrap().wait();
        }
        system.take(&mut batch, &zero, 1, 0).unwrap().wait();
        assert_eq!(system.take(&mut batch, &zero, 2, 0).unwrap_err(), BatchIsFull);
        assert!(!system.spaces[2].is_batched(system.engine.machine()));
        system.take(&mut batch, &zero, 1, 1).unwrap().wait();
        assert_eq!(batch.send(&zero.pin()).wait().len(), PAGES + 2);
        assert_eq!(zero.pin().cpu.stats().flushes_full, ONLINE + 1);
        assert_eq!(zero.touch(39), Touch::Fault);
    }

    #[test]
    fn where_stale_writes_go_unnoticed_what_could_be_written_is_flushed_at_once() {
        let system = System::new(Config { traps_stale_writes: false, ..CONFIG });
        let (zero, one) = (system.run(0, 0), system.run(1, 0));
        let mut batch: Batch<_, Pages> = Batch::new();
        let mut pending = system.take(&mut batch, &zero, 0, 3).unwrap();
        assert!(!pending.poll());
        one.interrupt_point();
        pending.wait();
        assert_eq!((zero.touch(3), one.touch(3)), (Touch::Fault, Touch::Fault));
        assert!(batch.send(&zero.pin()).poll(), "there is nothing left to flush");
    }

    /// A bag that says when its pages would be freed.
    #[derive(Default)]
    struct Watched<'d>(Option<&'d Cell<bool>>);

    impl<'d> Extend<&'d Cell<bool>> for Watched<'d> {
        fn extend<I: IntoIterator<Item = &'d Cell<bool>>>(&mut self, pages: I) {
            self.0 = pages.into_iter().last();
        }
    }

    impl Drop for Watched<'_> {
        fn drop(&mut self) {
            if let Some(is_freed) = self.0 {
                is_freed.set(true);
            }
        }
    }

    #[test]
    fn a_batch_that_is_dropped_frees_nothing_and_its_spaces_are_flushed() {
        let system = System::new(CONFIG);
        let zero = system.run(0, 0);
        let is_freed = Cell::new(false);
        let mut batch: Batch<Spaces<'_>, Watched<'_>> = Batch::new();
        let in_batch = batch.space(system.engine.machine(), &&system.spaces[0]).unwrap();
        in_batch.unmapped(&zero.pin(), Extent::page(0), StaleWrites::Impossible).wait();
        batch.free_later(&is_freed);
        drop(batch);
        assert!(!is_freed.get());
        assert!(system.spaces[0].is_batched(system.engine.machine()));
    }

    #[test]
    fn a_batch_fits_a_kernels_stack() {
        let size = size_of::<Batch<Spaces<'_>, Pages>>();
        assert_eq!(size, BATCH_SPACES * 48 + size_of::<usize>() + size_of::<Pages>());
    }

    #[test]
    fn nothing_taken_is_nothing_flushed() {
        let system = System::new(CONFIG);
        let zero = system.run(0, 0);
        let mut batch: Batch<Spaces<'_>, Pages> = Batch::new();
        assert!(batch.is_empty());
        let _ = batch.space(system.engine.machine(), &&system.spaces[0]).unwrap();
        assert!(!batch.is_empty(), "it is marked, and something may be taken");
        assert_eq!(batch.send(&zero.pin()).wait(), vec![0; 0]);
        assert_eq!(system.spaces[0].stats(system.engine.machine()).flushes_ranged, 0);
        assert!(!system.spaces[0].is_batched(system.engine.machine()));
    }

    #[test]
    fn who_is_lazy_on_its_space_makes_up_for_its_own_batches_when_it_comes_back() {
        let system = System::new(CONFIG);
        let zero = system.run(0, 0);
        zero.pin().enter_lazy();
        for pages in [[3, 4], [20, 5]] {
            let mut batch: Batch<_, Pages> = Batch::new();
            for page in pages {
                system.take(&mut batch, &zero, 0, page).unwrap().wait();
            }
            assert_eq!(batch.send(&zero.pin()).wait(), pages);
        }
        assert_eq!(zero.pin().cpu.stats().pages_invalidated, 0);
        assert!(zero.pin().resume(system.spaces[0].id()));
        assert_eq!(zero.pin().cpu.stats().pages_invalidated, 4);
        assert_eq!(zero.touch(20), Touch::Fault);
    }

    /// Of what a CPU missed while it was elsewhere, 33 pages that were taken are worth dropping one
    /// by one, and 8 that the program gave up itself.
    #[test]
    fn who_comes_back_drops_more_pages_one_by_one_if_they_were_taken() {
        let missed = |taken: usize, given_up: usize| {
            let system = System::new(Config { catch_up_ceiling: 8, ..CONFIG });
            let (zero, one) = (system.run(0, 0), system.run(1, 0));
            one.pin().enter_lazy();
            let mut batch: Batch<_, Pages> = Batch::new();
            for page in 0..taken {
                system.take(&mut batch, &zero, 0, page).unwrap().wait();
            }
            assert_eq!(batch.send(&zero.pin()).wait().len(), taken);
            for page in taken..taken + given_up {
                assert!(system.engine.machine().take(&system.spaces[0], page));
                zero.pin().flush(&system.spaces[0], Extent::page((page as u64) << 12)).wait();
            }
            assert!(one.pin().resume(system.spaces[0].id()));
            assert!((0..taken + given_up).all(|page| one.touch(page) == Touch::Fault));
            let stats = one.pin().cpu.stats();
            (stats.flushes_full - ONLINE, stats.pages_invalidated)
        };
        assert_eq!(missed(33, 0), (0, 33));
        assert_eq!(missed(34, 0), (1, 0));
        assert_eq!(missed(0, 8), (0, 8));
        assert_eq!(missed(0, 9), (1, 0));
        assert_eq!(missed(25, 8), (0, 33));
        assert_eq!(missed(25, 9), (1, 0));
        assert_eq!(missed(26, 8), (1, 0));
    }

    #[test]
    fn where_hardware_tells_the_others_nobody_is_interrupted() {
        let system = System::new(Config { ..CONFIG.with_broadcasts(6) });
        let (zero, one) = (system.run(0, 0), system.run(1, 1));
        let mut batch: Batch<_, Pages> = Batch::new();
        system.take(&mut batch, &zero, 0, 3).unwrap().wait();
        system.take(&mut batch, &zero, 1, 5).unwrap().wait();
        assert_eq!(batch.send(&zero.pin()).wait(), [3, 5]);
        assert_eq!((zero.touch(3), one.touch(5)), (Touch::Fault, Touch::Fault));
        assert_eq!(system.engine.machine().total_stats().interrupts_sent, 0);
    }
}
