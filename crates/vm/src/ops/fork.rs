//! Forking: a space with the same content, page by page shared until one of the two writes.

use alloc::sync::Arc;

use crate::area::{Area, Protection, Sharing};
use crate::areas::Areas;
use crate::coherence::{Cause, ExtraFlushes};
use crate::format::{Format, Leaf};
use crate::gather::{Extra, Gather};
use crate::platform::{EntryAt, OutOfMemory, Platform, Work};
use crate::space::{AddressSpace, LeafTableCache};
use crate::system::System;
use crate::table::{Found, Slot};

impl<S: System> AddressSpace<S> {
    /// A copy of this space.
    ///
    /// Private pages are shared, and not writable in either of the two; the first write copies
    /// them. This space is flushed before the call returns, for a CPU that could still write to
    /// its pages would change the copy. Shared areas are inherited without their entries, which
    /// faults find again.
    ///
    /// Large pages are split first: a table for each, 512 entries to fill, and one flush for all of
    /// them, besides the 512 entries that the copy needs of each. Linux shares the large page, and
    /// splits it in either space when that writes there. So it has next to nothing to do at the
    /// fork of a process that goes on to run another program; but there must then be large pages
    /// with more than one user, which every other operation has to expect.
    ///
    /// # Errors
    ///
    /// If there is no memory for the copy's page tables, or to split large pages. The copy is taken
    /// down again.
    pub fn fork(&self) -> Result<Self, OutOfMemory> {
        let mut child = Self::new(&self.vm)?;
        self.vm.platform.work(Work::Areas, 1);
        let areas = self.mappings.areas.write();
        if let Err(error) = self.split_large(&areas, &areas.limits(), |_| true) {
            drop(areas);
            child.exit();
            return Err(error);
        }
        let mut gather = Gather::begin(self, areas.limits(), Cause::Fork);
        if let Some(mappings) = Arc::get_mut(&mut child.mappings) {
            // Nobody else knows of it yet: no lock, and always.
            *mappings.areas.get_mut() = areas.duplicate();
        }
        let copied = self.copy_entries(&areas, &child, &mut gather);
        if self.vm.policy.extra_flushes.contains(ExtraFlushes::SPACE_PER_FORK) {
            gather.flush_also(Extra::Everything);
        }
        // If it failed, too: entries have lost permissions, and the next fork, which finds them
        // without, will not flush.
        gather.send().wait_and_unlock(areas);
        if let Err(error) = copied {
            child.exit();
            return Err(error);
        }
        Ok(child)
    }

    fn copy_entries(
        &self,
        areas: &Areas<S::Platform>,
        child: &Self,
        gather: &mut Gather<'_, S>,
    ) -> Result<(), OutOfMemory> {
        let mut target = LeafTableCache::default();
        for area in areas.iter().filter(|area| area.sharing == Sharing::Private) {
            self.copy_area(area, child, &mut target, gather)?;
        }
        Ok(())
    }

    fn copy_area(
        &self,
        area: &Area<S::Platform>,
        child: &Self,
        target: &mut LeafTableCache,
        gather: &mut Gather<'_, S>,
    ) -> Result<(), OutOfMemory> {
        let platform = &self.vm.platform;
        for found in self.mappings.tables.entries(platform, area.range.clone()) {
            let Found { address, slot: Slot { at, .. }, entry } = found;
            let to = target.make(&child.mappings.tables, &self.vm, address)?;
            // There are no claims: we hold the lock for writing.
            let Some(leaf) = self.write_protect(address, at, entry, gather) else { continue };
            if !self.add_inherited(leaf.frame, child, address) {
                // The copy finds it where reclaim has put it.
                continue;
            }
            platform.swap(to, S::Format::leaf(leaf));
            platform.work(Work::ForkEntry, 1);
        }
        Ok(())
    }

    /// Takes the write permission from an entry, and returns what it says then.
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
                // The MMU has marked it.
                Err(found) => entry = found,
            }
        }
    }
}
