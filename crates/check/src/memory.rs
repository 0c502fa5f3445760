//! Shared memory: words, and the stores that a CPU has made and nobody else can see yet.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use shootdown::Word;

use crate::choice::mix;
use crate::history::{LineKind, Writing};
use crate::profile::Stores;
use crate::world::{World, with_world};

/// All words of a run, and the store buffers of its CPUs.
#[derive(Debug)]
pub(crate) struct Memory {
    stores: Stores,
    values: Vec<u64>,
    /// How often each has changed.
    versions: Vec<u32>,
    names: Option<BTreeMap<u32, String>>,
    buffers: Vec<Vec<Stored>>,
    /// Of all values.
    hash: u64,
}

/// A store that is on its way.
#[derive(Clone, Copy, Debug)]
struct Stored {
    word: u32,
    value: u64,
    /// Those before it go first.
    releases: bool,
    /// It is the second half of a locked operation: the first half has read what is there, and
    /// nobody may write in between.
    is_locked: bool,
}

/// What a store that became visible was to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visible {
    pub(crate) word: u32,
    /// The value that it held before.
    pub(crate) before: u64,
    /// Whether it held another value before.
    pub(crate) is_change: bool,
}

impl Memory {
    pub(crate) fn new(stores: Stores, cpus: usize, writing: Writing) -> Self {
        let buffers = vec![Vec::new(); cpus];
        Self {
            stores,
            values: Vec::new(),
            versions: Vec::new(),
            names: (writing == Writing::On).then(BTreeMap::new),
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

    /// What a word is called in a history, if one is written.
    fn name(&mut self, word: u32, name: impl FnOnce() -> String) {
        if let Some(names) = &mut self.names {
            names.insert(word, name());
        }
    }

    /// The same of those from the `first` on, by their place among them.
    pub(crate) fn name_from(&mut self, first: u32, name: impl Fn(usize) -> String) {
        for word in first..self.word_count() {
            self.name(word, || name((word - first) as usize));
        }
    }

    /// How many there are.
    pub(crate) fn word_count(&self) -> u32 {
        self.values.len() as u32
    }

    pub(crate) fn name_of(&self, word: u32) -> String {
        let name = self.names.as_ref().and_then(|names| names.get(&word));
        name.map_or_else(|| format!("word {word}"), String::clone)
    }

    /// What everybody sees.
    pub(crate) fn value(&self, word: u32) -> u64 {
        self.values[word as usize]
    }

    /// How often a word has changed.
    pub(crate) fn version(&self, word: u32) -> u32 {
        self.versions[word as usize]
    }

    /// What a CPU sees: its own stores first.
    fn load(&self, cpu: usize, word: u32) -> u64 {
        let own = self.buffers[cpu].iter().rev().find(|stored| stored.word == word);
        own.map_or(self.value(word), |stored| stored.value)
    }

    fn store(&mut self, cpu: usize, stored: Stored) {
        self.buffers[cpu].push(stored);
    }

    pub(crate) fn has_stored(&self, cpu: usize) -> bool {
        !self.buffers[cpu].is_empty()
    }

    /// Which stores of a CPU can become visible next, by their places.
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

    /// Whether another CPU is in the middle of a locked operation on the word.
    fn is_locked_for(&self, cpu: usize, word: u32) -> bool {
        let is_locked = |stored: &Stored| stored.word == word && stored.is_locked;
        let mut others = (0..self.buffers.len()).filter(|&other| other != cpu);
        others.any(|other| self.buffers[other].iter().any(is_locked))
    }

    /// The word of the oldest store of a CPU.
    pub(crate) fn oldest(&self, cpu: usize) -> Option<u32> {
        self.buffers[cpu].first().map(|stored| stored.word)
    }

    /// Which store of `other` is to become visible next, so that `cpu` may write to the word: those
    /// to it that are its own, or the second halves of another's locked operations.
    pub(crate) fn in_the_way(&self, word: u32, cpu: usize, other: usize) -> Option<usize> {
        let is_in_the_way =
            |stored: &Stored| stored.word == word && (other == cpu || stored.is_locked);
        let last = self.buffers[other].iter().rposition(is_in_the_way)?;
        let next = self.visible_next(other).take_while(|&index| index <= last).last();
        Some(next.unwrap_or(0))
    }

    /// A store becomes visible.
    pub(crate) fn write_back(&mut self, cpu: usize, index: usize) -> Visible {
        let Stored { word, value, .. } = self.buffers[cpu].remove(index);
        let before = self.value(word);
        self.set(word, value);
        Visible { word, before, is_change: before != value }
    }

    /// Everything is visible: before a run begins.
    pub(crate) fn settle(&mut self) {
        for cpu in 0..self.buffers.len() {
            for Stored { word, value, .. } in std::mem::take(&mut self.buffers[cpu]) {
                self.set(word, value);
            }
        }
    }

    fn set(&mut self, word: u32, value: u64) {
        let held = &mut self.values[word as usize];
        self.hash ^= mix(u64::from(word), *held) ^ mix(u64::from(word), value);
        if *held != value {
            self.versions[word as usize] += 1;
        }
        *held = value;
    }

    pub(crate) fn hash(&self) -> u64 {
        let mut hash = self.hash;
        for buffer in &self.buffers {
            hash = mix(hash, buffer.len() as u64);
            for &Stored { word, value, releases, is_locked } in buffer {
                let flags = u64::from(releases) | u64::from(is_locked) << 1;
                hash = mix(mix(hash, u64::from(word) << 2 | flags), value);
            }
        }
        hash
    }
}

/// What is done with a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Reads,
    Writes,
    /// Both, in one.
    Modifies,
}

/// A word of the hostile machine.
#[derive(Debug)]
pub struct CheckWord(u32);

impl CheckWord {
    /// A word that is called so in histories.
    #[must_use]
    pub fn named(value: u64, name: impl FnOnce() -> String) -> Self {
        let word = Self::new(value);
        with_world(|world| world.memory.borrow_mut().name(word.0, name));
        word
    }

