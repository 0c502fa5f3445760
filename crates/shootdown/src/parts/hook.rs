//! Mappers that call a hook for each page that they change, and one flush for all calls of an
//! operation.
//!
//! Such a mapper knows neither the space nor the end of the operation. (Unikraft's
//! `ukarch_tlb_flush_entry`, Redox's `rmm`, `page_table_multiarch`, `aarch64-paging`.)

use core::cell::Cell;

use crate::parts::extent::Extent;
use crate::parts::extent_set::ExtentSet;

/// The kernel's part of a mapper whose hook is a type: receives what the mapper changes.
pub trait PageHook: Send + Sync + 'static {
    /// Flushes `extent`, or [collects](HookedPages::add) it. The mapper may not know the size of
    /// the page at the extent's address, and names a page of 4 KiB.
    fn changed(extent: Extent);
}

/// The pages that the operation on one CPU has changed, as a mapper's hook reports them. The kernel
/// has one for each CPU.
///
/// ```
/// use shootdown::{Extent, HookedPages, Machine, PinnedCpu, Space};
///
/// # trait Mapper { fn unmap(&mut self, address: u64) -> u64; }
/// # fn this_cpu() -> &'static HookedPages { unimplemented!() }
/// /// The mapper calls this for each page that it unmaps.
/// fn tlb_flush_entry(address: u64) {
///     let is_collected = this_cpu().add(Extent::page(address));
///     assert!(is_collected, "each change of page tables is within `collect`");
/// }
///
/// /// Unmaps pages with one flush. Preemption must be off.
/// fn unmap<M: Machine>(
///     cpu: &PinnedCpu<'_, M>,
///     space: &Space<M>,
///     mapper: &mut impl Mapper,
///     addresses: impl Iterator<Item = u64>,
/// ) -> Vec<u64> {
///     let unmap_all = || addresses.map(|address| mapper.unmap(address)).collect();
///     let (frames, pages) = this_cpu().collect(unmap_all);
///     cpu.flush_gathered(space, &pages).wait();
///     frames // they can be freed
/// }
/// ```
#[derive(Debug, Default)]
pub struct HookedPages(Cell<Option<ExtentSet>>);

impl HookedPages {
    /// No operation runs.
    #[must_use]
    pub const fn new() -> Self {
        Self(Cell::new(None))
    }

    /// Adds a change to those of the operation. Returns `false` if no operation runs: then flush
    /// the extent immediately.
    pub fn add(&self, extent: Extent) -> bool {
        let Some(mut pages) = self.0.get() else { return false };
        pages.add(extent);
        self.0.set(Some(pages));
        true
    }

    /// Runs an operation. Returns its result, and what the hook has reported, to be flushed before
    /// a frame is freed. If the operation has only mapped pages that were not mapped before, drop
    /// the set.
    ///
    /// The thread must stay on its CPU. An interrupt handler that changes page tables as well must
    /// do so in an operation of its own, which leaves the interrupted one unchanged.
    pub fn collect<R>(&self, operation: impl FnOnce() -> R) -> (R, ExtentSet) {
        let interrupted = self.0.replace(Some(ExtentSet::new()));
        let result = operation();
        (result, self.0.replace(interrupted).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_operation_leaves_the_outer_unchanged() {
        let pages = HookedPages::new();
        assert!(!pages.add(Extent::page(0x1000)), "no operation runs");
        let (inner, outer) = pages.collect(|| {
            assert!(pages.add(Extent::page(0x1000)));
            let ((), inner) = pages.collect(|| assert!(pages.add(Extent::page(0x9000))));
            assert!(pages.add(Extent::page(0x2000)));
            inner
        });
        assert_eq!(inner.as_slice(), [Extent::page(0x9000)]);
        assert_eq!(outer.as_slice(), [Extent::range(0x1000..0x3000, crate::PageSize::SIZE_4K)]);
        assert!(!pages.add(Extent::page(0x1000)), "no operation runs any more");
        assert!(pages.collect(|| ()).1.is_empty());
    }
}
