//! The TLB hook of [`page_table_multiarch`], for the [engine](shootdown).
//!
//! A cursor of that crate records each address whose entry it changes, and passes it to
//! [`PagingMetaData::flush_tlb`] when it is dropped. [`Coherent`] is a [`PagingMetaData`] that
//! passes it on to a [`Hook`], which the kernel implements. All else is as in the architecture's
//! own metadata:
//!
//! ```
//! # use page_table_multiarch::{GenericPTE, PageTable64, PagingHandler, PagingMetaData};
//! # use shootdown_page_table_multiarch::{Coherent, Hook};
//! type MyPageTable<Metadata, Entry, MyHandler, MyHook> =
//!     PageTable64<Coherent<Metadata, MyHook>, Entry, MyHandler>;
//! ```
//!
//! # Two hooks
//!
//! The hook does not know which page table the cursor changes. So the kernel notes its space for
//! this CPU before it takes a cursor, with preemption off until the flush.
//!
//! A hook that flushes immediately needs no other change of the kernel. It interrupts CPUs once for
//! each address, up to the 32 after which a cursor flushes everything:
//!
//! ```
//! # use shootdown::{Extent, Machine, PinnedCpu, Space};
//! # use shootdown_page_table_multiarch::Hook;
//! # trait MyKernel: Send + Sync + 'static {
//! #     type Machine: Machine;
//! #     fn with_changed_space(
//! #         call: impl FnOnce(&PinnedCpu<'_, Self::Machine>, &Space<Self::Machine>));
//! # }
//! struct Immediate<K>(K);
//!
//! impl<K: MyKernel> Hook for Immediate<K> {
//!     fn changed(extent: Extent) {
//!         K::with_changed_space(|cpu, space| cpu.flush(space, extent).wait());
//!     }
//! }
//! ```
//!
//! A hook that collects interrupts each CPU once for all that an operation changes. The kernel
//! flushes the set when the cursor is dropped, and before it frees a frame:
//!
//! ```
//! # use shootdown::{Extent, ExtentSet, Machine, PinnedCpu, Space};
//! # use shootdown_page_table_multiarch::Hook;
//! # trait MyKernel: Send + Sync + 'static {
//! #     fn with_extents<R>(call: impl FnOnce(&mut ExtentSet) -> R) -> R;
//! # }
//! struct Collecting<K>(K);
//!
//! impl<K: MyKernel> Hook for Collecting<K> {
//!     fn changed(extent: Extent) {
//!         K::with_extents(|extents| extents.add(extent));
//!     }
//! }
//!
//! /// Call this after each cursor. If the cursor has only mapped pages that were not mapped
//! /// before, `take` the set and do not flush it.
//! fn flush<K: MyKernel, M: Machine>(cpu: &PinnedCpu<'_, M>, space: &Space<M>) {
//!     let extents = K::with_extents(core::mem::take);
//!     cpu.flush_gathered(space, &extents).wait();
//! }
//! ```
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

use page_table_multiarch::PagingMetaData;
use shootdown::Extent;

/// The kernel's part: receives what cursors flush.
pub trait Hook: Send + Sync + 'static {
    /// Flushes `extent`, or adds it to a set that the kernel flushes before it frees a frame. The
    /// extent is a page, or the whole space.
    fn changed(extent: Extent);
}

/// The metadata `M` of an architecture, with flushes by the hook `H`.
#[derive(Debug)]
pub struct Coherent<M, H>(PhantomData<(M, H)>);

impl<M: PagingMetaData, H: Hook> PagingMetaData for Coherent<M, H> {
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
