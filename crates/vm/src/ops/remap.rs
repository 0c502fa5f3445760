//! Moving: areas, with the pages that they contain, get other addresses. (Linux: `mremap`.)
//!
//! # Steps
//!
//! A moved page stays the same page, so a write through an old translation is never lost. But no
//! CPU may use the page at both addresses. Otherwise one CPU could write at the new address and
//! notify another, which would use the old address, where no page is any more. So all entries are
//! first emptied, then flushed, and written at their new places when all CPUs have dropped the old
//! translations. In between, the pages are in no table. (Linux writes the new entry first, and
//! flushes before it releases the locks of both page tables. This keeps faults out, but not the
//! MMU.)
//!
//! The lock is held for writing throughout, under every policy. So there are no claims, a fault
//! during the move finds the areas at their new addresses when it gets the lock, and an entry that
//! was emptied can be written to its new place unchanged.
//!
//! Page tables at the new addresses are made before anything is changed, because only that can
//! fail. For the same reason large pages are split first, those that move and those at the new
//! addresses. Folios of files are unmapped. (Linux moves a large page as one, if it is aligned at
//! its new address also.)

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::area::{Area, LargePages};
use crate::areas::{Areas, Vacated};
use crate::coherence::{Cause, EmptyTables, ExtraFlushes};
use crate::error::RemapError;
use crate::format::{EMPTY, Format};
use crate::gather::{Extra, Gather};
use crate::platform::{EntryAt, OutOfMemory, Platform, Work};
use crate::space::{AddressSpace, LeafTableCache};
use crate::system::{System, WriteGuard};
use crate::table::Found;

/// The cases in which areas get other addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Moves {
    /// If the areas cannot grow where they are. (Linux: `MREMAP_MAYMOVE`.)
    IfNecessary,
    /// Always. (Linux: `MREMAP_FIXED`, to a gap.)
    Always,
}

impl<S: System> AddressSpace<S> {
    /// Moves the areas in `from` to the beginning of `to`, and removes existing mappings there. If
    /// both ranges begin at the same address, grows or shrinks in place.
    ///
    /// If `to` is longer, the last area grows: by zeros, or by the next pages of its file. If `to`
    /// is shorter, the rest is unmapped. The pages are not copied, and keep their contents.
    ///
    /// # Errors
    ///
    /// [`RemapError`] if areas cannot be in the ranges, or if these overlap and begin at different
    /// addresses; if a part of `from` is in no area; if another area is in the way of growth in
    /// place; or if there is no memory for page tables at the new addresses, or to split large
    /// pages. Nothing is changed then. (Linux has already unmapped `to` when it runs out of
    /// memory.)
    pub fn remap(&self, from: Range<u64>, to: Range<u64>) -> Result<(), RemapError> {
        self.vm.platform.work(Work::Areas, 1);
        let areas = self.mappings.areas.write();
        areas.check(&from)?;
        areas.check(&to)?;
        if from.start != to.start && from.start < to.end && to.start < from.end {
            return Err(RemapError::BadRange);
        }
        if !areas.cover(&from) {
            return Err(RemapError::NoArea);
        }
        self.remap_locked(areas, &from, &to)
    }

    /// Changes the length of the areas in `from` to `length` bytes, and returns their address
    /// afterwards: the old one, or that of a gap. Calls `chosen` with the new range before
    /// anything is changed.
    ///
    /// # Errors
    ///
    /// As [`remap`](Self::remap). [`RemapError::NoRoom`] if no gap is long enough.
    pub fn remap_anywhere(
        &self,
        from: Range<u64>,
        length: u64,
        moves: Moves,
        chosen: impl FnOnce(&Range<u64>),
    ) -> Result<u64, RemapError> {
        self.vm.platform.work(Work::Areas, 1);
        let mut areas = self.mappings.areas.write();
        areas.check(&from)?;
        if !areas.cover(&from) {
            return Err(RemapError::NoArea);
        }
        let in_place = from.start..from.start.saturating_add(length);
        let has_room = in_place.end <= from.end
            || areas.check(&in_place).is_ok()
                && areas.overlapping(&(from.end..in_place.end)).next().is_none();
        let to = if moves == Moves::IfNecessary && has_room {
            in_place
        } else {
            self.find_room(&mut areas, length)?
        };
        areas.check(&to)?;
        chosen(&to);
        self.remap_locked(areas, &from, &to)?;
        Ok(to.start)
    }

    /// Moves or resizes areas to a range that was checked, under the caller's lock.
    fn remap_locked(
        &self,
        areas: WriteGuard<'_, S>,
        from: &Range<u64>,
        to: &Range<u64>,
    ) -> Result<(), RemapError> {
        if from.start == to.start {
            self.resize(areas, from, to.end)
        } else {
            self.move_areas(areas, from, to)
        }
    }

    fn resize(
        &self,
        mut areas: WriteGuard<'_, S>,
        from: &Range<u64>,
        end: u64,
    ) -> Result<(), RemapError> {
        if end < from.end {
            self.unmap_locked(areas, end..from.end)?;
        } else if end > from.end {
            let grown = from.end..end;
            if areas.overlapping(&grown).next().is_some() {
                return Err(RemapError::NoRoom);
            }
            // There is no area here, but CPUs may still cache old translations.
            self.replace(&mut areas, &grown)?;
            areas.grow(from.end, end);
        }
        Ok(())
    }

