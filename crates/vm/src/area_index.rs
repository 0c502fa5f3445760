//! Copies of a space's areas that a fault uses without the lock of the space. (Linux: per-VMA
//! locks, and the search for areas under RCU.)
//!
//! An area that is *attached* has a slot, with its copy behind a lock of its own. A fault searches
//! the index, locks the slot for reading, and uses the copy. A call that has locked the space for
//! writing *detaches* an area before it changes the area, or entries of the area's addresses: it
//! empties the slot, for which it waits until no fault has the slot locked. The call attaches the
//! areas again, as they are then, before it unlocks the space.
//!
//! A fault that finds no slot, an empty slot, or a slot that is locked for writing, locks the
//! space. A call that has a slot locked must never wait for the lock of the space, because a
//! writer of the space may be waiting for the slot.
//!
//! In Linux a writer marks an area as locked, and one store at the end unlocks all areas that it
//! has marked. Here the end costs one more locking of each slot.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use lock_api::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};

use crate::area::Area;
use crate::platform::Platform;

/// The slots of a space, by the first addresses of their areas.
pub(crate) struct AreaIndex<P: Platform> {
    slots: RwLock<P::IndexLock, BTreeMap<u64, Arc<Slot<P>>>>,
}

/// The place of an area's copy, which is empty while the area is detached.
pub(crate) struct Slot<P: Platform> {
    area: RwLock<P::SleepingLock, Option<Area<P>>>,
    /// `true` if a page of the area may have been written: see [`Area::is_written`]. A hint, so
    /// that no other access depends on its value.
    is_written: AtomicBool,
}

/// An area that was locked for reading.
pub(crate) type AreaGuard<'s, P> =
    MappedRwLockReadGuard<'s, <P as Platform>::SleepingLock, Area<P>>;

impl<P: Platform> AreaIndex<P> {
    pub(crate) const fn new() -> Self {
        Self { slots: RwLock::new(BTreeMap::new()) }
    }

    /// Returns the slot of the last area that begins at `address` or below.
    pub(crate) fn find(&self, address: u64) -> Option<Arc<Slot<P>>> {
        let slots = self.slots.read();
        slots.range(..=address).next_back().map(|(_, slot)| Arc::clone(slot))
    }

    /// Returns the slot of the area that begins at `start`.
    pub(crate) fn slot_at(&self, start: u64) -> Option<Arc<Slot<P>>> {
        self.slots.read().get(&start).cloned()
    }

    /// Removes all slots. No fault may be in progress.
    pub(crate) fn clear(&self) {
        drop(mem::take(&mut *self.slots.write()));
    }

    /// Attaches the areas that begin at the given addresses. Removes the slots of addresses at
    /// which no area begins any more. The space must be locked for writing.
    pub(crate) fn attach<'a>(&self, areas: impl Iterator<Item = (u64, Option<&'a Area<P>>)>)
    where
        P: 'a,
    {
        let (mut added, mut gone) = (Vec::new(), Vec::new());
        for (start, area) in areas {
            match (self.slot_at(start), area) {
                (Some(slot), Some(area)) => slot.fill(area),
                (None, Some(area)) => added.push((start, Arc::new(Slot::of(area)))),
                (Some(slot), None) => gone.push((start, slot)),
                (None, None) => {}
            }
        }
        if added.is_empty() && gone.is_empty() {
            return;
        }
        let mut slots = self.slots.write();
        for (start, _) in &gone {
            slots.remove(start);
        }
        slots.extend(added);
        // The removed slots are freed after the index is unlocked.
        drop(slots);
    }
}

impl<P: Platform> Slot<P> {
    fn of(area: &Area<P>) -> Self {
        let is_written = AtomicBool::new(area.is_written);
        Self { area: RwLock::new(Some(area.clone())), is_written }
    }

    /// Locks the area for reading, if it is attached, contains `range`, and can be locked without
    /// waiting.
    pub(crate) fn try_read(&self, range: &Range<u64>) -> Option<AreaGuard<'_, P>> {
        let contains =
            |area: &&Area<P>| area.range.start <= range.start && range.end <= area.range.end;
        let guard = self.area.try_read()?;
        RwLockReadGuard::try_map(guard, |area| area.as_ref().filter(contains)).ok()
    }

    pub(crate) fn is_written(&self) -> bool {
        self.is_written.load(Relaxed)
    }

    pub(crate) fn record_write(&self) {
        if !self.is_written() {
            self.is_written.store(true, Relaxed);
        }
    }

    /// Detaches the area: waits until no other call has the area locked.
    pub(crate) fn empty(&self) {
        *self.area.write() = None;
    }

    fn fill(&self, area: &Area<P>) {
        self.is_written.store(area.is_written, Relaxed);
        *self.area.write() = Some(area.clone());
    }
}
