//! What hardware may hold: TLBs that never forget, and caches of upper levels, filled from whatever
//! can be reached, at any moment.
//!
//! No search guesses *when* a CPU fills its TLB. For each CPU and tag it is kept what the TLB *may*
//! hold: every translation that could have been found since something was last dropped. After each
//! write to a page table that is loaded, and after each load, all that can be reached is added. So
//! one run stands for every way in which hardware could have speculated. What instructions have
//! found early is kept in the same way, for programs that ask for it (`in_flight`).
//!
//! Page tables have two levels: a root of [`SLOTS`] entries, and tables of [`PAGES`] each.

mod in_flight;
mod invalidation;
mod unpublished;
mod wrong;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::hash::mix;
use crate::memory::Memory;
use crate::profile::{LoadsWithoutTags, Profile, UpperLevels};

use self::in_flight::InFlight;
pub use self::in_flight::{Access, Moment, Translation};
pub use self::invalidation::Reach;
pub(crate) use self::invalidation::{Invalidation, What};
use self::unpublished::Overwritten;
pub use self::wrong::Wrong;
use self::wrong::page_name;

/// Entries of a root.
pub const SLOTS: usize = 2;
/// Entries of a table.
pub const PAGES: usize = 2;
/// Numbers of pages: those of tables, and then one large page for each entry of a root.
pub(crate) const PAGE_NUMBERS: usize = SLOTS * PAGES + SLOTS;

/// An entry of a page table: a frame, or the number of a table, and what it allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry(pub u64);

impl Entry {
    /// There is nothing.
    pub const EMPTY: Self = Self(0);
    const PRESENT: u64 = 1;
    const WRITABLE: u64 = 2;
    const LARGE: u64 = 4;

    /// To a table, or to a frame that can only be read.
    #[must_use]
    pub const fn to(target: usize) -> Self {
        Self((target as u64) << 8 | Self::PRESENT)
    }

    /// The same, for a frame that can be written.
    #[must_use]
    pub const fn writable(self) -> Self {
        Self(self.0 | Self::WRITABLE)
    }

    /// The same, for a large page: an entry of a root.
    #[must_use]
    pub const fn large(self) -> Self {
        Self(self.0 | Self::LARGE)
    }

    /// Whether it is of a large page.
    #[must_use]
    pub const fn is_large(self) -> bool {
        self.0 & Self::LARGE != 0
    }

    /// Whether it leads to a table, in a root.
    #[must_use]
    pub const fn is_table(self) -> bool {
        self.is_present() && !self.is_large()
    }

    /// Whether there is anything.
    #[must_use]
    pub const fn is_present(self) -> bool {
        self.0 & Self::PRESENT != 0
    }

    /// Whether it lets one write.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        self.0 & Self::WRITABLE != 0
    }

    /// The table, or the frame.
    #[must_use]
    pub const fn target(self) -> usize {
        (self.0 >> 8) as usize
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_present(), self.is_writable()) {
            (false, _) => f.write_str("nothing"),
            (true, false) => write!(f, "→ {}", self.target()),
            (true, true) => write!(f, "→ {} (writable)", self.target()),
        }
    }
}

/// A translation that a CPU may hold: of which root, for which page, as the entry was, and how
/// often the frame had been given away by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Leaf {
    root: usize,
    page: usize,
    entry: Entry,
    life: u32,
}

impl Leaf {
    const fn mixed_into(self, hash: u64) -> u64 {
        let place = (self.root << 8 | self.page) as u64;
        mix(mix(hash, place << 32 | self.life as u64), self.entry.0)
    }
}

/// The way to a table that a CPU may remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Upper {
    root: usize,
    slot: usize,
    table: usize,
    life: u32,
}

/// What a CPU may hold under one tag.
#[derive(Clone, Debug, Default)]
struct Cached {
    leaves: BTreeSet<Leaf>,
    uppers: BTreeSet<Upper>,
}

#[derive(Debug, Default)]
struct HardwareCpu {
    root: Option<usize>,
    tag: u16,
    is_in_user_mode: bool,
    cached: BTreeMap<u16, Cached>,
}

/// A root, or a table below one.
#[derive(Debug)]
struct Table {
    /// The numbers of its words.
    words: Vec<u32>,
    life: u32,
    is_free: bool,
}

/// Translations that a flush is to take from everybody.
#[derive(Clone, Debug)]
#[must_use = "the flush is said to be done some time"]
pub struct Outdated(BTreeSet<Leaf>);

