//! The lock whose waiters sleep, or spin before they do (Linux: `rw_semaphore`).
//!
//! # Differences from Linux
//!
//! - A sleeper whose patience is at its end makes others leave the lock to it, and then sleeps
//!   until it is woken. In Linux it spins.
//! - The lock of the list of waiters is part of the word: to join the list costs one locked
//!   operation on the line.

use core::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use lock_api::{GuardSend, RawRwLock, RawRwLockDowngrade};
use shootdown::Word;

use crate::causes::Cause;
use crate::lines::LineId;
use crate::lock::queue::{LockMode, Sleeper, SleeperState};
use crate::lock::waiting::LockWaiting;
use crate::sim::{Sim, with_running};
use crate::thread_id::ThreadId;
use crate::time::Time;
use crate::word::SimWord;

/// A reader–writer lock whose waiters sleep, or spin first, as [`LockWaiting`] says. It is Linux's
/// `mmap_lock`.
#[derive(Debug)]
#[repr(align(64))]
pub struct SleepingLock {
    pub(super) word: SimWord,
    /// The thread that has the lock as a writer, plus 1; 0 if none does; or [`NONSPINNABLE`]. In
    /// the line of the word, as in Linux, so its accesses cost nothing more.
    owner: AtomicU32,
}

/// The owner after a writer has spun in vain for as long as it may while readers had the lock. No
/// writer spins then until one has had the lock (`RWSEM_NONSPINNABLE`).
const NONSPINNABLE: u32 = u32::MAX;

/// Longest time for which a sleeper is overtaken: 4 ms (`RWSEM_WAIT_TIMEOUT`).
const OVERTAKEN_MAX: Time = Time::from_ms(4);

/// Set while a writer has the lock.
pub(super) const EXCLUSIVE: u64 = 1 << 63;
/// Set while threads sleep for the lock.
pub(super) const CONTENDED: u64 = 1 << 62;
/// Set when the lock must go to the first sleeper next.
pub(super) const HANDOFF: u64 = 1 << 61;
/// The number of readers.
pub(super) const READERS: u64 = HANDOFF - 1;

impl SleepingLock {
    /// Takes the lock if no thread must wait for it. Otherwise returns the word.
    #[track_caller]
    fn try_lock(&self, mode: LockMode) -> Result<(), u64> {
        // One locked operation. Its effect depends on the word's value at this thread's turn.
        let before = self.word.fetch_or(0, Relaxed);
        match mode {
            LockMode::Shared if before & !READERS == 0 => self.word.set(before + 1),
            LockMode::Exclusive if before == 0 => {
                self.word.set(EXCLUSIVE);
                self.set_owner(with_running(Sim::current_thread).flatten());
            }
            _ => return Err(before),
        }
        Ok(())
    }

    #[track_caller]
    fn lock(&self, mode: LockMode) {
        let Err(before) = self.try_lock(mode) else { return };
        let waited = with_running(|sim| {
            let Some(thread) = sim.current_thread() else { return false };
            sim.count(|counts| counts.lock_waits += 1);
            let began = sim.now();
            sim.attribute(Cause::LockWait, || self.wait(sim, thread, mode, before));
            sim.waited_for_lock(LineId::of_host(self.key()), sim.now() - began);
            true
        });
        assert!(waited == Some(true), "the caller must wait for a lock, and is not a thread");
    }

    /// Waits for the lock, whose word was `before`, until the thread has it.
    fn wait(&self, sim: &Sim, thread: ThreadId, mode: LockMode, before: u64) {
        let has_lock = match mode {
            _ if sim.lock_waiting.get() == LockWaiting::Sleep => false,
            LockMode::Shared => self.steal_shared(sim, before),
            LockMode::Exclusive => self.spin(sim, thread),
        };
        if !has_lock {
            let began = sim.now();
            self.sleep(sim, thread, mode);
            let slept = sim.now() - began;
            sim.count(|counts| counts.lock_sleep += slept);
        }
    }

