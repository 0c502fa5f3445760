//! Flushes of the mappers of [`x86_64`] on all CPUs, by the [engine](shootdown).
//!
//! A mapper returns a [`MapperFlush`] or [`MapperFlushAll`] for each change. Their own methods
//! flush on the CPU that runs them. [`FlushAllCpus`] has methods that consume them and flush on all
//! CPUs that could use the pages:
//!
//! ```
//! use shootdown::{Machine, PinnedCpu, Space};
//! use shootdown_x86_64::FlushAllCpus;
//! use x86_64::structures::paging::{Mapper, Page, PhysFrame, Size4KiB, mapper::UnmapError};
//!
//! fn unmap<M: Machine>(
//!     cpu: &PinnedCpu<'_, M>,
//!     space: &Space<M>,
//!     mapper: &mut impl Mapper<Size4KiB>,
//!     page: Page,
//! ) -> Result<PhysFrame, UnmapError> {
//!     let (frame, flush) = mapper.unmap(page)?;
//!     // Instead of `flush.flush()`. Drop the lock of the page tables before the wait.
//!     flush.flush_space(cpu, space).wait();
//!     Ok(frame)
//! }
//! ```
//!
//! # When not to flush
//!
//! Mappers also return a promise where an entry was not present before (`map_to`), or where an
//! access was only allowed. x86 caches no missing entry, and a CPU that caches an entry with fewer
//! permissions faults once and then walks. So [`ignore`](MapperFlush::ignore) these promises.
//!
//! # Page tables
//!
//! `CleanUp` frees page tables immediately, while other CPUs may walk them. Pass it
//! [`DeferredTables`], which keeps them until a flush has made that impossible.

#![no_std]

use shootdown::{Extent, ExtentSet, Gather, Machine, PageSize as Size, Pending, PinnedCpu, Space};
use x86_64::structures::paging::mapper::{MapperFlush, MapperFlushAll};
use x86_64::structures::paging::page::PageRangeInclusive;
use x86_64::structures::paging::{FrameDeallocator, PageSize, PhysFrame, Size4KiB};

/// A promise of a flush, kept on all CPUs.
pub trait FlushAllCpus: Sized {
    /// The pages to flush.
    fn extent(&self) -> Extent;

    /// Flushes on all CPUs that could use the pages, which are those of `space`. When the result
    /// has been [waited](Pending::wait) for, no CPU can use the old translations.
    fn flush_space<'e, M: Machine>(
        self,
        cpu: &PinnedCpu<'e, M>,
        space: &Space<M>,
    ) -> Pending<'e, M> {
        cpu.flush(space, self.extent())
    }

    /// Flushes on all CPUs that are online, if the pages are the kernel's.
    fn flush_kernel<'e, M: Machine>(self, cpu: &PinnedCpu<'e, M>) -> Pending<'e, M> {
        cpu.flush_kernel(self.extent())
    }

    /// Adds the pages to a set, for one flush of many changes:
    /// [`flush_gathered`](PinnedCpu::flush_gathered) or
    /// [`flush_kernel_gathered`](PinnedCpu::flush_kernel_gathered).
    fn gather(self, extents: &mut ExtentSet) {
        extents.add(self.extent());
    }

    /// Adds the pages and the frame that they were mapped to, to be freed when no CPU can use it.
    fn gather_page<B: Default + Extend<F>, F>(self, gather: &mut Gather<B>, frame: F) {
        gather.changed(self.extent());
        gather.defer_free(frame);
    }
}

impl<S: PageSize> FlushAllCpus for MapperFlush<S> {
    fn extent(&self) -> Extent {
        let size = Size::from_shift(S::SIZE.trailing_zeros() as u8);
        Extent::pages(self.page().start_address().as_u64(), 1, size)
    }
}

/// All pages: an entry of an upper level has changed.
impl FlushAllCpus for MapperFlushAll {
    fn extent(&self) -> Extent {
        Extent::whole()
    }
}

/// Keeps the page tables that [`CleanUp`] would free.
///
/// ```
/// use shootdown::{Gather, Machine, PinnedCpu, Quarantine, Space};
/// use shootdown_x86_64::DeferredTables;
/// use x86_64::structures::paging::{PhysFrame, mapper::CleanUp, page::PageRangeInclusive};
///
/// # struct Bag(Vec<PhysFrame>);
/// /// Call this with the lock of the page tables held, until the flush is sent.
/// ///
/// /// # Safety
/// ///
/// /// As for `clean_up_addr_range`: no table is part of two trees.
/// unsafe fn free_tables<M: Machine>(
///     cpu: &PinnedCpu<'_, M>,
///     space: &Space<M>,
///     quarantine: &mut Quarantine<Vec<PhysFrame>>,
///     page_table: &mut impl CleanUp,
///     range: PageRangeInclusive,
///     mut free: impl FnMut(Vec<PhysFrame>),
/// ) {
///     let mut gather = Gather::new();
///     // SAFETY: the caller's promise.
///     unsafe {
///         page_table.clean_up_addr_range(range, &mut DeferredTables::new(&mut gather, range));
///     }
///     let flushed = gather.send(cpu, space).wait();
///     if let Err(tables) = flushed.release(quarantine, &mut free) {
///         // There is no room in quarantine.
///         cpu.flush_walkers(space).wait();
///         free(tables);
///     }
/// }
/// ```
///
/// [`CleanUp`]: x86_64::structures::paging::mapper::CleanUp
#[derive(Debug)]
pub struct DeferredTables<'g, B> {
    gather: &'g mut Gather<B>,
    range: PageRangeInclusive,
    has_tables: bool,
}

impl<'g, B> DeferredTables<'g, B> {
    /// Adds each freed table to `gather`. `range` is the range that is cleaned up: all tables below
    /// it may be freed.
    pub const fn new(gather: &'g mut Gather<B>, range: PageRangeInclusive) -> Self {
        Self { gather, range, has_tables: false }
    }
}

#[expect(unsafe_code, reason = "implements an unsafe method, by safe code")]
impl<B: Default + Extend<PhysFrame>> FrameDeallocator<Size4KiB> for DeferredTables<'_, B> {
    unsafe fn deallocate_frame(&mut self, table: PhysFrame) {
        let start = self.range.start.start_address().as_u64();
        if !self.has_tables {
            // The address of a table is not known, so CPUs drop the paths to all of the range.
            let last = self.range.end.start_address().as_u64();
            let pages = Extent::range(start..last.saturating_add(1), Size::SIZE_4K);
            self.gather.changed(pages.freeing_tables());
            self.has_tables = true;
        }
        self.gather.table(start, table);
    }
}
