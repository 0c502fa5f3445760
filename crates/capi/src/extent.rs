//! The pages that a flush covers.

#![expect(unsafe_code, reason = "exports functions to C")]

use shootdown::{Extent, PageSize};

/// The pages that a flush covers: up to 4095 pages of one size, a long range, or the whole space.
/// Made by `shootdown_page` and the functions below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ExtentWord {
    bits: u64,
}

impl ExtentWord {
    #[inline]
    pub(crate) const fn extent(self) -> Extent {
        Extent::from_bits(self.bits)
    }
}

impl From<Extent> for ExtentWord {
    #[inline]
    fn from(extent: Extent) -> Self {
        Self { bits: extent.to_bits() }
    }
}

/// Returns the page of 4 KiB that contains `address`.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 0.
#[unsafe(no_mangle)]
pub extern "C" fn shootdown_page(address: u64) -> ExtentWord {
    Extent::page(address).into()
}

/// Returns `count` pages of 2^`page_shift` bytes, beginning with the page that contains `address`.
/// `page_shift` must be that of the smallest page that may be cached for these addresses. The
/// result is empty for a `count` of 0, and the whole space if there are more than 4095 pages.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Panics
///
/// If `page_shift` is not within 12 to 43.
#[unsafe(no_mangle)]
pub extern "C" fn shootdown_pages(address: u64, count: usize, page_shift: u8) -> ExtentWord {
    Extent::pages(address, count, PageSize::from_shift(page_shift)).into()
}

/// Returns the pages of 2^`page_shift` bytes that overlap the addresses from `start` to before
/// `end`; the whole space if there are more than 4095.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Panics
///
/// If `page_shift` is not within 12 to 43.
#[unsafe(no_mangle)]
pub extern "C" fn shootdown_range(start: u64, end: u64, page_shift: u8) -> ExtentWord {
    Extent::range(start..end, PageSize::from_shift(page_shift)).into()
}

/// As `shootdown_range`. With more than 4095 pages, the extent counts larger ones, so it covers
/// more at each end. A processor with range operations invalidates it (AArch64); otherwise, as in
/// `shootdown_mmu_…` and on devices, it is the whole space.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Panics
///
/// If `page_shift` is not within 12 to 43.
#[unsafe(no_mangle)]
pub extern "C" fn shootdown_long_range(start: u64, end: u64, page_shift: u8) -> ExtentWord {
    Extent::long(start..end, PageSize::from_shift(page_shift)).into()
}

/// Returns the whole address space.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 0.
#[unsafe(no_mangle)]
pub extern "C" fn shootdown_whole() -> ExtentWord {
    Extent::whole().into()
}

/// Returns `extent`, with page tables above it unhooked and about to be freed: CPUs then drop the
/// upper levels that they cache as well.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 0.
#[unsafe(no_mangle)]
pub extern "C" fn shootdown_freeing_tables(extent: ExtentWord) -> ExtentWord {
    extent.extent().freeing_tables().into()
}
