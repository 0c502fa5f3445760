//! A reader–writer lock whose waiters sleep, in order of arrival, as in the simulator.
//!
//! The thread that releases the lock hands it to the first waiter. If that is a reader, all readers
//! that directly follow it also get the lock. No waiter spins, and no thread overtakes a waiter.

#![expect(unsafe_code, reason = "implements the contracts of `lock_api`")]

use alloc::collections::VecDeque;
use core::cell::UnsafeCell;
use core::ptr;

use lock_api::{GuardNoSend, RawMutex, RawRwLock, RawRwLockDowngrade};

use super::calls;
use super::thread::{ThreadId, WaitReason};
use crate::kernel::sync::SpinLock;

/// A reader–writer lock.
pub(crate) struct SleepingLock {
    guard: SpinLock,
    /// Protected by `guard`.
    state: UnsafeCell<State>,
}

struct State {
    /// Number of readers, or [`WRITER`].
    holders: usize,
    queue: VecDeque<Waiter>,
}

/// The value of `holders` when a writer holds the lock.
const WRITER: usize = usize::MAX;

#[derive(Clone, Copy)]
struct Waiter {
    thread: ThreadId,
    mode: Mode,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Shared,
    Exclusive,
}

// SAFETY: the state is accessed only under `guard`.
unsafe impl Sync for SleepingLock {}
// SAFETY: the state is plain data.
unsafe impl Send for SleepingLock {}

impl SleepingLock {
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        self.guard.lock();
        // SAFETY: this CPU holds the guard.
        let result = f(unsafe { &mut *self.state.get() });
        // SAFETY: this CPU holds the guard.
        unsafe { self.guard.unlock() };
        result
    }

    fn lock(&self, mode: Mode) {
        let Some(thread) = calls::current() else {
            // At boot, the first CPU creates the first spaces without a thread, and alone.
            assert!(self.try_lock(mode), "a sleeping lock is held, and no thread can wait for it");
            return;
        };
        let is_locked = self.with(|state| {
            let is_locked = state.try_admit(mode);
            if !is_locked {
                state.queue.push_back(Waiter { thread, mode });
            }
            is_locked
        });
        if is_locked {
            return;
        }
        // The thread may be woken for another reason. It holds the lock once it is not in the
        // queue.
        let is_queued =
            || self.with(|state| state.queue.iter().any(|waiter| waiter.thread == thread));
        while is_queued() {
            calls::block(WaitReason::Lock(ptr::from_ref(self) as usize));
        }
    }

    fn try_lock(&self, mode: Mode) -> bool {
        self.with(|state| state.try_admit(mode))
    }

    /// Releases the lock by `change`, and hands it to the next waiters that can have it.
    fn release(&self, change: impl FnOnce(&mut State)) {
        self.with(|state| {
            change(state);
            while let Some(waiter) = state.queue.front().copied()
                && state.admits(waiter.mode)
            {
                state.admit(waiter.mode);
                state.queue.pop_front();
                // Under the guard, so that the waiter cannot run on and end before it is woken.
                calls::wake(waiter.thread);
            }
        });
    }
}

impl State {
    /// Admits a thread unless it would overtake a waiter. Returns `true` if it was admitted.
    fn try_admit(&mut self, mode: Mode) -> bool {
        let is_free = self.queue.is_empty() && self.admits(mode);
        if is_free {
            self.admit(mode);
        }
        is_free
    }

    const fn admits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Shared => self.holders != WRITER,
            Mode::Exclusive => self.holders == 0,
        }
    }

    const fn admit(&mut self, mode: Mode) {
        match mode {
            Mode::Shared => self.holders += 1,
            Mode::Exclusive => self.holders = WRITER,
        }
    }
}

// SAFETY: `holders` counts the threads that hold the lock. It is tested and changed under one
// acquisition of the guard, and a writer excludes all other threads.
unsafe impl RawRwLock for SleepingLock {
    const INIT: Self = Self {
        guard: SpinLock::INIT,
        state: UnsafeCell::new(State { holders: 0, queue: VecDeque::new() }),
    };
    type GuardMarker = GuardNoSend;

    fn lock_shared(&self) {
        self.lock(Mode::Shared);
    }
    fn try_lock_shared(&self) -> bool {
        self.try_lock(Mode::Shared)
    }
    unsafe fn unlock_shared(&self) {
        self.release(|state| state.holders -= 1);
    }
    fn lock_exclusive(&self) {
        self.lock(Mode::Exclusive);
    }
    fn try_lock_exclusive(&self) -> bool {
        self.try_lock(Mode::Exclusive)
    }
    unsafe fn unlock_exclusive(&self) {
        self.release(|state| state.holders = 0);
    }
}

// SAFETY: the writer becomes a reader under one acquisition of the guard.
unsafe impl RawRwLockDowngrade for SleepingLock {
    unsafe fn downgrade(&self) {
        self.release(|state| state.holders = 1);
    }
}
