//! What was unmapped, and is put aside until every CPU has come to its flush by itself: the pages,
//! the page tables, and the addresses. For designs that [put flushes off](crate::Defer::flush_later).
//!
//! Nothing of it is given to anybody else before that. Whoever needs memory has the rest of the
//! CPUs told, and waits; who needs these addresses, and no others will do, flushes them.

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

/// All that is put aside, of all spaces, oldest first.
pub(crate) struct DeferredUnmaps<S: System> {
    lots: SpinMutex<S, VecDeque<Lot<S>>>,
    /// How many there are, for who would find none: who overlooks one that was just put there
    /// finds it the next time.
    count: AtomicUsize,
}

/// What one `munmap` took away.
pub(crate) struct Lot<S: System> {
    /// It may have ended meanwhile.
    pub(crate) space: Arc<Mappings<S>>,
    pub(crate) range: Range<u64>,
    pub(crate) flush: Deferred<S>,
    pub(crate) removed: Removed,
}

impl<S: System> DeferredUnmaps<S> {
    pub(crate) fn new() -> Self {
        Self { lots: Mutex::new(VecDeque::new()), count: AtomicUsize::new(0) }
    }

    /// Puts aside what an `munmap` of `range` took away.
    pub(crate) fn put(
        &self,
        space: &Arc<Mappings<S>>,
        range: Range<u64>,
        flush: Deferred<S>,
        removed: Removed,
    ) {
        space.deferred.insert(&range);
        let mut lots = self.lots.lock();
        lots.push_back(Lot { space: Arc::clone(space), range, flush, removed });
        self.count.store(lots.len(), Relaxed);
    }

    /// Takes out the oldest, one after the other, of which `is_wanted` says so.
    pub(crate) fn take(&self, mut is_wanted: impl FnMut(&Lot<S>) -> bool) -> Vec<Lot<S>> {
        if self.count.load(Relaxed) == 0 {
            return Vec::new();
        }
        let mut lots = self.lots.lock();
        let wanted = lots.iter().take_while(|&lot| is_wanted(lot)).count();
        let taken = lots.drain(..wanted).collect();
        self.count.store(lots.len(), Relaxed);
        taken
    }
}

/// What is to be freed after the flush.
pub(crate) struct Removed {
    pub(crate) pages: Vec<Frame>,
    pub(crate) tables: Vec<Frame>,
    pub(crate) marks: Marked,
}

/// What is to be said of pages after the flush, when nobody can write to them unnoticed.
#[derive(Default)]
pub(crate) struct Marked {
    /// Their entries said that they had been written.
    pub(crate) dirty: Vec<Frame>,
    /// Nobody needs what was written to them before.
    pub(crate) discardable: Vec<(Frame, u64)>,
}
