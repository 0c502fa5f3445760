//! The threads that wait for each sleeping lock: those that spin, and those that sleep.

use core::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use crate::thread_id::ThreadId;

/// The waiters of all sleeping locks, by the lock's address.
#[derive(Debug, Default)]
pub(crate) struct LockQueues {
    queues: HashMap<usize, LockQueue>,
    /// Number of threads that spin for any lock.
    spinner_count: usize,
}

/// The waiters of one lock.
#[derive(Debug, Default)]
pub(crate) struct LockQueue {
    /// Threads that sleep, in order of arrival (`wait_list`).
    pub(crate) sleepers: VecDeque<Sleeper>,
    /// Threads that spin, in order of arrival (`osq`). Only the first one reads the lock.
    pub(crate) spinners: VecDeque<Spinner>,
}

/// A thread that sleeps until it has the lock, or may try again.
#[derive(Clone, Debug)]
pub(crate) struct Sleeper {
    pub(crate) thread: ThreadId,
    pub(crate) mode: LockMode,
    pub(crate) state: Rc<Cell<SleeperState>>,
}

/// The state of a thread that sleeps for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SleeperState {
    /// It sleeps, or is about to.
    Asleep,
    /// It was woken to try again.
    Woken,
    /// It has the lock.
    Granted,
}

/// A thread that spins for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spinner {
    pub(crate) thread: ThreadId,
    pub(crate) cpu: usize,
    /// The lock's owner, when the thread last read it.
    pub(crate) owner: Option<ThreadId>,
}

/// Mode of a lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockMode {
    Shared,
    Exclusive,
}

impl LockQueues {
    /// The waiters of a lock, which may be none.
    pub(crate) fn of(&mut self, lock: usize) -> &mut LockQueue {
        self.queues.entry(lock).or_default()
    }

    /// The waiters of a lock; `None` if there are none.
    pub(crate) fn find(&self, lock: usize) -> Option<&LockQueue> {
        self.queues.get(&lock)
    }

    pub(crate) fn add_spinner(&mut self, lock: usize, spinner: Spinner) {
        self.spinner_count += 1;
        self.of(lock).spinners.push_back(spinner);
    }

    /// Removes a spinner. Returns the next one if the removed one was the first.
    pub(crate) fn remove_spinner(&mut self, lock: usize, thread: ThreadId) -> Option<Spinner> {
        self.spinner_count -= 1;
        let spinners = &mut self.of(lock).spinners;
        let at = spinners.iter().position(|spinner| spinner.thread == thread)?;
        spinners.remove(at);
        let next = spinners.front().copied().filter(|_| at == 0);
        self.drop_empty(lock);
        next
    }

    /// Forgets a lock that has no waiter.
    pub(crate) fn drop_empty(&mut self, lock: usize) {
        let is_empty = |queue: &LockQueue| queue.sleepers.is_empty() && queue.spinners.is_empty();
        if self.queues.get(&lock).is_some_and(is_empty) {
            self.queues.remove(&lock);
        }
    }

    /// Returns the CPUs of the threads that spin because this thread, which owns a lock, runs.
    pub(crate) fn spinners_on(&self, owner: ThreadId) -> Vec<usize> {
        if self.spinner_count == 0 {
            return Vec::new();
        }
        let first = self.queues.values().filter_map(|queue| queue.spinners.front());
        let mut cpus: Vec<_> =
            first.filter(|first| first.owner == Some(owner)).map(|first| first.cpu).collect();
        // The order must not depend on the addresses of locks.
        cpus.sort_unstable();
        cpus
    }

    pub(crate) const fn has_spinners(&self) -> bool {
        self.spinner_count > 0
    }

    /// Moves the first sleeper out of the queue, if it waits in this mode.
    pub(crate) fn pop_sleeper(&mut self, lock: usize, mode: LockMode) -> Option<Sleeper> {
        let sleepers = &mut self.of(lock).sleepers;
        let is_wanted = sleepers.front().is_some_and(|first| first.mode == mode);
        if is_wanted { sleepers.pop_front() } else { None }
    }
}
