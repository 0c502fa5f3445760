//! A user page table with the engine's space: flushed, and freed when no CPU can walk it any more.

use alloc::{
    boxed::Box,
    vec::{self, Vec},
};
use core::{
    fmt, mem,
    ops::Deref,
    ptr::{self, NonNull},
    sync::atomic::{AtomicBool, AtomicPtr, Ordering},
};

use shootdown::{ExtentSet, Horizon, Pending, Quarantine, Root, Space};

use super::{
    activation,
    machine::{FlushPending, Machine, engine, wait, with_pinned, with_space_pinned},
};
use crate::{
    mm::{Frame, PageTable, frame::meta::AnyFrameMeta, measure, vm_space::UserPtConfig},
    sync::{RcuDrop, SpinLock},
};

/// Frames of page tables, and of what they map, that one space keeps for CPUs that may still walk
/// them: 4 MiB. With more, one interrupt to each such CPU frees them.
const QUARANTINED_FRAMES_MAX: usize = 1024;

/// Flushes that one space keeps after a flusher was dropped without `sync_tlb_flush`. With more,
/// the drop waits.
const DEFERRED_MAX: usize = 16;

/// Frames that are dropped after the grace period.
#[derive(Default)]
pub(in crate::mm) struct Frames(Vec<Frame<dyn AnyFrameMeta>>);

impl Frames {
    #[inline]
    pub(in crate::mm) fn keep(&mut self, frame: RcuDrop<Frame<dyn AnyFrameMeta>>) {
        self.0.reserve(1);
        // SAFETY: `free` drops the frame after the grace period.
        let (frame, panic_guard) = unsafe { RcuDrop::into_inner(frame) };
        self.0.push(frame);
        panic_guard.forget();
    }

    #[inline]
    fn free(self) {
        if !self.0.is_empty() {
            drop(RcuDrop::new(self.0));
        }
    }
}

impl IntoIterator for Frames {
    type Item = Frame<dyn AnyFrameMeta>;
    type IntoIter = vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl Extend<Frame<dyn AnyFrameMeta>> for Frames {
    fn extend<I: IntoIterator<Item = Frame<dyn AnyFrameMeta>>>(&mut self, frames: I) {
        self.0.extend(frames);
    }
}

/// What was unmapped and waits for a flush.
#[derive(Default)]
pub(in crate::mm) struct Unmapped {
    pub(in crate::mm) pages: Frames,
    /// Page tables, which lazy CPUs may walk. Most operations unhook none.
    tables: Option<Box<Tables>>,
}

#[derive(Default)]
struct Tables {
    tables: Frames,
    /// The tables, and the frames that they map.
    frame_count: usize,
}

impl Unmapped {
    pub(in crate::mm) const fn new() -> Self {
        Self { pages: Frames(Vec::new()), tables: None }
    }

    /// Keeps a page table, under which `frame_count` frames are mapped, until no CPU can walk it.
    pub(in crate::mm) fn keep_table(
        &mut self,
        table: RcuDrop<Frame<dyn AnyFrameMeta>>,
        frame_count: usize,
    ) {
        let tables = self.tables.get_or_insert_default();
        tables.tables.keep(table);
        tables.frame_count += 1 + frame_count;
    }

    #[inline]
    pub(in crate::mm) fn has_tables(&self) -> bool {
        self.tables.is_some()
    }

    /// Moves everything of `other` here. Not both may have tables.
    #[inline]
    pub(in crate::mm) fn append(&mut self, other: &mut Self) {
        if self.pages.0.is_empty() {
            mem::swap(&mut self.pages, &mut other.pages);
        } else {
            self.pages.0.append(&mut other.pages.0);
        }
        if other.tables.is_some() {
            debug_assert!(self.tables.is_none(), "tables of two flushes");
            self.tables = other.tables.take();
        }
    }

