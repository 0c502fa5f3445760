//! The spaces with pages that were discarded in place, and counts of such pages.

use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use lock_api::Mutex;

use crate::discarded::{AGE_MAX_NS, Added, Choice, Taken};
use crate::mappings::Mappings;
use crate::system::{SpinMutex, System};

/// The spaces that have discarded pages in place, and the counts of all spaces together. The counts
/// order no other access.
pub(crate) struct DiscardRegistry<S: System> {
    /// By the root of the page tables.
    spaces: SpinMutex<S, BTreeMap<u64, Weak<Mappings<S>>>>,
    /// The time at which pages must be looked at next. A hint, which may be too early.
    due_ns: AtomicU64,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    now: AtomicU64,
    peak: AtomicU64,
    in_place: AtomicU64,
    freed: AtomicU64,
    used_again: AtomicU64,
    flushes: AtomicU64,
    late_page_ns: AtomicU64,
}

/// Numbers of pages that were [discarded in place](crate::Discards::InPlace), in all spaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiscardStats {
    /// Number of pages that were discarded and are not freed yet, as far as is known: memory that
    /// can be reclaimed. Some of the pages may be in use again.
    pub now: u64,
    /// Greatest such number at any time.
    pub peak: u64,
    /// Number of discards of a page in place.
    pub in_place: u64,
    /// Number of pages that were freed later.
    pub freed: u64,
    /// Number of pages that turned out to be in use again when they were to be freed.
    pub used_again: u64,
    /// Number of flushes before pages were freed.
    pub flushes: u64,
    /// Time from the discard of a page until it was freed, found to be in use again, or discarded
    /// again, in nanoseconds, added up over all pages. So it is the most by which memory was given
    /// back late: a page that was in use again was not late from then on.
    pub late_page_ns: u64,
}

impl<S: System> DiscardRegistry<S> {
    pub(crate) fn new() -> Self {
        Self {
            spaces: Mutex::new(BTreeMap::new()),
            due_ns: AtomicU64::new(u64::MAX),
            counters: Counters::default(),
        }
    }

    /// Adds a space that is about to discard pages in place. Writes nothing shared after the first
    /// call for a space.
    pub(crate) fn register(&self, space: &Arc<Mappings<S>>) {
        if space.discarded.register() {
            self.spaces.lock().insert(space.tables.root().0, Arc::downgrade(space));
        }
    }

    /// Counts pages that were listed at `now_ns`.
    pub(crate) fn count_added(&self, Added { new, late_page_ns }: Added, now_ns: u64) {
        let Counters { now, peak, late_page_ns: late, .. } = &self.counters;
        // Another call may have taken and counted the pages already: the count is below 0 then.
        let count = now.fetch_add(new as u64, Relaxed).wrapping_add(new as u64);
        peak.fetch_max(count.cast_signed().max(0).cast_unsigned(), Relaxed);
        late.fetch_add(late_page_ns, Relaxed);
        self.set_due(now_ns);
    }

    /// Counts discards in place.
    pub(crate) fn count_in_place(&self, pages: usize) {
        self.counters.in_place.fetch_add(pages as u64, Relaxed);
    }

    /// Counts pages that are no longer listed.
    pub(crate) fn count_taken(&self, taken: &Taken) {
        self.counters.now.fetch_sub(taken.pages.len() as u64, Relaxed);
        self.counters.late_page_ns.fetch_add(taken.late_page_ns, Relaxed);
    }

    pub(crate) fn count_flush(&self) {
        self.counters.flushes.fetch_add(1, Relaxed);
    }

    /// Counts pages of which `freed` were freed.
    pub(crate) fn count_freed(&self, freed: usize, used_again: usize) {
        self.counters.freed.fetch_add(freed as u64, Relaxed);
        self.counters.used_again.fetch_add(used_again as u64, Relaxed);
    }

    /// Removes a space at its end.
    pub(crate) fn remove(&self, space: &Mappings<S>, now_ns: u64) {
        if !space.discarded.register() {
            self.spaces.lock().remove(&space.tables.root().0);
            self.count_taken(&space.discarded.take(&Choice::All, now_ns));
        }
    }

    /// The spaces that have discarded pages in place, in the order of their roots.
    pub(crate) fn spaces(&self) -> Vec<Arc<Mappings<S>>> {
        self.spaces.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Returns `true` if no page is listed.
    pub(crate) fn is_empty(&self) -> bool {
        self.counters.now.load(Relaxed) == 0
    }

    /// Returns `true` if pages must be looked at. Only one of several callers gets this answer.
    pub(crate) fn take_due(&self, now_ns: u64) -> bool {
        let due_ns = self.due_ns.load(Relaxed);
        now_ns >= due_ns && self.due_ns.compare_exchange(due_ns, u64::MAX, Relaxed, Relaxed).is_ok()
    }

    /// Ensures that the pages that were discarded at `since_ns` are looked at when they are old.
    pub(crate) fn set_due(&self, since_ns: u64) {
        let due_ns = since_ns.saturating_add(AGE_MAX_NS);
        if due_ns < self.due_ns.load(Relaxed) {
            self.due_ns.fetch_min(due_ns, Relaxed);
        }
    }

    pub(crate) fn stats(&self) -> DiscardStats {
        let Counters { now, peak, in_place, freed, used_again, flushes, late_page_ns } =
            &self.counters;
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        DiscardStats {
            now: read(now),
            peak: read(peak),
            in_place: read(in_place),
            freed: read(freed),
            used_again: read(used_again),
            flushes: read(flushes),
            late_page_ns: read(late_page_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coherence::Replication;
    use crate::rules::tests::system::{Process, System};

    #[test]
    fn pages_taken_before_they_are_counted_leave_no_count() {
        let registry = DiscardRegistry::<System>::new();
        registry.count_taken(&Taken { pages: alloc::vec![1, 2], late_page_ns: 0 });
        registry.count_added(Added { new: 2, late_page_ns: 0 }, 0);
        assert!(registry.is_empty());
        assert_eq!(registry.stats().peak, 0);
        registry.count_added(Added { new: 3, late_page_ns: 0 }, 0);
        assert_eq!((registry.stats().now, registry.stats().peak), (3, 3));
    }

    #[test]
    fn space_is_registered_until_its_end() {
        loom::model(|| {
            let space = Process::new(1, Replication::Never, |vm| vm).space;
            let registry = &space.vm.discards;
            registry.register(&space.mappings);
            assert_eq!(registry.spaces().len(), 1);
            space.exit();
            assert_eq!(registry.spaces().len(), 0);
        });
    }
}
