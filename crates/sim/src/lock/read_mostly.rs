//! A lock whose readers write nothing, as if they used RCU.

use core::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use lock_api::{GuardNoSend, RawRwLock};
use shootdown::Word;

use crate::word::SimWord;

/// A reader–writer lock for a search structure that is read often and changed rarely. A reader
/// loads one word, which costs a transfer if the structure was changed since; a writer writes it.
///
/// The simulator changes threads only where simulated time passes. No time may pass while the lock
/// is held, so no thread ever has to wait for it.
///
/// # Panics
///
/// Locking panics if time did pass while a thread held the lock, and another thread needs it.
#[derive(Debug)]
#[repr(align(64))]
pub struct ReadMostlyLock {
    word: SimWord,
    /// Number of readers, or [`WRITER`].
    holders: Cell<usize>,
}

const WRITER: usize = usize::MAX;

#[expect(unsafe_code, reason = "the library's contract for locks")]
// SAFETY: a thread gets the lock only if the holders allow it, and panics otherwise. All threads
// of a simulation are on one thread of the host, because a `Cell` is not `Sync`.
unsafe impl RawRwLock for ReadMostlyLock {
    const INIT: Self = Self { word: SimWord::with(0), holders: Cell::new(0) };
    type GuardMarker = GuardNoSend;

    #[track_caller]
    fn lock_shared(&self) {
        assert!(self.try_lock_shared(), "time passed while a writer had the index");
    }
    #[track_caller]
    fn try_lock_shared(&self) -> bool {
        self.word.load(Relaxed);
        let is_free = self.holders.get() != WRITER;
        if is_free {
            self.holders.update(|holders| holders + 1);
        }
        is_free
    }
    unsafe fn unlock_shared(&self) {
        self.holders.update(|holders| holders - 1);
    }
    #[track_caller]
    fn lock_exclusive(&self) {
        assert!(self.try_lock_exclusive(), "time passed while a thread had the index");
    }
    #[track_caller]
    fn try_lock_exclusive(&self) -> bool {
        self.word.fetch_add(1, Relaxed);
        let is_free = self.holders.get() == 0;
        if is_free {
            self.holders.set(WRITER);
        }
        is_free
    }
    unsafe fn unlock_exclusive(&self) {
        self.holders.set(0);
    }
}