    /// Frees everything. No CPU may be able to walk the tables.
    pub(in crate::mm) fn free(self) {
        self.pages.free();
        if let Some(tables) = self.tables {
            tables.tables.free();
        }
    }
}

/// What a space keeps after its flushes.
struct Kept {
    /// Page tables that lazy CPUs may still walk.
    quarantine: Quarantine<Frames>,
    /// Flushes that nobody waits for.
    deferred: Vec<(FlushPending, Unmapped)>,
}

/// The space is the first field, so that a pointer to it is a pointer to the node.
#[repr(C)]
struct Node {
    space: Space<Machine>,
    table: PageTable<UserPtConfig>,
    kept: SpinLock<Kept>,
    /// Whether `kept` has anything, so that most flushes do not take its lock. It is a hint: a
    /// flush that misses a change leaves the work to the next one.
    keeps_any: AtomicBool,
    next_reclaimed: AtomicPtr<Node>,
}

/// A user page table that the engine keeps coherent.
///
/// Dropping it frees the page table when no CPU can walk it any more: when the last CPU that has it
/// loaded, lazily, loads another.
pub(crate) struct CoherentTable(NonNull<Node>);

// SAFETY: the node is on the heap, and all of its fields can be sent and shared.
unsafe impl Send for CoherentTable {}
// SAFETY: as above.
unsafe impl Sync for CoherentTable {}

impl CoherentTable {
    pub(in crate::mm) fn new(table: PageTable<UserPtConfig>) -> Self {
        let kept =
            Kept { quarantine: Quarantine::new(QUARANTINED_FRAMES_MAX), deferred: Vec::new() };
        let node = Box::new(Node {
            space: engine().space(Root(table.root_paddr() as u64)),
            table,
            kept: SpinLock::new(kept),
            keeps_any: AtomicBool::new(false),
            next_reclaimed: AtomicPtr::new(ptr::null_mut()),
        });
        Self(NonNull::from(Box::leak(node)))
    }

    fn node(&self) -> &Node {
        // SAFETY: the node is freed after `retire`, which `drop` calls.
        unsafe { self.0.as_ref() }
    }

    pub(super) fn space(&self) -> &Space<Machine> {
        &self.node().space
    }

    /// Sends one flush.
    pub(in crate::mm) fn flush(&self, extents: &ExtentSet) -> FlushPending {
        if !measure::notifies() {
            super::reload_current_root();
            return Pending::done(engine());
        }
        let space = self.space();
        with_space_pinned(space, |pin| pin.flush_gathered(space, extents))
    }

    /// Frees what a flush that is done has unmapped. Page tables that lazy CPUs may still walk are
    /// quarantined instead.
    #[inline]
    pub(in crate::mm) fn release(&self, horizon: Horizon, unmapped: Unmapped) {
        unmapped.pages.free();
        if self.node().keeps_any.load(Ordering::Relaxed) {
            self.free_cleared(horizon);
            self.poll_deferred();
        }
        if let Some(tables) = unmapped.tables {
            self.release_tables(horizon, *tables);
        }
    }

    fn release_tables(&self, horizon: Horizon, tables: Tables) {
        let Tables { tables, frame_count } = tables;
        if horizon.is_clear() || !measure::notifies() {
            return tables.free();
        }
        let deferred = {
            let mut kept = self.node().kept.lock();
            self.node().keeps_any.store(true, Ordering::Relaxed);
            kept.quarantine.defer(horizon, frame_count, tables)
        };
        if let Err(tables) = deferred {
            let mut walkers = with_pinned(|pin| pin.flush_walkers(self.space()));
            wait(&mut walkers);
            tables.free();
            self.free_cleared(walkers.horizon());
        }
    }

    /// Frees the quarantined tables that no CPU can walk any more.
    fn free_cleared(&self, horizon: Horizon) {
        let mut kept = self.node().kept.lock();
        while let Some((_, cleared)) = kept.quarantine.take_cleared(horizon) {
            cleared.free();
        }
        let keeps_any = kept.quarantine.table_count() > 0 || !kept.deferred.is_empty();
        self.node().keeps_any.store(keeps_any, Ordering::Relaxed);
    }