    fn move_areas(
        &self,
        mut areas: WriteGuard<'_, S>,
        from: &Range<u64>,
        to: &Range<u64>,
    ) -> Result<(), RemapError> {
        let kept = from.start..from.end.min(from.start + (to.end - to.start));
        for range in [from, to] {
            self.split_large(&mut areas, range, |_| true)?;
            self.split_folios(&areas, range);
        }
        let mut moving = match self.find_pages(&kept, to.start) {
            Ok(moving) => moving,
            Err(error) => {
                self.unhook_unused(&mut areas, to);
                return Err(error.into());
            }
        };
        self.replace(&mut areas, to)?;
        let removed = areas.remove(from);
        for area in removed.iter().filter(|area| area.range.start < kept.end) {
            areas.insert(moved(area, &kept, to));
        }
        let mut moving = &mut moving[..];
        if self.vm.policy.extra_flushes.contains(ExtraFlushes::TABLE_PER_MOVE) {
            for piece in moving.chunk_by_mut(Moving::shares_tables_with) {
                let mut gather = Gather::begin(self, from.clone(), Cause::Move);
                gather.flush_also(Extra::IdleCpus);
                self.clear_moving(piece, &mut gather);
                gather.send().wait();
                self.write_moving(piece);
            }
            moving = &mut [];
        }
        let mut gather = Gather::begin(self, from.clone(), Cause::Move);
        self.clear_moving(moving, &mut gather);
        if self.vm.policy.extra_flushes.contains(ExtraFlushes::SPACE_PER_UNMAP) {
            gather.flush_also(Extra::SpaceIfAny);
        }
        gather.clear(&(kept.end..from.end), LargePages::Own);
        for tables in self.empty_tables(&mut areas, &removed) {
            gather.unhook(&tables);
        }
        gather.send().wait();
        self.write_moving(moving);
        Ok(())
    }

    fn clear_moving(&self, moving: &mut [Moving], gather: &mut Gather<'_, S>) {
        for page in moving {
            // Use the entry's current value: the MMU may have marked it.
            page.entry = self.vm.platform.swap(page.from, EMPTY);
            if let Some(leaf) = S::Format::as_leaf(page.entry) {
                gather.add_leaf(page.address, leaf, 0);
                // The entry's count of the page stays with this call until the page is mapped
                // again.
                self.remove_mapping(leaf.frame, page.address);
            }
        }
    }

    fn write_moving(&self, moving: &[Moving]) {
        for page in moving {
            if let Some(leaf) = S::Format::as_leaf(page.entry) {
                self.add_mapping(leaf.frame, None, page.to_address);
            }
            self.vm.platform.swap(page.to, page.entry);
        }
    }

    /// Returns the entries to move from `from`, and their new places from `to` on. Makes tables
    /// there if there are none.
    fn find_pages(&self, from: &Range<u64>, to: u64) -> Result<Vec<Moving>, OutOfMemory> {
        let platform = &self.vm.platform;
        let mut target = LeafTableCache::default();
        let page = |Found { address, slot, entry }| {
            debug_assert_eq!(slot.level, 0, "it is split");
            let to_address = to + (address - from.start);
            let to = target.make(&self.mappings.tables, &self.vm, to_address)?;
            Ok(Moving { address, from: slot.at, to, to_address, entry })
        };
        self.mappings.tables.entries(platform, from.clone()).map(page).collect()
    }

    /// Removes tables that were made for areas that are not moved after all. Tables that another
    /// area needs are kept.
    fn unhook_unused(&self, areas: &mut Areas<S::Platform>, range: &Range<u64>) {
        if self.vm.policy.empty_tables == EmptyTables::Kept {
            return areas.vacate(self.mappings.tables.leaf_tables(&self.vm.platform, range));
        }
        let mut gather = Gather::begin(self, range.clone(), Cause::Move);
        for [part, gap] in areas.gaps_in(range) {
            gather.unhook(&Vacated { ranges: vec![part], gap });
        }
        gather.send().wait();
    }
}

/// A page that is being moved.
struct Moving {
    /// The address at which the page was mapped.
    address: u64,
    from: EntryAt,
    to: EntryAt,
    to_address: u64,
    entry: u64,
}

impl Moving {
    /// Returns `true` if both pages leave the same page table, and go to the same page table.
    fn shares_tables_with(&self, other: &Self) -> bool {
        self.from.table == other.from.table && self.to.table == other.to.table
    }
}

/// Returns the part of an area in `kept`, at its place after `kept` has moved to the start of `to`.
/// The last area ends where `to` ends.
fn moved<P: Platform>(area: &Area<P>, kept: &Range<u64>, to: &Range<u64>) -> Area<P> {
    let place = |address| to.start + (address - kept.start);
    let end = if area.range.end < kept.end { place(area.range.end) } else { to.end };
    Area { range: place(area.range.start)..end, ..area.clone() }
}
