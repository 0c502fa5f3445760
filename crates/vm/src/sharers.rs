//! The CPUs whose replicas a flush concerns.

use alloc::vec::Vec;

use crate::coherence::Change;
use crate::platform::{Frame, Platform};
use crate::system::System;
use crate::table::PageTables;

/// A set of CPUs, or all CPUs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sharers {
    words: Vec<u64>,
    is_everyone: bool,
}

impl Sharers {
    /// Adds all CPUs.
    pub(crate) const fn add_everyone(&mut self) {
        self.is_everyone = true;
    }

    /// Adds the sharers of a table. Call this after entries of the table were changed.
    pub(crate) fn add_of(&mut self, platform: &impl Platform, table: Frame) {
        platform.sharers(table, &mut |cpu| {
            let word = cpu / 64;
            self.words.resize(self.words.len().max(word + 1), 0);
            self.words[word] |= 1 << (cpu % 64);
        });
    }

    /// Adds the sharers of the tables of the last level that a change concerns, and that are in the
    /// tree.
    pub(crate) fn add_for<S: System>(
        &mut self,
        platform: &S::Platform,
        tables: &PageTables<S::Format>,
        change: &Change,
    ) {
        for extent in change.extents.as_slice() {
            if self.is_everyone || extent.is_whole() {
                return self.add_everyone();
            }
            let bytes = extent.page_count() as u64 * extent.page_size().bytes();
            let range = extent.start()..extent.start().saturating_add(bytes);
            tables.each_leaf_table(platform, &range, |table| self.add_of(platform, table));
        }
    }

    /// Adds another set.
    pub(crate) fn add_all(&mut self, other: &Self) {
        self.is_everyone |= other.is_everyone;
        self.words.resize(self.words.len().max(other.words.len()), 0);
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }

    /// Returns the CPUs; `None` for all CPUs.
    pub(crate) fn cpus(&self) -> Option<impl Iterator<Item = usize>> {
        let in_word = |(index, &word): (usize, &u64)| {
            (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| 64 * index + bit)
        };
        (!self.is_everyone).then(|| self.words.iter().enumerate().flat_map(in_word))
    }

    /// Number of CPUs in the set besides `cpu`; 0 for all CPUs.
    pub(crate) fn count_without(&self, cpu: usize) -> usize {
        self.cpus().map_or(0, |cpus| cpus.filter(|&other| other != cpu).count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_united() {
        let mut short = Sharers { words: alloc::vec![0b101], is_everyone: false };
        let long = Sharers { words: alloc::vec![0b1, 0b10], is_everyone: false };
        short.add_all(&long);
        let cpus = |set: &Sharers| set.cpus().map(Iterator::collect::<Vec<_>>);
        assert_eq!(cpus(&short), Some(alloc::vec![0, 2, 65]));
        assert_eq!((short.count_without(2), short.count_without(3)), (2, 3));
        short.add_everyone();
        assert_eq!(cpus(&short), None);
        let mut united = long;
        united.add_all(&short);
        assert_eq!(cpus(&united), None);
    }
}
