//! The locks of a kernel: one whose waiters sleep, and one whose waiters spin.

use core::cell::Cell;
use std::rc::Rc;

use lock_api::{GuardSend, RawMutex, RawRwLock, RawRwLockDowngrade};
use shootdown::Word;
use std::sync::atomic::Ordering::Relaxed;

use crate::causes::Cause;
use crate::sim::{Sim, with_running};
use crate::threads::{LockMode, Waiter};
use crate::word::SimWord;

/// A reader–writer lock whose waiters sleep, in order of arrival. The thread that releases the lock
/// hands it to the first waiter, and to all readers that directly follow a first reader. No waiter
/// spins on the owner, and no thread overtakes a waiter.
#[derive(Debug)]
#[repr(align(64))]
pub struct SleepingLock(SimWord);

/// Set while a writer has the lock. Otherwise the low bits are the number of readers.
const EXCLUSIVE: u64 = 1 << 63;
/// Set while threads wait for the lock.
const CONTENDED: u64 = 1 << 62;

impl SleepingLock {
    /// Takes the lock if no thread must wait for it. Otherwise returns the word.
    fn try_lock(&self, mode: LockMode) -> Result<(), u64> {
        // One locked operation. Its effect depends on the word's value at this thread's turn.
        let before = self.0.fetch_or(0, Relaxed);
        match mode {
            LockMode::Shared if before & (EXCLUSIVE | CONTENDED) == 0 => self.0.set(before + 1),
            LockMode::Exclusive if before == 0 => self.0.set(EXCLUSIVE),
            _ => return Err(before),
        }
        Ok(())
    }

    fn lock(&self, mode: LockMode) {
        let Err(before) = self.try_lock(mode) else { return };
        let slept = with_running(|sim| {
            let Some(thread) = sim.current_thread() else { return false };
            self.0.set(before | CONTENDED);
            let granted = Rc::new(Cell::new(false));
            let waiter = Waiter { thread, mode, granted: Rc::clone(&granted) };
            sim.waiters.borrow_mut().entry(self.key()).or_default().push_back(waiter);
            // A thread that is woken for another reason does not have the lock.
            sim.attribute(Cause::LockWait, || {
                while !granted.get() {
                    sim.block();
                }
            });
            true
        });
        assert!(slept == Some(true), "the caller must sleep for a lock, and is not a thread");
    }

    fn unlock(&self, mode: LockMode) {
        let before = self.0.fetch_or(0, Relaxed);
        let after = match mode {
            LockMode::Shared => before - 1,
            LockMode::Exclusive => before & !EXCLUSIVE,
        };
        self.0.set(after);
        if after == CONTENDED {
            with_running(|sim| self.hand_over(sim));
        }
    }

    /// Hands the lock, which no writer has, to the waiters that may have it next.
    fn hand_over(&self, sim: &Sim) {
        let mut granted = Vec::new();
        let mut word = self.0.peek() & !CONTENDED;
        {
            let mut all = sim.waiters.borrow_mut();
            let queue = all.entry(self.key()).or_default();
            while let Some(waiter) = queue.front().cloned() {
                let grant = match waiter.mode {
                    LockMode::Shared => word & EXCLUSIVE == 0,
                    LockMode::Exclusive => word == 0,
                };
                if !grant {
                    break;
                }
                word = if waiter.mode == LockMode::Shared { word + 1 } else { EXCLUSIVE };
                waiter.granted.set(true);
                granted.push(waiter.thread);
                queue.pop_front();
            }
            if queue.is_empty() {
                all.remove(&self.key());
            } else {
                word |= CONTENDED;
            }
        }
        self.0.set(word);
        for thread in granted {
            sim.wake(thread);
        }
    }

    fn key(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }
}

#[expect(unsafe_code, reason = "the library's contract for locks")]
// SAFETY: the word records who has the lock. It changes in the same step of simulated time as the
// decision that depends on it, and a writer excludes all other threads.
unsafe impl RawRwLock for SleepingLock {
    const INIT: Self = Self(SimWord::with(0));
    type GuardMarker = GuardSend;

    fn lock_shared(&self) {
        self.lock(LockMode::Shared);
    }
    fn try_lock_shared(&self) -> bool {
        self.try_lock(LockMode::Shared).is_ok()
    }
    unsafe fn unlock_shared(&self) {
        self.unlock(LockMode::Shared);
    }
    fn lock_exclusive(&self) {
        self.lock(LockMode::Exclusive);
    }
    fn try_lock_exclusive(&self) -> bool {
        self.try_lock(LockMode::Exclusive).is_ok()
    }
    unsafe fn unlock_exclusive(&self) {
        self.unlock(LockMode::Exclusive);
    }
}

#[expect(unsafe_code, reason = "the library's contract for locks")]
// SAFETY: the writer becomes a reader in one step.
unsafe impl RawRwLockDowngrade for SleepingLock {
    unsafe fn downgrade(&self) {
        let before = self.0.fetch_or(0, Relaxed);
        self.0.set(before & !EXCLUSIVE | 1);
        if before & CONTENDED != 0 {
            with_running(|sim| self.hand_over(sim));
        }
    }
}

/// A lock whose waiters spin.
#[derive(Debug)]
#[repr(align(64))]
pub struct SpinLock(SimWord);

#[expect(unsafe_code, reason = "the library's contract for locks")]
// SAFETY: only one thread swaps a 1 for a 0.
unsafe impl RawMutex for SpinLock {
    const INIT: Self = Self(SimWord::with(0));
    type GuardMarker = GuardSend;

    fn lock(&self) {
        if self.try_lock() {
            return;
        }
        let spin = |sim: &Sim| {
            loop {
                while self.0.load(Relaxed) != 0 {
                    sim.spin_hint();
                }
                if self.try_lock() {
                    return;
                }
            }
        };
        let spun = with_running(|sim| sim.attribute(Cause::LockWait, || spin(sim)));
        assert!(spun.is_some(), "a spin lock is taken, and no other CPU can release it");
    }
    fn try_lock(&self) -> bool {
        self.0.swap(1, Relaxed) == 0
    }
    unsafe fn unlock(&self) {
        self.0.store(0, Relaxed);
    }
}
