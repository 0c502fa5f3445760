//! *Quarantine*: page tables that are unhooked from the tree, and that a lazy CPU may still walk.
//!
//! A lazy CPU touches no user page. But it may speculatively walk the tables of the space that it
//! has loaded, through the upper levels that it caches. So an unhooked table must not be freed
//! before such a CPU has dropped the cached path to it. Linux interrupts lazy CPUs whenever tables
//! are freed. Here, the tables wait in quarantine instead, and no interrupt is needed. The CPU
//! drops the path when it comes back to the space, and cannot use it after it has loaded another
//! root. When the CPU next goes lazy, it publishes the generation that it has caught up with. The
//! flushes of the space probe the CPU anyway, and load that generation then.

use core::fmt;

use crate::base::ids::SpaceId;

/// Result of a flush about unhooked page tables: the last flush of the space whose tables no CPU
/// can walk any more.
///
/// A horizon is valid once its flush is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Horizon {
    /// Id of the flushed space; 0 if the engine has not made this horizon.
    space: u64,
    /// Number of the flush.
    pub(crate) flush: u64,
    /// No CPU can walk tables that this flush or an earlier one has unhooked.
    pub(crate) cleared: u64,
}

impl Horizon {
    /// The horizon of a flush that notified every CPU: no CPU can walk a table of any flush.
    pub const CLEAR: Self = Self::new(0, u64::MAX);
    /// The horizon of a flush that was not needed. It has unhooked no tables, and has not found out
    /// about the tables of other flushes.
    pub const UNKNOWN: Self = Self::new(0, 0);

    /// The horizon of flush number `flush`, after which no CPU can walk a table that was unhooked
    /// by flush number `cleared` or by an earlier one.
    ///
    /// For a kernel that counts the flushes of a space itself, from 1 on, and does not use
    /// [`PinnedCpu::flush_gathered`](crate::PinnedCpu::flush_gathered).
    #[must_use]
    #[inline]
    pub const fn new(flush: u64, cleared: u64) -> Self {
        Self { space: 0, flush, cleared }
    }

    /// The horizon of a flush of this space.
    #[inline]
    pub(crate) const fn of(space: SpaceId, flush: u64, cleared: u64) -> Self {
        Self { space: space.0, flush, cleared }
    }

    /// Number of the flush, among the flushes of its space.
    #[must_use]
    #[inline]
    pub const fn flush(self) -> u64 {
        self.flush
    }

    /// Number of the last flush whose unhooked tables no CPU can walk any more. The same holds for
    /// all earlier flushes. 0 if there is none.
    #[must_use]
    #[inline]
    pub const fn cleared(self) -> u64 {
        self.cleared
    }

    /// Returns `true` if no CPU can walk the tables of this flush itself, so that they can be freed
    /// immediately.
    #[must_use]
    #[inline]
    pub const fn is_clear(self) -> bool {
        self.cleared != Self::UNKNOWN.cleared && self.cleared >= self.flush
    }
}

/// The unhooked page tables of one space that CPUs may still walk: up to `ENTRIES` collections of
/// tables, each with its flush. `T` is the kernel's collection of tables.
///
/// Guard a quarantine with a lock of its space. When the space is retired, free the remaining
/// tables along with it.
pub struct Quarantine<T, const ENTRIES: usize = 8> {
    /// Id of the space that the tables belong to; 0 while it is not known.
    space: u64,
    entries: [Option<Entry<T>>; ENTRIES],
    table_count: usize,
    table_count_max: usize,
}

/// Tables that wait for the CPUs to clear one flush.
struct Entry<T> {
    flush: u64,
    table_count: usize,
    tables: T,
}

impl<T, const ENTRIES: usize> Quarantine<T, ENTRIES> {
    /// An empty quarantine for up to `table_count_max` tables.
    #[must_use]
    pub const fn new(table_count_max: usize) -> Self {
        Self { space: 0, entries: [const { None }; ENTRIES], table_count: 0, table_count_max }
    }

    /// Number of tables in quarantine.
    #[must_use]
    pub const fn table_count(&self) -> usize {
        self.table_count
    }

    /// Defers the freeing of `table_count` tables, which the flush with this horizon has unhooked.
    /// The flush must be done.
    ///
    /// If all `ENTRIES` entries are in use, the tables join the entry with the latest flush, and
    /// wait until both flushes are cleared.
    ///
    /// # Errors
    ///
    /// Returns the tables if there would be more than `table_count_max`. Then [flush the
    /// walkers](crate::PinnedCpu::flush_walkers), and free these tables and those that the new
    /// horizon clears.
    ///
    /// # Panics
    ///
    /// If the horizon belongs to another space than that of earlier calls.
    pub fn defer(&mut self, horizon: Horizon, table_count: usize, tables: T) -> Result<(), T>
    where
        T: IntoIterator + Extend<T::Item>,
    {
        self.check_space(horizon);
        if self.table_count + table_count > self.table_count_max {
            return Err(tables);
        }
        let flush = horizon.flush;
        if let Some(vacant) = self.entries.iter_mut().find(|entry| entry.is_none()) {
            *vacant = Some(Entry { flush, table_count, tables });
        } else {
            let latest = self.entries.iter_mut().flatten().max_by_key(|entry| entry.flush);
            let Some(latest) = latest else { return Err(tables) };
            latest.flush = latest.flush.max(flush);
            latest.table_count += table_count;
            latest.tables.extend(tables);
        }
        self.table_count += table_count;
        Ok(())
    }

    /// Removes one entry that no CPU can walk any more. Returns the number of its tables, and the
    /// tables; `None` if no entry is cleared.
    ///
    /// # Panics
    ///
    /// If the horizon belongs to another space than the tables.
    pub fn take_cleared(&mut self, horizon: Horizon) -> Option<(usize, T)> {
        self.check_space(horizon);
        self.take(|entry| entry.flush <= horizon.cleared)
    }

    /// Removes one entry; `None` if the quarantine is empty. Call this when the space is dead, and
    /// no CPU has it loaded any more.
    pub fn take_any(&mut self) -> Option<(usize, T)> {
        self.take(|_| true)
    }

    /// Checks that the horizon belongs to the space of the tables. With another space's horizon,
    /// tables would be freed while a CPU walks them.
    fn check_space(&mut self, horizon: Horizon) {
        if self.space == 0 {
            self.space = horizon.space;
        }
        let is_same = horizon.space == 0 || horizon.space == self.space;
        assert!(is_same, "a quarantine is for the tables of one space");
    }

    fn take(&mut self, is_wanted: impl Fn(&Entry<T>) -> bool) -> Option<(usize, T)> {
        let is_wanted = |entry: &&mut Option<Entry<T>>| entry.as_ref().is_some_and(&is_wanted);
        let Entry { table_count, tables, .. } = self.entries.iter_mut().find(is_wanted)?.take()?;
        self.table_count -= table_count;
        Some((table_count, tables))
    }
}

impl<T, const ENTRIES: usize> fmt::Debug for Quarantine<T, ENTRIES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flushes = self.entries.iter().flatten().map(|entry| (entry.flush, entry.table_count));
        f.debug_map().entries(flushes).finish()
    }
}

#[cfg(test)]
mod tests;
