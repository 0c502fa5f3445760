//! The parts that all spaces of a system share.

use alloc::sync::Arc;
use core::fmt;

use crate::area::{Area, Backing};
use crate::coherence::{Flush, Policy};
use crate::deferred::tables::{QUARANTINED_TABLES_MAX, QuarantinedTables};
use crate::deferred::unmaps::DeferredUnmaps;
use crate::discard_registry::{DiscardRegistry, DiscardStats};
use crate::file::File;
use crate::platform::{Frame, FrameUse, OutOfMemory, Platform};
use crate::reclaim::rmap::Rmap;
use crate::system::System;
use crate::table::{PageTables, Slot};

/// A memory manager: the platform, the coherence, and the page of zeros that all spaces share.
///
/// A clone refers to the same memory manager.
#[must_use]
pub struct Vm<S: System> {
    pub(crate) platform: S::Platform,
    pub(crate) coherence: Arc<S::Coherence>,
    pub(crate) policy: Policy,
    pub(crate) zero_page: Frame,
    pub(crate) quarantined: Arc<QuarantinedTables<S>>,
    pub(crate) quarantined_tables_max: u64,
    /// Window of fault-around, in bytes. Less than two pages disables it.
    pub(crate) fault_around_bytes: u64,
    /// Window of read-ahead, in pages. Less than two disables it.
    pub(crate) read_ahead_pages: u64,
    /// The reverse map, if memory is reclaimed.
    pub(crate) rmap: Option<Arc<Rmap<S>>>,
    pub(crate) deferred: Arc<DeferredUnmaps<S>>,
    pub(crate) discards: Arc<DiscardRegistry<S>>,
}

impl<S: System> Vm<S> {
    /// Creates a memory manager. Allocates the page of zeros: the one frame that is mapped for
    /// every page that was read and never written. This frame is never freed, and its users are not
    /// counted, because the count would be the most contended word of the system.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] if no frame is left.
    pub fn new(
        platform: S::Platform,
        coherence: impl Into<Arc<S::Coherence>>,
    ) -> Result<Self, OutOfMemory> {
        let coherence = coherence.into();
        let zero_page = platform.allocate(FrameUse::Page)?;
        platform.clear_page(zero_page);
        Ok(Self {
            platform,
            policy: coherence.policy(),
            coherence,
            zero_page,
            quarantined: Arc::new(QuarantinedTables::new()),
            quarantined_tables_max: QUARANTINED_TABLES_MAX,
            fault_around_bytes: 0,
            read_ahead_pages: 0,
            rmap: None,
            deferred: Arc::new(DeferredUnmaps::new()),
            discards: Arc::new(DiscardRegistry::new()),
        })
    }

    /// Records where every page is mapped, so that memory can be [reclaimed](Self::reclaim) and
    /// pages [migrated](crate::AddressSpace::migrate). Call this before the first space is made.
    pub fn with_reclaim(self) -> Self {
        let rmap = Some(Arc::new(Rmap::new(self.platform.node_count())));
        Self { rmap, ..self }
    }

    /// Makes a read fault in an area of a file also map the neighbours that are in memory: those in
    /// the same window of `window_bytes`, rounded down to a power of two. (Linux:
    /// `fault_around_bytes`, which is 64 KiB.) With less than two pages, the default, a fault maps
    /// one page.
    pub fn with_fault_around(self, window_bytes: u64) -> Self {
        let fault_around_bytes = window_bytes.checked_ilog2().map_or(0, |log| 1 << log);
        Self { fault_around_bytes, ..self }
    }

    /// Makes a fault on a page of a stored file that is not in memory also read its neighbours:
    /// those in the same window of `window_pages`, rounded down to a power of two. (Linux:
    /// `read_ahead_kb`, which is 128 KiB.) With less than two, the default, a fault reads one page.
    pub fn with_read_ahead(self, window_pages: u64) -> Self {
        let read_ahead_pages = window_pages.checked_ilog2().map_or(0, |log| 1 << log);
        Self { read_ahead_pages, ..self }
    }

