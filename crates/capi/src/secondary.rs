//! Devices that share page tables, and tables that are filled from those of a space.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use core::mem;

use shootdown::PrimaryChanges;

use crate::engine::engine;
#[cfg(feature = "devices")]
use crate::storage::SpaceStorage;
use crate::storage::{FaultStorage, PrimaryChangesStorage, Storage};

/// Attaches a device to `space`: from now on, each flush of the space calls
/// `shootdown_os_issue_to_devices`, and is done only when `shootdown_os_devices_are_done`. In a
/// library with the feature `devices`, like the next function. Returns false if 255 devices are
/// attached.
///
/// Call this before the device may first walk the page tables.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `space` is initialised, and not retired.
#[cfg(feature = "devices")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_attach_device(space: *const SpaceStorage) -> bool {
    // SAFETY: the caller's promise.
    engine().attach_device(unsafe { SpaceStorage::get(space) }).is_ok()
}

/// Undoes one `shootdown_attach_device`. Call this before the space is retired.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `space` is initialised. The device neither uses nor walks the page tables any more, and has
/// dropped the translations that it cached.
///
/// # Panics
///
/// If no device is attached.
#[cfg(feature = "devices")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_detach_device(space: *const SpaceStorage) {
    // SAFETY: the caller's promises.
    unsafe { engine().detach_device(SpaceStorage::get(space)) };
}

/// Initialises the count of changes of primary entries that concern one secondary table, which a
/// hypervisor or a device fills from the page tables of a space.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Safety
///
/// `changes` must be valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_primary_changes_init(changes: *mut PrimaryChangesStorage) {
    // SAFETY: the caller's promise.
    unsafe { PrimaryChangesStorage::init(changes, PrimaryChanges::default()) };
}

/// Starts a change of primary entries. Call this before you remove the entries of the secondary
/// table, under its lock, and before you change the primary entries.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `changes` is initialised. One `shootdown_primary_change_end` follows.
///
/// # Panics
///
/// If 65535 changes are in progress.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_primary_change_start(changes: *const PrimaryChangesStorage) {
    // SAFETY: the caller's promises.
    mem::forget(unsafe { PrimaryChangesStorage::get(changes) }.start(engine().machine()));
}

/// Ends a change, after the primary entries have changed. Their flush may be done before or after.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `changes` is initialised, and this change was started.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_primary_change_end(changes: *const PrimaryChangesStorage) {
    // SAFETY: the caller's promises.
    drop(unsafe { PrimaryChangesStorage::get(changes) }.started(engine().machine()));
}

/// Begins a fault of the secondary table. Call this before you read the primary entry. Returns
/// false while a change is in progress: wait, or let the access fault again.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `changes` is initialised. `fault` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_secondary_fault_begin(
    changes: *const PrimaryChangesStorage,
    fault: *mut FaultStorage,
) -> bool {
    // SAFETY: the caller's promises.
    let begun = unsafe { PrimaryChangesStorage::get(changes) }.begin_fault(engine().machine());
    // SAFETY: the caller's promises.
    begun.map(|begun| unsafe { FaultStorage::init(fault, begun) }).is_some()
}

/// Returns true if no change has started since the fault began, so that its entry may be installed.
/// Call this with the lock of the secondary table held, and keep it until the entry is installed.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `changes` is initialised, and `fault` was begun.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_secondary_fault_may_install(
    changes: *const PrimaryChangesStorage,
    fault: *const FaultStorage,
) -> bool {
    // SAFETY: the caller's promises.
    let (changes, fault) =
        unsafe { (PrimaryChangesStorage::get(changes), FaultStorage::get(fault)) };
    changes.may_install(engine().machine(), *fault)
}
