//! The part of a space that reclaim and migration reach from a page.

use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use shootdown::{BatchIsFull, StaleWrites};

use crate::PAGE_BYTES;
use crate::area::Protection;
use crate::area_index::AreaIndex;
use crate::coherence::{Batching, ReclaimFlush};
use crate::deferred::in_flight::{FlushInFlight, InFlight};
use crate::deferred::ranges::DeferredRanges;
use crate::discarded::DiscardedPages;
use crate::format::{Format, Leaf};
use crate::system::{Batch, Coherent, LockedAreas, System};
use crate::table::PageTables;

/// The page tables and areas of a space, and its flushes that are not complete.
pub(crate) struct Mappings<S: System> {
    pub(crate) tables: PageTables<S::Format>,
    pub(crate) areas: LockedAreas<S>,
    /// The areas' own locks, if faults take them.
    pub(crate) index: Option<Arc<AreaIndex<S::Platform>>>,
    pub(crate) in_flight: InFlight,
    pub(crate) deferred: DeferredRanges<S>,
    pub(crate) discarded: DiscardedPages<S>,
    /// Number of claims that were made so far: the next ticket.
    pub(crate) claims: AtomicU64,
    pub(crate) coherent: Coherent<S>,
}

impl<S: System> Mappings<S> {
    /// Returns the value of an entry that a call claims. No other claim ever has the same value.
    pub(crate) fn new_claim(&self) -> u64 {
        S::Format::claim(self.claims.fetch_add(1, Relaxed))
    }

    /// Returns the end of an outstanding flush that overlaps `range`: up to there, a CPU may have
    /// an old translation. The flush may be in flight or deferred.
    pub(crate) fn unflushed(&self, range: &Range<u64>) -> Option<u64> {
        self.in_flight.overlapping(range, None).or_else(|| self.deferred.overlapping(range))
    }

    /// Announces that the entry for the page at `address` is about to be cleared, and flushed alone
    /// or with the batch. Call this before the entry changes, so that an operation that finds the
    /// entry cleared finds the announcement also.
    pub(crate) fn announce(
        &self,
        coherence: &S::Coherence,
        batch: &mut Batch<S>,
        address: u64,
        reclaim_flush: ReclaimFlush,
    ) -> Result<Announced, BatchIsFull> {
        Ok(Announced(match reclaim_flush {
            ReclaimFlush::PerPage => Some(self.in_flight.begin(&(address..address + PAGE_BYTES))),
            ReclaimFlush::Batched => {
                coherence.add_space(batch, &self.coherent)?;
                None
            }
        }))
    }

    /// Adds a page whose entry held `leaf` to the batch, or flushes it. CPUs may have cached it.
    pub(crate) fn unmapped(
        &self,
        coherence: &S::Coherence,
        batch: &mut Batch<S>,
        address: u64,
        leaf: Leaf,
    ) {
        // A CPU can cache only translations that allow some access.
        if !leaf.protection.is_empty() {
            let stale_writes = if leaf.protection.contains(Protection::WRITE) {
                StaleWrites::Possible
            } else {
                StaleWrites::Impossible
            };
            coherence.unmapped(batch, &self.coherent, address, stale_writes);
        }
    }

    /// Ends an [announcement](Self::announce): the page was flushed, or is in its batch, or its
    /// entry did not change.
    pub(crate) fn end(&self, Announced(in_flight): Announced) {
        if let Some(in_flight) = in_flight {
            self.in_flight.end(in_flight);
        }
    }
}

/// The announcement of a page that is about to be unmapped: the page's own flush, or `None` if it
/// is flushed with its batch.
pub(crate) struct Announced(Option<FlushInFlight>);
