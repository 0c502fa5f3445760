//! The seam between a memory manager and a way to keep TLBs coherent: what `vm` and a scheduler
//! ask of it. Shootdown's engine is one; the designs that it is compared with are others.

use alloc::rc::Rc;
use alloc::sync::Arc;
use core::ops::Range;

use shootdown::{
    BatchIsFull, Extent, Extents, Here, Horizon, Machine, PageSize, Pending, Root, Space,
    StaleWrites,
};

/// What was changed in a space's page tables, and must not be used by any CPU any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The addresses from the first to the last; `None` for all of the space.
    pub range: Option<Range<u64>>,
    /// Those of them that were changed, as the engine has it.
    pub extents: Extents,
    /// The size of the smallest page that was changed.
    pub page_size: PageSize,
    /// What, besides the translations themselves, is about to be freed.
    pub freed: Freed,
    /// Whether an entry of another size may be written next where something was mapped: a large
    /// page was taken away, or small pages and their table.
    pub resizes: bool,
    /// What it was for: for statistics.
    pub cause: Cause,
}

/// Which operation changed page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// `munmap`, and what a new mapping replaces.
    Unmap,
    /// `madvise`.
    Advise,
    /// `mprotect`.
    Protect,
    /// `mremap`.
    Move,
    /// `fork`.
    Fork,
    /// A write to a page that is shared, or that nobody has written.
    CopyOnWrite,
    /// Small pages become a large one.
    Collapse,
    /// A large page becomes small ones, for what is to be done with some of them.
    Split,
    /// Reclaim: the page was taken by who needs memory.
    Reclaim,
    /// The end of the space.
    Exit,
}

/// What a flush is followed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// Pages at most.
    Pages,
    /// Page tables, too: CPUs that could walk them must be told, even if they use no page.
    Tables,
}

impl Change {
    /// Every small page of a range, as for `munmap`.
    #[must_use]
    pub fn range(range: Range<u64>, freed: Freed) -> Self {
        let page_size = PageSize::SIZE_4K;
        let extents = one(Extent::range(range.clone(), page_size), freed);
        let cause = Cause::Unmap;
        Self { range: Some(range), extents, page_size, freed, resizes: false, cause }
    }

    /// One page, taken by who reclaims memory.
    #[must_use]
    pub fn taken(address: u64) -> Self {
        let range = address..address + crate::PAGE_BYTES;
        Self { cause: Cause::Reclaim, ..Self::range(range, Freed::Pages) }
    }

    /// All of the space, as at its end.
    #[must_use]
    pub fn whole(freed: Freed) -> Self {
        let extents = one(Extent::whole(), freed);
        let (page_size, cause) = (PageSize::SIZE_4K, Cause::Exit);
        Self { range: None, extents, page_size, freed, resizes: false, cause }
    }

    /// Flushes it with the engine: [`Here::flush_gathered`], or [`Here::flush_for_resize`] where
    /// the change [resizes](Self::resizes) and the machine does not
    /// [tolerate both sizes](Machine::tolerates_mixed_sizes).
    pub fn flush_by_engine<'e, M: Machine>(
        &self,
        machine: &M,
        here: &Here<'e, M>,
        space: &Space<M>,
    ) -> Pending<'e, M> {
        let [first, rest @ ..] = self.extents.as_slice() else {
            return here.flush_gathered(space, &self.extents);
        };
        if !self.resizes || machine.tolerates_mixed_sizes() {
            return here.flush_gathered(space, &self.extents);
        }
        let mut pending = here.flush_for_resize(space, *first);
        for &extent in rest {
            pending.join(here.flush_for_resize(space, extent));
        }
        pending
    }
}

fn one(extent: Extent, freed: Freed) -> Extents {
    let mut extents = Extents::new();
    extents.add(if freed == Freed::Tables { extent.freeing_tables() } else { extent });
    extents
}

/// What became of a space that was retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retired {
    /// No CPU can walk its page tables: they can be freed.
    Free,
    /// CPUs still have it loaded. Its root will be [handed out](Coherence::take_dead) by the last
    /// of them.
    Held,
}

