//! The quarantine of a space: page tables that were unhooked while the space was alive, and that a
//! CPU may still walk.

use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;

use shootdown::Horizon;

use crate::coherence::Lifetimes;
use crate::deferred::unmaps::Removed;
use crate::platform::Frame;
use crate::space::AddressSpace;
use crate::system::System;

impl<S: System> AddressSpace<S> {
    /// Frees pages, and the tables that no CPU can walk after the flush. `horizon` is the result of
    /// the flush, or `None` if no flush was needed.
    pub(crate) fn free(&self, removed: Removed, horizon: Option<Horizon>) {
        let tables = self.vm.free_pages(&self.mappings, removed);
        self.free_tables(tables, horizon.unwrap_or(Horizon::UNKNOWN));
    }

    /// Frees tables that were unhooked, either now or as soon as no CPU can walk them. Also frees
    /// quarantined tables that no CPU can walk any more.
    pub(crate) fn free_tables(&self, tables: Vec<Frame>, horizon: Horizon) {
        // Free quarantined tables first, because this makes room.
        if self.has_quarantined.load(Relaxed) {
            self.free_cleared(horizon);
        }
        if tables.is_empty() || horizon.is_clear() {
            self.vm.free_tables(tables);
        } else {
            self.quarantine_tables(tables, horizon);
        }
    }

    fn quarantine_tables(&self, tables: Vec<Frame>, horizon: Horizon) {
        let count = tables.len();
        self.vm.quarantined.add(count);
        let mut quarantine = self.quarantine.lock();
        // Store under the lock, as in `free_cleared`: otherwise that function could clear the flag
        // after this store, while the quarantine holds tables.
        self.has_quarantined.store(true, Relaxed);
        let rest = quarantine.defer(horizon, count, tables);
        drop(quarantine);
        if let Err(tables) = rest {
            self.flush_walkers();
            self.vm.quarantined.remove(count);
            return self.vm.free_tables(tables);
        }
        // Empty dead spaces first, because one interrupt frees more tables there.
        self.vm.bound_quarantine();
        if self.vm.has_too_many_quarantined() {
            self.flush_walkers();
        }
    }

    /// Makes lazy CPUs drop the quarantined tables, and frees the tables.
    fn flush_walkers(&self) {
        self.vm.quarantined.count_overflow();
        let horizon = self.vm.coherence.flush_walkers(&self.mappings.coherent);
        self.free_cleared(horizon);
    }

    fn free_cleared(&self, horizon: Horizon) {
        loop {
            let mut quarantine = self.quarantine.lock();
            let Some((count, tables)) = quarantine.take_cleared(horizon) else {
                self.has_quarantined.store(quarantine.table_count() != 0, Relaxed);
                return;
            };
            drop(quarantine);
            self.vm.quarantined.remove(count);
            self.vm.free_tables(tables);
        }
    }

    /// Removes and returns all quarantined tables of this space.
    pub(crate) fn take_quarantined(&self) -> Vec<Frame> {
        let mut quarantine = self.quarantine.lock();
        let mut all = Vec::new();
        while let Some((_, tables)) = quarantine.take_any() {
            all.extend(tables);
        }
        all
    }
}
