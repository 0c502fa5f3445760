//! Flushes of the mappings of [`aarch64_paging`], by the [engine](shootdown).
//!
//! A [`Mapping`](aarch64_paging::Mapping) invalidates each page that it changes by
//! [`TranslationRegime::invalidate_va`], which broadcasts one `TLBI`. [`Coherent`] is a regime that
//! passes the page to a [`PageHook`] instead, which the kernel implements. [`DeferredTables`] keeps
//! the page tables that the mapping frees until no CPU can walk them.
//!
//! The engine loads roots, so do not call `activate`. Call
//! [`mark_active`](aarch64_paging::Mapping::mark_active) once, when the mapping is made: without,
//! it reports no change. Call `mark_inactive` when the engine has reclaimed the space, before the
//! mapping is dropped. The engine chooses ASIDs, and ignores the mapping's.
//!
//! ```
//! use aarch64_paging::descriptor::{PagingAttributes, PhysicalAddress};
//! use aarch64_paging::paging::{Constraints, MemoryRegion, Translation, TranslationRegime};
//! use aarch64_paging::{MapError, Mapping};
//! use core::ptr::NonNull;
//! use shootdown::{Extent, Gather, HookedPages, Machine, PageHook, PinnedCpu, Sent, Space};
//! use shootdown_aarch64_paging::{Coherent, DeferredTables, TableHook};
//!
//! # fn this_cpu() -> &'static HookedPages { unimplemented!() }
//! # fn freed_tables() -> &'static core::cell::RefCell<Vec<NonNull<u8>>> { unimplemented!() }
//! #[derive(Clone, Copy, Debug, PartialEq, Eq)]
//! struct Collecting;
//!
//! impl PageHook for Collecting {
//!     fn changed(extent: Extent) {
//!         assert!(this_cpu().add(extent), "each change is within `collect`");
//!     }
//! }
//!
//! impl TableHook for Collecting {
//!     fn freed(table: NonNull<u8>) {
//!         freed_tables().borrow_mut().push(table);
//!     }
//! }
//!
//! type MyMapping<T, R> = Mapping<DeferredTables<T, Collecting>, Coherent<R, Collecting>>;
//!
//! /// Preemption must be off. When the result has been waited for, release the pages and tables.
//! fn unmap<'e, M: Machine, T: Translation<R::Attributes>, R: TranslationRegime>(
//!     cpu: &PinnedCpu<'e, M>,
//!     space: &Space<M>,
//!     mapping: &mut MyMapping<T, R>,
//!     range: &MemoryRegion,
//! ) -> Result<Sent<'e, M, Vec<NonNull<u8>>>, MapError> {
//!     let (none, invalid) = (PhysicalAddress(0), R::Attributes::default());
//!     let map = || mapping.map_range(range, none, invalid, Constraints::empty());
//!     let (result, pages) = this_cpu().collect(map);
//!     let mut gather = Gather::new();
//!     shootdown_aarch64_paging::gather(&mut gather, &pages, freed_tables().take());
//!     let sent = gather.send(cpu, space);
//!     result.map(|()| sent)
//! }
//! ```
//!
//! # Limits
//!
//! - Changes that are made under Arm's break-before-make need a flush between *break* and *make*;
//!   the mapping refuses these while it is active.
//! - The hook gets the first address of an entry and not its size. The processors of `shootdown-hw`
//!   drop an entry of any size by one of its addresses.

#![no_std]

use core::fmt::Debug;
use core::marker::PhantomData;
use core::ptr::NonNull;

use aarch64_paging::descriptor::{PagingAttributes, PhysicalAddress, VirtualAddress};
use aarch64_paging::paging::{PageTable, Translation, TranslationRegime};
use shootdown::{Extent, ExtentSet, Gather, PageHook};

/// The translation regime `R`, with invalidations by the hook `H`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coherent<R, H>(PhantomData<(R, H)>);

impl<R, H> Coherent<R, H> {
    /// The regime, for `Mapping::new` and its like.
    #[must_use]
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<R, H> Default for Coherent<R, H> {
    fn default() -> Self {
        Self::new()
    }
}

#[expect(unsafe_code, reason = "implements unsafe methods, which panic")]
impl<R, H> TranslationRegime for Coherent<R, H>
where
    R: TranslationRegime,
    H: PageHook + Copy + Debug + Eq,
{
    type Attributes = R::Attributes;
    type Asid = R::Asid;
    type VaRange = R::VaRange;

    fn invalidate_va(address: VirtualAddress) {
        H::changed(Extent::page(address.0 as u64));
    }

    unsafe fn activate(_: PhysicalAddress, _: R::Asid, _: R::VaRange) -> usize {
        panic!("the engine loads roots: call `mark_active` and `PinnedCpu::switch`")
    }

    unsafe fn deactivate(_: usize, _: R::Asid, _: R::VaRange) {
        panic!("the engine loads roots: call `PinnedCpu::leave_space`")
    }
}

/// The kernel's part: receives the page tables that a mapping frees.
pub trait TableHook: PageHook {
    /// Keeps `table`, which was allocated by the kernel's [`Translation`]. Free it when the pages
    /// that were reported are [flushed](gather) and no CPU can walk the table.
    fn freed(table: NonNull<u8>);
}

/// The kernel's translation `T`, which does not free page tables but passes them to `H`.
#[derive(Debug)]
pub struct DeferredTables<T, H>(T, PhantomData<H>);

impl<T, H> DeferredTables<T, H> {
    /// Allocates by `translation`.
    pub const fn new(translation: T) -> Self {
        Self(translation, PhantomData)
    }
}

#[expect(unsafe_code, reason = "implements an unsafe method, by safe code")]
impl<A: PagingAttributes, T: Translation<A>, H: TableHook> Translation<A> for DeferredTables<T, H> {
    fn allocate_table(&mut self) -> (NonNull<PageTable<A>>, PhysicalAddress) {
        self.0.allocate_table()
    }

    unsafe fn deallocate_table(&mut self, table: NonNull<PageTable<A>>) {
        H::freed(table.cast());
    }

    fn physical_to_virtual(&self, address: PhysicalAddress) -> NonNull<PageTable<A>> {
        self.0.physical_to_virtual(address)
    }
}

/// Adds what one operation of a mapping has changed and freed. The mapping has reported a page
/// below each of the tables, so CPUs drop the paths to them.
pub fn gather<B>(
    gather: &mut Gather<B>,
    pages: &ExtentSet,
    tables: impl IntoIterator<Item = NonNull<u8>>,
) where
    B: Default + Extend<NonNull<u8>>,
{
    let mut tables = tables.into_iter().peekable();
    let frees_tables = tables.peek().is_some();
    for &extent in pages.as_slice() {
        gather.changed(if frees_tables { extent.freeing_tables() } else { extent });
    }
    let below = pages.as_slice().first().map_or(0, |extent| extent.start());
    tables.for_each(|table| gather.table(below, table));
}
