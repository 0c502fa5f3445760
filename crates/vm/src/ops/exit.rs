//! The end of a space.

use alloc::vec::Vec;
use core::ops::Range;

use shootdown::Root;

use crate::area::LargePages;
use crate::coherence::{EmptyTables, Lifetimes, Retired};
use crate::format::{Format, Leaf, Marks};
use crate::platform::{EntryAt, Frame, Platform, Work};
use crate::space::AddressSpace;
use crate::system::{Coherent, System};
use crate::table::pages_of;

impl<S: System> AddressSpace<S> {
    /// Ends the space. Its pages are free when this returns, and its tables when no CPU can walk
    /// them any more: see [`Vm::free_dead_tables`](crate::Vm::free_dead_tables).
    ///
    /// No thread may use the space, now or later: the only thread left is the caller's, which runs
    /// in the kernel, and no other call may be in progress. Calls that come later find a space in
    /// which nothing can be mapped.
    ///
    /// There is one [`retire`](Lifetimes::retire), and no flush, because no CPU uses a page of the
    /// space from now on, and pages are not gathered. CPUs that are lazy on the space may walk its
    /// tables. The tables therefore stay, and may point to frames that already have another use. A
    /// CPU may cache such translations speculatively, but never uses them. Entries are emptied only
    /// where that saves [filling](Platform::empty_table) the tables with zeros later.
    pub fn exit(&self) {
        let platform = &self.vm.platform;
        platform.work(Work::Areas, 1);
        let Some(mut areas) = self.mappings.areas.write().close() else { return };
        let mut used = None;
        for area in areas.iter() {
            let mut page_count = 0;
            for found in self.entries_with_records(area.range.clone()) {
                if found.slot.level == 0 {
                    self.note_used(&mut used, found.slot.at);
                }
                let Some(leaf) = found.leaf::<S::Format>() else { continue };
                if found.slot.level > 0 && area.large_pages() == LargePages::Folios {
                    self.vm.release(leaf.frame);
                    page_count += 1;
                    continue;
                }
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
        self.empty(used);
        self.vm.discards.remove(&self.mappings, platform.now_ns());
        let ranges = areas.with_tables(S::Format::span(1));
        let mut tables = self.take_quarantined();
        let quarantined = tables.len();
        let mut unhooked = Vec::new();
        self.mappings
            .tables
            .unhook(platform, &ranges, &(0..u64::MAX), |table, _, _| unhooked.push(table));

        // Keep the tables before the space is retired: a moment later, another CPU may take its
        // root from `take_dead`.
        let replicas = self.mappings.replicas.all();
        let shared = if replicas.is_empty() {
            tables.append(&mut unhooked);
            None
        } else {
            // Any of the roots may lead to them.
            Some(self.vm.quarantined.share_dead(unhooked))
        };
        tables.push(self.mappings.tables.root_frame());
        self.vm.quarantined.keep_dead(self.root(), tables, quarantined, shared.clone());
        for replica in &replicas {
            let own = replica.take_tables();
            self.vm.quarantined.keep_dead(replica.root(), own, 0, shared.clone());
        }
        drop(shared);
        for replica in &replicas {
            self.retire(replica.root(), &replica.coherent);
        }
        self.retire(self.root(), self.coherent());
        self.vm.free_dead_tables();
        self.vm.quarantined.count_dead(self.root());
        self.vm.bound_quarantine();
        self.vm.close_all(areas.into_areas());
    }

    /// Notes an entry that may not be empty. Empties those of the table before, if there is one.
    fn note_used(
        &self,
        used: &mut Option<(Frame, Range<usize>)>,
        EntryAt { table, index }: EntryAt,
    ) {
        match used {
            Some((of, entries)) if *of == table => entries.end = index + 1,
            _ => self.empty(used.replace((table, index..index + 1))),
        }
    }

    /// Empties the used entries of a table, so that the next space can have it.
    fn empty(&self, used: Option<(Frame, Range<usize>)>) {
        if let Some((table, entries)) = used
            && self.vm.policy.empty_tables == EmptyTables::Kept
        {
            self.vm.platform.empty_table(table, entries);
        }
    }

    fn retire(&self, root: Root, coherent: &Coherent<S>) {
        if self.vm.coherence.retire(coherent) == Retired::Free {
            self.vm.free_dead(root);
        }
    }

    /// Releases a page that an entry maps, unless reclaim is about to release it. Reclaim clears
    /// the entry and removes the mapping in one step.
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
