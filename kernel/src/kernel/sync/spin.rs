//! A spin lock.
//!
//! A thread that holds a spin lock is not preempted, because the kernel preempts threads only on
//! the way to user mode. It must not sleep. It must not wait for a flush either, except for one
//! that concerns a single replica, which the memory manager waits for under a spin lock: a CPU that
//! waits for such a lock has interrupts unmasked, and handles the flush.
//!
//! Taking a lock does not mask interrupts. Handlers take only the scheduler's lock, which is always
//! taken with interrupts masked. So is the heap's. While the scheduler's lock is held, only the
//! heap's and [`SpinRwLock`](super::SpinRwLock)s are taken.

#![expect(unsafe_code, reason = "implements the contract of `lock_api`")]

use core::sync::atomic::{AtomicBool, Ordering};

use lock_api::{GuardNoSend, RawMutex};

use crate::kernel::arch::{Arch, Architecture};

/// A spin lock: `true` if it is held.
pub(crate) struct SpinLock(AtomicBool);

// SAFETY: only one CPU changes the word from `false` to `true`, and that CPU holds the lock.
unsafe impl RawMutex for SpinLock {
    const INIT: Self = Self(AtomicBool::new(false));
    /// The CPU that takes the lock releases it.
    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        while !self.try_lock() {
            // Only load while the lock is held, so that its cache line stays shared.
            while self.0.load(Ordering::Relaxed) {
                Arch::spin_hint();
            }
        }
    }

    fn try_lock(&self) -> bool {
        !self.0.swap(true, Ordering::Acquire)
    }

    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}
