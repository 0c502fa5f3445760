//! Forking: a new space with the same contents. Each page is shared until one of the two spaces
//! writes to it.

use alloc::sync::Arc;

use crate::area::{Area, Protection, Sharing};
use crate::coherence::{Cause, ExtraFlushes};
use crate::format::{Format, Leaf};
use crate::gather::{Extra, Gather};
use crate::platform::{EntryAt, OutOfMemory, Platform, Work};
use crate::space::{AddressSpace, LeafTableCache};
use crate::system::System;
use crate::table::{Found, Slot};

impl<S: System> AddressSpace<S> {
    /// Copies this space.
    ///
    /// Private pages are shared, and not writable in either space; the first write copies them.
    /// This space is flushed before the call returns, because a CPU that could still write to its
    /// pages would change the copy. Shared areas are inherited without their entries, which faults
    /// make again.
    ///
    /// Large anonymous pages are split first. This takes, for each, a table and 512 entries, and
    /// one flush for all of them, in addition to the 512 entries that the copy needs. Linux shares
    /// the large page, and splits it in either space when that space writes to it. So Linux has
    /// very little to do when a process forks and then runs another program. On the other hand,
    /// large pages can then have more than one user, which every other operation must handle.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] if there is no memory for the copy's page tables, or to split large pages.
    /// The partial copy is removed.
    pub fn fork(&self) -> Result<Self, OutOfMemory> {
        let mut child = Self::new(&self.vm)?;
        child.mappings.discarded.set(self.mappings.discarded.discards());
        self.vm.platform.work(Work::Areas, 1);
        let mut areas = self.mappings.areas.write();
        let limits = areas.limits();
        if let Err(error) = self.split_large(&mut areas, &limits, |_| true) {
            drop(areas);
            child.exit();
            return Err(error);
        }
        let mut gather = Gather::begin(self, limits, Cause::Fork);
        if let Some(mappings) = Arc::get_mut(&mut child.mappings) {
            // No other CPU has a reference to the new space yet, so this always succeeds, without a
            // lock.
            mappings.areas.get_mut().inherit(&areas);
        }
        let mut target = LeafTableCache::default();
        let copied = areas
            .iter()
            .filter(|area| area.sharing == Sharing::Private)
            .try_for_each(|area| self.copy_area(area, &child, &mut target, &mut gather));
        if self.vm.policy.extra_flushes.contains(ExtraFlushes::SPACE_PER_FORK) {
            gather.flush_also(Extra::Everything);
        }
        // Flush also if the copy failed. Entries have lost permissions, and the next fork, which
        // finds them without, will not flush.
        gather.send().wait_and_unlock(areas);
        if let Err(error) = copied {
            child.exit();
            return Err(error);
        }
        Ok(child)
    }

    fn copy_area(
        &self,
        area: &Area<S::Platform>,
        child: &Self,
        target: &mut LeafTableCache,
        gather: &mut Gather<'_, S>,
    ) -> Result<(), OutOfMemory> {
        let platform = &self.vm.platform;
        let mut copied = 0;
        let mut table = None;
        for found in self.entries_with_records(area.range.clone()) {
            let Found { address, slot: Slot { at, level }, entry } = found;
            if level > 0 {
                // A folio. Faults of the child map it again.
                continue;
            }
            let to = target.make(&child.mappings.tables, &self.vm, address)?;
            if table.replace(to.table) != Some(to.table) {
                platform.lock_table(to.table);
                platform.unlock_table(to.table);
            }
            // There are no claims, because the lock is held for writing.
            let Some(leaf) = self.write_protect(address, at, entry, gather) else { continue };
            if !self.add_inherited(leaf.frame, child, address) {
                // Reclaim has just unmapped the page. A fault maps it again, as in this space.
                continue;
            }
            platform.swap(to, S::Format::leaf(leaf));
            platform.work(Work::ForkEntry, 1);
            copied += isize::from(leaf.frame != self.vm.zero_page);
        }
        child.count_resident(copied);
        Ok(())
    }

    /// Removes the permission to write from an entry. Returns the leaf that the entry then
    /// contains.
    fn write_protect(
        &self,
        address: u64,
        at: EntryAt,
        mut entry: u64,
        gather: &mut Gather<'_, S>,
    ) -> Option<Leaf> {
        loop {
            let leaf = S::Format::as_leaf(entry)?;
            if !leaf.protection.contains(Protection::WRITE) {
                return Some(leaf);
            }
            let protected = Leaf { protection: leaf.protection - Protection::WRITE, ..leaf };
            match self.vm.platform.compare_exchange(at, entry, S::Format::leaf(protected)) {
                Ok(_) => {
                    gather.add_translation(address, 0);
                    return Some(protected);
                }
                // The MMU has marked the entry, or reclaim has changed it.
                Err(found) => entry = found,
            }
        }
    }
}