/// All of it.
#[derive(Debug)]
pub(crate) struct Hardware {
    profile: Profile,
    cpus: Vec<HardwareCpu>,
    roots: Vec<Table>,
    tables: Vec<Table>,
    /// How often each frame was given away.
    frames: Vec<u32>,
    /// What nobody may use any more: a flush of it is done.
    flushed: BTreeSet<Leaf>,
    /// Which words are of page tables.
    words: Vec<bool>,
    /// Invalidations that are not complete.
    invalidations: Vec<Invalidation>,
    /// Entries that each CPU has overwritten since it last published.
    unpublished: Vec<Vec<Overwritten>>,
    /// What CPUs may have found early, if anybody asks.
    in_flight: Option<InFlight>,
}

impl Hardware {
    pub(crate) fn new(profile: Profile, cpus: usize) -> Self {
        Self {
            profile,
            // The last one is a device, which only broadcasts reach.
            cpus: (0..=cpus).map(|_| HardwareCpu::default()).collect(),
            roots: Vec::new(),
            tables: Vec::new(),
            frames: Vec::new(),
            flushed: BTreeSet::new(),
            words: Vec::new(),
            invalidations: Vec::new(),
            unpublished: vec![Vec::new(); cpus],
            in_flight: None,
        }
    }

    pub(crate) const fn profile(&self) -> &Profile {
        &self.profile
    }

    pub(crate) const fn root_count(&self) -> usize {
        self.roots.len()
    }

    pub(crate) fn add_root(&mut self, words: Vec<u32>) -> usize {
        let table = self.table(words);
        self.roots.push(table);
        self.roots.len() - 1
    }

    pub(crate) fn add_table(&mut self, words: Vec<u32>) -> usize {
        let table = self.table(words);
        self.tables.push(table);
        self.tables.len() - 1
    }

    pub(crate) fn add_frame(&mut self) -> usize {
        self.frames.push(0);
        self.frames.len() - 1
    }

    fn table(&mut self, words: Vec<u32>) -> Table {
        for &word in &words {
            let word = word as usize;
            self.words.resize(self.words.len().max(word + 1), false);
            self.words[word] = true;
        }
        Table { words, life: 0, is_free: false }
    }

    /// Whether a word is part of one.
    pub(crate) fn is_of_page_tables(&self, word: u32) -> bool {
        self.words.get(word as usize).copied().unwrap_or(false)
    }

    /// A CPU has given a word another value: all CPUs may have found it.
    pub(crate) fn written(
        &mut self,
        memory: &Memory,
        cpu: usize,
        word: u32,
        before: Entry,
    ) -> Option<Wrong> {
        if !self.is_of_page_tables(word) {
            return None;
        }
        self.overwrite(cpu, word, before);
        self.fill_all(memory)
    }

    /// Every CPU finds whatever it can reach.
    fn fill_all(&mut self, memory: &Memory) -> Option<Wrong> {
        (0..self.cpus.len()).find_map(|cpu| self.fill(memory, cpu))
    }

    fn fill(&mut self, memory: &Memory, number: usize) -> Option<Wrong> {
        let Self { cpus, roots, tables, frames, flushed, .. } = self;
        let cpu = &mut cpus[number];
        let root = cpu.root?;
        let cached = cpu.cached.entry(cpu.tag).or_default();
        if roots[root].is_free {
            return Some(Wrong::WalksFreed { cpu: number });
        }
        for (slot, &word) in roots[root].words.iter().enumerate() {
            let entry = Entry(memory.value(word));
            if entry.is_large() {
                let page = SLOTS * PAGES + slot;
                let leaf = Leaf { root, page, entry, life: frames[entry.target()] };
                cached.leaves.insert(leaf);
                flushed.remove(&leaf);
            } else if entry.is_present() {
                let table = entry.target();
                cached.uppers.insert(Upper { root, slot, table, life: tables[table].life });
            }
        }
        for &Upper { root: of, slot, table, life } in
            cached.uppers.iter().filter(|it| it.root == root)
        {
            let found = &tables[table];
            if found.is_free || found.life != life {
                return Some(Wrong::WalksFreed { cpu: number });
            }
            for (index, &word) in found.words.iter().enumerate() {
                let entry = Entry(memory.value(word));
                if entry.is_present() {
                    let (page, life) = (slot * PAGES + index, frames[entry.target()]);
                    let leaf = Leaf { root: of, page, entry, life };
                    cached.leaves.insert(leaf);
                    // It is what it was before once more.
                    flushed.remove(&leaf);
                }
            }
        }
        self.note_in_flight(memory, number);
        self.look(number)
    }

