//! Unmapping: removes areas, their pages, and the page tables that no other area needs. (Linux:
//! `munmap`.)

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::area::Area;
use crate::areas::{Areas, Vacated};
use crate::coherence::{Cause, EmptyTables, UnmapLock};
use crate::error::RangeError;
use crate::format::Format;
use crate::gather::{Gather, Sent};
use crate::platform::{OutOfMemory, Platform, Work};
use crate::space::AddressSpace;
use crate::system::{System, WriteGuard};
use crate::table::Found;

impl<S: System> AddressSpace<S> {
    /// Removes all mappings in `range`, which may have holes.
    ///
    /// # Errors
    ///
    /// [`RangeError`] if areas cannot be in `range`, or if there is no memory to split a large page
    /// that the range cuts. Nothing is changed then.
    pub fn unmap(&self, range: Range<u64>) -> Result<(), RangeError> {
        self.vm.platform.work(Work::Areas, 1);
        let areas = self.mappings.areas.write();
        areas.check(&range)?;
        Ok(self.unmap_locked(areas, range)?)
    }

    /// Does the same for a range that was checked, under the caller's lock.
    pub(crate) fn unmap_locked(
        &self,
        mut areas: WriteGuard<'_, S>,
        range: Range<u64>,
    ) -> Result<(), OutOfMemory> {
        let is_cut = |large: &Found| large.reaches_beyond::<S::Format>(&range);
        self.split_large(&mut areas, &range, is_cut)?;
        let removed = areas.remove(&range);
        if removed.is_empty() && self.mappings.in_flight.overlapping(&range, None).is_none() {
            return Ok(());
        }
        let empty = self.empty_tables(&mut areas, &removed);
        // List the flush while the lock is held for writing, so that the next call that looks for a
        // gap finds it.
        let gather = Gather::begin(self, range, Cause::Unmap);
        if self.vm.policy.unmap_lock == UnmapLock::Exclusive {
            remove(gather, &removed, &empty).wait();
            drop(areas);
        } else {
            let areas = areas.downgrade();
            remove(gather, &removed, &empty).wait_and_unlock(areas);
        }
        // Release a file only now, if this was its last area.
        self.vm.close_all(removed);
        self.vm.free_completed();
        Ok(())
    }

    /// Returns the addresses at which page tables should be unhooked, after `removed` was removed.
    pub(crate) fn empty_tables(
        &self,
        areas: &mut Areas<S::Platform>,
        removed: &[Area<S::Platform>],
    ) -> Vec<Vacated> {
        let [first, ..] = removed else { return Vec::new() };
        let range = first.range.start..removed[removed.len() - 1].range.end;
        match self.vm.policy.empty_tables {
            EmptyTables::Freed => {
                vec![Vacated { gap: areas.gap_around(&range), ranges: vec![range] }]
            }
            EmptyTables::Kept => {
                areas.vacate(self.mappings.tables.leaf_tables(&self.vm.platform, &range));
                if self.mappings.tables.has_many() {
                    areas.take_vacated(S::Format::span(1))
                } else {
                    Vec::new()
                }
            }
        }
    }
}

/// Clears the entries of areas that were removed, unhooks tables, and sends the flush.
///
/// The lock is held at least for reading, without interruption since the areas were removed. No
/// fault uses a removed area, because it was detached. Other CPUs can therefore do the following at
/// the same time:
///
/// - *Faults, and calls that discard*, access only addresses of areas. No area is in the gap, and
///   none can be added there while the lock is held for reading. An unhooked table covers only the
///   gap, so these calls neither walk it, nor link a table below it, nor make it again. A table
///   that a neighbouring area also needs is not unhooked.
/// - *Another `unmap`* removed its areas before this one, because it held the lock for writing. If
///   it still held the lock for reading, this call could not have taken the lock for writing. So
///   the other call has completed this function, and at most waits for its flush.
/// - *A CPU* may be in the middle of a walk, or may have cached the path to a table. Both lead to
///   entries that are all empty and stay empty, and the table is freed after the flush.
///
/// After the lock has been released and before the flush is complete, the gap outside the range
/// itself may be mapped again, and get new tables. A CPU that has cached the path to the old table
/// then faults there, finds nothing to change, and retries until the flush reaches it. (On x86 it
/// retries only once, because a fault drops the cached path to its address.)
fn remove<'s, S: System>(
    mut gather: Gather<'s, S>,
    removed: &[Area<S::Platform>],
    empty: &[Vacated],
) -> Sent<'s, S> {
    for area in removed {
        gather.clear_area(area, &area.range);
    }
    for tables in empty {
        gather.unhook(tables);
    }
    gather.send_later()
}
