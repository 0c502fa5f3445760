//! Shared words that cost what their cache lines cost.

use core::ptr;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU64, Ordering};

use shootdown::Word;

use crate::lines::{Access, LineId};
use crate::sim::with_running;

/// A [`Word`] of the simulated machine: eight bytes, as on hardware, so that structures are laid
/// out as they are there, and the simulated cache line is that of its own address.
///
/// Each access takes effect in the order of simulated time, so executions are sequentially
/// consistent: what weak ordering can do is for a model checker to find. Outside of a run,
/// accesses cost nothing.
///
/// Words that are to have lines of their own must be aligned to 64 bytes, or lines would depend on
/// the host's allocator.
#[derive(Debug)]
#[repr(transparent)]
pub struct SimWord(AtomicU64);

impl SimWord {
    /// A word that holds `value`.
    #[must_use]
    pub const fn with(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// Asks for the line ahead of time: a load soon after waits only for the rest of its way. For
    /// loads in a row that a CPU would execute out of order.
    pub fn prefetch(&self) {
        self.access(Access::Prefetch);
    }

    /// Reads the word at no cost.
    pub(crate) fn peek(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Writes the word at no cost: part of an access that was paid for.
    pub(crate) fn poke(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    fn line(&self) -> LineId {
        LineId::of_host(ptr::from_ref(self) as usize)
    }

    #[inline]
    fn access(&self, access: Access) {
        with_running(|sim| sim.access(self.line(), access));
    }
}

impl Word for SimWord {
    fn new(value: u64) -> Self {
        Self::with(value)
    }
    #[inline]
    fn load(&self, _order: Ordering) -> u64 {
        self.access(Access::Load);
        self.0.load(Relaxed)
    }
    #[inline]
    fn store(&self, value: u64, _order: Ordering) {
        self.access(Access::Store);
        self.0.store(value, Relaxed);
    }
    #[inline]
    fn swap(&self, value: u64, _order: Ordering) -> u64 {
        self.access(Access::Atomic);
        self.0.swap(value, Relaxed)
    }
    #[inline]
    fn fetch_add(&self, value: u64, _order: Ordering) -> u64 {
        self.access(Access::Atomic);
        self.0.fetch_add(value, Relaxed)
    }
    #[inline]
    fn fetch_or(&self, value: u64, _order: Ordering) -> u64 {
        self.access(Access::Atomic);
        self.0.fetch_or(value, Relaxed)
    }
    #[inline]
    fn fetch_and(&self, value: u64, _order: Ordering) -> u64 {
        self.access(Access::Atomic);
        self.0.fetch_and(value, Relaxed)
    }
    #[inline]
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
    /// Other memory may come to lie at this address: its line must not be found warm.
    fn drop(&mut self) {
        with_running(|sim| sim.forget_line(self.line()));
    }
}