    /// Takes the lock as a reader before all sleepers, if no thread has it. All readers that sleep
    /// before the first writer then get it too.
    fn steal_shared(&self, sim: &Sim, before: u64) -> bool {
        let is_free = before & (EXCLUSIVE | HANDOFF | READERS) == 0;
        if is_free {
            self.word.set(before + 1);
            if before & CONTENDED != 0 {
                self.grant_readers(sim);
            }
        }
        is_free
    }

    fn sleep(&self, sim: &Sim, thread: ThreadId, mode: LockMode) {
        let queued_at = sim.now();
        let before = self.word.fetch_or(CONTENDED, Relaxed);
        let state = Rc::new(Cell::new(SleeperState::Asleep));
        let sleeper = Sleeper { thread, mode, state: Rc::clone(&state) };
        sim.lock_queues.borrow_mut().of(self.key()).sleepers.push_back(sleeper);
        if before & (EXCLUSIVE | READERS) == 0 {
            // The lock was released before this thread joined the queue.
            self.wake_sleepers(sim);
        }
        loop {
            // A thread that is woken for another reason does not have the lock.
            while state.get() == SleeperState::Asleep {
                sim.block();
            }
            if state.get() == SleeperState::Granted || self.try_as_first(sim, thread, queued_at) {
                return;
            }
            state.set(SleeperState::Asleep);
        }
    }

    /// Takes the lock as the first sleeper, a writer that was woken (`rwsem_try_write_lock`). If it
    /// has been overtaken for too long, requests to be next.
    fn try_as_first(&self, sim: &Sim, thread: ThreadId, queued_at: Time) -> bool {
        let before = self.word.fetch_or(0, Relaxed);
        if before & (EXCLUSIVE | READERS) != 0 {
            if sim.now() - queued_at > OVERTAKEN_MAX {
                self.word.set(before | HANDOFF);
            }
            return false;
        }
        let mut queues = sim.lock_queues.borrow_mut();
        queues.pop_sleeper(self.key(), LockMode::Exclusive);
        let contended = if queues.of(self.key()).sleepers.is_empty() { 0 } else { CONTENDED };
        queues.drop_empty(self.key());
        self.word.set(EXCLUSIVE | contended);
        self.set_owner(Some(thread));
        true
    }

    fn unlock(&self, mode: LockMode) {
        let before = self.word.fetch_or(0, Relaxed);
        let after = match mode {
            LockMode::Shared => before - 1,
            LockMode::Exclusive => {
                self.set_owner(None);
                before & !EXCLUSIVE
            }
        };
        self.word.set(after);
        if after & READERS != 0 {
            return;
        }
        with_running(|sim| {
            self.notify_first_spinner(sim);
            if after & CONTENDED != 0 {
                self.wake_sleepers(sim);
            }
        });
    }

    /// Makes the first sleeper try to take the lock, which no thread has. If it is a reader, all
    /// readers get the lock now.
    fn wake_sleepers(&self, sim: &Sim) {
        if sim.lock_waiting.get() == LockWaiting::Sleep {
            return self.hand_over(sim);
        }
        let first = {
            let queues = sim.lock_queues.borrow();
            queues.find(self.key()).and_then(|queue| queue.sleepers.front().cloned())
        };
        match first {
            Some(first) if first.mode == LockMode::Shared => self.grant_readers(sim),
            Some(first) if first.state.replace(SleeperState::Woken) == SleeperState::Asleep => {
                sim.wake(first.thread);
            }
            _ => {}
        }
    }

