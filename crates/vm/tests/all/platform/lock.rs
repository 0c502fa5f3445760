//! The platform's locks: a spin lock with a hook that runs right before the lock is taken, in the
//! role of another CPU, and a sleeping lock. Both count the locks that this thread holds.

use std::cell::{Cell, RefCell};

use lock_api::{RawMutex, RawRwLock, RawRwLockDowngrade};

use super::Hook;

thread_local! {
    static BEFORE: RefCell<Option<Hook>> = const { RefCell::new(None) };
    static LOCK_COUNT: Cell<usize> = const { Cell::new(0) };
    static READERS: Cell<usize> = const { Cell::new(0) };
    static WRITERS: Cell<usize> = const { Cell::new(0) };
}

/// Returns `true` if this thread holds a spin lock. Another CPU would wait for the lock, so this
/// thread cannot play its role then.
pub fn is_locked_here() -> bool {
    LOCK_COUNT.get() != 0
}

/// Numbers of sleeping locks that this thread holds for reading, and for writing.
pub fn sleeping_locks() -> (usize, usize) {
    (READERS.get(), WRITERS.get())
}

/// Calls `hook` once, right before this thread takes a spin lock.
pub fn before_next_lock(hook: impl FnOnce() + Send + 'static) {
    BEFORE.with_borrow_mut(|before| *before = Some(Box::new(hook)));
}

/// A lock that calls the hook, and counts the locks that this thread holds.
pub struct HookedLock(parking_lot::RawMutex);

// SAFETY: all calls are forwarded to a lock that is exclusive.
#[allow(unsafe_code, reason = "the trait is unsafe")]
unsafe impl RawMutex for HookedLock {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait requires it")]
    const INIT: Self = Self(parking_lot::RawMutex::INIT);
    type GuardMarker = <parking_lot::RawMutex as RawMutex>::GuardMarker;

    fn lock(&self) {
        if let Some(hook) = BEFORE.take() {
            hook();
        }
        self.0.lock();
        LOCK_COUNT.set(LOCK_COUNT.get() + 1);
    }

    fn try_lock(&self) -> bool {
        let is_locked = self.0.try_lock();
        LOCK_COUNT.set(LOCK_COUNT.get() + usize::from(is_locked));
        is_locked
    }

    unsafe fn unlock(&self) {
        LOCK_COUNT.set(LOCK_COUNT.get() - 1);
        // SAFETY: the caller promises that this thread holds the lock.
        unsafe { self.0.unlock() }
    }
}

/// A lock that counts the locks that this thread holds.
pub struct CountedLock(parking_lot::RawRwLock);

// SAFETY: all calls are forwarded to a lock for one writer or for readers.
#[allow(unsafe_code, reason = "the trait is unsafe")]
unsafe impl RawRwLock for CountedLock {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait requires it")]
    const INIT: Self = Self(parking_lot::RawRwLock::INIT);
    type GuardMarker = <parking_lot::RawRwLock as RawRwLock>::GuardMarker;

    fn lock_shared(&self) {
        self.0.lock_shared();
        READERS.set(READERS.get() + 1);
    }

    fn try_lock_shared(&self) -> bool {
        let is_locked = self.0.try_lock_shared();
        READERS.set(READERS.get() + usize::from(is_locked));
        is_locked
    }

    unsafe fn unlock_shared(&self) {
        READERS.set(READERS.get() - 1);
        // SAFETY: the caller promises that this thread holds the lock.
        unsafe { self.0.unlock_shared() }
    }

    fn lock_exclusive(&self) {
        self.0.lock_exclusive();
        WRITERS.set(WRITERS.get() + 1);
    }

    fn try_lock_exclusive(&self) -> bool {
        let is_locked = self.0.try_lock_exclusive();
        WRITERS.set(WRITERS.get() + usize::from(is_locked));
        is_locked
    }

    unsafe fn unlock_exclusive(&self) {
        WRITERS.set(WRITERS.get() - 1);
        // SAFETY: the caller promises that this thread holds the lock.
        unsafe { self.0.unlock_exclusive() }
    }
}

// SAFETY: as above.
#[allow(unsafe_code, reason = "the trait is unsafe")]
unsafe impl RawRwLockDowngrade for CountedLock {
    unsafe fn downgrade(&self) {
        WRITERS.set(WRITERS.get() - 1);
        READERS.set(READERS.get() + 1);
        // SAFETY: the caller promises that this thread holds the lock.
        unsafe { self.0.downgrade() }
    }
}