    /// Whether a CPU in user mode can use what it must not.
    fn look(&self, number: usize) -> Option<Wrong> {
        let cpu = &self.cpus[number];
        let (true, Some(root)) = (cpu.is_in_user_mode, cpu.root) else { return None };
        let cached = cpu.cached.get(&cpu.tag)?;
        cached.leaves.iter().find_map(|leaf| {
            let &Leaf { root: of, page, entry, life } = leaf;
            if of != root {
                Some(Wrong::UsesForeign { cpu: number, page })
            } else if life != self.frames[entry.target()] {
                Some(Wrong::UsesReused { cpu: number, page })
            } else if self.flushed.contains(leaf) {
                Some(Wrong::UsesFlushed { cpu: number, page })
            } else {
                None
            }
        })
    }

    /// A CPU loads a root under a tag, or the kernel's.
    pub(crate) fn load(
        &mut self,
        memory: &Memory,
        cpu: usize,
        root: Option<usize>,
        tag: u16,
        keeps: Keeps,
    ) -> Option<Wrong> {
        let drops = keeps == Keeps::Nothing
            || tag == 0 && self.profile.loads_without_tags == LoadsWithoutTags::Drop;
        let state = &mut self.cpus[cpu];
        if drops {
            state.cached.remove(&tag);
        }
        (state.root, state.tag) = (root, tag);
        if drops {
            self.read_again(memory, cpu, cpu, &[]);
        }
        self.fill(memory, cpu)
    }

    /// A CPU drops pages of what it has loaded, and upper levels if that is asked for.
    pub(crate) fn drop_pages(
        &mut self,
        memory: &Memory,
        cpu: usize,
        pages: impl Fn(usize) -> bool,
        upper: bool,
    ) -> Option<Wrong> {
        self.drop_under(cpu, self.cpus[cpu].tag, pages, upper);
        self.read_again(memory, cpu, cpu, &[]);
        self.fill(memory, cpu)
    }

    fn drop_under(&mut self, cpu: usize, tag: u16, pages: impl Fn(usize) -> bool, upper: bool) {
        let drops_upper = upper || self.profile.upper_levels == UpperLevels::DroppedWithPages;
        if let Some(cached) = self.cpus[cpu].cached.get_mut(&tag) {
            cached.leaves.retain(|leaf| !pages(leaf.page));
            if drops_upper {
                cached.uppers.clear();
            }
        }
    }

    /// A CPU drops all of a tag, or everything.
    pub(crate) fn drop_tag(
        &mut self,
        memory: &Memory,
        cpu: usize,
        tag: Option<u16>,
    ) -> Option<Wrong> {
        self.forget(cpu, tag);
        self.read_again(memory, cpu, cpu, &[]);
        self.fill(memory, cpu)
    }

    fn forget(&mut self, cpu: usize, tag: Option<u16>) {
        let cached = &mut self.cpus[cpu].cached;
        match tag {
            Some(tag) => drop(cached.remove(&tag)),
            None => cached.clear(),
        }
    }

    /// Whether a device translates by some root.
    pub(crate) fn has_device(&self) -> bool {
        self.cpus.last().is_some_and(|device| device.root.is_some())
    }

    /// A device translates by a root under a tag, and uses all that it finds, until it is detached.
    pub(crate) fn attach_device(
        &mut self,
        memory: &Memory,
        root: usize,
        tag: u16,
    ) -> Option<Wrong> {
        let number = self.cpus.len() - 1;
        let device = &mut self.cpus[number];
        (device.root, device.tag, device.is_in_user_mode) = (Some(root), tag, true);
        self.fill(memory, number)
    }

    /// The device stops, and drops all that it holds.
    pub(crate) fn detach_device(&mut self) {
        let number = self.cpus.len() - 1;
        self.cpus[number] = HardwareCpu::default();
    }

    /// A CPU goes to user mode, or comes back.
    pub(crate) fn set_user_mode(&mut self, cpu: usize, is_in_user_mode: bool) -> Option<Wrong> {
        self.cpus[cpu].is_in_user_mode = is_in_user_mode;
        self.look(cpu)
    }

    /// What CPUs may hold of pages that say something else by now.
    pub(crate) fn outdated(
        &self,
        memory: &Memory,
        root: usize,
        pages: impl Fn(usize) -> bool,
    ) -> Outdated {
        let now = self.entries(memory, root);
        let caches = self.cpus.iter().flat_map(|cpu| cpu.cached.values());
        let held = caches.flat_map(|cached| &cached.leaves);
        let old = held.filter(|leaf| leaf.root == root && pages(leaf.page));
        let old = old.filter(|leaf| now[leaf.page] != leaf.entry);
        Outdated(old.copied().collect())
    }

    /// A flush is said to be done: nobody uses any of it.
    pub(crate) fn flush_is_done(&mut self, outdated: Outdated) -> Option<Wrong> {
        self.flushed.extend(outdated.0);
        self.look_at_all()
    }

    fn look_at_all(&self) -> Option<Wrong> {
        (0..self.cpus.len()).find_map(|cpu| self.look(cpu))
    }