    /// Limits how many page tables are quarantined because lazy CPUs could walk them. Beyond the
    /// limit, lazy CPUs are interrupted. Each CPU keeps the tables of at most one dead space
    /// quarantined.
    pub fn with_quarantined_tables_max(self, quarantined_tables_max: u64) -> Self {
        Self { quarantined_tables_max, ..self }
    }

    /// The platform.
    pub const fn platform(&self) -> &S::Platform {
        &self.platform
    }

    /// The coherence.
    pub fn coherence(&self) -> &S::Coherence {
        &self.coherence
    }

    /// Returns `true` if the memory manager records where pages are mapped
    /// ([`with_reclaim`](Self::with_reclaim)), so that it can reclaim and move pages.
    #[must_use]
    pub const fn has_reclaim(&self) -> bool {
        self.rmap.is_some()
    }

    /// The page of zeros.
    pub const fn zero_page(&self) -> Frame {
        self.zero_page
    }

    /// Numbers of pages that were [discarded in place](crate::Discards::InPlace).
    pub fn discard_stats(&self) -> DiscardStats {
        self.discards.stats()
    }

    /// Allocates a frame: either a free one, or one that reclaim takes from another page.
    ///
    /// Do not call this while you hold a spin lock, nor from reclaim.
    pub(crate) fn allocate(&self, purpose: FrameUse) -> Result<Frame, OutOfMemory> {
        self.platform.allocate(purpose).or_else(|error| {
            if self.complete_deferred() + self.free_all_discarded() > 0
                && let Ok(frame) = self.platform.allocate(purpose)
            {
                return Ok(frame);
            }
            self.allocate_reclaimed(purpose, error)
        })
    }

    /// Returns the entry for the page of `address`, or the large leaf in its place: see
    /// [`PageTables::make_at`].
    pub(crate) fn make_entry(
        &self,
        tables: &PageTables<S::Format>,
        address: u64,
    ) -> Result<Slot, OutOfMemory> {
        self.make_entry_at(tables, address, 0)
    }

    /// Does the same for an entry of a level.
    pub(crate) fn make_entry_at(
        &self,
        tables: &PageTables<S::Format>,
        address: u64,
        lowest: usize,
    ) -> Result<Slot, OutOfMemory> {
        tables.make_at(&self.platform, address, lowest, || self.allocate(FrameUse::Table))
    }

    /// Counts one more entry that maps a page.
    pub(crate) fn share(&self, page: Frame) {
        if page != self.zero_page {
            self.platform.share(page);
        }
    }

    /// Counts one entry that maps a page less.
    pub(crate) fn release(&self, page: Frame) {
        if page != self.zero_page {
            self.platform.release(page);
        }
    }

    /// Returns the reverse map, if it records this page.
    pub(crate) fn rmap_of(&self, page: Frame) -> Option<&Rmap<S>> {
        self.rmap.as_deref().filter(|_| page != self.zero_page)
    }

    /// Drops a reference to a file. If it was the last one, releases the file's pages, and drops
    /// the records of where they were mapped.
    ///
    /// A file whose last reference is dropped in another way is freed also. The records of its
    /// pages then stay until reclaim finds them.
    pub fn close(&self, file: Arc<File<S::Platform>>) {
        let Some(rmap) = &self.rmap else { return };
        let Some(file) = Arc::into_inner(file) else { return };
        for (_, page) in file.into_pages() {
            rmap.forget(page);
            self.platform.release(page);
        }
    }

    /// Drops areas that were removed, and files that only these areas referred to.
    pub(crate) fn close_all(&self, areas: impl IntoIterator<Item = Area<S::Platform>>) {
        for area in areas {
            if let Backing::File { file, .. } = area.backing {
                self.close(file);
            }
        }
    }
}

// Not derived, because `derive` would require a system that can be cloned.
impl<S: System> Clone for Vm<S> {
    fn clone(&self) -> Self {
        Self {
            platform: self.platform.clone(),
            coherence: Arc::clone(&self.coherence),
            quarantined: Arc::clone(&self.quarantined),
            rmap: self.rmap.clone(),
            deferred: Arc::clone(&self.deferred),
            discards: Arc::clone(&self.discards),
            ..*self
        }
    }
}

impl<S: System> fmt::Debug for Vm<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vm").field("zero_page", &self.zero_page).finish_non_exhaustive()
    }
}
