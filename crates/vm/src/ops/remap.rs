//! Moving: areas, with the pages that they hold, to other addresses. (Linux: `mremap`.)
//!
//! # The order of things
//!
//! A page that moves stays the same page, so that what is written through an old translation is
//! not lost, however late. But nobody may find it at both places: one CPU would write at the new
//! address, tell another, and that would use the old one, where nothing is any more. So all entries
//! are emptied first, then flushed, and written at their new places when all CPUs have forgotten
//! the old ones. In between, the pages are in nobody's tables. (Linux writes the new entry first,
//! and flushes before it lets go of the locks of both page tables, which keeps faults out, but not
//! the MMU.)
//!
//! The lock is held for writing throughout, whatever the design. So there are no claims, whoever
//! faults comes back to find the areas where they are now, and what we have taken out of one entry
//! can be put into another without anyone having been there.
//!
//! Page tables at the new addresses are made before anything is changed, for that is all that can
//! fail; and so are those that large pages are split into, of what moves as of what is there.
//! (Linux moves a large page as one, if it is one at its new address, too.)

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use crate::area::Area;
use crate::areas::{Areas, Vacated};
use crate::coherence::{Cause, EmptyTables, ExtraFlushes};
use crate::error::RemapError;
use crate::format::{EMPTY, Format};
use crate::gather::{Extra, Gather};
use crate::platform::{EntryAt, OutOfMemory, Platform, Work};
use crate::space::{AddressSpace, LeafTableCache};
use crate::system::{System, WriteGuard};
use crate::table::Found;

impl<S: System> AddressSpace<S> {
    /// Moves what is mapped in `from` to the beginning of `to`, whatever is there now, or, where
    /// both begin at the same address, grows or shrinks it in place.
    ///
    /// If `to` is longer, the last area grows: by zeros, or by the next pages of its file. If it is
    /// shorter, the rest is unmapped. The pages are not copied, and keep their contents.
    ///
    /// # Errors
    ///
    /// If areas cannot be there, or the two ranges overlap and begin at different addresses; if
    /// areas are not in all of `from`; if there is something where the last area would grow in
    /// place; if there is no memory for page tables at the new addresses, or to split large pages.
    /// Nothing is changed then.
    /// (Linux has unmapped what was at `to` when it runs out of memory.)
    pub fn remap(&self, from: Range<u64>, to: Range<u64>) -> Result<(), RemapError> {
        self.vm.platform.work(Work::Areas, 1);
        let areas = self.mappings.areas.write();
        areas.check(&from)?;
        areas.check(&to)?;
        let is_in_place = from.start == to.start;
        if !is_in_place && from.start < to.end && to.start < from.end {
            return Err(RemapError::BadRange);
        }
        if !areas.cover(&from) {
            return Err(RemapError::NoArea);
        }
        if is_in_place {
            self.resize(areas, &from, to.end)
        } else {
            self.move_areas(areas, &from, &to)
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
            // Nothing but what CPUs may still remember.
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
            self.split_large(&areas, range, |_| true)?;
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
            for piece in moving.chunk_by_mut(Moving::has_tables_of) {
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
        gather.clear(&(kept.end..from.end));
        for tables in self.empty_tables(&mut areas, &removed) {
            gather.unhook(&tables);
        }
        gather.send().wait();
        self.write_moving(moving);
        Ok(())
    }

    fn clear_moving(&self, moving: &mut [Moving], gather: &mut Gather<'_, S>) {
        for page in moving {
            // What it holds now: the MMU may have marked it.
            page.entry = self.vm.platform.swap(page.from, EMPTY);
            if let Some(leaf) = S::Format::as_leaf(page.entry) {
                gather.add_leaf(page.address, leaf, 0);
                // Its count is ours until it is put in.
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

    /// The entries that are to be moved from `from`, and their places from `to` on, in tables that
    /// are made where there are none.
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

    /// Takes tables away that were made for areas that do not come. Those that an area needs that
    /// is there already may stay.
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

/// A page on its way.
struct Moving {
    /// Where it was mapped.
    address: u64,
    from: EntryAt,
    to: EntryAt,
    to_address: u64,
    entry: u64,
}

impl Moving {
    /// Whether another page leaves the same page table, and arrives in the same.
    fn has_tables_of(&self, other: &Self) -> bool {
        self.from.table == other.from.table && self.to.table == other.to.table
    }
}

/// The part in `kept` of an area, as it is when `kept` begins where `to` does. The last one ends
/// where `to` ends.
fn moved<P: Platform>(area: &Area<P>, kept: &Range<u64>, to: &Range<u64>) -> Area<P> {
    let place = |address| to.start + (address - kept.start);
    let end = if area.range.end < kept.end { place(area.range.end) } else { to.end };
    Area { range: place(area.range.start)..end, ..area.clone() }
}
