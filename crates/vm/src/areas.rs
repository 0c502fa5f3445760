//! All areas of a space, in order of address.
//!
//! The crate `memory_set` (0.4.1) also has such a map. It changes areas and page tables in one
//! call, through `&mut` to both, so that no lock can be released or downgraded between the two
//! changes. Half of the designs that run here exist to do exactly that. The crate also visits every
//! area at each call, and never merges areas.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::mem;
use core::ops::Range;

use crate::PAGE_BYTES;
use crate::area::Area;
use crate::area_index::AreaIndex;
use crate::error::BadRange;
use crate::placement::{Size, ThreadRegions};
use crate::platform::Platform;

/// Addresses without areas that may still have page tables.
pub(crate) struct Vacated {
    /// The addresses, in order.
    pub(crate) ranges: Vec<Range<u64>>,
    /// The gap around the ranges: up to the neighbouring areas, or to the ends of all addresses.
    pub(crate) gap: Range<u64>,
}

/// The areas of a space. They do not overlap.
pub(crate) struct Areas<P: Platform> {
    by_start: BTreeMap<u64, Area<P>>,
    /// The addresses at which areas may be; empty after the space has exited.
    limits: Range<u64>,
    /// No gap begins below this address.
    full_to: u64,
    regions: ThreadRegions,
    /// The first addresses of page tables that were kept although their areas were removed.
    vacated: BTreeSet<u64>,
    /// The copies that faults use, if they lock areas one by one.
    index: Option<Arc<AreaIndex<P>>>,
    /// The first addresses of areas that are, or were, detached from the index.
    detached: BTreeSet<u64>,
}

impl<P: Platform> Areas<P> {
    pub(crate) const fn new(limits: Range<u64>, index: Option<Arc<AreaIndex<P>>>) -> Self {
        Self {
            by_start: BTreeMap::new(),
            full_to: limits.start,
            regions: ThreadRegions::new(),
            limits,
            vacated: BTreeSet::new(),
            index,
            detached: BTreeSet::new(),
        }
    }

    /// Copies the areas of a space that is forked. No other call may use this space yet.
    pub(crate) fn inherit(&mut self, parent: &Self) {
        self.by_start = parent.by_start.clone();
        self.full_to = parent.full_to;
        self.detached.extend(self.by_start.keys());
        self.attach();
    }

    /// Removes all areas, and allows no area from now on. `None` if this was done before. No other
    /// call may be in progress, so no fault has an area locked, and none is detached.
    pub(crate) fn close(&mut self) -> Option<Self> {
        if let Some(index) = &self.index {
            index.clear();
        }
        let empty = Self::new(0..0, self.index.take());
        let closed = mem::replace(self, empty);
        (!closed.limits.is_empty()).then_some(closed)
    }

    /// Detaches the areas that overlap `range`: waits until no fault uses them. Call this before
    /// entries for the range are changed in a way that a fault must not observe. The methods below
    /// detach the areas that they change.
    pub(crate) fn detach(&mut self, range: &Range<u64>) {
        if self.index.is_some() {
            let starts: Vec<u64> = self.overlapping(range).map(|area| area.range.start).collect();
            for start in starts {
                self.detach_one(start);
            }
        }
    }

    fn detach_one(&mut self, start: u64) {
        let Some(index) = &self.index else { return };
        if self.detached.insert(start)
            && let Some(slot) = index.slot_at(start)
        {
            slot.empty();
            if let Some(area) = self.by_start.get_mut(&start) {
                area.is_written |= slot.is_written();
            }
        }
    }

    /// Makes the index equal to the areas again. Call this before the areas are unlocked.
    pub(crate) fn attach(&mut self) {
        if let Some(index) = &self.index
            && !self.detached.is_empty()
        {
            let detached = mem::take(&mut self.detached);
            index.attach(detached.into_iter().map(|start| (start, self.by_start.get(&start))));
        }
    }

    /// Removes an area, which it detaches.
    fn take(&mut self, start: u64) -> Option<Area<P>> {
        self.detach_one(start);
        self.by_start.remove(&start)
    }

    /// Adds an area, which is detached until the areas are unlocked.
    fn put(&mut self, area: Area<P>) {
        if self.index.is_some() {
            self.detached.insert(area.range.start);
        }
        self.by_start.insert(area.range.start, area);
    }

    /// Returns all areas, in order.
    pub(crate) fn into_areas(self) -> impl Iterator<Item = Area<P>> {
        self.by_start.into_values()
    }

    /// The addresses at which areas may be.
    pub(crate) fn limits(&self) -> Range<u64> {
        self.limits.clone()
    }

