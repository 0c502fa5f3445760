//! Large pages, and their split into 512 small pages that a table maps.
//!
//! A large page comes from [`collapse`](AddressSpace::collapse), or from the first write where
//! [`use_large_pages`](AddressSpace::use_large_pages) was called. It is anonymous and private, lies
//! in one area, has the protection of that area, and is mapped in one space only. Each of its
//! frames is an ordinary frame, with a count of one user, and a record of its mapping. So an
//! operation on all of a large page treats it as one entry. An operation on a part splits it first,
//! which takes a page table and nothing else.
//!
//! # Steps
//!
//! The entry is emptied, then flushed. The table, which is filled before the flush completes, is
//! linked when no CPU caches the large page: *break before make*. If the table replaced the large
//! leaf in one step, a CPU could cache the large translation together with small ones. An operation
//! that then unmapped page 7, and flushed it, could not determine through which of the two an
//! access at page 8 goes. On Arm even the access may end in a conflict abort.
//!
//! A lazy CPU accesses no user page, and drops all outdated translations before it does. But it may
//! walk to the new table while it caches the large page. So the change is marked as one that
//! [resizes](crate::Change::resizes), as is every change that removes a large page, and each
//! collapse. With Shootdown's engine, lazy CPUs are then notified and waited for, unless the
//! machine [tolerates both sizes](shootdown::Machine::tolerates_mixed_sizes). x86-64 does, and
//! Linux interrupts no lazy CPU there.
//!
//! # Discarding a large page
//!
//! A large page is discarded under the lock for reading, and faults can run during its flush. Such
//! a fault may link a table at its entry, and map a new page. The CPU that faults has no
//! translation, and a CPU that still has the large translation does not walk. So no CPU caches
//! both, except on machines on which CPUs share a TLB, or cache parts of a large page separately.
//! (Linux does the same, as far as we know.) A lazy CPU is notified by the same flush, and may walk
//! to that table until then. On a machine that does not tolerate both sizes, the page would have to
//! be split before it is discarded, which is not done.
//!
//! # Marks
//!
//! The marks are read when the entry is emptied, and every small page gets them. A CPU that caches
//! the large page may still write to it until the flush is complete, but only if the entry was
//! marked as dirty by then. Otherwise it walks to the entry to mark it, finds it empty, and faults.
//!
//! # Locks
//!
//! The space is locked for writing, and the areas are detached. So no fault finds the empty entry;
//! it would link a table of its own, and map pages of zeros in it. Only two actors do not take the
//! lock. An MMU finds nothing, and its CPU faults, and waits for the lock. Reclaim finds no entry
//! at the mapping that the page's record names, and skips the page.
//!
//! An operation that runs under the lock for reading takes it for writing to split, and then
//! downgrades it to reading. So a page that it has split is not made large again before the
//! operation uses it.

use alloc::vec::Vec;
use core::ops::Range;

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
    /// Splits the large pages that overlap `range` and for which `choose` returns `true`, until
    /// there are none: a page of a higher level is first split into large ones. Costs nothing in a
    /// space without large pages. The areas must be locked for writing.
    ///
    /// Detaches the areas in `range`, so that from this call on no fault can map a page there, or
    /// make a table in the place of a large page. If the call fails, the mapped pages and their
    /// protection are unchanged.
    pub(crate) fn split_large(
        &self,
        areas: &mut Areas<S::Platform>,
        range: &Range<u64>,
        choose: impl Fn(&Found) -> bool,
    ) -> Result<(), OutOfMemory> {
        areas.detach(range);
        loop {
            let chosen = self.choose_large(areas, range, &choose);
            if chosen.is_empty() {
                return Ok(());
            }
            self.split(&chosen)?;
        }
    }

    /// [Splits](Self::split_large) the chosen large pages in `range`. Returns the areas, locked for
    /// reading, and the result. Splits nothing if areas cannot be in `range`.
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
        let mut areas = self.mappings.areas.write();
        let split = self.split_large(&mut areas, range, choose);
        (areas.downgrade(), split)
    }

    /// Returns the large pages that [`split_large`](Self::split_large) has to split next.
    fn choose_large(
        &self,
        areas: &Areas<S::Platform>,
        range: &Range<u64>,
        choose: impl Fn(&Found) -> bool,
    ) -> Vec<Found> {
        // Tables stay during the walk only where areas are.
        let private = areas.overlapping(range).filter(|area| area.is_private_anonymous());
        let parts = private.map(|area| area.part_in(range));
        let large =
            parts.flat_map(|part| self.mappings.tables.large_leaves(&self.vm.platform, part));
        large.filter(choose).collect()
    }

    /// Splits large pages, with one flush for all of them. If there is no memory, fails before the
    /// first entry is changed.
    fn split(&self, large: &[Found]) -> Result<(), OutOfMemory> {
        let [first, .., last] = [&large[0], &large[large.len() - 1]];
        let requested = first.address..last.range::<S::Format>().end;
        let split = self.allocate_tables(large.len())?;
        let (platform, tables) = (&self.vm.platform, &self.mappings.tables);
        let mut gather = Gather::begin(self, requested, Cause::Split);
        for (found, &table) in large.iter().zip(&split) {
            let level = found.slot.level;
            let leaf = tables.clear_large(platform, found);
            let leaf = leaf.expect("the leaf was just found, and the lock is held for writing");
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
                    self.vm.free_tables(tables);
                    return Err(error);
                }
            }
        }
        Ok(tables)
    }
}

/// Fills a table at `level`, which is not linked yet, with the parts of a large leaf of the next
/// level.
fn fill<F: Format>(platform: &impl Platform, table: Frame, leaf: Leaf, level: usize) {
    let frames_each = F::span(level) / PAGE_BYTES;
    for index in 0..1 << F::INDEX_BITS {
        let frame = Frame(leaf.frame.0 + index * frames_each);
        let at = EntryAt { table, index: index as usize };
        platform.swap(at, F::leaf_at(Leaf { frame, ..leaf }, level));
    }
}
