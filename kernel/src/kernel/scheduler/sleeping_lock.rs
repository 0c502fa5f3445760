//! A reader–writer lock whose waiters sleep, in the order in which they came: as the simulator's.
//!
//! The thread that releases it hands it to the first waiter, and to all readers that follow a first
//! reader. No waiter spins on the owner, and none overtakes.

#![expect(unsafe_code, reason = "the library's contract for locks, and what one of its own guards")]

use alloc::collections::VecDeque;
use core::cell::UnsafeCell;
use core::ptr;

use lock_api::{GuardNoSend, RawMutex, RawRwLock, RawRwLockDowngrade};

use super::calls;
use super::thread::{ThreadId, Waits};
use crate::kernel::sync::SpinLock;

/// The lock.
pub(crate) struct SleepingLock {
    guard: SpinLock,
    /// Under `guard`.
    state: UnsafeCell<State>,
}

struct State {
    /// How many read; or [`WRITTEN`].
    holders: usize,
    queue: VecDeque<Waiter>,
}

/// Somebody holds it for writing.
const WRITTEN: usize = usize::MAX;

#[derive(Clone, Copy)]
struct Waiter {
    thread: ThreadId,
    wants: Wants,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wants {
    Shared,
    Exclusive,
}

// SAFETY: the state is reached under `guard` alone.
unsafe impl Sync for SleepingLock {}
// SAFETY: it is plain data.
unsafe impl Send for SleepingLock {}

impl SleepingLock {
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        self.guard.lock();
        // SAFETY: the guard is ours.
        let result = f(unsafe { &mut *self.state.get() });
        // SAFETY: as above.
        unsafe { self.guard.unlock() };
        result
    }

    fn lock(&self, wants: Wants) {
        let Some(thread) = calls::current() else {
            // Only threads use spaces; but the first CPU makes the first ones, all alone.
            assert!(self.try_lock(wants), "a sleeping lock is held, and nobody can sleep here");
            return;
        };
        let is_ours = self.with(|state| {
            let is_free = state.queue.is_empty() && state.admits(wants);
            if is_free {
                state.admit(wants);
            } else {
                state.queue.push_back(Waiter { thread, wants });
            }
            is_free
        });
        if is_ours {
            return;
        }
        // Whoever wakes the thread for another reason does not give it the lock: who is given it is
        // taken out of the queue.
        let is_queued =
            || self.with(|state| state.queue.iter().any(|waiter| waiter.thread == thread));
        while is_queued() {
            calls::block(Waits::Lock(ptr::from_ref(self) as usize));
        }
    }

    fn try_lock(&self, wants: Wants) -> bool {
        self.with(|state| {
            let is_free = state.queue.is_empty() && state.admits(wants);
            if is_free {
                state.admit(wants);
            }
            is_free
        })
    }

    /// Lets go, and gives it to whoever may have it next.
    fn change(&self, change: impl FnOnce(&mut State)) {
        self.with(|state| {
            change(state);
            while let Some(waiter) = state.queue.front().copied()
                && state.admits(waiter.wants)
            {
                state.admit(waiter.wants);
                state.queue.pop_front();
                // Under the guard: it cannot have gone on, and ended, before.
                calls::wake(waiter.thread);
            }
        });
    }
}

impl State {
    const fn admits(&self, wants: Wants) -> bool {
        match wants {
            Wants::Shared => self.holders != WRITTEN,
            Wants::Exclusive => self.holders == 0,
        }
    }

    const fn admit(&mut self, wants: Wants) {
        match wants {
            Wants::Shared => self.holders += 1,
            Wants::Exclusive => self.holders = WRITTEN,
        }
    }
}

// SAFETY: `holders` says who holds the lock, and changes under the guard together with the
// decision; a writer excludes all others.
unsafe impl RawRwLock for SleepingLock {
    const INIT: Self = Self {
        guard: SpinLock::INIT,
        state: UnsafeCell::new(State { holders: 0, queue: VecDeque::new() }),
    };
    type GuardMarker = GuardNoSend;

    fn lock_shared(&self) {
        self.lock(Wants::Shared);
    }
    fn try_lock_shared(&self) -> bool {
        self.try_lock(Wants::Shared)
    }
    unsafe fn unlock_shared(&self) {
        self.change(|state| state.holders -= 1);
    }
    fn lock_exclusive(&self) {
        self.lock(Wants::Exclusive);
    }
    fn try_lock_exclusive(&self) -> bool {
        self.try_lock(Wants::Exclusive)
    }
    unsafe fn unlock_exclusive(&self) {
        self.change(|state| state.holders = 0);
    }
}

// SAFETY: the writer becomes a reader under the guard.
unsafe impl RawRwLockDowngrade for SleepingLock {
    unsafe fn downgrade(&self) {
        self.change(|state| state.holders = 1);
    }
}