    pub(crate) const fn number(&self) -> u32 {
        self.0
    }

    /// Reads, modifies and writes, in one. On x86 that waits for all stores before it, and is
    /// visible before anything after it. Elsewhere what it writes is a store like others, but that
    /// no other write to the word comes in between; unless it acquires, what comes after it may
    /// come first.
    fn modify(&self, order: Ordering, text: &str, f: impl FnOnce(u64) -> Option<u64>) -> u64 {
        with_world(|world| {
            let cpu = world.cpu();
            let releases = matches!(order, Ordering::Release | Ordering::AcqRel | Ordering::SeqCst);
            let acquires = matches!(order, Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst);
            let is_ordered = world.memory.borrow().stores == Stores::Ordered;
            let is_barrier = is_ordered || releases && acquires;
            let is_shared = world.step_to(self.0, Access::Modifies, is_barrier);
            if is_barrier {
                world.drain(cpu);
            }
            world.unlock(self.0, cpu);
            let held = world.memory.borrow().value(self.0);
            world.see(held);
            let new = f(held);
            world.say_word(self.0, |name, shown| match new {
                Some(new) => format!("{text} {name}: from {} to {}", shown(held), shown(new)),
                None => format!("{text} {name}: finds {}, and leaves it", shown(held)),
            });
            if let Some(value) = new {
                if is_ordered || acquires || !is_shared {
                    self.write(world, held, value);
                } else {
                    let stored = Stored { word: self.0, value, releases, is_locked: true };
                    world.memory.borrow_mut().store(cpu, stored);
                }
            }
            held
        })
    }

    fn write(&self, world: &World, held: u64, value: u64) {
        if value != held {
            world.memory.borrow_mut().set(self.0, value);
            world.written(world.cpu(), self.0, held);
        }
    }
}

impl Word for CheckWord {
    fn new(value: u64) -> Self {
        Self(with_world(|world| world.memory.borrow_mut().allocate(value)))
    }
    fn load(&self, _: Ordering) -> u64 {
        with_world(|world| {
            world.step_to(self.0, Access::Reads, false);
            let value = world.memory.borrow().load(world.cpu(), self.0);
            world.see(value);
            world.say_as(LineKind::Access, || {
                let name = world.memory.borrow().name_of(self.0);
                format!("reads {name}: {}", world.shown(self.0, value))
            });
            value
        })
    }
    fn store(&self, value: u64, order: Ordering) {
        with_world(|world| {
            // Nobody sees it before it becomes visible, which is a step of its own.
            world.step_if_interrupted();
            if !world.note_use(self.0, Access::Writes) {
                world.see(2);
                return world.memory.borrow_mut().set(self.0, value);
            }
            let releases = matches!(order, Ordering::Release | Ordering::SeqCst);
            let stored = Stored { word: self.0, value, releases, is_locked: false };
            world.memory.borrow_mut().store(world.cpu(), stored);
            world.see(2);
            world.say_word(self.0, |name, shown| {
                format!("stores to {name}: {} (not visible yet)", shown(value))
            });
        });
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.modify(order, "swaps", |_| Some(value))
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.modify(order, "adds to", |held| Some(held.wrapping_add(value)))
    }
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.modify(order, "sets in", |held| Some(held | value))
    }
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.modify(order, "clears in", |held| Some(held & value))
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        _: Ordering,
    ) -> Result<u64, u64> {
        let held = self.modify(success, "exchanges", |held| (held == current).then_some(new));
        if held == current { Ok(held) } else { Err(held) }
    }
}

/// A full barrier of the calling CPU: all that it has stored becomes visible.
pub fn fence() {
    with_world(|world| {
        if world.memory.borrow().has_stored(world.cpu()) {
            world.step();
        }
        world.drain(world.cpu());
        world.order_loads();
        world.see(3);
        world.say_as(LineKind::Access, || "fences".to_owned());
    });
}

/// Makes all that the calling CPU has stored visible, and its page-table writes visible to walkers
/// before any later invalidation: `dsb ishst` on Arm. It does nothing where stores stay in order,
/// as on x86.
pub fn publish() {
    with_world(|world| {
        if world.memory.borrow().stores == Stores::Ordered {
            return;
        }
        if world.memory.borrow().has_stored(world.cpu()) {
            world.step();
        }
        world.drain(world.cpu());
        world.publish_tables();
        world.see(7);
        world.say_as(LineKind::Access, || "publishes its page-table writes".to_owned());
    });
}

/// A full barrier that later invalidations wait for, too: `dsb ish` on Arm.
pub fn complete_accesses() {
    fence();
    publish();
    with_world(World::order_invalidations);
}