    /// Gives the lock, which no writer has, to sleeping readers: if the first sleeper is a reader,
    /// to all of them, as in Linux since 5.3.
    fn grant_readers(&self, sim: &Sim) {
        let granted: Vec<Sleeper> = {
            let mut queues = sim.lock_queues.borrow_mut();
            let sleepers = &mut queues.of(self.key()).sleepers;
            let is_first = sleepers.front().is_some_and(|first| first.mode == LockMode::Shared);
            let (readers, writers): (Vec<_>, Vec<_>) = sleepers
                .drain(..)
                .partition(|sleeper| is_first && sleeper.mode == LockMode::Shared);
            sleepers.extend(writers);
            let contended = if sleepers.is_empty() { 0 } else { CONTENDED };
            queues.drop_empty(self.key());
            let count = readers.len() as u64;
            let handoff = if count == 0 { self.word.peek() & HANDOFF } else { 0 };
            self.word.set(((self.word.peek() & READERS) + count) | contended | handoff);
            readers
        };
        granted.iter().for_each(|sleeper| sleeper.state.set(SleeperState::Granted));
        granted.iter().for_each(|sleeper| sim.wake(sleeper.thread));
    }

    /// Gives the lock, which no writer has, to the sleepers that may have it next, in order of
    /// arrival.
    fn hand_over(&self, sim: &Sim) {
        let mut granted = Vec::new();
        let mut word = self.word.peek() & !CONTENDED;
        {
            let mut queues = sim.lock_queues.borrow_mut();
            loop {
                let sleeper = match word {
                    EXCLUSIVE => None,
                    0 => queues.of(self.key()).sleepers.pop_front(),
                    _ => queues.pop_sleeper(self.key(), LockMode::Shared),
                };
                let Some(sleeper) = sleeper else { break };
                word = if sleeper.mode == LockMode::Shared { word + 1 } else { EXCLUSIVE };
                sleeper.state.set(SleeperState::Granted);
                granted.push(sleeper);
            }
            if !queues.of(self.key()).sleepers.is_empty() {
                word |= CONTENDED;
            }
            queues.drop_empty(self.key());
        }
        self.word.set(word);
        for Sleeper { thread, mode, .. } in granted {
            if mode == LockMode::Exclusive {
                self.set_owner(Some(thread));
            }
            sim.wake(thread);
        }
    }

    pub(super) fn key(&self) -> usize {
        core::ptr::from_ref(self) as usize
    }

    pub(super) fn owner(&self) -> Option<ThreadId> {
        self.owner.load(Relaxed).checked_sub(1).map(ThreadId)
    }

    pub(super) fn is_spinnable(&self) -> bool {
        self.owner.load(Relaxed) != NONSPINNABLE
    }

    pub(super) fn set_nonspinnable(&self) {
        self.owner.store(NONSPINNABLE, Relaxed);
    }

    pub(super) fn set_owner(&self, owner: Option<ThreadId>) {
        self.owner.store(owner.map_or(0, |thread| thread.0 + 1), Relaxed);
    }
}

#[expect(unsafe_code, reason = "the library's contract for locks")]
// SAFETY: the word records who has the lock. It changes in the same step of simulated time as the
// decision that depends on it, and a writer excludes all other threads.
unsafe impl RawRwLock for SleepingLock {
    const INIT: Self = Self { word: SimWord::with(0), owner: AtomicU32::new(0) };
    type GuardMarker = GuardSend;

    #[track_caller]
    fn lock_shared(&self) {
        self.lock(LockMode::Shared);
    }
    #[track_caller]
    fn try_lock_shared(&self) -> bool {
        self.try_lock(LockMode::Shared).is_ok()
    }
    unsafe fn unlock_shared(&self) {
        self.unlock(LockMode::Shared);
    }
    #[track_caller]
    fn lock_exclusive(&self) {
        self.lock(LockMode::Exclusive);
    }
    #[track_caller]
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
        let before = self.word.fetch_or(0, Relaxed);
        self.set_owner(None);
        self.word.set(before & !EXCLUSIVE | 1);
        with_running(|sim| {
            self.notify_first_spinner(sim);
            if before & CONTENDED != 0 {
                match sim.lock_waiting.get() {
                    LockWaiting::Sleep => self.hand_over(sim),
                    _ => self.grant_readers(sim),
                }
            }
        });
    }
}
