//! Unmapping: areas, their pages, and the page tables that nobody needs any more. (Linux:
//! `munmap`.)

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use lock_api::RwLockWriteGuard;

use crate::area::Area;
use crate::areas::{Areas, Vacated};
use crate::coherence::{Cause, EmptyTables, UnmapLock};
use crate::error::RangeError;
use crate::gather::{Gather, Sent};
use crate::platform::{OutOfMemory, Platform, Work};
use crate::space::AddressSpace;
use crate::system::{System, WriteGuard};
use crate::table::{Found, PageTables};

impl<S: System> AddressSpace<S> {
    /// Removes what is mapped in `range`; parts of it may not be.
    ///
    /// # Errors
    ///
    /// If areas cannot be there, or if there is no memory to split a large page that the range
    /// begins or ends in. Nothing is changed then.
    pub fn unmap(&self, range: Range<u64>) -> Result<(), RangeError> {
        self.vm.platform.work(Work::Areas, 1);
        let areas = self.mappings.areas.write();
        areas.check(&range)?;
        Ok(self.unmap_locked(areas, range)?)
    }

    /// The same for a good range, by who holds the lock.
    pub(crate) fn unmap_locked(
        &self,
        mut areas: WriteGuard<'_, S>,
        range: Range<u64>,
    ) -> Result<(), OutOfMemory> {
        let is_cut = |large: &Found| large.reaches_beyond::<S::Format>(&range);
        self.split_large(&areas, &range, is_cut)?;
        let removed = areas.remove(&range);
        if removed.is_empty() && self.mappings.in_flight.overlapping(&range, None).is_none() {
            return Ok(());
        }
        let empty = self.empty_tables(&mut areas, &removed);
        // Begun while the lock is held for writing: who next looks for room knows of it.
        let gather = Gather::begin(self, range, Cause::Unmap);
        if self.vm.policy.unmap_lock == UnmapLock::Exclusive {
            remove(gather, &removed, &empty).wait();
            drop(areas);
        } else {
            let areas = RwLockWriteGuard::downgrade(areas);
            remove(gather, &removed, &empty).wait_and_unlock(areas);
        }
        // A file of which this was the last area goes only now.
        self.vm.close_all(removed);
        self.vm.free_completed();
        Ok(())
    }

    /// Where page tables are to be unhooked, now that `removed` is gone.
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
                    areas.take_vacated(PageTables::<S::Format>::leaf_table_bytes())
                } else {
                    Vec::new()
                }
            }
        }
    }
}

/// Clears the entries of areas that are gone, unhooks tables, and sends the flush.
///
/// The lock is held at least for reading, without a pause since the areas were removed. What others
/// do meanwhile is then:
///
/// - *Faults, and calls that discard*, look for addresses of areas alone, and no area is in the
///   gap, nor can one come while readers keep writers out. A table that is unhooked covers the gap
///   alone, so none of them walks it, hangs a table below it, or makes it anew. A table that a
///   neighbouring area needs, too, is not unhooked.
/// - *Another `unmap`* removed its areas before ours, for it held the lock for writing. If it still
///   holds it for reading, ours could not have been taken for writing; so it is past this function,
///   and at most waits.
/// - *CPUs* may be in the middle of a walk, or have cached the way to a table. It leads to entries
///   that are all empty and stay so, and the table is freed after the flush.
///
/// When the lock has been let go and the flush is not yet done, the gap but for the range itself
/// may be mapped again, and get new tables. A CPU that has cached the way to the old one faults
/// there, finds that nothing is wrong, and tries again, until the flush reaches it (or at once: on
/// x86 a fault drops what is cached of the way to its address).
fn remove<'s, S: System>(
    mut gather: Gather<'s, S>,
    removed: &[Area<S::Platform>],
    empty: &[Vacated],
) -> Sent<'s, S> {
    for area in removed {
        gather.clear_area(&area.range, &area.range);
    }
    for tables in empty {
        gather.unhook(tables);
    }
    gather.send_later()
}
