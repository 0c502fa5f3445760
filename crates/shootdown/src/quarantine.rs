//! *Quarantine*: page tables that are out of the tree, and that a lazy CPU may still walk.
//!
//! A lazy CPU touches no page, but its speculation may walk the tables of the space that it has
//! loaded, by way of the upper levels that it caches. So a table that is taken out must not be
//! freed before such a CPU has forgotten the way to it. Linux interrupts lazy CPUs whenever tables
//! are freed. Here the tables wait instead: the CPU forgets when it comes back, which it does by
//! itself, or lets go of the space. What it has caught up with, it says when it next goes lazy, and
//! the flushes of the space look there anyway.

use core::fmt;

use crate::ids::SpaceId;

/// Which of a space's unhooked page tables a CPU may still walk, once a flush is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Horizon {
    /// Whose flush; 0 where the engine has not made it.
    space: u64,
    pub(crate) flush: u64,
    pub(crate) cleared: u64,
}

impl Horizon {
    /// None, of any flush: everybody was told.
    pub const CLEAR: Self = Self::new(0, u64::MAX);
    /// Of a flush that was not needed: it unhooked none itself, and nothing is known of others.
    pub const UNKNOWN: Self = Self::new(0, 0);

    /// Of the flush with this number, after which no CPU can walk a table that was unhooked by the
    /// flush with the number `cleared`, or by an earlier one: for who counts a space's flushes,
    /// from 1 on, by other means than [`PinnedCpu::flush_gathered`](crate::PinnedCpu::flush_gathered).
    #[must_use]
    pub const fn new(flush: u64, cleared: u64) -> Self {
        Self { space: 0, flush, cleared }
    }

    /// Of a flush of this space.
    #[inline]
    pub(crate) const fn of(space: SpaceId, flush: u64, cleared: u64) -> Self {
        Self { space: space.0, flush, cleared }
    }

    /// The flush's own number, among those of its space.
    #[must_use]
    pub const fn flush(self) -> u64 {
        self.flush
    }

    /// No CPU can walk a table that was unhooked by the flush of this number, or by an earlier one.
    #[must_use]
    pub const fn cleared(self) -> u64 {
        self.cleared
    }

    /// Whether that goes for the tables of this flush, too: then they can be freed at once.
    #[must_use]
    pub const fn is_clear(self) -> bool {
        self.cleared != Self::UNKNOWN.cleared && self.cleared >= self.flush
    }
}

/// The unhooked page tables of one space that CPUs may still walk: up to `BATCHES` lots of them,
/// each with its flush. `T` is whatever the kernel keeps tables in.
///
/// Guarded by a lock of the space's, or by whoever owns it. When the space is retired, what is left
/// here is freed along with it.
pub struct Quarantine<T, const BATCHES: usize = 8> {
    /// The space whose tables are held, by its id; 0 while that is not known.
    space: u64,
    batches: [Option<Batch<T>>; BATCHES],
    table_count: usize,
    table_count_max: usize,
}

struct Batch<T> {
    flush: u64,
    table_count: usize,
    tables: T,
}

impl<T, const BATCHES: usize> Quarantine<T, BATCHES> {
    /// An empty one, for up to so many tables.
    #[must_use]
    pub const fn new(table_count_max: usize) -> Self {
        Self { space: 0, batches: [const { None }; BATCHES], table_count: 0, table_count_max }
    }

    /// How many tables are held.
    #[must_use]
    pub const fn table_count(&self) -> usize {
        self.table_count
    }

    /// Holds so many tables of the flush with this horizon, which is done.
    ///
    /// When there are as many lots as there can be, it goes in with the latest, and is held until
    /// both are cleared.
    ///
    /// # Errors
    ///
    /// Gives them back if these are more tables than may be held. The kernel then has lazy CPUs
    /// [told](crate::PinnedCpu::flush_walkers), and frees these and what that clears.
    ///
    /// # Panics
    ///
    /// If the horizon is of another space than the tables that were held before.
    pub fn hold(&mut self, horizon: Horizon, table_count: usize, tables: T) -> Result<(), T>
    where
        T: IntoIterator + Extend<T::Item>,
    {
        self.check_space(horizon);
        if self.table_count + table_count > self.table_count_max {
            return Err(tables);
        }
        let flush = horizon.flush;
        if let Some(room) = self.batches.iter_mut().find(|batch| batch.is_none()) {
            *room = Some(Batch { flush, table_count, tables });
        } else {
            let latest = self.batches.iter_mut().flatten().max_by_key(|batch| batch.flush);
            let Some(latest) = latest else { return Err(tables) };
            latest.flush = latest.flush.max(flush);
            latest.table_count += table_count;
            latest.tables.extend(tables);
        }
        self.table_count += table_count;
        Ok(())
    }