/// Which lock of the space is held while `munmap` flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmapLock {
    /// The lock for writing, as it was taken to remove the area (Linux until 4.19).
    Exclusive,
    /// The lock for reading, to which it is downgraded when the area is removed (Linux since 4.20).
    Shared,
    /// None: the flush is sent under the lock, and waited for outside.
    Released,
}

/// What becomes of the page tables that `munmap` leaves empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmptyTables {
    /// They are freed at once, and every CPU that could walk them must be told, idle ones included
    /// (Linux).
    Freed,
    /// They stay for the next mapping there, and are freed when there are too many of them, or when
    /// the space dies. An `munmap` then concerns only CPUs that use the space.
    Kept,
}

/// What is mapped for the first read of a page that nobody has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstRead {
    /// The page of zeros that all share, until it is written (Linux).
    ZeroPage,
    /// That, or a page of its own where a write is likely to follow, so that the write need not
    /// take the page of zeros from every CPU.
    Guessed,
}

/// When pages are flushed that who reclaims memory has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// One by one (Linux until 4.2).
    FlushedAtOnce,
    /// Many together, of several spaces.
    Batched,
}

/// What is flushed although no CPU could go wrong without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtraFlushes {
    /// Nothing.
    None,
    /// What Linux flushes, as measured with 6.18 on x86:
    ///
    /// - a page that may be written or executed from now on, and could only be read;
    /// - pages that nobody may touch, when they are taken away;
    /// - all of the space, with idle CPUs told, at every fork, whatever it changed;
    /// - pages that move, up to 2 MiB at a time, with idle CPUs told, and once more for tables.
    AsLinux,
    /// The same, and all of the space whenever `munmap` or `madvise` has taken anything away, or
    /// `mremap` a page table (ARC until Linux 3.9).
    SpacePerUnmap,
    /// The same as Linux, and each area that `munmap` removes or `madvise` empties, from its first
    /// page to its last, whether or not anything was there (`tlb_end_vma`; ARC since Linux 3.10).
    AreaPerUnmap,
}

impl ExtraFlushes {
    /// Whether what Linux flushes on every machine is among them.
    pub(crate) const fn are_as_linux(self) -> bool {
        !matches!(self, Self::None)
    }
}

/// A way to keep TLBs coherent.
///
/// All methods concern the CPU that calls them, which the caller stays on until they return.
pub trait Coherence {
    /// What it keeps for each address space.
    type Space;
    /// A flush that was sent and may not yet be done.
    type Pending;
    /// Pages that were taken from several spaces, and not flushed yet. See
    /// [`hold_back`](Self::hold_back).
    type Batch: Default;
    /// A flush that CPUs come to by themselves. See [`flush_later`](Self::flush_later).
    type Parked;

    /// Which lock `munmap` holds while it waits for a flush.
    const UNMAP_LOCK: UnmapLock;

    /// What `munmap` does with page tables that it leaves empty.
    const EMPTY_TABLES: EmptyTables = EmptyTables::Freed;

    /// What it maps for the first read of a page.
    const FIRST_READ: FirstRead = FirstRead::ZeroPage;

    /// When it flushes what was [taken](Self::taken).
    const TAKING: Taking = Taking::FlushedAtOnce;

    /// What it flushes without need.
    const EXTRA_FLUSHES: ExtraFlushes = ExtraFlushes::None;

    /// How often it wants [`tick`](Self::tick) called on every CPU that does not idle, in
    /// nanoseconds. `None` for never.
    const TICK_NS: Option<u64> = None;

    /// Called once on each CPU, before anything else: it can be interrupted from now on.
    fn online(&self) {}

    /// A space whose page tables start at `root`.
    fn space(&self, root: Root) -> Self::Space;

    /// Called after page tables were changed, and before what they mapped is reused.
    fn flush(&self, space: &Self::Space, change: &Change) -> Self::Pending;

    /// Returns when no CPU can use a translation that the flush covered, and says which of the
    /// space's unhooked page tables a CPU can still walk.
    fn wait(&self, pending: Self::Pending) -> Horizon;

