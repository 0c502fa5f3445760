//! Page-table writes that are visible to CPUs, and that are not yet ordered before later
//! invalidations of the CPU that made them.
//!
//! On Arm, only a `DSB` orders a `TLBI` after an earlier store of the same CPU. A full barrier
//! (`DMB`) between the two does not suffice: the invalidation may take effect first, and a walker
//! then reads the old entry again before the store reaches it. The search does not choose when that
//! happens. After each invalidation, every CPU that the invalidation reaches may again hold the
//! entries that the issuer has overwritten since its last [`publish`](crate::publish).
//!
//! Invalidations of other CPUs are not affected. Consider a CPU that loads a word that was stored
//! after the page-table write, and therefore invalidates: it finds the new entry, because Arm's
//! model orders the invalidation by the dependency.

use super::{CachedTable, Entry, Hardware, Leaf, PAGES, SLOTS};
use crate::memory::Memory;
use crate::profile::Invalidations;

/// An entry that was overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Overwritten {
    word: u32,
    before: Entry,
    /// Incarnation of the entry's frame or table at that time.
    incarnation: u32,
}

impl Hardware {
    /// Records that a CPU has overwritten an entry.
    pub(super) fn overwrite(&mut self, cpu: usize, word: u32, before: Entry) {
        if self.profile.invalidations == Invalidations::InOrder || !before.is_present() {
            return;
        }
        let is_of_root = self.roots.iter().any(|root| root.words.contains(&word));
        let incarnation = if is_of_root && !before.is_large() {
            self.tables[before.target()].incarnation
        } else {
            self.frames[before.target()]
        };
        self.unpublished[cpu].push(Overwritten { word, before, incarnation });
    }

    /// Orders a CPU's page-table writes before its later invalidations: walkers find the new
    /// entries.
    pub(crate) fn publish(&mut self, cpu: usize) {
        self.unpublished[cpu].clear();
    }

    /// Returns the entries that a CPU has overwritten since it last published.
    pub(super) fn unpublished(&self, cpu: usize) -> Vec<Overwritten> {
        self.unpublished[cpu].clone()
    }

    /// Adds to a CPU that an invalidation of `issuer` has reached the entries that it may read
    /// again: those that the issuer has overwritten and not published, now or when it issued the
    /// invalidation.
    pub(super) fn refetch_unpublished(
        &mut self,
        memory: &Memory,
        cpu: usize,
        issuer: usize,
        when_issued: &[Overwritten],
    ) {
        for &entry in when_issued {
            self.refetch(memory, cpu, entry);
        }
        for index in 0..self.unpublished[issuer].len() {
            self.refetch(memory, cpu, self.unpublished[issuer][index]);
        }
    }

    fn refetch(&mut self, memory: &Memory, cpu: usize, it: Overwritten) {
        let Overwritten { word, before, incarnation } = it;
        let Self { cpus, roots, tables, .. } = self;
        let state = &mut cpus[cpu];
        let Some(root) = state.root else { return };
        let cached = state.cached.entry(state.tag).or_default();
        for (slot, &of_root) in roots[root].words.iter().enumerate() {
            if of_root == word && before.is_large() {
                let page = SLOTS * PAGES + slot;
                cached.leaves.insert(Leaf { root, page, entry: before, incarnation });
            } else if of_root == word {
                cached.tables.insert(CachedTable {
                    root,
                    slot,
                    table: before.target(),
                    incarnation,
                });
            }
            let upper = Entry(memory.value(of_root));
            if !upper.is_table() {
                continue;
            }
            let words = &tables[upper.target()].words;
            if let Some(index) = words.iter().position(|&of_table| of_table == word) {
                let page = slot * PAGES + index;
                cached.leaves.insert(Leaf { root, page, entry: before, incarnation });
            }
        }
    }
}
