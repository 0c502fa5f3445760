//! A reader–writer spin lock that the scheduler may take for reading while it holds its own lock.
//!
//! A handler may interrupt a reader and wait for the scheduler's lock. The CPU that holds that lock
//! may want to read as well, and does not wait for the first reader: readers wait for writers only,
//! and not for writers that wait. A writer keeps interrupts masked, and may take no lock but the
//! heap's, so it always comes to its end. (A lock of a library would not mask interrupts.)
//!
//! No loom program runs this lock, as none runs [`SpinLock`](super::SpinLock): the kernel builds
//! for bare metal alone. It has the usual orderings, and the pairs are named below.

#![expect(unsafe_code, reason = "implements the contract of `lock_api`")]

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lock_api::{GuardNoSend, RawRwLock};

use crate::kernel::arch::{Arch, Architecture};

/// A reader–writer spin lock.
pub(crate) struct SpinRwLock {
    /// Number of readers, or [`WRITER`].
    holders: AtomicUsize,
    /// `true` if interrupts were masked before the writer took the lock. Only the writer uses it.
    were_masked: AtomicBool,
}

/// The value of `holders` while a writer holds the lock.
const WRITER: usize = usize::MAX;

// SAFETY: `holders` counts the readers. It becomes `WRITER` only if there is no reader and no other
// writer, and a reader is added only if there is no writer.
unsafe impl RawRwLock for SpinRwLock {
    const INIT: Self = Self { holders: AtomicUsize::new(0), were_masked: AtomicBool::new(false) };
    /// The CPU that takes the lock releases it.
    type GuardMarker = GuardNoSend;

    fn lock_shared(&self) {
        while !self.try_lock_shared() {
            Arch::spin_hint();
        }
    }

    /// The acquire pairs with the release of `unlock_exclusive`: readers find what the last writer
    /// has written.
    fn try_lock_shared(&self) -> bool {
        let more = |holders| (holders != WRITER).then(|| holders + 1);
        self.holders.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    /// The release pairs with the acquire of `try_lock_exclusive`: a writer changes nothing that a
    /// reader still reads.
    unsafe fn unlock_shared(&self) {
        self.holders.fetch_sub(1, Ordering::Release);
    }

    fn lock_exclusive(&self) {
        while !self.try_lock_exclusive() {
            // Only load while the lock is held, so that its cache line stays shared.
            while self.holders.load(Ordering::Relaxed) != 0 {
                Arch::spin_hint();
            }
        }
    }

    /// The acquire pairs with the releases of `unlock_shared` and `unlock_exclusive`.
    fn try_lock_exclusive(&self) -> bool {
        let were_masked = Arch::interrupts_masked();
        Arch::mask_interrupts();
        let is_locked =
            self.holders.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if is_locked {
            self.were_masked.store(were_masked, Ordering::Relaxed);
        } else if !were_masked {
            Arch::unmask_interrupts();
        }
        is_locked
    }

    /// The release pairs with the acquires of both `try_lock_shared` and `try_lock_exclusive`.
    unsafe fn unlock_exclusive(&self) {
        let were_masked = self.were_masked.load(Ordering::Relaxed);
        self.holders.store(0, Ordering::Release);
        if !were_masked {
            Arch::unmask_interrupts();
        }
    }
}
