//! A lock whose waiters spin.
//!
//! Whoever holds one is not preempted, for the kernel preempts nobody but on the way to user mode;
//! does not wait for a flush; and does not sleep. Interrupts stay as they are: handlers take the
//! scheduler's lock alone. That is only ever taken with interrupts masked, and so is the heap's,
//! the one lock that is taken while the scheduler's is held.

#![expect(unsafe_code, reason = "the library's contract for locks")]

use core::sync::atomic::{AtomicBool, Ordering};

use lock_api::{GuardNoSend, RawMutex};

use crate::kernel::arch::{Arch, Architecture};

/// Whether it is held.
pub(crate) struct SpinLock(AtomicBool);

// SAFETY: only one CPU finds it free before it takes it.
unsafe impl RawMutex for SpinLock {
    const INIT: Self = Self(AtomicBool::new(false));
    /// It is a CPU's.
    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        while !self.try_lock() {
            // Its line stays shared meanwhile.
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
