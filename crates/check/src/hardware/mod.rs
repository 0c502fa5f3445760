//! The translations that the hardware may hold: TLBs that never evict an entry, and caches of upper
//! levels. Both fill themselves with every reachable entry at any moment.
//!
//! The search does not choose *when* a CPU fills its TLB. For each CPU and tag, the machine keeps
//! the entries that the TLB *may* hold: every translation that could have been found since the last
//! invalidation. After each write to a loaded page table, and after each load of a root, the
//! machine adds all reachable entries. One run therefore stands for every way in which the hardware
//! could have speculated. Translations that instructions have found early are kept in the same way,
//! for programs that ask for it (`in_flight`). Processors with a defect keep more, or keep it for
//! longer (`errata`).
//!
//! Page tables have two levels: a root of [`SLOTS`] entries, and tables of [`PAGES`] entries each.

mod device;
mod entry;
mod errata;
mod in_flight;
mod invalidation;
mod unpublished;
mod violation;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

use crate::memory::Memory;
use crate::profile::{LoadsWithoutTags, Profile, Stages, UpperLevels};

pub use self::entry::Entry;
pub(crate) use self::errata::Completion;
use self::in_flight::InFlight;
pub use self::in_flight::{AccessTiming, Moment, Translation};
pub use self::invalidation::Reach;
pub(crate) use self::invalidation::{DeviceQueue, Invalidation, What};
use self::unpublished::Overwritten;
pub use self::violation::Violation;
use self::violation::page_name;

/// Number of entries of a root.
pub const SLOTS: usize = 2;
/// Number of entries of a table.
pub const PAGES: usize = 2;
/// Number of page numbers: one for each entry of each table, then one for the large page of each
/// entry of a root.
pub(crate) const PAGE_NUMBERS: usize = SLOTS * PAGES + SLOTS;

/// A translation that a CPU may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Leaf {
    root: usize,
    page: usize,
    entry: Entry,
    incarnation: u32,
}

/// A cached pointer to a table that a CPU may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct CachedTable {
    root: usize,
    slot: usize,
    table: usize,
    incarnation: u32,
}

/// The entries that a CPU may hold under one tag.
#[derive(Clone, Debug, Default, Hash)]
struct Cached {
    leaves: BTreeSet<Leaf>,
    tables: BTreeSet<CachedTable>,
    /// Entries of a second cache, which fills itself from `leaves`: those that combine two stages,
    /// each with the name of the virtual CPU under which it is cached, or those of a device's own
    /// TLB.
    combined: BTreeSet<(u16, Leaf)>,
}

impl Cached {
    /// The translations that an access under a name may use. Some may be returned twice.
    fn usable(&self, name: u16) -> impl Iterator<Item = &Leaf> {
        let combined = self.combined.iter().filter(move |(of, _)| *of == name);
        self.leaves.iter().chain(combined.map(|(_, leaf)| leaf))
    }

    /// All translations. Some may be returned twice.
    fn held(&self) -> impl Iterator<Item = &Leaf> {
        self.leaves.iter().chain(self.combined.iter().map(|(_, leaf)| leaf))
    }
}

#[derive(Debug, Default, Hash)]
struct HardwareCpu {
    root: Option<usize>,
    tag: u16,
    /// The name of the virtual CPU that runs; 0 if virtual CPUs have none.
    name: u16,
    is_in_user_mode: bool,
    is_stopped: bool,
    has_second_cache: bool,
    cached: BTreeMap<u16, Cached>,
    /// Removed translations that accesses in user mode still use (`errata`).
    late: BTreeSet<Leaf>,
}

/// A root, or a table below one.
#[derive(Debug)]
struct Table {
    /// The numbers of its words in memory.
    words: Vec<u32>,
    incarnation: u32,
    is_free: bool,
}

/// Translations that no CPU may use after a flush.
#[derive(Clone, Debug)]
#[must_use = "pass it to `complete_flush`"]
pub struct StaleEntries(BTreeSet<Leaf>);