    /// The same, of what `munmap` has taken away, by a design that need not tell others at once:
    /// what was there is put aside, and so are the addresses, until the flush
    /// [is over](Self::is_over). Until then a CPU may go on using it, as a program that uses what
    /// it unmaps may find.
    ///
    /// A design that puts nothing off has no [`Parked`](Self::Parked): it names [`Infallible`].
    ///
    /// [`Infallible`]: core::convert::Infallible
    fn flush_later(&self, space: &Self::Space, change: &Change) -> Later<Self> {
        Later::Sent(self.flush(space, change))
    }

    /// Whether every CPU has come to it.
    fn is_over(&self, parked: &Self::Parked) -> bool {
        let _ = parked;
        true
    }

    /// Returns when every CPU has come to it: those that have not are told.
    fn get_over(&self, parked: Self::Parked) {
        let _ = parked;
    }

    /// Has CPUs that could walk unhooked page tables of the space forget them. When it returns, no
    /// CPU can walk those of any flush that was waited for before.
    ///
    /// Called when more of them are held back than is wanted; not under a design that does not hold
    /// any back.
    fn expel(&self, space: &Self::Space) -> Horizon {
        let _ = space;
        Horizon::CLEAR
    }

    /// Who reclaims memory is about to clear entries of `space`, whose flush may be put off until
    /// the batch is [flushed](Self::flush_batch). From now on, the space
    /// [is held back](Self::is_held_back).
    ///
    /// # Errors
    ///
    /// If there is no room for another space: the batch is to be flushed first.
    fn hold_back(&self, batch: &mut Self::Batch, space: &Self::Space) -> Result<(), BatchIsFull> {
        let _ = (batch, space);
        Ok(())
    }

    /// The entry for the page at `address` was cleared, of a space that is in the batch. When this
    /// returns, no CPU can write to the page without that being noticed, if its entry was not
    /// marked as written.
    ///
    /// A design that puts nothing off has flushed it by then, and so it is here.
    fn taken(
        &self,
        batch: &mut Self::Batch,
        space: &Self::Space,
        address: u64,
        stale_writes: StaleWrites,
    ) {
        let _ = (batch, stale_writes);
        self.wait(self.flush(space, &Change::taken(address)));
    }

    /// Returns when no CPU can use any page that was taken.
    fn flush_batch(&self, batch: Self::Batch) {
        let _ = batch;
    }

    /// Whether something of the space may be in a batch: then who finds an entry without a page
    /// must flush what it was asked to change, as if there had been one.
    fn is_held_back(&self, space: &Self::Space) -> bool {
        let _ = space;
        false
    }

    /// The space has no user left and is never switched to again; this CPU may still have it
    /// loaded, and so may others that are lazy on it. The caller may drop the space after that: a
    /// design that needs it for longer keeps it.
    fn retire(&self, space: &Self::Space) -> Retired;

    /// A root whose space was retired, and whose tables no CPU can walk any more: for this CPU to
    /// free. Asked for when that can be done, some time after a switch or whatever else may have
    /// let go of a space: when the CPU idles, or when much is to be freed.
    fn take_dead(&self) -> Option<Root> {
        None
    }

    /// Has every CPU let go of spaces that are dead. When it returns, those that were dead before
    /// have been handed out.
    fn reap(&self) {}

    /// Makes a space current on this CPU: a thread of it is about to run, in the kernel to begin
    /// with.
    ///
    /// # Safety
    ///
    /// The space must not be dropped before it was [retired](Self::retire). Until that says that it
    /// is free, or its root is [handed out](Self::take_dead), the root must be a valid page table.
    #[expect(unsafe_code, reason = "the root must be a page table, which no type can prove")]
    unsafe fn switch(&self, space: &Self::Space);

    /// The thread that this CPU runs enters the kernel, by a system call or a fault. Until it
    /// [returns](Self::return_to_user) it touches no user address: what the kernel needs of its
    /// memory, it finds by its frames.
    fn enter_kernel(&self) {}

