//! Mapping: a new area. (Linux: `mmap`.)

use alloc::sync::Arc;
use core::ops::Range;

use crate::PAGE_BYTES;
use crate::area::{Area, Backing, Folios, Protection, Sharing};
use crate::areas::Areas;
use crate::coherence::{Cause, Placement};
use crate::error::{BadRange, MapError};
use crate::file::File;
use crate::format::Format;
use crate::gather::Gather;
use crate::platform::{OutOfMemory, Platform, Work};
use crate::space::AddressSpace;
use crate::system::System;
use crate::table::Found;

/// The addresses of a new mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The lowest gap that is long enough.
    Anywhere {
        /// Length in bytes.
        length: u64,
    },
    /// This range. Existing mappings in it are removed. (Linux: `MAP_FIXED`.)
    Fixed(Range<u64>),
}

impl<S: System> AddressSpace<S> {
    /// Creates an area, and returns its address. Pages are mapped at their first access.
    ///
    /// A shared area without a file is shared with the spaces that inherit it by
    /// [`fork`](Self::fork).
    ///
    /// # Errors
    ///
    /// [`MapError`] if the place is not made of whole pages at user addresses, if no gap is long
    /// enough, or if there is no memory to split a large page that the range cuts. Nothing is
    /// changed then.
    pub fn map(
        &self,
        place: Place,
        protection: Protection,
        sharing: Sharing,
        backing: Backing<S::Platform>,
    ) -> Result<u64, MapError> {
        let backing = match (backing, sharing) {
            (Backing::Anonymous, Sharing::Shared) => {
                let file = Arc::new(File::new(self.vm.platform.clone()));
                Backing::File { file, first_page: 0 }
            }
            (backing, _) => backing,
        };
        self.vm.platform.work(Work::Areas, 1);
        let mut areas = self.mappings.areas.write();
        let range = match place {
            Place::Anywhere { length } => self.find_room(&mut areas, length)?,
            Place::Fixed(range) => {
                areas.check(&range)?;
                self.replace(&mut areas, &range)?;
                range
            }
        };
        let start = range.start;
        let protection = protection.as_enforced();
        let folios = Folios::Small;
        areas.insert(Area { range, protection, sharing, backing, folios, is_written: false });
        Ok(start)
    }

    /// Finds a gap for which no CPU has an old translation.
    pub(super) fn find_room(
        &self,
        areas: &mut Areas<S::Platform>,
        length: u64,
    ) -> Result<Range<u64>, MapError> {
        if length == 0 || !length.is_multiple_of(PAGE_BYTES) {
            return Err(BadRange.into());
        }
        let occupied = |range: &Range<u64>| self.mappings.unflushed(range, None);
        if self.vm.policy.placement == Placement::PerThread {
            let (thread, bytes) = (self.vm.platform.thread(), S::Format::span(1));
            if let Some(range) = areas.find_room_for(thread, bytes, length, occupied) {
                return Ok(range);
            }
        }
        if let Some(range) = areas.find_room(length, occupied) {
            return Ok(range);
        }
        // The only gap left may be waiting for a flush. A flush of this call makes it usable: calls
        // that wait for a flush have changed all their entries, because they do so under the lock.
        let limits = areas.limits();
        if self.mappings.unflushed(&limits, None).is_none() {
            return Err(MapError::NoRoom);
        }
        let found = areas.find_room(length, |_| None).ok_or(MapError::NoRoom)?;
        Gather::begin(self, found.clone(), Cause::Unmap).send().wait();
        Ok(found)
    }

    /// Removes all mappings in `range`, and the translations that CPUs may still cache, before a
    /// fault can map a page there again: the caller holds the lock. Page tables are kept for the
    /// new area.
    ///
    /// Fails, with nothing changed, if there is no memory to split a large page.
    pub(crate) fn replace(
        &self,
        areas: &mut Areas<S::Platform>,
        range: &Range<u64>,
    ) -> Result<(), OutOfMemory> {
        let is_cut = |large: &Found| large.reaches_beyond::<S::Format>(range);
        self.split_large(areas, range, is_cut)?;
        let removed = areas.remove(range);
        if removed.is_empty() && self.mappings.unflushed(range, None).is_none() {
            return Ok(());
        }
        let mut gather = Gather::begin(self, range.clone(), Cause::Unmap);
        for area in &removed {
            gather.clear_area(area, &area.range);
        }
        gather.send().wait();
        self.vm.close_all(removed);
        Ok(())
    }
}