/// The hardware state of all CPUs.
#[derive(Debug)]
pub(crate) struct Hardware {
    profile: Profile,
    cpus: Vec<HardwareCpu>,
    roots: Vec<Table>,
    tables: Vec<Table>,
    /// Number of times that each frame was reused.
    frames: Vec<u32>,
    /// Translations that no CPU may use, because a flush of them is complete.
    flushed: BTreeSet<Leaf>,
    /// For each word, `true` if it is part of a page table.
    words: Vec<bool>,
    /// Invalidations that are not complete.
    invalidations: Vec<Invalidation>,
    device_queue: DeviceQueue,
    /// The CPUs that have broadcast since they last waited, one bit each; none unless waits end too
    /// early (`errata`).
    issuers: u64,
    /// For each CPU, the entries that it has overwritten since it last published.
    unpublished: Vec<Vec<Overwritten>>,
    /// Translations that CPUs may have found early; `None` if they are not tracked.
    in_flight: Option<InFlight>,
}

impl Hardware {
    pub(crate) fn new(profile: Profile, cpus: usize) -> Self {
        let has_second_cache = matches!(profile.stages, Stages::Two | Stages::TwoNamed);
        let cpu = || HardwareCpu { has_second_cache, ..HardwareCpu::default() };
        let device = HardwareCpu::default();
        Self {
            profile,
            cpus: (0..cpus).map(|_| cpu()).chain([device]).collect(),
            roots: Vec::new(),
            tables: Vec::new(),
            frames: Vec::new(),
            flushed: BTreeSet::new(),
            words: Vec::new(),
            invalidations: Vec::new(),
            device_queue: DeviceQueue::default(),
            issuers: 0,
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
        Table { words, incarnation: 0, is_free: false }
    }

    /// Returns `true` if a word is part of a page table.
    pub(crate) fn is_of_page_tables(&self, word: u32) -> bool {
        self.words.get(word as usize).copied().unwrap_or(false)
    }

    /// Records that a CPU has changed a word: all CPUs may have found the new value.
    pub(crate) fn written(
        &mut self,
        memory: &Memory,
        cpu: usize,
        word: u32,
        before: Entry,
    ) -> Option<Violation> {
        if !self.is_of_page_tables(word) {
            return None;
        }
        self.overwrite(cpu, word, before);
        self.fill_all(memory)
    }

    /// Adds to every CPU the entries that it can reach.
    fn fill_all(&mut self, memory: &Memory) -> Option<Violation> {
        (0..self.cpus.len()).find_map(|cpu| self.fill(memory, cpu))
    }

    fn fill(&mut self, memory: &Memory, number: usize) -> Option<Violation> {
        let Self { profile, cpus, roots, tables, frames, flushed, .. } = self;
        let device = cpus.len() - 1;
        let walks_freed = Violation::walks_freed(number, device);
        let cpu = &mut cpus[number];
        let needs_guest = profile.stages.walks_in_guests_only() && number != device;
        let walks = !cpu.is_stopped && (cpu.is_in_user_mode || !needs_guest);
        let root = cpu.root.filter(|_| walks)?;
        let cached = cpu.cached.entry(cpu.tag).or_default();
        if roots[root].is_free {
            return Some(walks_freed);
        }
        for (slot, &word) in roots[root].words.iter().enumerate() {
            let entry = Entry(memory.value(word));
            if entry.is_large() {
                let page = SLOTS * PAGES + slot;
                let leaf = Leaf { root, page, entry, incarnation: frames[entry.target()] };
                cached.leaves.insert(leaf);
                flushed.remove(&leaf);
            } else if entry.is_present() {
                let table = entry.target();
                cached.tables.insert(CachedTable {
                    root,
                    slot,
                    table,
                    incarnation: tables[table].incarnation,
                });
            }
        }
        for &CachedTable { root: of, slot, table, incarnation } in
            cached.tables.iter().filter(|it| it.root == root)
        {
            let found = &tables[table];
            if found.is_free || found.incarnation != incarnation {
                return Some(walks_freed);
            }
            for (index, &word) in found.words.iter().enumerate() {
                let entry = Entry(memory.value(word));
                if entry.is_present() {
                    let (page, incarnation) = (slot * PAGES + index, frames[entry.target()]);
                    let leaf = Leaf { root: of, page, entry, incarnation };
                    cached.leaves.insert(leaf);
                    // The same translation is valid again.
                    flushed.remove(&leaf);
                }
            }
        }
        if cpu.has_second_cache {
            cached.combined.extend(cached.leaves.iter().map(|&leaf| (cpu.name, leaf)));
        }
        self.note_in_flight(memory, number);
        self.check(number)
    }

    /// Returns a violation if a CPU in user mode can use a translation that it must not use.
    fn check(&self, number: usize) -> Option<Violation> {
        let cpu = &self.cpus[number];
        let (true, Some(root)) = (cpu.is_in_user_mode, cpu.root) else { return None };
        let cached = cpu.cached.get(&cpu.tag)?;
        cached.usable(cpu.name).chain(&cpu.late).find_map(|leaf| {
            let &Leaf { root: of, page, entry, incarnation } = leaf;
            if of != root {
                Some(Violation::UsesForeign { cpu: number, page })
            } else if incarnation != self.frames[entry.target()] {
                Some(Violation::UsesReused { cpu: number, page })
            } else if self.flushed.contains(leaf) {
                Some(Violation::UsesFlushed { cpu: number, page })
            } else {
                None
            }
        })
    }

    /// Loads a root under a tag on a CPU; `None` is the kernel's root.
    pub(crate) fn load(
        &mut self,
        memory: &Memory,
        cpu: usize,
        root: Option<usize>,
        tag: u16,
        on_load: OnLoad,
    ) -> Option<Violation> {
        let is_flush = on_load == OnLoad::Flush && !self.ignores_names()
            || tag == 0 && self.profile.loads_without_tags == LoadsWithoutTags::Drop;
        let state = &mut self.cpus[cpu];
        if is_flush {
            state.cached.remove(&tag);
        }
        let before = (state.root, state.tag);
        (state.root, state.tag) = (root, tag);
        if is_flush {
            self.refetch_unpublished(memory, cpu, cpu, &[]);
        }
        self.mix_tags(memory, cpu, before);
        self.fill(memory, cpu)
    }

    /// The tag under which a CPU has loaded its root.
    pub(crate) fn tag(&self, cpu: usize) -> u16 {
        self.cpus[cpu].tag
    }

    /// Invalidates pages under a CPU's loaded tag, and the cached pointers to tables if `upper` is
    /// set.
    pub(crate) fn invalidate_pages(
        &mut self,
        memory: &Memory,
        cpu: usize,
        pages: impl Fn(usize) -> bool,
        upper: bool,
    ) -> Option<Violation> {
        if self.ignores_names() {
            return None;
        }
        self.invalidate_under(cpu, self.cpus[cpu].tag, pages, upper);
        self.refetch_unpublished(memory, cpu, cpu, &[]);
        self.fill(memory, cpu)
    }

    /// Invalidates the entries that a CPU has cached under the name of a virtual CPU.
    pub(crate) fn invalidate_name(
        &mut self,
        memory: &Memory,
        cpu: usize,
        name: u16,
    ) -> Option<Violation> {
        let cached = self.cpus[cpu].cached.values_mut();
        cached.for_each(|cached| cached.combined.retain(|(of, _)| *of != name));
        self.fill(memory, cpu)
    }

    /// Sets the name of the virtual CPU that a CPU enters next.
    pub(crate) fn set_name(&mut self, cpu: usize, name: u16) {
        self.cpus[cpu].name = name;
    }

    /// Invalidates the entries of a CPU's loaded tag that combine two stages.
    pub(crate) fn invalidate_combined(&mut self, memory: &Memory, cpu: usize) -> Option<Violation> {
        self.forget_combined(cpu, self.cpus[cpu].tag);
        self.fill(memory, cpu)
    }

    fn forget_combined(&mut self, cpu: usize, tag: u16) {
        if let Some(cached) = self.cpus[cpu].cached.get_mut(&tag) {
            cached.combined.clear();
        }
    }

    fn invalidate_under(
        &mut self,
        cpu: usize,
        tag: u16,
        pages: impl Fn(usize) -> bool,
        upper: bool,
    ) {
        let includes_tables = upper || self.profile.upper_levels == UpperLevels::DroppedWithPages;
        if let Some(cached) = self.cpus[cpu].cached.get_mut(&tag) {
            cached.leaves.retain(|leaf| !pages(leaf.page));
            if includes_tables {
                cached.tables.clear();
            }
        }
    }

    /// Invalidates all entries of a tag on a CPU, or all entries if `tag` is `None`.
    pub(crate) fn invalidate_tag(
        &mut self,
        memory: &Memory,
        cpu: usize,
        tag: Option<u16>,
    ) -> Option<Violation> {
        if tag.is_some() && self.ignores_names() {
            return None;
        }
        self.forget(cpu, tag);
        self.refetch_unpublished(memory, cpu, cpu, &[]);
        self.fill(memory, cpu)
    }

    fn forget(&mut self, cpu: usize, tag: Option<u16>) {
        let cached = &mut self.cpus[cpu].cached;
        match tag {
            Some(tag) => drop(cached.remove(&tag)),
            None => cached.clear(),
        }
    }

    /// Stops a CPU, or lets it run again.
    pub(crate) fn set_stopped(
        &mut self,
        memory: &Memory,
        cpu: usize,
        is_stopped: bool,
    ) -> Option<Violation> {
        self.cpus[cpu].is_stopped = is_stopped;
        self.fill(memory, cpu)
    }

    /// Moves a CPU to user mode, or back.
    pub(crate) fn set_user_mode(
        &mut self,
        memory: &Memory,
        cpu: usize,
        is_in_user_mode: bool,
    ) -> Option<Violation> {
        self.cpus[cpu].is_in_user_mode = is_in_user_mode;
        // The exception that leaves user mode waits for the accesses before it.
        self.cpus[cpu].late.clear();
        if self.profile.stages.walks_in_guests_only() {
            return self.fill(memory, cpu);
        }
        self.check(cpu)
    }

    /// Returns `true` if a CPU is in user mode.
    pub(crate) fn is_in_user_mode(&self, cpu: usize) -> bool {
        self.cpus[cpu].is_in_user_mode
    }

    /// Returns the entries of some pages that CPUs may hold and that no longer match the page
    /// tables.
    pub(crate) fn stale_entries(
        &self,
        memory: &Memory,
        root: usize,
        pages: impl Fn(usize) -> bool,
    ) -> StaleEntries {
        let now = self.entries(memory, root);
        let caches = self.cpus.iter().flat_map(|cpu| cpu.cached.values());
        let held = caches.flat_map(Cached::held);
        let old = held.filter(|leaf| leaf.root == root && pages(leaf.page));
        let old = old.filter(|leaf| now[leaf.page] != leaf.entry);
        StaleEntries(old.copied().collect())
    }

    /// Records that a flush of these entries is complete: no CPU may use them.
    pub(crate) fn complete_flush(&mut self, stale_entries: StaleEntries) -> Option<Violation> {
        self.flushed.extend(stale_entries.0);
        self.check_all()
    }

    fn check_all(&self) -> Option<Violation> {
        (0..self.cpus.len()).find_map(|cpu| self.check(cpu))
    }

    /// Describes the stale entries that a CPU may hold.
    pub(crate) fn describe_stale(&self, memory: &Memory, cpu: usize) -> String {
        let mut old = Vec::new();
        let state = &self.cpus[cpu];
        for (&tag, cached) in &state.cached {
            let under = if tag == state.tag { String::new() } else { format!(" (tag {tag})") };
            let held: BTreeSet<_> = cached.held().copied().collect();
            for Leaf { root, page, entry, incarnation } in held {
                let is_now = self.entries(memory, root)[page] == entry;
                if !is_now || incarnation != self.frames[entry.target()] {
                    old.push(format!("{} {entry}{under}", page_name(page)));
                }
            }
            for &CachedTable { root, slot, table, incarnation } in &cached.tables {
                let now = Entry(memory.value(self.roots[root].words[slot]));
                if now != Entry::to(table) || incarnation != self.tables[table].incarnation {
                    old.push(format!("a pointer to table {table}{under}"));
                }
            }
        }
        for Leaf { page, entry, .. } in &state.late {
            old.push(format!("an access to {} {entry}", page_name(*page)));
        }
        old.join("; ")
    }

    /// Returns the current page-table entries of a root, by page number.
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

    /// Returns how often a frame was reused.
    pub(crate) fn incarnation(&self, frame: usize) -> u32 {
        self.frames[frame]
    }

    /// Reuses a frame: its old mappings are stale.
    pub(crate) fn reuse_frame(&mut self, frame: usize) -> Option<Violation> {
        self.frames[frame] += 1;
        self.check_all()
    }

    /// Checks that no CPU can still write to a frame through a removed entry. The frame has been
    /// written out, or is assumed not to need it. `was_written` is the dirty bit of the removed
    /// entry.
    pub(crate) fn write_out(&self, frame: usize, was_written: bool) -> Option<Violation> {
        // A CPU whose cached entry is not dirty reads the entry again before it writes, and finds
        // it gone.
        if self.profile.traps_stale_writes && !was_written {
            return None;
        }
        (0..self.cpus.len()).find_map(|cpu| {
            let state = &self.cpus[cpu];
            let cached = state.cached.get(&state.tag).filter(|_| state.is_in_user_mode)?;
            let leaf = cached.usable(state.name).chain(&state.late).find(|leaf| {
                leaf.entry.target() == frame
                    && leaf.entry.is_writable()
                    && leaf.incarnation == self.frames[frame]
            })?;
            Some(Violation::WritesLate { cpu, page: leaf.page })
        })
    }

    /// Frees a table: no CPU may walk it.
    pub(crate) fn free_table(&mut self, memory: &Memory, table: usize) -> Option<Violation> {
        self.tables[table].is_free = true;
        self.tables[table].incarnation += 1;
        self.fill_all(memory)
    }

    /// A CPU reads a table by software.
    pub(crate) fn read_table(&self, cpu: usize, table: usize) -> Option<Violation> {
        self.tables[table].is_free.then_some(Violation::WalksFreed { cpu })
    }

    /// Frees a root: no CPU may walk it.
    pub(crate) fn free_root(&mut self, memory: &Memory, root: usize) -> Option<Violation> {
        self.roots[root].is_free = true;
        self.fill_all(memory)
    }
}

/// Hashes everything that can change during a run.
impl Hash for Hardware {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { cpus, roots, tables, frames, flushed, .. } = self;
        let Self { invalidations, device_queue, issuers, unpublished, in_flight, .. } = self;
        (cpus, frames, flushed, invalidations, issuers, unpublished, in_flight).hash(state);
        device_queue.hash(state);
        for table in roots.iter().chain(tables) {
            (table.incarnation, table.is_free).hash(state);
        }
    }
}

/// The treatment of the entries under a tag when a root is loaded under that tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoad {
    /// Remove them.
    Flush,
    /// Leave them.
    Keep,
}
