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

use crate::extent::{Extent, PageSize};
use crate::extent_set::ExtentSet;
use crate::machine::Machine;
use crate::pending::Pending;
use crate::pinned_cpu::PinnedCpu;
use crate::quarantine::{Horizon, Quarantine};
use crate::space::Space;

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
mod tests {
    use super::*;
    use crate::ids::{CpuId, Root};
    use crate::soft::{Config, Host, Soft};
    use std::vec;
    use std::vec::Vec;

    type Bag = Vec<&'static str>;

    #[test]
    fn gathered_tables_are_released_once_unreachable() {
        let engine = Soft::<Host>::engine(Config::default());
        let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
        zero.pin().online();
        one.pin().online();
        let space = engine.space(Root(0));
        #[expect(unsafe_code, reason = "the space outlives its CPUs")]
        let go_lazy = || {
            // SAFETY: the space outlives its CPUs.
            unsafe { one.pin().switch(&space) };
            one.pin().enter_lazy();
        };
        let mut quarantine: Quarantine<Bag> = Quarantine::new(2);
        let mut flush = |gather: Gather<Bag>| {
            let mut freed = Vec::new();
            let sent = gather.send(&zero.pin(), &space);
            let left = sent.wait().release(&mut quarantine, |bag| freed.extend(bag));
            (freed, left.err())
        };
        let gathered = |page, table: &[&'static str]| {
            let mut gather = Gather::new();
            gather.page(0x3000, PageSize::SIZE_4K, page);
            for &table in table {
                gather.table(0x3000, table);
            }
            assert_eq!((gather.pages(), gather.tables()), (&vec![page], &table.to_vec()));
            assert_eq!(gather.table_count(), table.len());
            gather
        };

        go_lazy();
        assert_eq!(flush(gathered("page", &["table"])), (vec!["page"], None));
        assert_eq!(flush(gathered("other", &[])), (vec!["other"], None));
        // The quarantine has room for one more table, not for two.
        let (freed, left) = flush(gathered("third", &["one", "two"]));
        assert_eq!((freed, left), (vec!["third"], Some(vec!["one", "two"])));
        // CPU 1 has caught up, and published so by going lazy again.
        go_lazy();
        let (freed, left) = flush(gathered("last", &[]));
        assert_eq!((freed, left), (vec!["last", "table"], None));
        // No CPU can walk the tables.
        one.pin().leave_space();
        let (freed, left) = flush(gathered("page", &["one", "two"]));
        assert_eq!((freed, left), (vec!["page", "one", "two"], None));
        assert_eq!(engine.machine().total_stats().interrupts_sent, 0);
    }

    #[test]
    fn empty_gather_sends_no_flush() {
        let engine = Soft::<Host>::engine(Config::default());
        let cpu = engine.enter(CpuId(0));
        cpu.pin().online();
        let space = engine.space(Root(0));
        let gather: Gather<Bag> = Gather::new();
        assert!(gather.send(&cpu.pin(), &space).poll());
        assert_eq!(space.stats(engine.machine()).flushes_ranged, 0);
    }

    #[test]
    fn sent_gather_is_polled_until_done() {
        let engine = Soft::<Host>::engine(Config::default());
        let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
        zero.pin().online();
        one.pin().online();
        let space = engine.space(Root(0));
        #[expect(unsafe_code, reason = "the space outlives its CPUs")]
        // SAFETY: the space outlives its CPUs.
        unsafe {
            one.pin().switch(&space);
        }
        let mut gather: Gather<Bag> = Gather::new();
        gather.page(0x3000, PageSize::SIZE_4K, "page");
        let mut sent = gather.send(&zero.pin(), &space);
        assert!(!sent.poll());
        one.interrupt_point();
        assert!(sent.poll());
    }

    #[test]
    fn into_parts_returns_all_that_was_gathered() {
        let mut gather: Gather<Bag> = Gather::new();
        gather.page(0x3000, PageSize::SIZE_4K, "page");
        gather.table(0x20_0000, "table");
        let extents = *gather.extents();
        assert_eq!(extents.as_slice().len(), 2);
        assert_eq!(gather.into_parts(), (extents, vec!["page"], vec!["table"]));
    }
}
