//! Shared words, whose accesses cost as much as those of their cache lines.

use core::panic::Location;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU64, Ordering};

use shootdown::Word;

use crate::lines::{Access, LineId};
use crate::sim::with_running;

/// A [`Word`] of the simulated machine. It has eight bytes, as on hardware, so that structures have
/// the layout that they have there, and its simulated cache line is that of its own address.
///
/// Each access takes effect in the order of simulated time, so executions are sequentially
/// consistent; a model checker must check the effects of weak ordering. Outside of a run, accesses
/// cost nothing.
///
/// A word that must have its own line must be aligned to 64 bytes. Otherwise the host's allocator
/// would decide which words share a line.
///
/// A word must stay at its address until it is dropped, if it was used in a run. Otherwise its old
/// line stays in caches, and other memory that the host allocates there finds the line warm:
/// results would depend on the host's allocator. [`is_cached`](crate::is_cached) detects that.
#[derive(Debug)]
#[repr(transparent)]
pub struct SimWord(AtomicU64);

impl SimWord {
    /// Creates a word with the given value.
    #[must_use]
    pub const fn with(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// Fetches the line ahead of time: a load soon after waits only for the rest of the transfer.
    /// For loads in a row that a CPU would execute out of order.
    #[inline]
    #[track_caller]
    pub fn prefetch(&self) {
        self.access(Access::Prefetch);
    }

    /// Fetches the line ahead of time for a write: a locked operation soon after waits only for the
    /// rest of the transfer.
    #[inline]
    #[track_caller]
    pub fn prefetch_for_write(&self) {
        self.access(Access::PrefetchForWrite);
    }

    /// Reads the word without cost.
    #[inline]
    pub(crate) fn peek(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Writes the word without cost, as part of an access that was charged already.
    #[inline]
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    #[inline]
    fn line(&self) -> LineId {
        LineId::of_host(ptr::from_ref(self) as usize)
    }

    #[inline]
    #[track_caller]
    fn access(&self, access: Access) {
        let site = Location::caller();
        with_running(|sim| sim.access(self.line(), access, Some(site)));
    }
}

/// Implements atomic operations by those of the host's word with the same names.
macro_rules! atomics {
    ($($name:ident)*) => {$(
        #[inline]
        #[track_caller]
        fn $name(&self, value: u64, _order: Ordering) -> u64 {
            self.access(Access::Atomic);
            self.0.$name(value, Relaxed)
        }
    )*};
}

impl Word for SimWord {
    atomics! { swap fetch_add fetch_or fetch_and }

    fn new(value: u64) -> Self {
        Self::with(value)
    }
    #[inline]
    #[track_caller]
    fn load(&self, _order: Ordering) -> u64 {
        self.access(Access::Load);
        self.0.load(Relaxed)
    }
    #[inline]
    #[track_caller]
    fn store(&self, value: u64, _order: Ordering) {
        self.access(Access::Store);
        self.0.store(value, Relaxed);
    }
    #[inline]
    #[track_caller]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        _success: Ordering,
        _failure: Ordering,
    ) -> Result<u64, u64> {
        self.access(Access::Atomic);
        self.0.compare_exchange(current, new, Relaxed, Relaxed)
    }
}

impl Drop for SimWord {
    /// Removes the line from the caches: other memory at this address must not find it warm.
    fn drop(&mut self) {
        with_running(|sim| sim.forget_line(self.line()));
    }
}
