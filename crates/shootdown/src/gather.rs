//! *Gather*: what an operation takes away, from the first entry that it clears until all of it can
//! be freed. (Linux: `mmu_gather`.)
//!
//! Pages and page tables go in as they are unhooked, each with its address; one flush covers them
//! all; and they come out when nobody can use them any more: pages when the flush is done, tables
//! when lazy CPUs have forgotten them, too. What they are kept in meanwhile, a *bag*, is the
//! kernel's: a vector of frame numbers, a list through its page structures.

use core::fmt;
use core::mem::ManuallyDrop;

use crate::extent::{Extent, PageSize};
use crate::extent_set::ExtentSet;
use crate::machine::Machine;
use crate::pending::Pending;
use crate::pinned_cpu::PinnedCpu;
use crate::quarantine::{Horizon, Quarantine};
use crate::space::Space;

/// What was unhooked, and has not been flushed yet.
///
/// Dropping it frees nothing by itself, and flushes nothing: what is in its bags is then theirs to
/// leak or, wrongly, to free.
#[must_use = "what was unhooked must be flushed"]
pub struct Gather<B> {
    extents: ExtentSet,
    pages: B,
    tables: B,
    table_count: usize,
}

impl<B: Default> Gather<B> {
    /// Nothing yet.
    pub fn new() -> Self {
        Self {
            extents: ExtentSet::new(),
            pages: B::default(),
            tables: B::default(),
            table_count: 0,
        }
    }

    /// An entry for a page of `size` at `address` is gone, and its count of `page` is ours.
    pub fn page<F>(&mut self, address: u64, size: PageSize, page: F)
    where
        B: Extend<F>,
    {
        self.changed(Extent::pages(address, 1, size));
        self.free_later(page);
    }

    /// A page is to be freed with the others. What mapped it was gathered otherwise, or let nobody
    /// use it.
    pub fn free_later<F>(&mut self, page: F)
    where
        B: Extend<F>,
    {
        self.pages.extend([page]);
    }

    /// Entries in `extent` allow less than they did; no page is to be freed for it.
    pub fn changed(&mut self, extent: Extent) {
        self.extents.add(extent);
    }

    /// A page table that covered `address` is out of the tree. Whatever it mapped has been gathered
    /// already, or there was nothing: CPUs may cache the way to it all the same.
    pub fn table<F>(&mut self, address: u64, table: F)
    where
        B: Extend<F>,
    {
        // With any page below, CPUs forget the way to it.
        self.extents.add(Extent::page(address).freeing_tables());
        self.tables.extend([table]);
        self.table_count += 1;
    }

    /// What is to be flushed.
    pub const fn extents(&self) -> &ExtentSet {
        &self.extents
    }

    /// The pages.
    pub const fn pages(&self) -> &B {
        &self.pages
    }

    /// The page tables.
    pub const fn tables(&self) -> &B {
        &self.tables
    }

    /// How many page tables.
    pub const fn table_count(&self) -> usize {
        self.table_count
    }

    /// Sends one flush for all of it, or none if nothing was unhooked.
    ///
    /// To be called before the locks are dropped that keep others from mapping something there
    /// which they take to be flushed.
    pub fn send<'e, M: Machine>(self, pin: &PinnedCpu<'e, M>, space: &Space<M>) -> Sent<'e, M, B> {
        let Self { extents, pages, tables, table_count } = self;
        let pending = pin.flush_gathered(space, &extents);
        let horizon = pending.horizon();
        let tables = ManuallyDrop::new(tables);
        Sent { pending, flushed: Flushed { pages, tables, table_count, horizon } }
    }

    /// The extents, the pages and the tables, for who flushes by other means.
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

/// What was unhooked, with a flush on its way.
///
/// Dropping it waits, and drops the pages then; page tables are leaked.
#[must_use = "what was gathered is freed by `wait` and `Flushed::release`"]
pub struct Sent<'e, M: Machine, B> {
    /// First, for fields are dropped in order.
    pending: Pending<'e, M>,
    flushed: Flushed<B>,
}

impl<M: Machine, B> Sent<'_, M, B> {
    /// Returns when nobody can use the pages any more. As [`Pending::wait`].
    pub fn wait(mut self) -> Flushed<B> {
        self.pending.wait();
        self.flushed
    }

    /// Whether that is so, without waiting. As [`Pending::poll`].
    pub fn poll(&mut self) -> bool {
        self.pending.poll()
    }
}

impl<M: Machine, B> fmt::Debug for Sent<'_, M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Sent").field(&self.pending).finish()
    }
}

/// What was unhooked, when its flush is done: pages that can be freed, and page tables that may
/// have to wait.
///
/// Dropping it drops the pages; page tables are leaked, for a CPU may still walk them.
#[must_use = "what was gathered is freed by `release`"]
pub struct Flushed<B> {
    pages: B,
    tables: ManuallyDrop<B>,
    table_count: usize,
    horizon: Horizon,
}

impl<B> Flushed<B> {
    /// Gives to `reclaim` what nobody can use or walk any more: the pages; what was in quarantine,
    /// as far as this flush has found out; and the page tables, unless they go there now.
    ///
    /// # Errors
    ///
    /// If they should and there is no room: gives them back. The kernel then has lazy CPUs
    /// [told](PinnedCpu::flush_walkers) and waits for that, and all is free by the [`Horizon`] that it gets:
    /// these tables, and what it clears of the quarantine.
    pub fn release<const BATCHES: usize>(
        self,
        quarantine: &mut Quarantine<B, BATCHES>,
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
        quarantine.hold(horizon, table_count, tables)
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
    fn what_was_gathered_comes_out_when_nobody_can_use_it() {
        let engine = Soft::<Host>::engine(Config::default());
        let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
        zero.pin().online();
        one.pin().online();
        let space = engine.space(Root(0));
        #[expect(unsafe_code, reason = "the space outlives its CPUs")]
        let go_lazy = || {
            // SAFETY: see the reason.
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
        // No room for two more.
        let (freed, left) = flush(gathered("third", &["one", "two"]));
        assert_eq!((freed, left), (vec!["third"], Some(vec!["one", "two"])));
        // Lazy on it again, CPU 1 has seen all that.
        go_lazy();
        let (freed, left) = flush(gathered("last", &[]));
        assert_eq!((freed, left), (vec!["last", "table"], None));
        assert_eq!(engine.machine().total_stats().interrupts_sent, 0);
    }

    #[test]
    fn nothing_unhooked_is_nothing_flushed() {
        let engine = Soft::<Host>::engine(Config::default());
        let cpu = engine.enter(CpuId(0));
        cpu.pin().online();
        let space = engine.space(Root(0));
        let gather: Gather<Bag> = Gather::new();
        assert!(gather.send(&cpu.pin(), &space).poll());
        assert_eq!(space.stats(engine.machine()).flushes_ranged, 0);
    }

    #[test]
    fn what_is_on_its_way_says_when_it_is_done() {
        let engine = Soft::<Host>::engine(Config::default());
        let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
        zero.pin().online();
        one.pin().online();
        let space = engine.space(Root(0));
        #[expect(unsafe_code, reason = "the space outlives its CPUs")]
        // SAFETY: see the reason.
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
    fn who_flushes_by_other_means_gets_all_that_was_gathered() {
        let mut gather: Gather<Bag> = Gather::new();
        gather.page(0x3000, PageSize::SIZE_4K, "page");
        gather.table(0x20_0000, "table");
        let extents = *gather.extents();
        assert_eq!(extents.as_slice().len(), 2);
        assert_eq!(gather.into_parts(), (extents, vec!["page"], vec!["table"]));
    }
}
