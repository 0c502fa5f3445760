//! Pages of the kernel's own, which every CPU uses that is online, whatever it runs: translations
//! without a tag, found by nobody's root.

use std::collections::BTreeSet;

use crate::hardware::{Entry, Wrong};
use crate::hash::mix;
use crate::memory::Memory;
use crate::profile::{Invalidations, Profile};

/// A page as its entry was, and how often its frame had been given away by then.
type Held = (usize, Entry, u32);

/// What CPUs may hold of the kernel's pages.
#[derive(Debug)]
pub(crate) struct KernelPages {
    /// The words of the page table, if there is one.
    words: Vec<u32>,
    /// How often each frame was given away.
    lives: Vec<u32>,
    /// What each CPU may hold.
    held: Vec<BTreeSet<Held>>,
    /// What each CPU may have found since its earlier loads were last complete: an invalidation of
    /// everything may come as early as that.
    since_complete: Vec<BTreeSet<Held>>,
    /// What each CPU has overwritten since it last published: as in `hardware::unpublished`.
    unpublished: Vec<Vec<Held>>,
    is_early: bool,
    /// Who uses them, a bit each.
    online: u64,
    /// Invalidations that were broadcast and are not complete: whose, and of which page.
    broadcasts: Vec<(usize, usize)>,
    /// What their issuers had overwritten and not published when they issued them.
    unpublished_then: Vec<(usize, Held)>,
}

impl KernelPages {
    pub(crate) fn new(profile: Profile, cpus: usize) -> Self {
        let held = vec![BTreeSet::new(); cpus];
        let is_early = profile.invalidations == Invalidations::Early;
        Self {
            words: Vec::new(),
            lives: Vec::new(),
            since_complete: held.clone(),
            held,
            unpublished: vec![Vec::new(); cpus],
            is_early,
            online: 0,
            broadcasts: Vec::new(),
            unpublished_then: Vec::new(),
        }
    }

    /// These are the words of their page table, each with a frame of the same number.
    pub(crate) fn set_words(&mut self, memory: &Memory, words: Vec<u32>) -> Option<Wrong> {
        self.lives = vec![0; words.len()];
        self.words = words;
        self.fill(memory)
    }

    pub(crate) fn set_online(&mut self, cpu: usize, is_online: bool) -> Option<Wrong> {
        self.online = self.online & !(1 << cpu) | u64::from(is_online) << cpu;
        self.look()
    }

    /// A CPU has written an entry.
    pub(crate) fn written(
        &mut self,
        memory: &Memory,
        cpu: usize,
        word: u32,
        before: Entry,
    ) -> Option<Wrong> {
        let page = self.words.iter().position(|&it| it == word);
        if let Some(page) = page.filter(|_| self.is_early && before.is_present()) {
            self.unpublished[cpu].push((page, before, self.lives[before.target()]));
        }
        self.fill(memory)
    }

    /// Walkers find what a CPU has written so far, whatever it invalidates from now on.
    pub(crate) fn publish(&mut self, cpu: usize) {
        self.unpublished[cpu].clear();
    }

    /// What a CPU invalidates from now on comes after what it has done so far.
    pub(crate) fn order_invalidations(&mut self, memory: &Memory, cpu: usize) {
        if self.is_early {
            self.since_complete[cpu] = self.present(memory).collect();
        }
    }

    /// What page tables say.
    fn present(&self, memory: &Memory) -> impl Iterator<Item = Held> {
        let entries = self.words.iter().map(|&word| Entry(memory.value(word))).enumerate();
        let present = entries.filter(|(_, entry)| entry.is_present());
        present.map(|(page, entry)| (page, entry, self.lives[entry.target()]))
    }

    /// Every CPU finds whatever there is, online or not.
    fn fill(&mut self, memory: &Memory) -> Option<Wrong> {
        let present: Vec<_> = self.present(memory).collect();
        self.held.iter_mut().for_each(|held| held.extend(&present));
        if self.is_early {
            self.since_complete.iter_mut().for_each(|found| found.extend(&present));
        }
        self.look()
    }

    pub(crate) fn contains(&self, word: u32) -> bool {
        self.words.contains(&word)
    }