    /// Takes out a lot that nobody can walk any more, and how many tables that are.
    ///
    /// # Panics
    ///
    /// If the horizon is of another space than the tables.
    pub fn take_cleared(&mut self, horizon: Horizon) -> Option<(usize, T)> {
        self.check_space(horizon);
        self.take(|batch| batch.flush <= horizon.cleared)
    }

    /// Takes out a lot, if there is one left: when the space is dead, and nobody holds it any more.
    pub fn take_any(&mut self) -> Option<(usize, T)> {
        self.take(|_| true)
    }

    /// A horizon of one space says nothing of another's tables: they would be freed under a CPU
    /// that walks them.
    fn check_space(&mut self, horizon: Horizon) {
        if self.space == 0 {
            self.space = horizon.space;
        }
        let is_same = horizon.space == 0 || horizon.space == self.space;
        assert!(is_same, "a quarantine holds the tables of one space");
    }

    fn take(&mut self, is_wanted: impl Fn(&Batch<T>) -> bool) -> Option<(usize, T)> {
        let is_wanted = |batch: &&mut Option<Batch<T>>| batch.as_ref().is_some_and(&is_wanted);
        let Batch { table_count, tables, .. } = self.batches.iter_mut().find(is_wanted)?.take()?;
        self.table_count -= table_count;
        Some((table_count, tables))
    }
}

impl<T, const BATCHES: usize> fmt::Debug for Quarantine<T, BATCHES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flushes = self.batches.iter().flatten().map(|batch| (batch.flush, batch.table_count));
        f.debug_map().entries(flushes).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;
    use std::vec::Vec;

    const fn horizon(flush: u64, cleared: u64) -> Horizon {
        Horizon::new(flush, cleared)
    }

    #[test]
    fn a_lot_is_held_until_its_flush_is_cleared() {
        let mut quarantine: Quarantine<Vec<&str>> = Quarantine::new(10);
        assert_eq!(quarantine.hold(horizon(5, 3), 1, vec!["five"]), Ok(()));
        assert_eq!(quarantine.hold(horizon(7, 3), 2, vec!["seven", "too"]), Ok(()));
        assert_eq!(quarantine.take_cleared(horizon(8, 4)), None);
        assert_eq!(quarantine.take_cleared(horizon(9, 6)), Some((1, vec!["five"])));
        assert_eq!(quarantine.take_cleared(horizon(9, 6)), None);
        assert_eq!(quarantine.take_cleared(Horizon::UNKNOWN), None);
        assert_eq!(quarantine.table_count(), 2);
        assert_eq!(quarantine.take_any(), Some((2, vec!["seven", "too"])));
        assert_eq!(quarantine.take_any(), None);
    }

    #[test]
    fn what_is_too_much_comes_back() {
        let mut few: Quarantine<Vec<u8>> = Quarantine::new(3);
        assert_eq!(few.hold(horizon(1, 0), 3, vec![1, 2, 3]), Ok(()));
        assert_eq!(few.hold(horizon(2, 0), 1, vec![4]), Err(vec![4]));
        assert_eq!(few.table_count(), 3);
    }

    /// Also where flushes come in another order than that in which they were sent.
    #[test]
    fn lots_for_which_there_is_no_place_wait_with_the_latest() {
        let mut quarantine: Quarantine<Vec<u8>, 2> = Quarantine::new(100);
        for flush in [1, 6, 4, 8] {
            assert_eq!(quarantine.hold(horizon(flush, 0), 1, vec![flush as u8]), Ok(()));
        }
        assert_eq!(quarantine.take_cleared(horizon(9, 6)), Some((1, vec![1])));
        assert_eq!(quarantine.take_cleared(horizon(9, 7)), None);
        assert_eq!(quarantine.take_cleared(horizon(9, 8)), Some((3, vec![6, 4, 8])));
        assert_eq!(quarantine.table_count(), 0);
    }

    #[test]
    fn merged_lot_waits_for_its_latest_flush() {
        let mut quarantine: Quarantine<Vec<u8>, 2> = Quarantine::new(100);
        // The last one has no place, and a number below that of the lot which it joins.
        for flush in [1, 6, 4] {
            assert_eq!(quarantine.hold(horizon(flush, 0), 1, vec![flush as u8]), Ok(()));
        }
        assert_eq!(quarantine.take_cleared(horizon(9, 4)), Some((1, vec![1])));
        assert_eq!(quarantine.take_cleared(horizon(9, 5)), None);
        assert_eq!(quarantine.take_cleared(horizon(9, 6)), Some((2, vec![6, 4])));
    }

    #[test]
    fn what_is_not_known_is_not_clear() {
        assert!(Horizon::CLEAR.is_clear() && !Horizon::UNKNOWN.is_clear());
        assert!(horizon(3, 3).is_clear() && !horizon(3, 2).is_clear());
        assert_eq!((horizon(5, 3).flush(), horizon(5, 3).cleared()), (5, 3));
    }
}
