//! Changes of protection. (Linux: `mprotect`.)

use alloc::vec::Vec;
use core::ops::Range;

use crate::area::{Area, Protection, Sharing};
use crate::coherence::{Cause, ExecuteLoss, ExtraFlushes, WriteGrant};
use crate::error::RangeError;
use crate::format::{EMPTY, Format, Leaf};
use crate::gather::Gather;
use crate::platform::{OutOfMemory, Platform, Work};
use crate::space::AddressSpace;
use crate::system::{System, WriteGuard};
use crate::table::{Found, Slot, change_leaf};

impl<S: System> AddressSpace<S> {
    /// Changes the protection of all areas in `range`.
    ///
    /// Lost permissions are flushed. Gained permissions are not: a CPU with the old translation
    /// takes a fault, and loads the entry again.
    ///
    /// # Errors
    ///
    /// [`RangeError`] if areas cannot be in `range`, if a part of it is in no area, or if there is
    /// no memory to split a large page that the range cuts. Nothing is changed then. (Linux changes
    /// the areas before the first hole; see [`protect_existing`](Self::protect_existing).)
    pub fn protect(&self, range: Range<u64>, protection: Protection) -> Result<(), RangeError> {
        let areas = self.areas_for_change(&range)?;
        if !areas.cover(&range) {
            return Err(RangeError::NoArea);
        }
        Ok(self.protect_locked(areas, range, protection)?)
    }

    /// Changes the protection of all areas in `range`, which may have holes.
    ///
    /// This is for the replay of a recording. A range without holes on the recorded system may have
    /// holes here, where an area was not recorded, and the other areas must be changed
    /// nevertheless.
    ///
    /// # Errors
    ///
    /// As [`protect`](Self::protect), except for holes.
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
        self.split_large(&mut areas, &range, is_cut)?;
        let protection = protection.as_enforced();
        let mut gather = Gather::begin(self, range.clone(), Cause::Protect);
        let mut broken = Vec::new();
        for mut area in areas.cut(&range) {
            area.protection = protection;
            self.protect_entries(&area, &mut gather, &mut broken);
            areas.insert(area);
        }
        let sent = gather.send();
        if broken.is_empty() {
            sent.wait_and_unlock(areas);
            return Ok(());
        }
        // The entries are empty, and no fault may find them so: it would map other pages.
        sent.wait();
        for (Slot { at, level }, leaf) in broken {
            self.vm.platform.swap(at, S::Format::leaf_at(leaf, level));
        }
        Ok(())
    }

    /// Changes the entries of an area, or empties them and adds their new values to `broken`.
    fn protect_entries(
        &self,
        area: &Area<S::Platform>,
        gather: &mut Gather<'_, S>,
        broken: &mut Vec<(Slot, Leaf)>,
    ) {
        let platform = &self.vm.platform;
        let breaks = self.vm.policy.execute_loss == ExecuteLoss::BreakBeforeMake;
        let flushes_gains = self.vm.policy.extra_flushes.contains(ExtraFlushes::PERMISSION_GAINS);
        for Found { address, slot, entry } in
            self.mappings.tables.entries(platform, area.range.clone())
        {
            let found = Found { address, slot, entry };
            if found.reaches_beyond::<S::Format>(&area.range) {
                // A folio: other large pages are split before.
                self.split_folio(&found);
                continue;
            }
            let mut allowed = Protection::empty();
            let (mut is_flushed_unchanged, mut is_broken) = (false, false);
            // There are no claims, because the lock is held for writing.
            let changed = change_leaf::<S::Format>(platform, slot, entry, |old| {
                allowed = self.allowed(area, old);
                // Kernels that leave the rest to a fault flush all entries that are present.
                is_flushed_unchanged = flushes_gains
                    && allowed == old.protection
                    && self.vm.policy.write_grant == WriteGrant::AtFault;
                let new = Leaf { protection: allowed, ..old };
                is_broken = breaks && (old.protection - allowed).contains(Protection::EXECUTE);
                if is_broken {
                    return Some(EMPTY);
                }
                (new != old).then(|| S::Format::leaf_at(new, slot.level))
            });
            if is_broken && let Some(old) = changed {
                broken.push((slot, Leaf { protection: allowed, ..old }));
            }
            match changed {
                Some(replaced)
                    if !allowed.contains(replaced.protection)
                        || flushes_gains && !replaced.protection.is_empty() =>
                {
                    gather.add_translation(address, slot.level);
                }
                _ if is_flushed_unchanged => gather.add_translation(address, slot.level),
                _ => {}
            }
        }
    }

    /// Returns the protection of an entry in an area. A private page is writable only if no other
    /// space shares it.
    ///
    /// A page that was writable is not shared. The answer cannot change during the call: only a
    /// fork of this space could share the page, and it needs the lock.
    fn allowed(&self, area: &Area<S::Platform>, leaf: Leaf) -> Protection {
        let is_ours = area.sharing == Sharing::Shared
            || !area.protection.contains(Protection::WRITE)
            || leaf.protection.contains(Protection::WRITE)
            || self.vm.policy.write_grant == WriteGrant::AtProtect
                && leaf.frame != self.vm.zero_page
                && self.vm.platform.user_count(leaf.frame) == 1;
        if is_ours { area.protection } else { area.protection - Protection::WRITE }
    }
}