    /// Keeps what a flush has unmapped that nobody waits for. A later flush of the space frees it.
    pub(in crate::mm) fn defer(&self, mut pending: FlushPending, unmapped: Unmapped) {
        if !pending.poll() {
            let mut kept = self.node().kept.lock();
            if kept.deferred.len() < DEFERRED_MAX {
                kept.deferred.push((pending, unmapped));
                self.node().keeps_any.store(true, Ordering::Relaxed);
                return;
            }
            drop(kept);
            wait(&mut pending);
        }
        self.release(pending.horizon(), unmapped);
    }

    /// Frees what deferred flushes that are done have unmapped.
    fn poll_deferred(&self) {
        while let Some((pending, unmapped)) = self.take_deferred() {
            unmapped.pages.free();
            if let Some(tables) = unmapped.tables {
                self.release_tables(pending.horizon(), *tables);
            }
        }
    }

    /// Takes one deferred flush that is done.
    fn take_deferred(&self) -> Option<(FlushPending, Unmapped)> {
        let mut kept = self.node().kept.lock();
        let position = kept.deferred.iter_mut().position(|(pending, _)| pending.poll())?;
        Some(kept.deferred.swap_remove(position))
    }

    fn wait_for_deferred(&self) {
        let deferred = mem::take(&mut self.node().kept.lock().deferred);
        for (mut pending, unmapped) in deferred {
            wait(&mut pending);
            self.release(pending.horizon(), unmapped);
        }
    }
}

impl Deref for CoherentTable {
    type Target = PageTable<UserPtConfig>;

    fn deref(&self) -> &Self::Target {
        &self.node().table
    }
}

impl fmt::Debug for CoherentTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CoherentTable").field(&self.node().table).finish()
    }
}

impl Drop for CoherentTable {
    fn drop(&mut self) {
        if self.node().keeps_any.load(Ordering::Relaxed) {
            self.wait_for_deferred();
        }
        activation::abandon(self.space().id());
        // SAFETY: no CPU uses the space, because a CPU that has it active keeps a reference to its
        // owner. No CPU can find it any more. All of its flushes are done. The node stays in place
        // until `free_reclaimed`.
        let retiring = with_pinned(|pin| unsafe { pin.retire(self.0.cast()) });
        retiring.wait();
        free_reclaimed();
    }
}

/// Nodes that no CPU can walk any more. The engine may reclaim a space in the middle of a switch,
/// where nothing must be freed.
static RECLAIMED: AtomicPtr<Node> = AtomicPtr::new(ptr::null_mut());

/// Adds a retired space to the list of those to free.
pub(super) fn reclaim(space: NonNull<Space<Machine>>) {
    let node: *mut Node = space.cast().as_ptr();
    let mut next = RECLAIMED.load(Ordering::Relaxed);
    loop {
        // SAFETY: the engine returns the node that `drop` retired, which nothing else uses.
        unsafe { (*node).next_reclaimed.store(next, Ordering::Relaxed) };
        // Release: pairs with the swap in `free_reclaimed`, which frees the node.
        match RECLAIMED.compare_exchange(next, node, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => next = now,
        }
    }
}

/// Frees the page tables of reclaimed spaces.
#[inline]
pub(super) fn free_reclaimed() {
    if !RECLAIMED.load(Ordering::Relaxed).is_null() {
        free_all_reclaimed();
    }
}

#[cold]
fn free_all_reclaimed() {
    let mut next = RECLAIMED.swap(ptr::null_mut(), Ordering::Acquire);
    while let Some(node) = NonNull::new(next) {
        // SAFETY: `reclaim` got the node, which a box was leaked for, and this thread alone has
        // taken it from the list.
        let node = unsafe { Box::from_raw(node.as_ptr()) };
        next = node.next_reclaimed.load(Ordering::Relaxed);
    }
}