    /// The thread that this CPU runs, of `space`, goes on to user mode.
    ///
    /// Called before a thread first does so, and whenever it does after
    /// [`enter_kernel`](Self::enter_kernel) or [`switch`](Self::switch), on whatever CPU it is by
    /// then: who was preempted was in the kernel.
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
    fn leave(&self);

    /// The body of the flush interrupt's handler.
    fn interrupt(&self);

    /// In the handler of the timer's interrupt.
    fn tick(&self) {}
}

/// What became of a flush that need not be done at once.
#[derive(Debug)]
pub enum Later<C: Coherence + ?Sized> {
    /// It was sent as any other.
    Sent(C::Pending),
    /// CPUs come to it by themselves.
    Parked(C::Parked),
}

/// What points to a coherence is one, so that many spaces may have the same.
macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<C: Coherence> Coherence for $pointer {
            type Space = C::Space;
            type Pending = C::Pending;
            type Batch = C::Batch;
            type Parked = C::Parked;

            const UNMAP_LOCK: UnmapLock = C::UNMAP_LOCK;
            const EMPTY_TABLES: EmptyTables = C::EMPTY_TABLES;
            const FIRST_READ: FirstRead = C::FIRST_READ;
            const TAKING: Taking = C::TAKING;
            const EXTRA_FLUSHES: ExtraFlushes = C::EXTRA_FLUSHES;
            const TICK_NS: Option<u64> = C::TICK_NS;

            fn online(&self) {
                (**self).online();
            }
            fn space(&self, root: Root) -> Self::Space {
                (**self).space(root)
            }
            fn flush(&self, space: &Self::Space, change: &Change) -> Self::Pending {
                (**self).flush(space, change)
            }
            fn wait(&self, pending: Self::Pending) -> Horizon {
                (**self).wait(pending)
            }
            fn flush_later(&self, space: &Self::Space, change: &Change) -> Later<Self> {
                match (**self).flush_later(space, change) {
                    Later::Sent(pending) => Later::Sent(pending),
                    Later::Parked(parked) => Later::Parked(parked),
                }
            }
            fn is_over(&self, parked: &Self::Parked) -> bool {
                (**self).is_over(parked)
            }
            fn get_over(&self, parked: Self::Parked) {
                (**self).get_over(parked);
            }
            fn expel(&self, space: &Self::Space) -> Horizon {
                (**self).expel(space)
            }
            fn hold_back(
                &self,
                batch: &mut Self::Batch,
                space: &Self::Space,
            ) -> Result<(), BatchIsFull> {
                (**self).hold_back(batch, space)
            }
            fn taken(
                &self,
                batch: &mut Self::Batch,
                space: &Self::Space,
                address: u64,
                stale_writes: StaleWrites,
            ) {
                (**self).taken(batch, space, address, stale_writes);
            }
            fn flush_batch(&self, batch: Self::Batch) {
                (**self).flush_batch(batch);
            }
            fn is_held_back(&self, space: &Self::Space) -> bool {
                (**self).is_held_back(space)
            }
            fn retire(&self, space: &Self::Space) -> Retired {
                (**self).retire(space)
            }
            fn take_dead(&self) -> Option<Root> {
                (**self).take_dead()
            }
            fn reap(&self) {
                (**self).reap();
            }
            #[expect(unsafe_code, reason = "hands on what it is called with")]
            unsafe fn switch(&self, space: &Self::Space) {
                // SAFETY: as our caller promises.
                unsafe { (**self).switch(space) }
            }
            fn enter_kernel(&self) {
                (**self).enter_kernel();
            }
            #[expect(unsafe_code, reason = "hands on what it is called with")]
            unsafe fn return_to_user(&self, space: &Self::Space) {
                // SAFETY: as our caller promises.
                unsafe { (**self).return_to_user(space) }
            }
            fn enter_lazy(&self) {
                (**self).enter_lazy();
            }
            fn leave(&self) {
                (**self).leave();
            }
            fn interrupt(&self) {
                (**self).interrupt();
            }
            fn tick(&self) {
                (**self).tick();
            }
        }
    )*};
}

forward!(&C, Rc<C>, Arc<C>);
