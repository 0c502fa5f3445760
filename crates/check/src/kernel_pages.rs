//! The kernel's own pages. Every online CPU uses them, in whatever space it runs. Their
//! translations have no tag and belong to no root.

use std::collections::BTreeSet;

use crate::hardware::{Entry, Violation};
use crate::memory::Memory;
use crate::profile::{Invalidations, Profile};

/// A page, its entry, and the incarnation of the entry's frame at that time.
type CachedPage = (usize, Entry, u32);

/// The translations of the kernel's pages that CPUs may hold.
#[derive(Debug, Hash)]
pub(crate) struct KernelPages {
    /// The words of the page table. Empty if there is none.
    words: Vec<u32>,
    /// Number of times that each frame was reused.
    incarnations: Vec<u32>,
    /// The translations that each CPU may hold.
    cached: Vec<BTreeSet<CachedPage>>,
    /// The translations that each CPU may have found since its earlier loads were last complete. An
    /// invalidation of everything may take effect as early as that.
    since_complete: Vec<BTreeSet<CachedPage>>,
    /// The entries that each CPU has overwritten since it last published, as in
    /// `hardware::unpublished`.
    unpublished: Vec<Vec<CachedPage>>,
    is_early: bool,
    /// The online CPUs, one bit each.
    online: u64,
    /// Incomplete broadcasts: the issuer and the page of each.
    broadcasts: Vec<(usize, usize)>,
    /// For each incomplete broadcast, the entries that its issuer had overwritten and not published
    /// when it issued the broadcast.
    unpublished_then: Vec<(usize, CachedPage)>,
}

impl KernelPages {
    pub(crate) fn new(profile: Profile, cpus: usize) -> Self {
        let cached = vec![BTreeSet::new(); cpus];
        let is_early = profile.invalidations == Invalidations::Early;
        Self {
            words: Vec::new(),
            incarnations: Vec::new(),
            since_complete: cached.clone(),
            cached,
            unpublished: vec![Vec::new(); cpus],
            is_early,
            online: 0,
            broadcasts: Vec::new(),
            unpublished_then: Vec::new(),
        }
    }

    /// Sets the words of the page table. Each has a frame of the same number.
    pub(crate) fn set_words(&mut self, memory: &Memory, words: Vec<u32>) -> Option<Violation> {
        self.incarnations = vec![0; words.len()];
        self.words = words;
        self.fill(memory)
    }

    pub(crate) fn set_online(&mut self, cpu: usize, is_online: bool) -> Option<Violation> {
        self.online = self.online & !(1 << cpu) | u64::from(is_online) << cpu;
        self.check()
    }

    /// Records that a CPU has written an entry.
    pub(crate) fn written(
        &mut self,
        memory: &Memory,
        cpu: usize,
        word: u32,
        before: Entry,
    ) -> Option<Violation> {
        let page = self.words.iter().position(|&it| it == word);
        if let Some(page) = page.filter(|_| self.is_early && before.is_present()) {
            self.unpublished[cpu].push((page, before, self.incarnations[before.target()]));
        }
        self.fill(memory)
    }

    /// Orders a CPU's page-table writes before its later invalidations: walkers find the new
    /// entries.
    pub(crate) fn publish(&mut self, cpu: usize) {
        self.unpublished[cpu].clear();
    }

    /// Orders a CPU's earlier accesses before its later invalidations.
    pub(crate) fn order_invalidations(&mut self, memory: &Memory, cpu: usize) {
        if self.is_early {
            self.since_complete[cpu] = self.present(memory).collect();
        }
    }

    /// The translations in the page table.
    fn present(&self, memory: &Memory) -> impl Iterator<Item = CachedPage> {
        let entries = self.words.iter().map(|&word| Entry(memory.value(word))).enumerate();
        let present = entries.filter(|(_, entry)| entry.is_present());
        present.map(|(page, entry)| (page, entry, self.incarnations[entry.target()]))
    }

    /// Adds the translations in the page table to every CPU, online or not.
    fn fill(&mut self, memory: &Memory) -> Option<Violation> {
        let present: Vec<_> = self.present(memory).collect();
        self.cached.iter_mut().for_each(|cached| cached.extend(&present));
        if self.is_early {
            self.since_complete.iter_mut().for_each(|found| found.extend(&present));
        }
        self.check()
    }

    pub(crate) fn contains(&self, word: u32) -> bool {
        self.words.contains(&word)
    }

    /// Invalidates pages on a CPU.
    pub(crate) fn invalidate_pages(
        &mut self,
        memory: &Memory,
        cpu: usize,
        pages: impl Fn(usize) -> bool,
    ) -> Option<Violation> {
        self.cached[cpu].retain(|&(page, ..)| !pages(page));
        self.cached[cpu].extend(&self.unpublished[cpu]);
        // The invalidation is complete when it returns, and so are all earlier loads.
        self.order_invalidations(memory, cpu);
        self.fill(memory)
    }

    /// Invalidates everything on a CPU.
    ///
    /// A CPU that is online invalidates everything only because of a value that it has loaded, and
    /// that dependency orders the invalidation after the load. A CPU that is not online yet does so
    /// whatever it has loaded. Its invalidation may take effect as early as when its loads were
    /// last complete, and the CPU may then hold every translation that it has found since.
    pub(crate) fn invalidate_all(&mut self, memory: &Memory, cpu: usize) -> Option<Violation> {
        self.cached[cpu].clear();
        if self.is_early && self.online >> cpu & 1 == 0 {
            self.cached[cpu].clone_from(&self.since_complete[cpu]);
        }
        self.cached[cpu].extend(&self.unpublished[cpu]);
        // The invalidation is complete when it returns, and so are all earlier loads.
        self.order_invalidations(memory, cpu);
        self.fill(memory)
    }

    pub(crate) fn issue_broadcast(&mut self, cpu: usize, pages: impl Fn(usize) -> bool) {
        let pages = (0..self.words.len()).filter(|&page| pages(page));
        self.broadcasts.extend(pages.map(|page| (cpu, page)));
        self.unpublished_then.extend(self.unpublished[cpu].iter().map(|&cached| (cpu, cached)));
    }

    /// Completes a CPU's broadcasts.
    pub(crate) fn complete_broadcasts(&mut self, memory: &Memory, cpu: usize) -> Option<Violation> {
        let is_done = |page| self.broadcasts.contains(&(cpu, page));
        let then = self.unpublished_then.iter().filter(|&&(issuer, _)| issuer == cpu);
        let again: Vec<_> = then.map(|&(_, cached)| cached).collect();
        for cached in self.cached.iter_mut().chain(&mut self.since_complete) {
            cached.retain(|&(page, ..)| !is_done(page));
            cached.extend(&again);
        }
        self.broadcasts.retain(|&(issuer, _)| issuer != cpu);
        self.unpublished_then.retain(|&(issuer, _)| issuer != cpu);
        self.fill(memory)
    }

    /// Reuses a frame.
    pub(crate) fn reuse(&mut self, frame: usize) -> Option<Violation> {
        self.incarnations[frame] += 1;
        self.check()
    }

    fn check(&self) -> Option<Violation> {
        let online = (0..self.cached.len()).filter(|cpu| self.online >> cpu & 1 == 1);
        online.into_iter().find_map(|cpu| {
            let is_old = |&&(_, entry, incarnation): &&(usize, Entry, u32)| {
                incarnation != self.incarnations[entry.target()]
            };
            let &(page, ..) = self.cached[cpu].iter().find(is_old)?;
            Some(Violation::UsesReusedKernel { cpu, page })
        })
    }
}