    /// Checks that `range` consists of whole pages at which areas may be.
    pub(crate) fn check(&self, range: &Range<u64>) -> Result<(), BadRange> {
        let is_good = range.start < range.end
            && range.start.is_multiple_of(PAGE_BYTES)
            && range.end.is_multiple_of(PAGE_BYTES)
            && self.limits.start <= range.start
            && range.end <= self.limits.end;
        if is_good { Ok(()) } else { Err(BadRange) }
    }

    /// Returns all areas, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Area<P>> {
        self.by_start.values()
    }

    /// Returns the area that contains `address`.
    pub(crate) fn find(&self, address: u64) -> Option<&Area<P>> {
        let (_, area) = self.by_start.range(..=address).next_back()?;
        (address < area.range.end).then_some(area)
    }

    /// Records that a page of a private area may have been written.
    pub(crate) fn record_write(&self, area: &Area<P>) {
        let slot = self.index.as_ref().and_then(|index| index.slot_at(area.range.start));
        if let Some(slot) = slot {
            slot.record_write();
        }
    }

    /// Returns the areas that overlap `range`, in order.
    pub(crate) fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = &Area<P>> {
        let first = self.find(range.start).map_or(range.start, |area| area.range.start);
        self.by_start.range(first..range.end.max(first)).map(|(_, area)| area)
    }

    /// Returns `true` if every address of `range` is in an area.
    pub(crate) fn cover(&self, range: &Range<u64>) -> bool {
        let mut covered_to = range.start;
        for area in self.overlapping(range) {
            if area.range.start > covered_to {
                return false;
            }
            covered_to = area.range.end;
        }
        covered_to >= range.end
    }

    /// Adds an area at addresses without one, and merges it with equal neighbours.
    pub(crate) fn insert(&mut self, mut area: Area<P>) {
        debug_assert!(self.overlapping(&area.range).next().is_none());
        if let Some((&start, below)) = self.by_start.range(..area.range.start).next_back()
            && below.continues_in(&area)
            && let Some(below) = self.take(start)
        {
            area.range.start = start;
            area.is_written |= below.is_written;
        }
        if let Some(above) = self.by_start.get(&area.range.end)
            && area.continues_in(above)
            && let Some(above) = self.take(area.range.end)
        {
            area.range.end = above.range.end;
            area.is_written |= above.is_written;
        }
        self.put(area);
    }

    /// Extends the area that ends at `end` up to `new_end`. No area may be between the two
    /// addresses.
    pub(crate) fn grow(&mut self, end: u64, new_end: u64) {
        if let Some((&start, _)) = self.by_start.range(..end).next_back()
            && let Some(mut area) = self.take(start)
        {
            area.range.end = new_end;
            self.insert(area);
        }
    }

    /// Removes and returns, in order, all areas in `range`. Cuts areas that reach beyond it.
    pub(crate) fn remove(&mut self, range: &Range<u64>) -> Vec<Area<P>> {
        self.full_to = self.full_to.min(range.start);
        self.cut(range)
    }

    /// Does the same for areas that the caller inserts again, with another protection: they leave
    /// no gap.
    pub(crate) fn cut(&mut self, range: &Range<u64>) -> Vec<Area<P>> {
        self.split_at(range.start);
        self.split_at(range.end);
        let starts: Vec<u64> =
            self.by_start.range(range.clone()).map(|(&start, _)| start).collect();
        starts.into_iter().filter_map(|start| self.take(start)).collect()
    }

    /// Returns the addresses around `range`, in which there is no area, up to the neighbouring
    /// areas or the ends of all addresses.
    pub(crate) fn gap_around(&self, range: &Range<u64>) -> Range<u64> {
        let below = self.by_start.range(..range.start).next_back();
        let above = self.by_start.range(range.end..).next();
        below.map_or(0, |(_, area)| area.range.end)..above.map_or(u64::MAX, |(&start, _)| start)
    }

    /// Returns the lowest gap of `length` bytes. Low addresses are preferred for two reasons:
    /// addresses that were used before have page tables already, if those were
    /// [kept](crate::EmptyTables::Kept), and areas that lie close together need fewer tables.
    ///
    /// `occupied` returns the address up to which a range must not be used although it has no area,
    /// or `None`.
    pub(crate) fn find_room(
        &mut self,
        length: u64,
        occupied: impl Fn(&Range<u64>) -> Option<u64>,
    ) -> Option<Range<u64>> {
        let found = self.first_gap(self.full_to..self.limits.end, length, occupied)?;
        if found.start == self.full_to {
            self.full_to = found.end;
        }
        Some(found)
    }

    /// Does the same for a thread, in a region of `region_bytes` that no other thread's mappings
    /// are placed in. A range that is not smaller than a region begins at a multiple of its size,
    /// and where the thread's last such range was, if possible. The last page of a region stays
    /// free: areas of two threads that touch would be merged, and all faults would lock one area.
    pub(crate) fn find_room_for(
        &mut self,
        thread: u64,
        region_bytes: u64,
        length: u64,
        occupied: impl Fn(&Range<u64>) -> Option<u64>,
    ) -> Option<Range<u64>> {
        let with_gap = length.checked_add(PAGE_BYTES)?;
        let size = if with_gap <= region_bytes { Size::Small } else { Size::Large };
        if let Some(region) = self.regions.of(thread, size)
            && let Some(found) = self.first_gap(region, length, &occupied)
        {
            return Some(found);
        }
        let whole = with_gap.checked_next_multiple_of(region_bytes)?;
        let mut start = self.limits.start.next_multiple_of(region_bytes);
        loop {
            let end = start.checked_add(whole).filter(|&end| end <= self.limits.end)?;
            let candidate = start..end;
            let area = self.overlapping(&candidate).last().map(|area| area.range.end);
            let region = || self.regions.last_end(&candidate);
            match area.or_else(region).or_else(|| occupied(&candidate)) {
                Some(end) => start = end.checked_next_multiple_of(region_bytes)?,
                None => break,
            }
        }
        self.regions.set(thread, size, start..start + whole - PAGE_BYTES);
        Some(start..start + length)
    }

    /// Returns the lowest gap of `length` bytes in `limits`.
    fn first_gap(
        &self,
        limits: Range<u64>,
        length: u64,
        occupied: impl Fn(&Range<u64>) -> Option<u64>,
    ) -> Option<Range<u64>> {
        let mut start = limits.start;
        loop {
            let end = start.checked_add(length).filter(|&end| end <= limits.end)?;
            let candidate = start..end;
            let in_the_way = self.overlapping(&candidate).last().map(|area| area.range.end);
            match in_the_way.or_else(|| occupied(&candidate)) {
                Some(end) => start = end,
                None => return Some(candidate),
            }
        }
    }

    /// Returns all parts of `range` without areas, each with the gap around it: up to the
    /// neighbouring areas or the ends of all addresses.
    pub(crate) fn gaps_in(&self, range: &Range<u64>) -> Vec<[Range<u64>; 2]> {
        let mut gaps = Vec::new();
        let mut start = range.start;
        let ends = self.overlapping(range).map(|area| area.range.clone());
        for occupied in ends.chain(core::iter::once(range.end..range.end)) {
            if start < occupied.start {
                let part = start..occupied.start;
                gaps.push([part.clone(), self.gap_around(&part)]);
            }
            start = occupied.end;
        }
        gaps
    }

    /// Records the first addresses of page tables that are kept although their areas were removed.
    pub(crate) fn vacate(&mut self, tables: impl Iterator<Item = u64>) {
        self.vacated.extend(tables);
    }

    /// Returns the addresses of kept page tables that no area covers, grouped by the gap around
    /// them. Each table covers `table_bytes`. Forgets all kept tables: a table that an area still
    /// uses is recorded again when that area is removed.
    pub(crate) fn take_vacated(&mut self, table_bytes: u64) -> Vec<Vacated> {
        let mut all: Vec<Vacated> = Vec::new();
        for start in mem::take(&mut self.vacated) {
            let end = start.saturating_add(table_bytes);
            for [part, gap] in self.gaps_in(&(start..end)) {
                match all.last_mut() {
                    Some(last) if last.gap == gap => last.ranges.push(part),
                    _ => all.push(Vacated { ranges: vec![part], gap }),
                }
            }
        }
        all
    }

    /// Returns all addresses that may have page tables, in order: those of areas, and those of kept
    /// tables.
    pub(crate) fn with_tables(&mut self, table_bytes: u64) -> Vec<Range<u64>> {
        let mut all: Vec<Range<u64>> = self.iter().map(|area| area.range.clone()).collect();
        for Vacated { ranges, .. } in self.take_vacated(table_bytes) {
            all.extend(ranges);
        }
        all.sort_unstable_by_key(|range| range.start);
        all
    }

    fn split_at(&mut self, address: u64) {
        if let Some((&start, area)) = self.by_start.range(..address).next_back()
            && address < area.range.end
            && let Some(mut below) = self.take(start)
        {
            let above = below.split_off(address);
            self.put(below);
            self.put(above);
        }
    }
}
