//! Hinting faults: pages become inaccessible until their next access, whose fault shows which CPU
//! uses them. (Linux: `change_prot_numa` and `do_numa_page`, of NUMA balancing.)
//!
//! An entry without permissions, in an area that allows accesses, is a hint. The fault gives it the
//! permissions of its area again, and needs no flush: the entry then allows more. A page that
//! another space may share gets no permission to write, so that a write copies it.
//!
//! The lock is held for reading, so faults run concurrently. The flush is in flight from before
//! the first change: a fork, or a copy on write, that finds an entry without permissions also finds
//! that CPUs may still have them.

use core::ops::Range;

use crate::area::{Area, LargePages, Protection, Sharing};
use crate::coherence::Cause;
use crate::error::BadRange;
use crate::format::{Format, Leaf, Marks};
use crate::gather::Gather;
use crate::platform::{Platform, Work};
use crate::space::AddressSpace;
use crate::system::System;
use crate::table::{Found, Slot, change_leaf};

impl<S: System> AddressSpace<S> {
    /// Makes the next access to each mapped page in `range` a fault, with one flush.
    ///
    /// Leaves out, as Linux does: areas of files that may only be read; the page of zeros; pages
    /// that are shared until they are written. Also leaves out folios, and large pages that are
    /// only partly in the range.
    ///
    /// # Errors
    ///
    /// [`BadRange`] if areas cannot be in `range`.
    pub fn hint(&self, range: Range<u64>) -> Result<(), BadRange> {
        self.vm.platform.work(Work::FindArea, 1);
        let areas = self.mappings.areas.read();
        areas.check(&range)?;
        let mut gather = Gather::begin(self, range.clone(), Cause::Protect);
        for area in areas.overlapping(&range).filter(|area| is_hinted(area)) {
            self.hint_part(area, &area.part_in(&range), &mut gather);
        }
        gather.send().wait_and_unlock(areas);
        Ok(())
    }

    fn hint_part(&self, area: &Area<S::Platform>, part: &Range<u64>, gather: &mut Gather<'_, S>) {
        let platform = &self.vm.platform;
        for found in self.mappings.tables.entries(platform, part.clone()) {
            let Found { address, slot, entry } = found;
            let is_whole = slot.level == 0
                || area.large_pages() == LargePages::Own
                    && !found.reaches_beyond::<S::Format>(part);
            if !is_whole {
                continue;
            }
            let hinted = change_leaf::<S::Format>(platform, slot, entry, |leaf| {
                let is_used = !leaf.protection.is_empty() && !self.may_be_copied(area, leaf);
                let leaf = Leaf { protection: Protection::empty(), ..leaf };
                is_used.then(|| S::Format::leaf_at(leaf, slot.level))
            });
            if hinted.is_some() {
                gather.add_translation(address, slot.level);
            }
        }
    }

    /// Gives an entry without permissions those of its area. Does nothing if the MMU or another
    /// call changes the entry first.
    pub(super) fn end_hint(
        &self,
        area: &Area<S::Platform>,
        Slot { at, level }: Slot,
        entry: u64,
        leaf: Leaf,
    ) {
        let protection = if self.may_be_copied(area, leaf) {
            area.protection - Protection::WRITE
        } else {
            area.protection
        };
        let marks = leaf.marks | Marks::ACCESSED;
        let leaf = Leaf { protection, marks, ..leaf };
        let _ = self.vm.platform.compare_exchange(at, entry, S::Format::leaf_at(leaf, level));
    }

    /// Returns `true` if a write to the page must copy it. This cannot become so while the lock is
    /// held: only a fork of this space could share the page.
    fn may_be_copied(&self, area: &Area<S::Platform>, leaf: Leaf) -> bool {
        area.sharing == Sharing::Private
            && (leaf.frame == self.vm.zero_page || self.vm.platform.user_count(leaf.frame) > 1)
    }
}

/// Returns `true` if pages of the area are hinted. (Linux: `vma_migratable`, `task_numa_work`.)
fn is_hinted<P: Platform>(area: &Area<P>) -> bool {
    let is_read_only_file =
        area.file_page(area.range.start).is_some() && !area.protection.contains(Protection::WRITE);
    !area.protection.is_empty() && !is_read_only_file
}