    /// A CPU drops what it holds of some.
    pub(crate) fn drop_pages(
        &mut self,
        memory: &Memory,
        cpu: usize,
        pages: impl Fn(usize) -> bool,
    ) -> Option<Wrong> {
        self.held[cpu].retain(|&(page, ..)| !pages(page));
        self.held[cpu].extend(&self.unpublished[cpu]);
        // It is done when it returns, and with it all loads before it.
        self.order_invalidations(memory, cpu);
        self.fill(memory)
    }

    /// A CPU drops everything. If it is not online yet, it does so whatever it has loaded: where no
    /// dependency orders an invalidation after loads, this one may come as early as when they were
    /// last complete, and the CPU may hold whatever it has found since then. A CPU that is online
    /// drops everything only because of something that it has loaded.
    pub(crate) fn drop_all(&mut self, memory: &Memory, cpu: usize) -> Option<Wrong> {
        self.held[cpu].clear();
        if self.is_early && self.online >> cpu & 1 == 0 {
            self.held[cpu].clone_from(&self.since_complete[cpu]);
        }
        self.held[cpu].extend(&self.unpublished[cpu]);
        // It is done when it returns, and with it all loads before it.
        self.order_invalidations(memory, cpu);
        self.fill(memory)
    }

    pub(crate) fn issue_broadcast(&mut self, cpu: usize, pages: impl Fn(usize) -> bool) {
        let pages = (0..self.words.len()).filter(|&page| pages(page));
        self.broadcasts.extend(pages.map(|page| (cpu, page)));
        self.unpublished_then.extend(self.unpublished[cpu].iter().map(|&held| (cpu, held)));
    }

    /// A CPU's broadcasts are complete.
    pub(crate) fn complete_broadcasts(&mut self, memory: &Memory, cpu: usize) -> Option<Wrong> {
        let is_done = |page| self.broadcasts.contains(&(cpu, page));
        let then = self.unpublished_then.iter().filter(|&&(issuer, _)| issuer == cpu);
        let again: Vec<_> = then.map(|&(_, held)| held).collect();
        for held in self.held.iter_mut().chain(&mut self.since_complete) {
            held.retain(|&(page, ..)| !is_done(page));
            held.extend(&again);
        }
        self.broadcasts.retain(|&(issuer, _)| issuer != cpu);
        self.unpublished_then.retain(|&(issuer, _)| issuer != cpu);
        self.fill(memory)
    }

    /// A frame is somebody else's from now on.
    pub(crate) fn reuse(&mut self, frame: usize) -> Option<Wrong> {
        self.lives[frame] += 1;
        self.look()
    }

    fn look(&self) -> Option<Wrong> {
        let online = (0..self.held.len()).filter(|cpu| self.online >> cpu & 1 == 1);
        online.into_iter().find_map(|cpu| {
            let is_old =
                |&&(_, entry, life): &&(usize, Entry, u32)| life != self.lives[entry.target()];
            let &(page, ..) = self.held[cpu].iter().find(is_old)?;
            Some(Wrong::UsesReusedKernel { cpu, page })
        })
    }

    pub(crate) fn hash(&self) -> u64 {
        let of_held = |hash, &(page, entry, life): &Held| {
            mix(hash, entry.0 << 16 | (page << 8) as u64 | u64::from(life))
        };
        let mut hash = self.online;
        for &(issuer, page) in &self.broadcasts {
            hash = mix(hash, (issuer << 8 | page) as u64 + 1);
        }
        for held in &self.held {
            hash = mix(hash, held.len() as u64);
            hash = held.iter().fold(hash, of_held);
        }
        if self.is_early {
            for found in &self.since_complete {
                hash = found.iter().fold(mix(hash, found.len() as u64), of_held);
            }
            for overwritten in &self.unpublished {
                hash = overwritten.iter().fold(mix(hash, overwritten.len() as u64), of_held);
            }
            for (cpu, held) in &self.unpublished_then {
                hash = of_held(mix(hash, *cpu as u64), held);
            }
        }
        self.lives.iter().fold(hash, |hash, &life| mix(hash, u64::from(life)))
    }
}
