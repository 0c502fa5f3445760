//! Flushes, and waiting for them.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use core::{mem, ptr};

use shootdown::{Extent, PageSize, Pending};

use crate::engine::{ENGINE, find_engine, pin, try_pin};
use crate::extent::ExtentWord;
use crate::machine::Machine;
use crate::storage::{PendingStorage, SpaceStorage, Storage};

/// Flushes `extent` of `space`. Call this after you change page tables, and before the pages that
/// they mapped are used for anything else.
///
/// Invalidates on this CPU, and interrupts the CPUs that could be using the space. When
/// `shootdown_wait(pending)` has returned, no CPU can use the old translations. Drop your locks
/// between the two.
///
/// Do not flush for an entry that was not valid before, or that only gained permissions. The
/// handler of page faults calls `shootdown_forget_refused` where CPUs cache such an entry (Arm,
/// RISC-V, LoongArch).
///
/// Interrupts: yes. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 2048.
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
        let value = pin().flush(SpaceStorage::get(space), extent.extent());
        PendingStorage::init(pending, Some(value));
    }
}

/// Flushes the pages of 2^`page_shift` bytes that overlap the addresses from `start` to before
/// `end`, and waits; the whole space if there are more than 4095 pages, as from 0 to `UINT64_MAX`.
/// `frees_tables` as in `shootdown_freeing_tables`.
///
/// The same as `shootdown_flush` and `shootdown_wait`, in half of the instructions if no other CPU
/// uses the space.
///
/// Interrupts: yes. Waits: yes. Reclaims: no. Callable: before shootdown_online. Stack: 2048.
///
/// # Safety
///
/// As `shootdown_flush` and `shootdown_wait`.
///
/// # Panics
///
/// As `shootdown_range`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_flush_and_wait(
    space: *const SpaceStorage,
    start: u64,
    end: u64,
    page_shift: u8,
    frees_tables: bool,
) {
    let pages = Extent::range(start..end, PageSize::from_shift(page_shift));
    let extent = if frees_tables { pages.freeing_tables() } else { pages };
    // SAFETY: the caller's promises.
    unsafe { pin().flush_and_wait(SpaceStorage::get(space), extent) };
}

/// Flushes `extent` of `space` before an entry of another size replaces its entries (Arm's
/// break-before-make). Wait for it before you write the new entry.
///
/// Interrupts: yes. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 2048.
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
        PendingStorage::init(pending, Some(value));
    }
}

/// Flushes `extent` of the kernel's own pages, which all spaces share, on all CPUs that are online.
///
/// Does nothing before `shootdown_init`, so that code of the kernel that also runs early in the
/// boot can call it. If such code relies on the flush on its own CPU, it must invalidate by itself.
///
/// Interrupts: yes. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 1664.
///
/// # Safety
///
/// Masked. `pending` as for `shootdown_flush`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_flush_kernel(extent: ExtentWord, pending: *mut PendingStorage) {
    // SAFETY: the caller's promises.
    unsafe {
        PendingStorage::init(pending, try_pin().map(|pin| pin.flush_kernel(extent.extent())));
    }
}

/// Initialises `pending` as a flush that is done, to which others can be joined.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 128.
///
/// # Safety
///
/// `pending` as for `shootdown_flush`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_pending_init(pending: *mut PendingStorage) {
    // SAFETY: the caller's promise.
    unsafe { PendingStorage::init(pending, find_engine().map(Pending::done)) };
}

/// Waits until the flush is done: no CPU can use its old translations. Returns at once if it is
/// done already.
///
/// May be called on any CPU, masked or not. Masked is better for many flushes at the same time: the
/// waiter then answers other CPUs itself. Unmasked, the thread may be moved while it waits. There
/// is no timeout.
///
/// Interrupts: yes. Waits: yes. Reclaims: no. Callable: before shootdown_init. Stack: 1664.
///
/// # Safety
///
/// `pending` is initialised. The caller holds no lock for which another CPU waits masked, unless
/// that CPU calls `shootdown_handle_flush_ipi` in its loop. It is not in a handler that has
/// interrupted a function of the library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_wait(pending: *mut PendingStorage) {
    // SAFETY: the caller's promise.
    if let Some(pending) = find(unsafe { PendingStorage::get_mut(pending) }) {
        pending.wait();
    }
}

/// Returns true if the flush is done, without waiting for other CPUs.
///
/// Interrupts: yes. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 512.
///
/// # Safety
///
/// As `shootdown_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_poll(pending: *mut PendingStorage) -> bool {
    // SAFETY: the caller's promise.
    find(unsafe { PendingStorage::get_mut(pending) }).is_none_or(Pending::poll)
}

/// As `shootdown_poll`. If the flush is not done, a CPU that it waits for calls the function
/// `wake_waiters` of the configuration when it has answered; then call this again. The thread can
/// sleep until then. Put it where `wake_waiters` finds it before each call, so that no wake-up is
/// lost.
///
/// Interrupts: yes. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 512.
///
/// # Safety
///
/// As `shootdown_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_poll_or_wake(pending: *mut PendingStorage) -> bool {
    // SAFETY: the caller's promise.
    find(unsafe { PendingStorage::get_mut(pending) }).is_none_or(Pending::poll_or_wake)
}

/// A flush of the engine of this library.
type Flush = Pending<'static, Machine>;

/// The flush, if there is one: not before there was an engine, and not in memory that is zero.
///
/// # Panics
///
/// If it is not a flush of this engine: memory that is neither zero nor initialised is none.
#[inline]
#[track_caller]
fn find(pending: &mut Option<Flush>) -> Option<&mut Flush> {
    // The one check of the usual case: nothing but a flush of this engine has its address.
    match pending.as_mut() {
        Some(pending) if ptr::eq(pending.engine_address(), ENGINE.address()) => Some(pending),
        other => {
            let is_none = other.is_none_or(|pending| pending.engine_address().is_null());
            assert!(is_none, "the memory of a pending flush is not initialised");
            None
        }
    }
}

/// Adds the flush `other` to `pending`, which is then done when both are. `other` has nothing left
/// to wait for afterwards.
///
/// Interrupts: yes. Waits: no. Reclaims: no. Callable: before shootdown_init. Stack: 640.
///
/// # Safety
///
/// As `shootdown_wait`, for both.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_join(pending: *mut PendingStorage, other: *mut PendingStorage) {
    if pending == other {
        return;
    }
    // SAFETY: the caller's promise.
    let (pending, other) =
        unsafe { (PendingStorage::get_mut(pending), PendingStorage::get_mut(other)) };
    let Some(joined) = find(other) else { return };
    let done = find_engine().map_or_else(|| unreachable!("it is a flush"), Pending::done);
    let joined = mem::replace(joined, done);
    match find(pending) {
        Some(pending) => pending.join(joined),
        // It was initialised before there was an engine.
        None => *pending = Some(joined),
    }
}
