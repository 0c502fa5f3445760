//! Tags of spaces that devices use.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use crate::engine::pin;
use crate::storage::{SpaceStorage, Storage};

/// Gives `space` a tag (ASID) that it keeps, for a device that shares its page tables and observes
/// the CPUs' broadcasts. Returns the tag; 0 if the machine has no global tags, cannot broadcast, or
/// has none left.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 1024.
///
/// # Safety
///
/// Masked. `space` is initialised, and not retired.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_pin_tag(space: *const SpaceStorage) -> u16 {
    // SAFETY: the caller's promises.
    unsafe { pin().pin_tag(SpaceStorage::get(space)) }.map_or(0, |tag| tag.0)
}

/// Undoes one `shootdown_pin_tag`. Call this before the space is retired.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 256.
///
/// # Safety
///
/// As `shootdown_pin_tag`. The device does not use the tag any more, and has dropped the
/// translations that it cached under it.
///
/// # Panics
///
/// If the space is not pinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_unpin_tag(space: *const SpaceStorage) {
    // SAFETY: the caller's promises.
    unsafe { pin().unpin_tag(SpaceStorage::get(space)) };
}
