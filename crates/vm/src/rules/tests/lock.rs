//! The locks of the platform, as loom explores them.

use std::sync::OnceLock;

use lock_api::{GuardSend, RawMutex, RawRwLock, RawRwLockDowngrade};
use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::thread;

const WRITER: usize = usize::MAX;

/// A lock for one writer, or for readers. Its word is made at its first use, because the traits
/// demand a constant, and loom demands that each later use comes after that. So each lock that two
/// threads of a program use must be used before they begin.
pub(crate) struct Lock(OnceLock<AtomicUsize>);

impl Lock {
    /// Number of readers, or [`WRITER`].
    fn holders(&self) -> &AtomicUsize {
        self.0.get_or_init(|| AtomicUsize::new(0))
    }

    fn try_change(&self, from: usize, to: usize) -> bool {
        self.holders().compare_exchange(from, to, Acquire, Relaxed).is_ok()
    }

    fn try_write(&self) -> bool {
        self.try_change(0, WRITER)
    }

    fn try_read(&self) -> bool {
        let readers = self.holders().load(Relaxed);
        readers != WRITER && self.try_change(readers, readers + 1)
    }
}

fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}

// SAFETY: only one holder changes the word from 0 to `WRITER`, until it writes 0 again.
#[expect(unsafe_code, reason = "the trait is unsafe")]
unsafe impl RawMutex for Lock {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait requires it")]
    const INIT: Self = Self(OnceLock::new());
    type GuardMarker = GuardSend;

    fn lock(&self) {
        wait_until(|| self.try_write());
    }

    fn try_lock(&self) -> bool {
        self.try_write()
    }

    unsafe fn unlock(&self) {
        self.holders().store(0, Release);
    }
}

// SAFETY: as above; the word counts readers otherwise.
#[expect(unsafe_code, reason = "the trait is unsafe")]
unsafe impl RawRwLock for Lock {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait requires it")]
    const INIT: Self = Self(OnceLock::new());
    type GuardMarker = GuardSend;

    fn lock_shared(&self) {
        wait_until(|| self.try_read());
    }

    fn try_lock_shared(&self) -> bool {
        self.try_read()
    }

    unsafe fn unlock_shared(&self) {
        self.holders().fetch_sub(1, Release);
    }

    fn lock_exclusive(&self) {
        wait_until(|| self.try_write());
    }

    fn try_lock_exclusive(&self) -> bool {
        self.try_write()
    }

    unsafe fn unlock_exclusive(&self) {
        self.holders().store(0, Release);
    }
}

// SAFETY: the writer becomes the only reader.
#[expect(unsafe_code, reason = "the trait is unsafe")]
unsafe impl RawRwLockDowngrade for Lock {
    unsafe fn downgrade(&self) {
        self.holders().store(1, Release);
    }
}
