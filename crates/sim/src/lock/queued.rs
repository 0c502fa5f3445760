//! A spin lock whose waiters get it in order of arrival, and that is held for a time that is known
//! when it is requested.

use core::cell::Cell;
use core::ptr;

use crate::lines::LineId;
use crate::time::Time;

/// A lock whose waiters spin in a queue, with interrupts masked, as Linux's queued spin locks do
/// with `spin_lock_irqsave`. It has its own cache line.
///
/// A waiter makes no events, because the time at which it gets the lock is known.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct QueuedLock {
    /// Time at which all CPUs that have requested the lock have released it.
    free_at: Cell<Time>,
}

impl QueuedLock {
    pub(crate) fn line(&self) -> LineId {
        LineId::of_host(ptr::from_ref(self) as usize)
    }

    /// Requests the lock for some time. Returns the time at which the caller gets it.
    pub(crate) fn reserve(&self, now: Time, time: Time) -> Time {
        let starts_at = now.max(self.free_at.get());
        self.free_at.set(starts_at + time);
        starts_at
    }

    /// Time at which the last caller of [`reserve`](Self::reserve) releases the lock.
    pub(crate) fn free_at(&self) -> Time {
        self.free_at.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_get_the_lock_in_order() {
        let lock = QueuedLock::default();
        let ns = Time::from_ns;
        assert_eq!(lock.reserve(ns(10), ns(100)), ns(10));
        assert_eq!(lock.reserve(ns(50), ns(20)), ns(110));
        assert_eq!(lock.free_at(), ns(130));
        assert_eq!(lock.reserve(ns(500), ns(1)), ns(500));
    }
}
