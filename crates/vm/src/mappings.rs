//! The part of a space that reclaim and migration reach from a page.

use alloc::sync::Arc;
use core::mem;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use shootdown::{BatchIsFull, StaleWrites};

use crate::PAGE_BYTES;
use crate::area::Protection;
use crate::area_index::AreaIndex;
use crate::coherence::{Batching, Change, Flush, ReclaimFlush};
use crate::deferred::in_flight::{FlushInFlight, InFlight};
use crate::deferred::ranges::DeferredRanges;
use crate::discarded::DiscardedPages;
use crate::flushing::Flushing;
use crate::format::{Format, Leaf};
use crate::platform::{Frame, Platform};
use crate::replicas::Replicas;
use crate::sharers::Sharers;
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
    pub(crate) replicas: Replicas<S>,
}

impl<S: System> Mappings<S> {
    /// Returns the value of an entry that a call claims. No other claim ever has the same value.
    pub(crate) fn new_claim(&self) -> u64 {
        S::Format::claim(self.claims.fetch_add(1, Relaxed))
    }

    /// Starts a flush. `unlinked` are sharers of tables that are not in the tree any more.
    pub(crate) fn flush(
        &self,
        coherence: &S::Coherence,
        platform: &S::Platform,
        change: &Change,
        unlinked: Sharers,
    ) -> Flushing<S> {
        if !self.replicas.are_used_after_change(platform) {
            return Flushing::new(coherence.flush(&self.coherent, change));
        }
        let mut sharers = unlinked;
        sharers.add_for::<S>(platform, &self.tables, change);
        self.replicas.flush(coherence, &self.coherent, platform.cpu(), &sharers, change)
    }

    /// Returns the sharers of a table of the last level. Call this after entries of the table were
    /// changed.
    #[cfg_attr(test, track_caller)]
    pub(crate) fn sharers_of(&self, platform: &S::Platform, table: Frame) -> Sharers {
        let mut sharers = Sharers::default();
        if self.replicas.are_used_after_change(platform) {
            sharers.add_of(platform, table);
        }
        sharers
    }

    /// Returns the end of an outstanding flush other than `own` that overlaps `range`: up to there,
    /// a CPU may have an old translation, which may allow more than the entry. The flush may be in
    /// flight or deferred.
    pub(crate) fn unflushed(&self, range: &Range<u64>, own: Option<&FlushInFlight>) -> Option<u64> {
        self.in_flight.overlapping(range, own).or_else(|| self.deferred.overlapping(range))
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

    /// Adds an announced page whose entry held `leaf` to the batch, or flushes it. CPUs may have
    /// cached it. `sharers` are those of the entry's table, read after the entry was cleared and
    /// while the table was in the tree.
    pub(crate) fn unmapped(
        &self,
        coherence: &S::Coherence,
        batch: &mut Batch<S>,
        announced: &Announced,
        (address, leaf): (u64, Leaf),
        sharers: &Sharers,
    ) {
        let stale_writes = if leaf.protection.contains(Protection::WRITE)
            || self.unflushed(&(address..address + PAGE_BYTES), announced.0.as_ref()).is_some()
        {
            StaleWrites::Possible
        } else if leaf.protection.is_empty() {
            // No CPU has cached the page.
            return;
        } else {
            StaleWrites::Impossible
        };
        coherence.unmapped(batch, &self.coherent, address, stale_writes);
        self.add_replicas(
            coherence,
            batch,
            sharers,
            |batch| coherence.add_space(batch, &self.coherent),
            |batch, replica| coherence.unmapped_in_replica(batch, replica, address),
        );
    }

    /// Calls `add` for the replica of each sharer. If the batch has no room for one, it is flushed,
    /// and `add_space` prepares another one for the space.
    fn add_replicas(
        &self,
        coherence: &S::Coherence,
        batch: &mut Batch<S>,
        sharers: &Sharers,
        add_space: impl Fn(&mut Batch<S>) -> Result<(), BatchIsFull>,
        add: impl Fn(&mut Batch<S>, &Coherent<S>) -> Result<(), BatchIsFull>,
    ) {
        if !self.replicas.are_used() {
            return;
        }
        for replica in self.replicas.of_sharers(sharers) {
            if add(batch, &replica.coherent).is_err() {
                self.replicas.give_up_if_crowded();
                // The space must stay marked from one batch to the next.
                let mut next = Batch::<S>::default();
                let _ = add_space(&mut next);
                coherence.flush_batch(mem::replace(batch, next));
                add(batch, &replica.coherent)
                    .expect("an empty batch has room for a space and a replica");
            }
        }
    }

    /// Announces that the entry for a page that no CPU can write is about to be cleared. The batch
    /// that flushes the page is deferred.
    pub(crate) fn announce_clean(
        &self,
        coherence: &S::Coherence,
        batch: &mut Batch<S>,
    ) -> Result<Announced, BatchIsFull> {
        coherence.add_clean_space(batch, &self.coherent)?;
        Ok(Announced(None))
    }

    /// Adds a page whose entry held `leaf` to the batch that is deferred, after
    /// [`announce_clean`](Self::announce_clean). Flushes the page alone if it has become writable
    /// in between. `sharers` as for [`unmapped`](Self::unmapped).
    pub(crate) fn clean_unmapped(
        &self,
        coherence: &S::Coherence,
        platform: &S::Platform,
        batch: &mut Batch<S>,
        (address, leaf): (u64, Leaf),
        sharers: Sharers,
    ) {
        let range = address..address + PAGE_BYTES;
        if leaf.protection.is_empty() {
            // No CPU has cached the page.
        } else if leaf.protection.contains(Protection::WRITE)
            || self.unflushed(&range, None).is_some()
        {
            self.flush(coherence, platform, &Change::reclaimed(address), sharers)
                .wait(coherence, platform);
        } else {
            coherence.clean_unmapped(batch, &self.coherent, address);
            self.add_replicas(
                coherence,
                batch,
                &sharers,
                |batch| coherence.add_clean_space(batch, &self.coherent),
                |batch, replica| {
                    coherence.add_clean_space(batch, replica)?;
                    coherence.clean_unmapped(batch, replica, address);
                    Ok(())
                },
            );
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
