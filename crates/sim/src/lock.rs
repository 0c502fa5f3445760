//! Locks, as a kernel has them: one whose waiters sleep, and one whose waiters spin.

use core::cell::Cell;
use std::rc::Rc;

use lock_api::{GuardSend, RawMutex, RawRwLock, RawRwLockDowngrade};
use shootdown::Word;
use std::sync::atomic::Ordering::Relaxed;

use crate::sim::{Sim, with_running};
use crate::threads::{Waiter, Wants};
use crate::word::SimWord;

/// A reader–writer lock whose waiters sleep, in the order in which they came: whoever lets go of it
/// gives it to the first, and to all readers right behind a first reader. Nobody spins on the
/// owner, and nobody overtakes.
#[derive(Debug)]
#[repr(align(64))]
pub struct SleepingLock(SimWord);

/// Held for writing; else the word counts readers.
const EXCLUSIVE: u64 = 1 << 63;
/// Somebody waits.
const CONTENDED: u64 = 1 << 62;

impl SleepingLock {
    fn lock(&self, wants: Wants) {
        // One locked operation; what it does depends on what the word is when its turn comes.
        let before = self.0.fetch_or(0, Relaxed);
        let free = match wants {
            Wants::Shared => before & (EXCLUSIVE | CONTENDED) == 0,
            Wants::Exclusive => before == 0,
        };
        if free {
            self.set(if wants == Wants::Shared { before + 1 } else { EXCLUSIVE });
            return;
        }
        let slept = with_running(|sim| {
            let Some(thread) = sim.current_thread() else { return false };
            self.set(before | CONTENDED);
            let granted = Rc::new(Cell::new(false));
            let waiter = Waiter { thread, wants, granted: Rc::clone(&granted) };
            sim.waiters.borrow_mut().entry(self.key()).or_default().push_back(waiter);
            // Whoever wakes the thread for another reason does not give it the lock.
            while !granted.get() {
                sim.block();
            }
            true
        });
        assert!(slept == Some(true), "a sleeping lock is held, and nobody can sleep here");
    }

    fn unlock(&self, by: Wants) {
        let before = self.0.fetch_or(0, Relaxed);
        let after = match by {
            Wants::Shared => before - 1,
            Wants::Exclusive => before & !EXCLUSIVE,
        };
        self.set(after);
        if after == CONTENDED {
            with_running(|sim| self.hand_over(sim));
        }
    }

    /// Gives the lock, which nobody holds for writing, to whoever may have it next.
    fn hand_over(&self, sim: &Sim) {
        let mut granted = Vec::new();
        let mut word = self.0.peek() & !CONTENDED;
        {
            let mut all = sim.waiters.borrow_mut();
            let queue = all.entry(self.key()).or_default();
            while let Some(waiter) = queue.front().cloned() {
                let grant = match waiter.wants {
                    Wants::Shared => word & EXCLUSIVE == 0,
                    Wants::Exclusive => word == 0,
                };
                if !grant {
                    break;
                }
                word = if waiter.wants == Wants::Shared { word + 1 } else { EXCLUSIVE };
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
        self.set(word);
        for thread in granted {
            sim.wake(thread);
        }
    }

    /// Writes the word in the same moment in which it was accessed, as one locked operation would.
    fn set(&self, word: u64) {
        self.0.poke(word);
    }

    fn key(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }
}

#[expect(unsafe_code, reason = "the library's contract for locks")]
// SAFETY: the word says who holds the lock, and changes in one step of simulated time together with
// the decision; a writer excludes all others.
unsafe impl RawRwLock for SleepingLock {
    const INIT: Self = Self(SimWord::with(0));
    type GuardMarker = GuardSend;

    fn lock_shared(&self) {
        self.lock(Wants::Shared);
    }
    fn try_lock_shared(&self) -> bool {
        let before = self.0.fetch_or(0, Relaxed);
        let free = before & (EXCLUSIVE | CONTENDED) == 0;
        if free {
            self.set(before + 1);
        }
        free
    }
    unsafe fn unlock_shared(&self) {
        self.unlock(Wants::Shared);
    }
    fn lock_exclusive(&self) {
        self.lock(Wants::Exclusive);
    }
    fn try_lock_exclusive(&self) -> bool {
        let free = self.0.fetch_or(0, Relaxed) == 0;
        if free {
            self.set(EXCLUSIVE);
        }
        free
    }
    unsafe fn unlock_exclusive(&self) {
        self.unlock(Wants::Exclusive);
    }
}

#[expect(unsafe_code, reason = "the library's contract for locks")]
// SAFETY: the writer becomes a reader in one step.
unsafe impl RawRwLockDowngrade for SleepingLock {
    unsafe fn downgrade(&self) {
        let before = self.0.fetch_or(0, Relaxed);
        self.set(before & !EXCLUSIVE | 1);
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
// SAFETY: only one finds the word to be 0 before it writes 1.
unsafe impl RawMutex for SpinLock {
    const INIT: Self = Self(SimWord::with(0));
    type GuardMarker = GuardSend;

    fn lock(&self) {
        while !self.try_lock() {
            while self.0.load(Relaxed) != 0 {
                let spun = with_running(Sim::spin_hint);
                assert!(spun.is_some(), "a spin lock is held, and nobody can let go of it");
            }
        }
    }
    fn try_lock(&self) -> bool {
        self.0.swap(1, Relaxed) == 0
    }
    unsafe fn unlock(&self) {
        self.0.store(0, Relaxed);
    }
}
