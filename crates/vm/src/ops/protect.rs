//! Changing what may be done with pages. (Linux: `mprotect`.)

use core::ops::Range;

use crate::area::{Area, Protection, Sharing};
use crate::coherence::{Cause, ExtraFlushes};
use crate::error::RangeError;
use crate::format::{Format, Leaf};
use crate::gather::Gather;
use crate::platform::{OutOfMemory, Platform, Work};
use crate::space::AddressSpace;
use crate::system::{System, WriteGuard};
use crate::table::{Found, Slot};

impl<S: System> AddressSpace<S> {
    /// Changes the protection of all that is mapped in `range`.
    ///
    /// CPUs are told of permissions that are lost. Of those that are gained they need not know: a
    /// CPU that holds the old translation takes a fault, and looks again.
    ///
    /// # Errors
    ///
    /// If areas cannot be there, or are not in all of it; if there is no memory to split a large
    /// page that the range begins or ends in. Nothing is changed then. (Linux changes what comes
    /// before the first hole; see [`protect_existing`](Self::protect_existing).)
    pub fn protect(&self, range: Range<u64>, protection: Protection) -> Result<(), RangeError> {
        let areas = self.areas_for_change(&range)?;
        if !areas.cover(&range) {
            return Err(RangeError::NoArea);
        }
        Ok(self.protect_locked(areas, range, protection)?)
    }

    /// The same for a range in which there may be holes.
    ///
    /// It is for who replays what was done on another system: a range that was mapped there all
    /// over may have holes here, where an area was not known of, and the rest is to be changed all
    /// the same.
    ///
    /// # Errors
    ///
    /// As for [`protect`](Self::protect), but for the holes.
    pub fn protect_existing(
        &self,
        range: Range<u64>,
        protection: Protection,
    ) -> Result<(), RangeError> {
        let areas = self.areas_for_change(&range)?;
        Ok(self.protect_locked(areas, range, protection)?)
    }

    fn areas_for_change(&self, range: &Range<u64>) -> Result<WriteGuard<'_, S>, RangeError> {
        self.vm.platform.work(Work::Areas, 1);
        let areas = self.mappings.areas.write();
        areas.check(range)?;
        Ok(areas)
    }

    fn protect_locked(
        &self,
        mut areas: WriteGuard<'_, S>,
        range: Range<u64>,
        protection: Protection,
    ) -> Result<(), OutOfMemory> {
        let is_cut = |large: &Found| large.reaches_beyond::<S::Format>(&range);
        self.split_large(&areas, &range, is_cut)?;
        let protection = protection.as_enforced();
        let mut gather = Gather::begin(self, range.clone(), Cause::Protect);
        for mut area in areas.cut(&range) {
            area.protection = protection;
            self.protect_entries(&area, &mut gather);
            areas.insert(area);
        }
        gather.send().wait_and_unlock(areas);
        Ok(())
    }

    fn protect_entries(&self, area: &Area<S::Platform>, gather: &mut Gather<'_, S>) {
        let platform = &self.vm.platform;
        let flushes_gains = self.vm.policy.extra_flushes.contains(ExtraFlushes::PERMISSION_GAINS);
        for found in self.mappings.tables.entries(platform, area.range.clone()) {
            let Found { address, slot: Slot { at, level }, mut entry } = found;
            // Claims are taken and returned under the lock, which we hold for writing.
            while let Some(old) = S::Format::as_leaf_at(entry, level) {
                let new = Leaf { protection: self.allowed(area, old), ..old };
                if new == old {
                    break;
                }
                match platform.compare_exchange(at, entry, S::Format::leaf_at(new, level)) {
                    Ok(_) => {
                        let gains = new.protection.contains(old.protection);
                        if !gains || flushes_gains && was_usable(old) {
                            gather.add_translation(address, level);
                        }
                        break;
                    }
                    // The MMU has marked it.
                    Err(found) => entry = found,
                }
            }
        }
    }

    /// What an entry may allow in an area: writing to a private page only if it is ours alone.
    ///
    /// A page that was writable is. Others cannot come to share it, or cease to, as we look: only
    /// a fork of this space could, and it needs the lock.
    fn allowed(&self, area: &Area<S::Platform>, leaf: Leaf) -> Protection {
        let is_ours = area.sharing == Sharing::Shared
            || !area.protection.contains(Protection::WRITE)
            || leaf.protection.contains(Protection::WRITE)
            || leaf.frame != self.vm.zero_page && self.vm.platform.user_count(leaf.frame) == 1;
        if is_ours { area.protection } else { area.protection - Protection::WRITE }
    }
}

/// Whether a CPU could have found it.
const fn was_usable(leaf: Leaf) -> bool {
    !leaf.protection.is_empty()
}
