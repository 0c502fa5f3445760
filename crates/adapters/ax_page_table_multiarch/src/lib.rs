//! The TLB hook of [`ax_page_table_multiarch`], for the [engine](shootdown).
//!
//! A cursor of that crate records each address whose entry it changes, and passes it to
//! [`PagingMetaData::flush_tlb`] when it is dropped. [`Coherent`] is a [`PagingMetaData`] that
//! passes it on to a [`PageHook`], which the kernel implements. All else is as in the
//! architecture's own metadata. A hook that [collects](shootdown::HookedPages) interrupts each CPU
//! once for all that an operation changes:
//!
//! ```
//! use ax_page_table_multiarch::{GenericPTE, PageTable64, PagingHandler, PagingMetaData};
//! use shootdown::{Extent, HookedPages, Machine, PageHook, PinnedCpu, Space};
//! use shootdown_ax_page_table_multiarch::Coherent;
//!
//! # fn this_cpu() -> &'static HookedPages { unimplemented!() }
//! struct Collecting;
//!
//! impl PageHook for Collecting {
//!     fn changed(extent: Extent) {
//!         assert!(this_cpu().add(extent), "each cursor is within `collect`");
//!     }
//! }
//!
//! type Table<Metadata, Entry, Frames> =
//!     PageTable64<Coherent<Metadata, Collecting>, Entry, Frames>;
//!
//! /// Preemption must be off.
//! fn unmap<M: Machine, D, E, F>(
//!     cpu: &PinnedCpu<'_, M>,
//!     space: &Space<M>,
//!     table: &mut Table<D, E, F>,
//!     address: D::VirtAddr,
//! ) where
//!     D: PagingMetaData,
//!     E: GenericPTE,
//!     F: PagingHandler,
//! {
//!     let (unmapped, pages) = this_cpu().collect(|| table.cursor().unmap(address));
//!     cpu.flush_gathered(space, &pages).wait();
//!     let (frame, _, size) = unmapped.expect("the page was mapped");
//!     F::dealloc_frames(frame, size as usize >> 12);
//! }
//! ```
//!
//! A hook that flushes immediately does not need `collect`, and interrupts CPUs for each address,
//! up to the 32 after which a cursor flushes everything. It has to know the space.
//!
//! # Limits
//!
//! - The hook gets one address of an entry and not the size of its page. The processors of
//!   `shootdown-hw` drop an entry of any size by one of its addresses, as the crate's own hooks
//!   assume as well.
//! - `PageTable64` frees its tables when it is dropped. [Retire](shootdown::PinnedCpu::retire) its
//!   space first, and drop it when the engine has reclaimed the space.
//! - `copy_from` frees the tables that it replaces before it flushes. Do not use it to replace
//!   entries that CPUs may be walking.

#![no_std]

use core::marker::PhantomData;

use ax_page_table_multiarch::PagingMetaData;
use shootdown::{Extent, PageHook};

/// The metadata `M` of an architecture, with flushes by the hook `H`: of a page, or of the whole
/// space.
#[derive(Debug)]
pub struct Coherent<M, H>(PhantomData<(M, H)>);

impl<M: PagingMetaData, H: PageHook> PagingMetaData for Coherent<M, H> {
    const LEVELS: usize = M::LEVELS;
    const PA_MAX_BITS: usize = M::PA_MAX_BITS;
    const VA_MAX_BITS: usize = M::VA_MAX_BITS;
    const PA_MAX_ADDR: usize = M::PA_MAX_ADDR;

    type VirtAddr = M::VirtAddr;

    #[inline]
    fn paddr_is_valid(paddr: usize) -> bool {
        M::paddr_is_valid(paddr)
    }

    #[inline]
    fn vaddr_is_valid(vaddr: usize) -> bool {
        M::vaddr_is_valid(vaddr)
    }

    #[inline]
    fn flush_tlb(vaddr: Option<M::VirtAddr>) {
        H::changed(vaddr.map_or(Extent::whole(), |address| {
            let address: usize = address.into();
            Extent::page(address as u64)
        }));
    }
}
