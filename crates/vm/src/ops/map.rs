//! Mapping: a new area. (Linux: `mmap`.)

use alloc::sync::Arc;
use core::ops::Range;

use crate::PAGE_BYTES;
use crate::area::{Area, Backing, Protection, Sharing};
use crate::areas::Areas;
use crate::coherence::Cause;
use crate::error::{BadRange, MapError};
use crate::file::File;
use crate::gather::Gather;
use crate::platform::{OutOfMemory, Platform, Work};
use crate::space::AddressSpace;
use crate::system::System;
use crate::table::Found;

/// Where to map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where there is room.
    Anywhere {
        /// In bytes.
        length: u64,
    },
    /// Here, whatever is here now. (Linux: `MAP_FIXED`.)
    Fixed(Range<u64>),
}

impl<S: System> AddressSpace<S> {
    /// Makes an area, and returns its address. Pages come at the first access.
    ///
    /// What is not backed by a file and shared all the same is shared with the spaces that inherit
    /// it by [`fork`](Self::fork).
    ///
    /// # Errors
    ///
    /// If the place is no place for an area, or there is no room; if there is no memory to split a
    /// large page that it takes a part of. Nothing is changed then.
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
        areas.insert(Area { range, protection: protection.as_enforced(), sharing, backing });
        Ok(start)
    }
}

impl<S: System> AddressSpace<S> {
    /// Room that no CPU has an old translation for.
    fn find_room(
        &self,
        areas: &mut Areas<S::Platform>,
        length: u64,
    ) -> Result<Range<u64>, MapError> {
        if length == 0 || !length.is_multiple_of(PAGE_BYTES) {
            return Err(BadRange.into());
        }
        let occupied = |range: &Range<u64>| self.mappings.unflushed(range);
        if let Some(range) = areas.find_room(length, occupied) {
            return Ok(range);
        }
        // The only room left may be waiting for a flush. One of our own makes it clean: those who
        // wait have changed all their entries, which they do under the lock.
        let limits = areas.limits();
        if self.mappings.unflushed(&limits).is_none() {
            return Err(MapError::NoRoom);
        }
        let found = areas.find_room(length, |_| None).ok_or(MapError::NoRoom)?;
        Gather::begin(self, found.clone(), Cause::Unmap).send().wait();
        Ok(found)
    }

    /// Removes what is mapped in `range`, and what CPUs may remember of it, before any of it can
    /// be faulted in anew: under the lock. Page tables stay, for the area to come.
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
        if removed.is_empty() && self.mappings.unflushed(range).is_none() {
            return Ok(());
        }
        let mut gather = Gather::begin(self, range.clone(), Cause::Unmap);
        for area in &removed {
            gather.clear_area(&area.range, &area.range);
        }
        gather.send().wait();
        self.vm.close_all(removed);
        Ok(())
    }
}
