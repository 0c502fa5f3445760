//! Where the kernel sees physical memory: two direct mapping windows, which take no TLB entries.

/// Cached: memory.
const CACHED: usize = 0x9000_0000_0000_0000;
/// Strongly ordered, not cached: devices.
const UNCACHED: usize = 0x8000_0000_0000_0000;

/// Where memory is seen.
pub(super) const fn memory<T>(physical: u64) -> *mut T {
    (CACHED + physical as usize) as *mut T
}

/// Where a device's register is seen.
pub(super) const fn device<T>(physical: u64) -> *mut T {
    (UNCACHED + physical as usize) as *mut T
}

/// The physical address of what the kernel sees in either window.
pub(super) fn physical<T>(seen: *const T) -> u64 {
    seen as u64 & 0xffff_ffff_ffff
}
