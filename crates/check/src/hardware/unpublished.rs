//! Page-table writes that are visible to CPUs, and not yet ordered before later invalidations of
//! the CPU that made them.
//!
//! Arm orders a `TLBI` after an earlier store of the same CPU by a `DSB` only: a full barrier
//! (`DMB`) between the two does not suffice. The invalidation may then take effect first, and a
//! walker reads the old entry again before the store reaches it. Nobody chooses when: after each
//! invalidation, whatever its issuer has overwritten since its last [`publish`](crate::publish) may
//! be held once more, by each CPU that the invalidation reaches.
//!
//! Invalidations of other CPUs are not affected. A CPU that has loaded a word which was stored
//! behind the page-table write, and invalidates because of that, finds the new entry: Arm's model
//! orders it by the dependency.

use super::{Entry, Hardware, Leaf, PAGES, SLOTS, Upper};
use crate::hash::mix;
use crate::memory::Memory;
use crate::profile::Invalidations;

/// An entry that was overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overwritten {
    word: u32,
    before: Entry,
    /// How often its frame, or its table, had been given away by then.
    life: u32,
}

impl Overwritten {
    pub(super) const fn hash(self, hash: u64) -> u64 {
        mix(mix(hash, (self.word as u64) << 32 | self.life as u64), self.before.0)
    }
}

impl Hardware {
    /// A CPU has overwritten an entry.
    pub(super) fn overwrite(&mut self, cpu: usize, word: u32, before: Entry) {
        if self.profile.invalidations == Invalidations::InOrder || !before.is_present() {
            return;
        }
        let is_of_root = self.roots.iter().any(|root| root.words.contains(&word));
        let life = if is_of_root && !before.is_large() {
            self.tables[before.target()].life
        } else {
            self.frames[before.target()]
        };
        self.unpublished[cpu].push(Overwritten { word, before, life });
    }

    /// Walkers find what a CPU has written so far, whatever it invalidates from now on.
    pub(crate) fn publish(&mut self, cpu: usize) {
        self.unpublished[cpu].clear();
    }

    /// What a CPU has overwritten since it last published.
    pub(super) fn unpublished(&self, cpu: usize) -> Vec<Overwritten> {
        self.unpublished[cpu].clone()
    }

    /// An invalidation of `issuer` has reached a CPU: that may read again what the issuer has
    /// overwritten and not published, and what it had when it issued the invalidation.
    pub(super) fn read_again(
        &mut self,
        memory: &Memory,
        cpu: usize,
        issuer: usize,
        when_issued: &[Overwritten],
    ) {
        for &entry in when_issued {
            self.read_entry_again(memory, cpu, entry);
        }
        for index in 0..self.unpublished[issuer].len() {
            self.read_entry_again(memory, cpu, self.unpublished[issuer][index]);
        }
    }

    fn read_entry_again(&mut self, memory: &Memory, cpu: usize, it: Overwritten) {
        let Overwritten { word, before, life } = it;
        let Self { cpus, roots, tables, .. } = self;
        let state = &mut cpus[cpu];
        let Some(root) = state.root else { return };
        let cached = state.cached.entry(state.tag).or_default();
        for (slot, &of_root) in roots[root].words.iter().enumerate() {
            if of_root == word && before.is_large() {
                let page = SLOTS * PAGES + slot;
                cached.leaves.insert(Leaf { root, page, entry: before, life });
            } else if of_root == word {
                cached.uppers.insert(Upper { root, slot, table: before.target(), life });
            }
            let upper = Entry(memory.value(of_root));
            if !upper.is_table() {
                continue;
            }
            let words = &tables[upper.target()].words;
            if let Some(index) = words.iter().position(|&of_table| of_table == word) {
                let page = slot * PAGES + index;
                cached.leaves.insert(Leaf { root, page, entry: before, life });
            }
        }
    }
}