    /// What a CPU may hold that page tables do not say any more, in words.
    pub(crate) fn old(&self, memory: &Memory, cpu: usize) -> String {
        let mut old = Vec::new();
        let state = &self.cpus[cpu];
        for (&tag, cached) in &state.cached {
            let under = if tag == state.tag { String::new() } else { format!(" (tag {tag})") };
            for &Leaf { root, page, entry, life } in &cached.leaves {
                let is_now = self.entries(memory, root)[page] == entry;
                if !is_now || life != self.frames[entry.target()] {
                    old.push(format!("{} {entry}{under}", page_name(page)));
                }
            }
            for &Upper { root, slot, table, life } in &cached.uppers {
                let now = Entry(memory.value(self.roots[root].words[slot]));
                if now != Entry::to(table) || life != self.tables[table].life {
                    old.push(format!("the way to table {table}{under}"));
                }
            }
        }
        old.join("; ")
    }

    /// What the page tables of a root say.
    fn entries(&self, memory: &Memory, root: usize) -> Vec<Entry> {
        let mut entries = vec![Entry::EMPTY; PAGE_NUMBERS];
        for (slot, &word) in self.roots[root].words.iter().enumerate() {
            let upper = Entry(memory.value(word));
            if !upper.is_table() {
                entries[SLOTS * PAGES + slot] = upper;
                continue;
            }
            for (index, &word) in self.tables[upper.target()].words.iter().enumerate() {
                entries[slot * PAGES + index] = Entry(memory.value(word));
            }
        }
        entries
    }

    /// A frame is somebody else's from now on.
    pub(crate) fn reuse_frame(&mut self, frame: usize) -> Option<Wrong> {
        self.frames[frame] += 1;
        self.look_at_all()
    }

    /// What is in a frame has been written out, or is taken to need no writing: nobody writes to it
    /// any more through an entry that is gone. `was_written` says whether its entry said so.
    pub(crate) fn write_out(&self, frame: usize, was_written: bool) -> Option<Wrong> {
        // Who finds an entry that is not marked looks again, and finds it gone.
        if self.profile.traps_stale_writes && !was_written {
            return None;
        }
        (0..self.cpus.len()).find_map(|cpu| {
            let state = &self.cpus[cpu];
            let cached = state.cached.get(&state.tag).filter(|_| state.is_in_user_mode)?;
            let leaf = cached.leaves.iter().find(|leaf| {
                leaf.entry.target() == frame
                    && leaf.entry.is_writable()
                    && leaf.life == self.frames[frame]
            })?;
            Some(Wrong::WritesLate { cpu, page: leaf.page })
        })
    }

    /// A table is free: nobody may walk it any more.
    pub(crate) fn free_table(&mut self, memory: &Memory, table: usize) -> Option<Wrong> {
        self.tables[table].is_free = true;
        self.tables[table].life += 1;
        self.fill_all(memory)
    }

    /// A root is free.
    pub(crate) fn free_root(&mut self, memory: &Memory, root: usize) -> Option<Wrong> {
        self.roots[root].is_free = true;
        self.fill_all(memory)
    }

    pub(crate) fn hash(&self) -> u64 {
        let mut hash = 0;
        for cpu in &self.cpus {
            let root = cpu.root.map_or(0, |root| root as u64 + 1);
            let mode = u64::from(cpu.is_in_user_mode);
            hash = mix(hash, root << 32 | u64::from(cpu.tag) << 1 | mode);
            for (&tag, cached) in &cpu.cached {
                hash = mix(hash, u64::from(tag));
                hash = cached.leaves.iter().fold(hash, |hash, leaf| leaf.mixed_into(hash));
                for upper in &cached.uppers {
                    let place = (upper.root << 16 | upper.slot << 8 | upper.table) as u64;
                    hash = mix(hash, place << 32 | u64::from(upper.life));
                }
            }
        }
        hash = self.invalidations.iter().fold(hash, |hash, it| it.hash(hash));
        for (cpu, entries) in self.unpublished.iter().enumerate() {
            hash = entries.iter().fold(hash, |hash, it| it.hash(mix(hash, cpu as u64)));
        }
        hash = self.in_flight.iter().fold(hash, |hash, in_flight| in_flight.hash(hash));
        for leaf in &self.flushed {
            hash = leaf.mixed_into(hash);
        }
        for table in self.roots.iter().chain(&self.tables) {
            hash = mix(hash, u64::from(table.life) << 1 | u64::from(table.is_free));
        }
        self.frames.iter().fold(hash, |hash, &life| mix(hash, u64::from(life)))
    }
}

/// What a load keeps of what is cached under its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// Nothing.
    Nothing,
    /// Everything.
    Everything,
}
