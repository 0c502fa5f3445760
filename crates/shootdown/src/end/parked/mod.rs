//! *Parked flushes*: flushes that no caller waits for, with the memory that each will free.

use core::fmt;

use crate::path::pending::Pending;
use crate::state::machine::Machine;

/// Up to `ENTRIES` flushes that were sent and may not be done, each with the pages that it will
/// free. `B` is the kernel's collection of them.
///
/// For a kernel whose callers dispatch a flush and return without a wait. Park the flush with the
/// pages, and take those that are done at the next flush. Guard the parking place with a lock of
/// its space, and wait for a flush only after you have dropped the lock.
///
/// Dropping it waits for all flushes, and drops their pages.
pub struct Parked<'e, M: Machine, B, const ENTRIES: usize = 4> {
    entries: [Option<ParkedFlush<'e, M, B>>; ENTRIES],
}

/// A flush, and the pages that it will free.
pub struct ParkedFlush<'e, M: Machine, B> {
    /// The flush. The first field, because fields are dropped in order: the pages must not be
    /// dropped before the flush is done.
    pub pending: Pending<'e, M>,
    /// The pages.
    pub pages: B,
}

impl<'e, M: Machine, B, const ENTRIES: usize> Parked<'e, M, B, ENTRIES> {
    /// No flushes.
    #[must_use]
    pub const fn new() -> Self {
        Self { entries: [const { None }; ENTRIES] }
    }

    /// Returns `true` if no flush is parked.
    pub fn is_empty(&self) -> bool {
        self.entries.iter().all(Option::is_none)
    }

    /// Parks a flush.
    ///
    /// # Errors
    ///
    /// Returns the flush if all `ENTRIES` are in use by flushes that are not done. Then drop the
    /// lock, wait for the flush, and free its pages.
    pub fn park(&mut self, flush: ParkedFlush<'e, M, B>) -> Result<(), ParkedFlush<'e, M, B>> {
        match self.entries.iter_mut().find(|entry| entry.is_none()) {
            Some(vacant) => {
                *vacant = Some(flush);
                Ok(())
            }
            None => Err(flush),
        }
    }

    /// Removes one flush that is done. `None` if there is none. Does not wait for other CPUs, as
    /// [`Pending::poll`].
    pub fn take_done(&mut self) -> Option<ParkedFlush<'e, M, B>> {
        self.take(|flush| flush.pending.poll())
    }

    /// Removes one flush, done or not. For a caller that needs the memory: drop the lock, and wait
    /// for the flush.
    pub fn take_any(&mut self) -> Option<ParkedFlush<'e, M, B>> {
        self.take(|_| true)
    }

    fn take(
        &mut self,
        mut is_taken: impl FnMut(&mut ParkedFlush<'e, M, B>) -> bool,
    ) -> Option<ParkedFlush<'e, M, B>> {
        self.entries.iter_mut().find_map(|entry| entry.take_if(&mut is_taken))
    }
}

impl<M: Machine, B, const ENTRIES: usize> Default for Parked<'_, M, B, ENTRIES> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Machine, B, const ENTRIES: usize> fmt::Debug for Parked<'_, M, B, ENTRIES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.entries.iter().flatten()).finish()
    }
}

impl<M: Machine, B> fmt::Debug for ParkedFlush<'_, M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ParkedFlush").field(&self.pending).finish()
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;
