//! Large pages, and how one is split: 512 small pages that one entry maps.
//!
//! A large page comes from [`collapse`](AddressSpace::collapse). It is anonymous and private, lies
//! in one area, allows what the area allows, and is mapped here alone. Each of its frames is an
//! ordinary one, with a count of one user, and a record where it is mapped. So it can be taken away
//! as a whole without further ado; and whoever needs part of it splits it first, which takes a page
//! table and nothing else.
//!
//! # The order of things
//!
//! The entry is emptied, then flushed, and the table, which has been filled by then, hung there
//! when no CPU remembers the large page: *break before make*. If the table came in one step, a CPU
//! could hold the large translation along with small ones. Who then takes away page 7, and has that
//! flushed, cannot know which of the two an access by page 8's address goes through; and on Arm
//! even the access may end in a conflict abort.
//!
//! A lazy CPU touches no user page, and drops all that it missed before it does. But it may walk to
//! the new table while it has the large page cached. So the change says that it
//! [resizes](crate::Change::resizes), as does every change that takes a large page away, and each
//! collapse. With the engine behind the seam, lazy CPUs are then notified and waited for, unless
//! the machine [tolerates both sizes](shootdown::Machine::tolerates_mixed_sizes). x86-64 does, and
//! Linux interrupts no lazy CPU there.
//!
//! Where all of a large page is discarded, under the lock for reading, nothing holds faults back
//! while it is flushed: one of them may hang a table there, and map a new page. A CPU that does so
//! had no translation, and one that still has the large one does not look for another; so none
//! holds both, but for machines on which CPUs share a TLB, or keep parts of a large page apart. (So
//! does Linux, as far as we know.) A lazy CPU is notified by the same flush, and until it is, it
//! may walk to that table: where a machine does not tolerate both sizes, the page would have to be
//! split before it is discarded, which is not done.
//!
//! The marks are read when the entry is emptied, and every small page gets them. A CPU that
//! remembers the large page may still write to it until the flush is done, but only if the entry
//! was marked by then: else it looks for the entry to mark, finds none, and waits.
//!
//! The areas are locked for writing. So no fault finds the entry empty, which would hang a table of
//! its own there, and map pages of zeros in it. Only two do not ask for the lock: MMUs, which find
//! nothing, fault, and wait; and reclaim, which finds no entry where the page's record says that it
//! is mapped, and leaves it alone.
//!
//! An operation that runs under the lock for reading takes it for writing to split, and then for
//! reading without letting go of it. So it finds no page large again that it has split.

use alloc::vec::Vec;
use core::ops::Range;

use lock_api::RwLockWriteGuard;

use crate::PAGE_BYTES;
use crate::areas::Areas;
use crate::coherence::Cause;
use crate::format::{Format, Leaf};
use crate::gather::Gather;
use crate::platform::{EntryAt, Frame, FrameUse, OutOfMemory, Platform};
use crate::space::{AddressSpace, count};
use crate::system::{ReadGuard, System};
use crate::table::Found;

impl<S: System> AddressSpace<S> {
    /// Splits the large pages that overlap `range` and of which `choose` says so, until there are
    /// none: one of a higher level is first split into large ones. Costs nothing where no page is
    /// large. The areas must be locked for writing.
    ///
    /// If it fails, nobody who looks at pages can tell that anything was changed.
    pub(crate) fn split_large(
        &self,
        areas: &Areas<S::Platform>,
        range: &Range<u64>,
        choose: impl Fn(&Found) -> bool,
    ) -> Result<(), OutOfMemory> {
        loop {
            let chosen = self.choose_large(areas, range, &choose);
            if chosen.is_empty() {
                return Ok(());
            }
            self.split(&chosen)?;
        }
    }

    /// The areas, locked for reading, after the same; and whether there was memory for it. Nothing
    /// is split if areas cannot be in `range`.
    pub(crate) fn read_areas_split(
        &self,
        range: &Range<u64>,
        choose: impl Fn(&Found) -> bool,
    ) -> (ReadGuard<'_, S>, Result<(), OutOfMemory>) {
        let areas = self.mappings.areas.read();
        if areas.check(range).is_err() || self.choose_large(&areas, range, &choose).is_empty() {
            return (areas, Ok(()));
        }
        drop(areas);
        let areas = self.mappings.areas.write();
        let split = self.split_large(&areas, range, choose);
        (RwLockWriteGuard::downgrade(areas), split)
    }

    fn choose_large(
        &self,
        areas: &Areas<S::Platform>,
        range: &Range<u64>,
        choose: impl Fn(&Found) -> bool,
    ) -> Vec<Found> {
        let mut chosen = Vec::new();
        // Only below areas do tables stay while we walk them.
        for area in areas.overlapping(range).filter(|area| area.is_private_anonymous()) {
            let part = area.range.start.max(range.start)..area.range.end.min(range.end);
            let large = self.mappings.tables.large_leaves(&self.vm.platform, &part);
            chosen.extend(large.filter(&choose));
        }
        chosen
    }

    /// Splits large pages, with one flush for all of them. Fails before the first is touched.
    fn split(&self, large: &[Found]) -> Result<(), OutOfMemory> {
        let [first, .., last] = [&large[0], &large[large.len() - 1]];
        let requested = first.address..last.range::<S::Format>().end;
        let split = self.allocate_tables(large.len())?;
        let (platform, tables) = (&self.vm.platform, &self.mappings.tables);
        let mut gather = Gather::begin(self, requested, Cause::Split);
        for (found, &table) in large.iter().zip(&split) {
            let level = found.slot.level;
            let leaf = tables.clear_large(platform, found);
            let leaf = leaf.expect("we hold the lock for writing, and have just found it");
            gather.add_leaf(found.address, leaf, level);
            fill::<S::Format>(platform, table, leaf, level - 1);
        }
        gather.send().wait();
        for (found, &table) in large.iter().zip(&split) {
            tables.link(platform, found.slot.at, table);
        }
        count(&self.counters.split, large.len());
        Ok(())
    }

    fn allocate_tables(&self, count: usize) -> Result<Vec<Frame>, OutOfMemory> {
        let mut tables = Vec::with_capacity(count);
        while tables.len() < count {
            match self.vm.allocate(FrameUse::Table) {
                Ok(table) => tables.push(table),
                Err(error) => {
                    for table in tables {
                        self.vm.platform.free_table(table);
                    }
                    return Err(error);
                }
            }
        }
        Ok(tables)
    }
}

/// Fills a table, which hangs nowhere yet, at `level` with the parts of a large leaf of the next.
fn fill<F: Format>(platform: &impl Platform, table: Frame, leaf: Leaf, level: usize) {
    let frames_each = F::span(level) / PAGE_BYTES;
    for index in 0..1 << F::INDEX_BITS {
        let frame = Frame(leaf.frame.0 + index * frames_each);
        let at = EntryAt { table, index: index as usize };
        platform.swap(at, F::leaf_at(Leaf { frame, ..leaf }, level));
    }
}
