//! The end of a space.

use crate::coherence::{Lifetimes, Retired};
use crate::format::{Leaf, Marks};
use crate::platform::{Platform, Work};
use crate::space::AddressSpace;
use crate::system::System;
use crate::table::{PageTables, pages_of};

impl<S: System> AddressSpace<S> {
    /// Takes the space down: its pages are free afterwards, and its tables are when no CPU can walk
    /// them any more; see [`Vm::free_dead_tables`](crate::Vm::free_dead_tables).
    ///
    /// Nobody may be using the space any more, nor be about to: no thread of it is left but the
    /// caller's, which runs in the kernel, and no other call is on its way. Calls that come later
    /// find a space without room for anything.
    ///
    /// There is one [`retire`](Lifetimes::retire), and no flush: nobody uses a page of it, nor ever
    /// will. So the entries of pages are not cleared, nor pages gathered. CPUs that are lazy on the
    /// space may walk its tables, which therefore stay, and lead to pages that are not its own any
    /// more: what speculation finds there, nobody uses.
    pub fn exit(&self) {
        let platform = &self.vm.platform;
        platform.work(Work::Areas, 1);
        let Some(mut areas) = self.mappings.areas.write().close() else { return };
        for area in areas.iter() {
            let mut page_count = 0;
            for found in self.mappings.tables.entries(platform, area.range.clone()) {
                let Some(leaf) = found.leaf::<S::Format>() else { continue };
                for (address, frame) in
                    pages_of::<S::Format>(found.address, leaf.frame, found.slot.level)
                {
                    self.release_page(address, Leaf { frame, ..leaf });
                    page_count += 1;
                }
            }
            if page_count != 0 {
                platform.work(Work::UnmapPage, page_count);
            }
        }
        let ranges = areas.with_tables(PageTables::<S::Format>::leaf_table_bytes());
        let mut tables = self.take_quarantined();
        let quarantined = tables.len();
        self.mappings
            .tables
            .unhook(platform, &ranges, &(0..u64::MAX), |table, _| tables.push(table));
        tables.push(self.mappings.tables.root_frame());

        // Before it is retired: another CPU may be told a moment later that it is dead.
        self.vm.held.keep_dead(self.root(), tables, quarantined);
        if self.vm.coherence.retire(self.coherent()) == Retired::Free {
            self.vm.free_dead(self.root());
        }
        self.vm.free_dead_tables();
        self.vm.held.count_dead(self.root());
        self.vm.bound_quarantine();
        self.vm.close_all(areas.into_areas());
    }

    /// Releases a page that an entry holds, unless reclaim is about to: that clears the entry, and
    /// strikes it out, in one.
    fn release_page(&self, address: u64, leaf: Leaf) {
        if leaf.marks.contains(Marks::DIRTY)
            && let Some(rmap) = &self.vm.rmap
        {
            rmap.mark_dirty(leaf.frame);
        }
        if self.remove_mapping(leaf.frame, address) {
            self.vm.release(leaf.frame);
        }
    }
}
