//! Unmaps whose flush CPUs perform by themselves later. Until every CPU has, the pages, the page
//! tables and the addresses are not reused. For coherences that [defer
//! flushes](crate::Defer::flush_later).
//!
//! A thread that finds no free memory completes the flushes, which notifies the remaining CPUs. A
//! thread that maps the same addresses flushes them first.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use lock_api::Mutex;

use crate::mappings::Mappings;
use crate::platform::Frame;
use crate::system::{Deferred, SpinMutex, System};

/// The deferred unmaps of all spaces, oldest first.
pub(crate) struct DeferredUnmaps<S: System> {
    unmaps: SpinMutex<S, VecDeque<DeferredUnmap<S>>>,
    /// Length of the queue. The lock is skipped while it is 0. A reader that overlooks an unmap
    /// which was just added finds it at its next call.
    count: AtomicUsize,
}

/// One deferred unmap.
pub(crate) struct DeferredUnmap<S: System> {
    /// The space, which may have exited.
    pub(crate) space: Arc<Mappings<S>>,
    pub(crate) range: Range<u64>,
    pub(crate) flush: Deferred<S>,
    pub(crate) removed: Removed,
}

impl<S: System> DeferredUnmaps<S> {
    pub(crate) fn new() -> Self {
        Self { unmaps: Mutex::new(VecDeque::new()), count: AtomicUsize::new(0) }
    }

    /// Adds an unmap.
    pub(crate) fn push(&self, unmap: DeferredUnmap<S>) {
        unmap.space.deferred.insert(&unmap.range);
        let mut unmaps = self.unmaps.lock();
        unmaps.push_back(unmap);
        self.count.store(unmaps.len(), Relaxed);
    }

    /// Removes and returns the oldest unmaps, up to the first for which `is_wanted` returns
    /// `false`.
    pub(crate) fn pop_while(
        &self,
        mut is_wanted: impl FnMut(&DeferredUnmap<S>) -> bool,
    ) -> Vec<DeferredUnmap<S>> {
        if self.count.load(Relaxed) == 0 {
            return Vec::new();
        }
        let mut unmaps = self.unmaps.lock();
        let wanted = unmaps.iter().take_while(|&unmap| is_wanted(unmap)).count();
        let popped = unmaps.drain(..wanted).collect();
        self.count.store(unmaps.len(), Relaxed);
        popped
    }
}

/// Pages and page tables to free after a flush.
pub(crate) struct Removed {
    pub(crate) pages: Vec<Frame>,
    pub(crate) tables: Vec<Frame>,
    pub(crate) marks: Marked,
}

/// Marks to record after the flush, when no CPU can write to the pages unnoticed.
#[derive(Default)]
pub(crate) struct Marked {
    /// Pages whose entries were marked as dirty.
    pub(crate) dirty: Vec<Frame>,
    /// Pages whose contents are not needed, with their addresses.
    pub(crate) discardable: Vec<(Frame, u64)>,
}
