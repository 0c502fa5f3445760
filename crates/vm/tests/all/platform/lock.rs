//! The platform's spin lock, and a moment right before it is taken, in which other CPUs may do
//! something.

use std::cell::{Cell, RefCell};

use lock_api::RawMutex;

use super::Hook;

thread_local! {
    static BEFORE: RefCell<Option<Hook>> = const { RefCell::new(None) };
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread holds a spin lock: another CPU would wait for that, and so cannot be played
/// by this thread.
pub fn is_held() -> bool {
    HELD.get() != 0
}

/// Has `hook` be called once, right before this thread takes a spin lock.
pub fn before_next_lock(hook: impl FnOnce() + Send + 'static) {
    BEFORE.with_borrow_mut(|before| *before = Some(Box::new(hook)));
}

/// A lock that says when it is taken.
pub struct Watched(parking_lot::RawMutex);

// SAFETY: it is as exclusive as the lock that it hands all calls on to.
#[allow(unsafe_code, reason = "the trait's")]
unsafe impl RawMutex for Watched {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait's")]
    const INIT: Self = Self(parking_lot::RawMutex::INIT);
    type GuardMarker = <parking_lot::RawMutex as RawMutex>::GuardMarker;

    fn lock(&self) {
        if let Some(hook) = BEFORE.take() {
            hook();
        }
        self.0.lock();
        HELD.set(HELD.get() + 1);
    }

    fn try_lock(&self) -> bool {
        let is_locked = self.0.try_lock();
        HELD.set(HELD.get() + usize::from(is_locked));
        is_locked
    }

    unsafe fn unlock(&self) {
        HELD.set(HELD.get() - 1);
        // SAFETY: as our caller promises.
        unsafe { self.0.unlock() }
    }
}
