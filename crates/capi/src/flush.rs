//! Flushes, and waiting for them.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use shootdown::Pending;

use crate::engine::{engine, pin};
use crate::extent::ExtentWord;
use crate::storage::{PendingStorage, SpaceStorage, Storage};

/// Flushes `extent` of `space`. Call this after you change page tables, and before the pages that
/// they mapped are used for anything else.
///
/// Invalidates on this CPU, and interrupts the CPUs that could be using the space. When
/// `shootdown_wait(pending)` has returned, no CPU can use the old translations. Drop your locks
/// between the two.
///
/// Do not flush for an entry that was not valid before, or that only gained permissions.
///
/// # Safety
///
/// Masked. `space` is initialised, and not retired. `pending` is valid for writes, and has nothing
/// left to wait for, or is not initialised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_flush(
    space: *const SpaceStorage,
    extent: ExtentWord,
    pending: *mut PendingStorage,
) {
    // SAFETY: the caller's promises.
    unsafe {
        PendingStorage::init(pending, pin().flush(SpaceStorage::get(space), extent.extent()));
    }
}

/// Flushes `extent` of `space` before an entry of another size replaces its entries (Arm's
/// break-before-make). Wait for it before you write the new entry.
///
/// # Safety
///
/// As `shootdown_flush`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_flush_for_resize(
    space: *const SpaceStorage,
    extent: ExtentWord,
    pending: *mut PendingStorage,
) {
    // SAFETY: the caller's promises.
    unsafe {
        let value = pin().flush_for_resize(SpaceStorage::get(space), extent.extent());
        PendingStorage::init(pending, value);
    }
}

/// Flushes `extent` of the kernel's own pages, which all spaces share, on all CPUs that are online.
///
/// # Safety
///
/// Masked. `pending` as for `shootdown_flush`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_flush_kernel(extent: ExtentWord, pending: *mut PendingStorage) {
    // SAFETY: the caller's promises.
    unsafe { PendingStorage::init(pending, pin().flush_kernel(extent.extent())) };
}

/// Initialises `pending` as a flush that is done, to which others can be joined.
///
/// # Safety
///
/// `pending` as for `shootdown_flush`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_pending_init(pending: *mut PendingStorage) {
    // SAFETY: the caller's promise.
    unsafe { PendingStorage::init(pending, Pending::done(engine())) };
}

/// Waits until the flush is done: no CPU can use its old translations. Returns at once if it is
/// done already.
///
/// May be called on any CPU, masked or not. Masked is better for many flushes at the same time: the
/// waiter then answers other CPUs itself. Unmasked, the thread may be moved while it waits. There
/// is no timeout.
///
/// # Safety
///
/// `pending` is initialised. The caller holds no lock for which another CPU waits masked, unless
/// that CPU calls `shootdown_handle_flush_ipi` in its loop. It is not in a handler that has
/// interrupted a function of the library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_wait(pending: *mut PendingStorage) {
    // SAFETY: the caller's promise.
    unsafe { PendingStorage::get_mut(pending) }.wait();
}

/// Returns true if the flush is done, without waiting for other CPUs.
///
/// # Safety
///
/// As `shootdown_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_poll(pending: *mut PendingStorage) -> bool {
    // SAFETY: the caller's promise.
    unsafe { PendingStorage::get_mut(pending) }.poll()
}

/// Adds the flush `other` to `pending`, which is then done when both are. `other` has nothing left
/// to wait for afterwards.
///
/// # Safety
///
/// As `shootdown_wait`, for both, which must not be the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_join(pending: *mut PendingStorage, other: *mut PendingStorage) {
    // SAFETY: the caller's promise. `other` is initialised again before this returns.
    unsafe {
        let joined = PendingStorage::take(other);
        PendingStorage::init(other, Pending::done(engine()));
        PendingStorage::get_mut(pending).join(joined);
    }
}
