//! Addresses of physical memory and devices: two direct mapping windows, which use no TLB entries.

/// Cached: memory.
const CACHED: usize = 0x9000_0000_0000_0000;
/// Strongly ordered, not cached: devices.
const UNCACHED: usize = 0x8000_0000_0000_0000;

/// The address of memory in the cached window.
pub(super) const fn memory<T>(physical: u64) -> *mut T {
    (CACHED + physical as usize) as *mut T
}

/// The address of a device's register in the uncached window.
pub(super) const fn device<T>(physical: u64) -> *mut T {
    (UNCACHED + physical as usize) as *mut T
}

/// The physical address of an address in either window.
pub(super) fn physical<T>(seen: *const T) -> u64 {
    seen as u64 & 0xffff_ffff_ffff
}
