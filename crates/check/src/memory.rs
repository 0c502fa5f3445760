//! Shared memory: words, and the stores that a CPU has made and that other CPUs cannot observe yet.

use std::collections::BTreeMap;

use crate::hash::{hash_of, mix};
use crate::history::History;
use crate::profile::Stores;

/// All words of a run, and the store buffers of its CPUs.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) stores: Stores,
    values: Vec<u64>,
    /// Number of times that each word has changed.
    versions: Vec<u32>,
    names: Option<BTreeMap<u32, String>>,
    buffers: Vec<Vec<Stored>>,
    /// Hash of all values.
    hash: u64,
}

/// A store in a store buffer.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Stored {
    pub(crate) word: u32,
    pub(crate) value: u64,
    /// Earlier stores of the same CPU become visible before this one.
    pub(crate) releases: bool,
    /// This is the second half of a locked operation. The first half has read the word, and no
    /// other CPU may write to it in between.
    pub(crate) is_locked: bool,
}

/// The effect of a store that became visible.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visible {
    pub(crate) word: u32,
    /// The value that the word had before.
    pub(crate) before: u64,
    /// `true` if the value changed.
    pub(crate) is_change: bool,
}

impl Memory {
    pub(crate) fn new(stores: Stores, cpus: usize, history: History) -> Self {
        let buffers = vec![Vec::new(); cpus];
        Self {
            stores,
            values: Vec::new(),
            versions: Vec::new(),
            names: (history == History::On).then(BTreeMap::new),
            buffers,
            hash: 0,
        }
    }

    pub(crate) fn allocate(&mut self, value: u64) -> u32 {
        let word = self.values.len() as u32;
        self.values.push(0);
        self.versions.push(0);
        self.set(word, value);
        word
    }

    /// Names a word for histories, if a history is recorded.
    pub(crate) fn name(&mut self, word: u32, name: impl FnOnce() -> String) {
        if let Some(names) = &mut self.names {
            names.insert(word, name());
        }
    }

    /// Names all words from `first` on. `name` gets the index of a word after `first`.
    pub(crate) fn name_from(&mut self, first: u32, name: impl Fn(usize) -> String) {
        for word in first..self.word_count() {
            self.name(word, || name((word - first) as usize));
        }
    }

    /// Number of words.
    pub(crate) fn word_count(&self) -> u32 {
        self.values.len() as u32
    }

    pub(crate) fn name_of(&self, word: u32) -> String {
        let name = self.names.as_ref().and_then(|names| names.get(&word));
        name.map_or_else(|| format!("word {word}"), String::clone)
    }

    /// The value that is visible to all CPUs.
    pub(crate) fn value(&self, word: u32) -> u64 {
        self.values[word as usize]
    }

    /// Number of times that a word has changed.
    pub(crate) fn version(&self, word: u32) -> u32 {
        self.versions[word as usize]
    }

    /// The value that a CPU observes: its own newest store, if that is still in its buffer.
    pub(crate) fn load(&self, cpu: usize, word: u32) -> u64 {
        let own = self.buffers[cpu].iter().rev().find(|stored| stored.word == word);
        own.map_or(self.value(word), |stored| stored.value)
    }

    pub(crate) fn store(&mut self, cpu: usize, stored: Stored) {
        self.buffers[cpu].push(stored);
    }

    pub(crate) fn has_stored(&self, cpu: usize) -> bool {
        !self.buffers[cpu].is_empty()
    }

    /// Indices of the stores of a CPU that can become visible next.
    pub(crate) fn visible_next(&self, cpu: usize) -> impl Iterator<Item = usize> + '_ {
        let buffer = &self.buffers[cpu];
        let is_next = move |&index: &usize| {
            let before = &buffer[..index];
            if self.is_locked_for(cpu, buffer[index].word) {
                return false;
            }
            match self.stores {
                Stores::Ordered => before.is_empty(),
                Stores::Unordered => {
                    before.iter().all(|stored| stored.word != buffer[index].word)
                        && (before.is_empty() || !buffer[index].releases)
                }
            }
        };
        (0..buffer.len()).filter(is_next)
    }

    /// Returns `true` if another CPU is in the middle of a locked operation on the word.
    fn is_locked_for(&self, cpu: usize, word: u32) -> bool {
        let is_locked = |stored: &Stored| stored.word == word && stored.is_locked;
        let mut others = (0..self.buffers.len()).filter(|&other| other != cpu);
        others.any(|other| self.buffers[other].iter().any(is_locked))
    }

    /// The word of the oldest store of a CPU.
    pub(crate) fn oldest(&self, cpu: usize) -> Option<u32> {
        self.buffers[cpu].first().map(|stored| stored.word)
    }

    /// Returns the store of `other` that must become visible next before `cpu` may write to the
    /// word. Such a store blocks a write if it is `cpu`'s own store to the word, or the second half
    /// of another CPU's locked operation on the word.
    pub(crate) fn blocking_store(&self, word: u32, cpu: usize, other: usize) -> Option<usize> {
        let is_in_the_way =
            |stored: &Stored| stored.word == word && (other == cpu || stored.is_locked);
        let last = self.buffers[other].iter().rposition(is_in_the_way)?;
        let next = self.visible_next(other).take_while(|&index| index <= last).last();
        Some(next.unwrap_or(0))
    }

    /// Makes a store visible.
    pub(crate) fn write_back(&mut self, cpu: usize, index: usize) -> Visible {
        let Stored { word, value, .. } = self.buffers[cpu].remove(index);
        let before = self.value(word);
        self.set(word, value);
        Visible { word, before, is_change: before != value }
    }

    /// Makes all stores visible, before a run begins.
    pub(crate) fn complete_stores(&mut self) {
        for cpu in 0..self.buffers.len() {
            for Stored { word, value, .. } in std::mem::take(&mut self.buffers[cpu]) {
                self.set(word, value);
            }
        }
    }

    pub(crate) fn set(&mut self, word: u32, value: u64) {
        let old = &mut self.values[word as usize];
        self.hash ^= mix(u64::from(word), *old) ^ mix(u64::from(word), value);
        if *old != value {
            self.versions[word as usize] += 1;
        }
        *old = value;
    }

    pub(crate) fn hash(&self) -> u64 {
        mix(self.hash, hash_of(&self.buffers))
    }
}

/// Kind of access to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Reads,
    Writes,
    /// A locked operation: reads and writes.
    Modifies,
}
