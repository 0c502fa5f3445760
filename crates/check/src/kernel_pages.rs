//! Pages of the kernel's own, which every CPU uses that is online, whatever it runs: translations
//! without a tag, found by nobody's root.

use std::collections::BTreeSet;

use crate::choice::mix;
use crate::hardware::{Entry, Wrong};
use crate::memory::{CheckWord, Memory};

/// What CPUs may hold of the kernel's pages.
#[derive(Debug)]
pub(crate) struct KernelPages {
    /// The words of the page table, if there is one.
    words: Vec<u32>,
    /// How often each frame was given away.
    lives: Vec<u32>,
    /// Each page as it was, and how often its frame had been given away by then.
    held: Vec<BTreeSet<(usize, Entry, u32)>>,
    /// Who uses them, a bit each.
    online: u64,
    /// Invalidations that were broadcast and are not complete: whose, and of which page.
    broadcasts: Vec<(usize, usize)>,
}

impl KernelPages {
    pub(crate) fn new(cpus: usize) -> Self {
        let held = vec![BTreeSet::new(); cpus];
        Self { words: Vec::new(), lives: Vec::new(), held, online: 0, broadcasts: Vec::new() }
    }

    /// These are the words of their page table, each with a frame of the same number.
    pub(crate) fn set_words(&mut self, words: &[CheckWord]) {
        self.words = words.iter().map(CheckWord::number).collect();
        self.lives = vec![0; words.len()];
    }

    pub(crate) fn set_online(&mut self, cpu: usize, is_online: bool) -> Option<Wrong> {
        self.online = self.online & !(1 << cpu) | u64::from(is_online) << cpu;
        self.look()
    }

    /// Every CPU finds whatever there is, online or not.
    pub(crate) fn fill(&mut self, memory: &Memory) -> Option<Wrong> {
        for (page, &word) in self.words.iter().enumerate() {
            let entry = Entry(memory.value(word));
            if entry.is_present() {
                let life = self.lives[entry.target()];
                for held in &mut self.held {
                    held.insert((page, entry, life));
                }
            }
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
        self.fill(memory)
    }

    pub(crate) fn issue_broadcast(&mut self, cpu: usize, pages: impl Fn(usize) -> bool) {
        let pages = (0..self.words.len()).filter(|&page| pages(page));
        self.broadcasts.extend(pages.map(|page| (cpu, page)));
    }

    /// A CPU's broadcasts are complete.
    pub(crate) fn complete_broadcasts(&mut self, memory: &Memory, cpu: usize) -> Option<Wrong> {
        let is_done = |page| self.broadcasts.contains(&(cpu, page));
        self.held.iter_mut().for_each(|held| held.retain(|&(page, ..)| !is_done(page)));
        self.broadcasts.retain(|&(issuer, _)| issuer != cpu);
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
        let mut hash = self.online;
        for &(issuer, page) in &self.broadcasts {
            hash = mix(hash, (issuer << 8 | page) as u64 + 1);
        }
        for held in &self.held {
            hash = mix(hash, held.len() as u64);
            for &(page, entry, life) in held {
                hash = mix(hash, entry.0 << 16 | (page << 8) as u64 | u64::from(life));
            }
        }
        self.lives.iter().fold(hash, |hash, &life| mix(hash, u64::from(life)))
    }
}
