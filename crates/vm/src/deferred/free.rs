//! Frees pages and page tables whose flush is complete.

use alloc::sync::Arc;
use alloc::vec::Vec;

use shootdown::Root;

use crate::coherence::{Defer, Lifetimes};
use crate::deferred::tables::QuarantineStats;
use crate::deferred::unmaps::{DeferredUnmap, Marked, Removed};
use crate::mappings::Mappings;
use crate::platform::{Frame, Platform, Work};
use crate::system::System;
use crate::vm::Vm;

impl<S: System> Vm<S> {
    /// Frees deferred unmaps whose flush every CPU has performed, from the oldest up to the first
    /// that is not complete.
    pub(crate) fn free_completed(&self) {
        let is_complete = |unmap: &DeferredUnmap<S>| self.coherence.is_complete(&unmap.flush);
        self.free_unmaps(self.deferred.pop_while(is_complete));
    }

    /// Completes and frees all deferred unmaps, of any space. Returns their number.
    pub(crate) fn complete_deferred(&self) -> usize {
        self.free_unmaps(self.deferred.pop_while(|_| true))
    }

    fn free_unmaps(&self, unmaps: Vec<DeferredUnmap<S>>) -> usize {
        let count = unmaps.len();
        for DeferredUnmap { space, range, flush, removed } in unmaps {
            self.coherence.complete(flush);
            self.free_tables(self.free_pages(&space, removed));
            space.deferred.remove(&range);
        }
        count
    }

    /// Frees the pages that an operation removed, and returns the tables.
    pub(crate) fn free_pages(
        &self,
        mappings: &Arc<Mappings<S>>,
        Removed { pages, tables, marks }: Removed,
    ) -> Vec<Frame> {
        self.record_marks(mappings, &marks);
        if !pages.is_empty() {
            self.platform.work(Work::UnmapPage, pages.len());
            let root = mappings.tables.root_frame();
            self.platform.count_resident(root, -pages.len().cast_signed());
        }
        for page in pages {
            self.platform.release(page);
        }
        tables
    }

    /// Records the marks of removed pages. Call this before the pages are released: their frames
    /// cannot be reused until then.
    fn record_marks(&self, mappings: &Arc<Mappings<S>>, marks: &Marked) {
        let Some(rmap) = &self.rmap else { return };
        for &page in &marks.dirty {
            rmap.mark_dirty(page);
        }
        for &(page, address) in &marks.discardable {
            rmap.mark_discardable(page, mappings, address, self.platform.node_of(page));
        }
    }

    /// Frees tables that no CPU can walk.
    pub(crate) fn free_tables(&self, tables: Vec<Frame>) {
        for table in tables {
            self.platform.free_table(table);
        }
    }

    /// Frees the page tables of dead spaces that this CPU was the last to leave, and deferred
    /// unmaps whose flush is complete.
    ///
    /// Call this where memory can be freed, some time after a switch of address spaces, or after
    /// the CPU has [left](crate::Scheduling::leave_space) one. The best time is when the CPU
    /// becomes idle: the thread that runs next then does not pay for being on the last CPU. Call it
    /// without delay if there are [many](Self::has_many_quarantined) tables. If there is nothing to
    /// free, the call costs a few loads.
    pub fn free_dead_tables(&self) {
        self.free_completed();
        while let Some(root) = self.coherence.take_dead() {
            self.free_dead(root);
        }
    }

    /// Returns `true` if more than half of the page tables that may be quarantined are.
    pub fn has_many_quarantined(&self) -> bool {
        self.quarantined.stats().now > self.quarantined_tables_max / 2
    }

    /// Numbers of quarantined page tables: those that a CPU could still walk, or that are not
    /// [freed](Self::free_dead_tables) yet.
    pub fn quarantined_tables(&self) -> QuarantineStats {
        self.quarantined.stats()
    }

    pub(crate) fn has_too_many_quarantined(&self) -> bool {
        self.quarantined.stats().now > self.quarantined_tables_max
    }

    pub(crate) fn free_dead(&self, root: Root) {
        self.free_tables(self.quarantined.take_dead(root));
    }

    /// Makes lazy CPUs leave dead spaces, if too many tables are quarantined.
    pub(crate) fn bound_quarantine(&self) {
        if self.has_too_many_quarantined() {
            self.quarantined.count_overflow();
            self.coherence.reap();
            self.free_dead_tables();
        }
    }
}
