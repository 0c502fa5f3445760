//! *Gather*: the pages and page tables that one operation unmaps, from the first entry that it
//! clears until all of them can be freed. (Linux: `mmu_gather`.)
//!
//! The kernel adds pages and page tables as it unhooks them, each with its address. One flush
//! covers all of them. They are released when no CPU can use them any more: pages when the flush is
//! done, and tables when lazy CPUs have also dropped the cached paths to them. Until then they are
//! in a *bag*, a collection of the kernel's: for instance a vector of frame numbers, or a list
//! through its page structures.

use core::fmt;
use core::mem::ManuallyDrop;

use crate::parts::extent::{Extent, PageSize};
use crate::parts::extent_set::ExtentSet;
use crate::path::pending::Pending;
use crate::path::quarantine::{Horizon, Quarantine};
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

/// Pages and page tables that were unhooked, and have not been flushed yet.
///
/// Do not drop it without [sending](Self::send) it: that flushes nothing and drops the bags. A bag
/// that frees its pages when it is dropped then frees them while CPUs can still use them.
#[must_use = "what was unhooked must be flushed"]
pub struct Gather<B> {
    extents: ExtentSet,
    pages: B,
    tables: B,
    table_count: usize,
}

impl<B: Default> Gather<B> {
    /// An empty gather.
    pub fn new() -> Self {
        Self {
            extents: ExtentSet::new(),
            pages: B::default(),
            tables: B::default(),
            table_count: 0,
        }
    }

    /// Adds a page of `size` at `address`, whose entry was cleared. The entry's reference to `page`
    /// passes to this gather.
    pub fn page<F>(&mut self, address: u64, size: PageSize, page: F)
    where
        B: Extend<F>,
    {
        self.changed(Extent::pages(address, 1, size));
        self.defer_free(page);
    }

    /// Defers the freeing of a page until the flush is done. Gather the extent that mapped the page
    /// separately, unless its entry allowed no CPU to use it.
    pub fn defer_free<F>(&mut self, page: F)
    where
        B: Extend<F>,
    {
        self.pages.extend([page]);
    }

    /// Adds an extent in which entries allow less than they did, without a page to free.
    pub fn changed(&mut self, extent: Extent) {
        self.extents.add(extent);
    }

    /// Adds a page table that covered `address`, and was unhooked from the tree. Gather the pages
    /// that it mapped before. Also add a table that mapped nothing, because CPUs may cache the path
    /// to it.
    pub fn table<F>(&mut self, address: u64, table: F)
    where
        B: Extend<F>,
    {
        // An extent of any page below the table makes CPUs drop the path to it.
        self.extents.add(Extent::page(address).freeing_tables());
        self.tables.extend([table]);
        self.table_count += 1;
    }

    /// The extents to flush.
    pub const fn extents(&self) -> &ExtentSet {
        &self.extents
    }

    /// The pages to free.
    pub const fn pages(&self) -> &B {
        &self.pages
    }

    /// The page tables to free.
    pub const fn tables(&self) -> &B {
        &self.tables
    }

    /// Number of page tables to free.
    pub const fn table_count(&self) -> usize {
        self.table_count
    }

    /// Sends one flush of all extents, or none if there is no extent.
    ///
    /// Call this before dropping the locks that keep other CPUs from mapping pages in these
    /// extents. A CPU that maps a page there assumes that the extents are flushed.
    pub fn send<'e, M: Machine>(self, pin: &PinnedCpu<'e, M>, space: &Space<M>) -> Sent<'e, M, B> {
        let Self { extents, pages, tables, table_count } = self;
        let pending = pin.flush_gathered(space, &extents);
        let horizon = pending.horizon();
        let tables = ManuallyDrop::new(tables);
        Sent { pending, flushed: Flushed { pages, tables, table_count, horizon } }
    }

    /// The extents, the pages and the tables, for a caller that flushes by other means.
    pub fn into_parts(self) -> (ExtentSet, B, B) {
        (self.extents, self.pages, self.tables)
    }
}

impl<B: Default> Default for Gather<B> {
    fn default() -> Self {
        Self::new()
    }
}

impl<B> fmt::Debug for Gather<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather").field("extents", &self.extents).finish_non_exhaustive()
    }
}

/// Unhooked pages and page tables whose flush was sent.
///
/// Dropping it waits for the flush, then drops the pages and leaks the page tables.
#[must_use = "`wait` and `Flushed::release` free the gathered pages and page tables"]
pub struct Sent<'e, M: Machine, B> {
    /// The first field, because fields are dropped in order.
    pending: Pending<'e, M>,
    flushed: Flushed<B>,
}

impl<M: Machine, B> Sent<'_, M, B> {
    /// Returns when no CPU can use the pages any more. Waits as [`Pending::wait`] does.
    pub fn wait(mut self) -> Flushed<B> {
        self.pending.wait();
        self.flushed
    }

    /// Returns `true` if no CPU can use the pages any more, without waiting. See [`Pending::poll`].
    pub fn poll(&mut self) -> bool {
        self.pending.poll()
    }
}

impl<M: Machine, B> fmt::Debug for Sent<'_, M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sent").field(&self.pending).finish()
    }
}

/// Unhooked pages and page tables whose flush is done. The pages can be freed; the tables may have
/// to wait.
///
/// Dropping it drops the pages and leaks the page tables, because a CPU may still walk them.
#[must_use = "`release` frees the gathered pages and page tables"]
pub struct Flushed<B> {
    pages: B,
    tables: ManuallyDrop<B>,
    table_count: usize,
    horizon: Horizon,
}

impl<B> Flushed<B> {
    /// Passes to `reclaim` the pages and tables that no CPU can use or walk any more. These are the
    /// pages, the quarantined tables that this flush's [`Horizon`] clears, and the gathered page
    /// tables. If a CPU may still walk the gathered page tables, they are quarantined instead.
    ///
    /// # Errors
    ///
    /// Returns the page tables if there is no room for them in quarantine. Then [flush the
    /// walkers](PinnedCpu::flush_walkers) and wait. After that, these tables can be freed, and the
    /// quarantined tables that the new [`Horizon`] clears.
    pub fn release<const ENTRIES: usize>(
        self,
        quarantine: &mut Quarantine<B, ENTRIES>,
        mut reclaim: impl FnMut(B),
    ) -> Result<(), B>
    where
        B: IntoIterator + Extend<B::Item>,
    {
        let Self { pages, tables, table_count, horizon } = self;
        reclaim(pages);
        while let Some((_, cleared)) = quarantine.take_cleared(horizon) {
            reclaim(cleared);
        }
        let tables = ManuallyDrop::into_inner(tables);
        if horizon.is_clear() {
            reclaim(tables);
            return Ok(());
        }
        if table_count == 0 {
            return Ok(());
        }
        quarantine.defer(horizon, table_count, tables)
    }
}

impl<B> fmt::Debug for Flushed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flushed").field("horizon", &self.horizon).finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;
