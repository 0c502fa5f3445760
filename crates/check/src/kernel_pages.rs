//! The kernel's own pages. Every online CPU uses them, in whatever space it runs. Their
//! translations have no tag and belong to no root.
//!
//! All pages have one table, to which all roots point. A device that uses a space walks this table
//! as well, and may keep its pointer to the table. A device cannot use the kernel's pages.

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

use crate::hardware::{Completion, Entry, Violation};
use crate::memory::Memory;
use crate::profile::{Erratum, Invalidations, Profile, UpperLevels};

/// The page that a CPU uses when it enters the kernel from user mode, before it catches up.
pub(crate) const ENTRY_PAGE: usize = 1;

/// A page, its entry, and the incarnation of the entry's frame at that time.
type CachedPage = (usize, Entry, u32);

/// The translations of the kernel's pages that CPUs may hold.
#[derive(Debug)]
pub(crate) struct KernelPages {
    profile: Profile,
    /// The words of the page table. Empty if there is none.
    words: Vec<u32>,
    /// The word that points to the table.
    link: Option<u32>,
    is_table_free: bool,
    /// The walkers that may hold a pointer to the table, one bit each: the CPUs, then the device.
    walkers: u128,
    /// The walkers that may have found the pointer since `since_complete`.
    walkers_since: u128,
    /// The CPUs that have overwritten `link` since they last published, one bit each.
    unlinked: u128,
    /// Number of times that each frame was reused.
    incarnations: Vec<u32>,
    /// The translations that each CPU may hold.
    cached: Vec<BTreeSet<CachedPage>>,
    /// The translations that each CPU may have found since its earlier loads were last complete. An
    /// invalidation of everything may take effect as early as that.
    since_complete: Vec<BTreeSet<CachedPage>>,
    /// For each CPU, the pages of which it may hold that they are not mapped, one bit each.
    absent: Vec<u64>,
    /// The entries that each CPU has overwritten since it last published, as in
    /// `hardware::unpublished`.
    unpublished: Vec<Vec<CachedPage>>,
    /// The online CPUs, one bit each, and the device if it is attached.
    online: u128,
    /// The CPUs that are in user mode, one bit each, and use [`ENTRY_PAGE`] only. They may walk the
    /// table.
    in_user: u128,
    /// The CPUs that have used a tag, one bit each.
    tagged: u64,
    broadcasts: Vec<Broadcast>,
}

/// An incomplete broadcast.
#[derive(Clone, Debug, Hash)]
struct Broadcast {
    issuer: usize,
    /// The pages, one bit each.
    pages: u64,
    upper: bool,
    /// The entries that its issuer had overwritten and not published when it issued the broadcast.
    unpublished: Vec<CachedPage>,
    has_unlinked: bool,
    /// The issuer has waited for it, and the wait has ended too early.
    has_waited: bool,
}

impl KernelPages {
    pub(crate) fn new(profile: Profile, cpus: usize) -> Self {
        let cached = vec![BTreeSet::new(); cpus];
        Self {
            profile,
            words: Vec::new(),
            link: None,
            is_table_free: false,
            walkers: 0,
            walkers_since: 0,
            unlinked: 0,
            incarnations: Vec::new(),
            since_complete: cached.clone(),
            cached,
            absent: vec![0; cpus],
            unpublished: vec![Vec::new(); cpus],
            online: 0,
            in_user: 0,
            tagged: 0,
            broadcasts: Vec::new(),
        }
    }

    fn is_early(&self) -> bool {
        self.profile.invalidations == Invalidations::Early
    }

    /// The device's bit, after those of the CPUs.
    fn device(&self) -> u128 {
        1 << self.cached.len()
    }

    /// Sets the words of the page table and the word that points to it. Each entry has a frame of
    /// the same number.
    pub(crate) fn set_words(
        &mut self,
        memory: &Memory,
        words: Vec<u32>,
        link: u32,
    ) -> Option<Violation> {
        self.incarnations = vec![0; words.len()];
        (self.words, self.link) = (words, Some(link));
        self.fill(memory)
    }

    pub(crate) fn set_online(&mut self, cpu: usize, is_online: bool) -> Option<Violation> {
        self.online = self.online & !(1 << cpu) | u128::from(is_online) << cpu;
        self.check()
    }

    pub(crate) fn set_in_user(&mut self, cpu: usize, is_in_user: bool) -> Option<Violation> {
        self.in_user = self.in_user & !(1 << cpu) | u128::from(is_in_user) << cpu;
        self.check()
    }

    /// Attaches the device, which walks the table, or detaches it.
    pub(crate) fn set_attached(&mut self, memory: &Memory, is_attached: bool) -> Option<Violation> {
        let device = self.device();
        self.walkers &= !device;
        self.online = if is_attached { self.online | device } else { self.online & !device };
        self.fill(memory)
    }

    /// Records that a CPU has loaded a root under a tag.
    pub(crate) fn note_tag(&mut self, cpu: usize, tag: u16) {
        if tag != 0 && self.profile.erratum == Some(Erratum::GlobalPagesKept) {
            self.tagged |= 1 << cpu;
        }
    }

    /// Records that a CPU has written an entry.
    pub(crate) fn written(
        &mut self,
        memory: &Memory,
        cpu: usize,
        word: u32,
        before: Entry,
    ) -> Option<Violation> {
        if self.is_early() && before.is_present() {
            match self.words.iter().position(|&it| it == word) {
                Some(page) => {
                    let incarnation = self.incarnations[before.target()];
                    self.unpublished[cpu].push((page, before, incarnation));
                }
                None => self.unlinked |= 1 << cpu,
            }
        }
        self.fill(memory)
    }

    /// Orders a CPU's page-table writes before its later invalidations: walkers find the new
    /// entries.
    pub(crate) fn publish(&mut self, cpu: usize) {
        self.unpublished[cpu].clear();
        self.unlinked &= !(1 << cpu);
    }

    /// Orders a CPU's earlier accesses before its later invalidations.
    pub(crate) fn order_invalidations(&mut self, memory: &Memory, cpu: usize) {
        if self.is_early() {
            let is_walker = self.is_linked(memory);
            self.walkers_since = self.walkers_since & !(1 << cpu) | u128::from(is_walker) << cpu;
            self.since_complete[cpu] = self.present(memory).collect();
        }
    }

    /// Returns `true` if the roots point to the table.
    fn is_linked(&self, memory: &Memory) -> bool {
        self.link.is_some_and(|link| Entry(memory.value(link)).is_present())
    }

    /// The translations in the page table.
    fn present(&self, memory: &Memory) -> impl Iterator<Item = CachedPage> {
        let entries = self.words.iter().map(|&word| Entry(memory.value(word))).enumerate();
        let present = entries.filter(|(_, entry)| entry.is_present());
        present.map(|(page, entry)| (page, entry, self.incarnations[entry.target()]))
    }

    /// Adds the translations in the page table to every CPU that can walk it, online or not.
    fn fill(&mut self, memory: &Memory) -> Option<Violation> {
        if self.is_linked(memory) {
            let cpus = self.device() - 1;
            self.walkers |= cpus | self.online;
            self.walkers_since |= cpus;
        }
        let present: Vec<_> = self.present(memory).collect();
        let mapped = present.iter().fold(0, |set, &(page, ..)| set | 1_u64 << page);
        let all = (1_u64 << self.words.len()) - 1;
        for cpu in 0..self.cached.len() {
            if self.walkers >> cpu & 1 == 1 {
                self.cached[cpu].extend(&present);
            }
            if self.is_early() && self.walkers_since >> cpu & 1 == 1 {
                self.since_complete[cpu].extend(&present);
            }
            if self.profile.caches_absence {
                self.absent[cpu] |= if self.is_linked(memory) { all & !mapped } else { all };
            }
        }
        self.check()
    }

    pub(crate) fn contains(&self, word: u32) -> bool {
        self.words.contains(&word) || self.link == Some(word)
    }

    /// Invalidates pages on a CPU, and its pointer to the table if `upper` is set.
    pub(crate) fn invalidate_pages(
        &mut self,
        memory: &Memory,
        cpu: usize,
        pages: impl Fn(usize) -> bool,
        upper: bool,
    ) -> Option<Violation> {
        let is_ignored = match self.profile.erratum {
            Some(Erratum::NamesIgnored) => true,
            Some(Erratum::GlobalPagesKept) => self.tagged >> cpu & 1 == 1,
            _ => false,
        };
        if is_ignored {
            return None;
        }
        self.remove(cpu, self.bits(pages), upper);
        self.refetch_unpublished(cpu);
        // The invalidation is complete when it returns, and so are all earlier loads.
        self.order_invalidations(memory, cpu);
        self.fill(memory)
    }

    /// Returns pages as a set, one bit each.
    fn bits(&self, pages: impl Fn(usize) -> bool) -> u64 {
        (0..self.words.len()).filter(|&page| pages(page)).fold(0, |set, page| set | 1 << page)
    }

    fn remove(&mut self, cpu: usize, pages: u64, upper: bool) {
        self.cached[cpu].retain(|&(page, ..)| pages >> page & 1 == 0);
        self.absent[cpu] &= !pages;
        if upper || self.profile.upper_levels == UpperLevels::DroppedWithPages {
            self.walkers &= !(1 << cpu);
        }
    }

    /// After an invalidation, a CPU may again read what it has overwritten and not published.
    fn refetch_unpublished(&mut self, cpu: usize) {
        self.cached[cpu].extend(&self.unpublished[cpu]);
        self.walkers |= self.unlinked & 1 << cpu;
    }

    /// Invalidates everything on a CPU.
    ///
    /// A CPU that is online invalidates everything only because of a value that it has loaded, and
    /// that dependency orders the invalidation after the load. A CPU that is not online yet does so
    /// whatever it has loaded. Its invalidation may take effect as early as when its loads were
    /// last complete, and the CPU may then hold every translation that it has found since.
    pub(crate) fn invalidate_all(&mut self, memory: &Memory, cpu: usize) -> Option<Violation> {
        self.remove(cpu, u64::MAX, true);
        if self.is_early() && self.online >> cpu & 1 == 0 {
            self.cached[cpu].clone_from(&self.since_complete[cpu]);
            self.walkers |= self.walkers_since & 1 << cpu;
        }
        self.refetch_unpublished(cpu);
        // The invalidation is complete when it returns, and so are all earlier loads.
        self.order_invalidations(memory, cpu);
        self.fill(memory)
    }

    /// Invalidates the device's pointer to the table.
    pub(crate) fn invalidate_device(&mut self, memory: &Memory) -> Option<Violation> {
        self.walkers &= !self.device();
        self.fill(memory)
    }

    pub(crate) fn issue_broadcast(
        &mut self,
        issuer: usize,
        pages: impl Fn(usize) -> bool,
        upper: bool,
    ) {
        let pages = self.bits(pages);
        let unpublished = self.unpublished[issuer].clone();
        let has_unlinked = self.unlinked >> issuer & 1 == 1;
        let has_waited = false;
        let broadcast = Broadcast { issuer, pages, upper, unpublished, has_unlinked, has_waited };
        self.broadcasts.push(broadcast);
    }

    /// Completes a CPU's broadcasts, as `completion` allows.
    pub(crate) fn complete_broadcasts(
        &mut self,
        memory: &Memory,
        cpu: usize,
        completion: Completion,
    ) -> Option<Violation> {
        for mut broadcast in std::mem::take(&mut self.broadcasts) {
            let is_complete = completion.includes(broadcast.has_waited);
            for target in 0..self.cached.len() {
                if broadcast.issuer == cpu && (is_complete || target == cpu) {
                    self.apply(target, &broadcast);
                }
            }
            if broadcast.issuer == cpu && is_complete && broadcast.upper {
                self.walkers &= !self.device();
            }
            if broadcast.issuer != cpu || !is_complete {
                broadcast.has_waited |= broadcast.issuer == cpu;
                self.broadcasts.push(broadcast);
            }
        }
        self.fill(memory)
    }

    fn apply(&mut self, cpu: usize, by: &Broadcast) {
        self.remove(cpu, by.pages, by.upper);
        self.since_complete[cpu].retain(|&(page, ..)| by.pages >> page & 1 == 0);
        self.cached[cpu].extend(&by.unpublished);
        self.since_complete[cpu].extend(&by.unpublished);
        if by.upper {
            self.walkers_since &= !(1 << cpu);
        }
        let unlinked = u128::from(by.has_unlinked) << cpu;
        self.walkers |= unlinked;
        self.walkers_since |= unlinked;
    }

    /// Uses a page that the kernel has mapped.
    pub(crate) fn touch(&self, memory: &Memory, cpu: usize, page: usize) -> Option<Violation> {
        let is_mapped = Entry(memory.value(self.words[page])).is_present();
        let may_fault = !is_mapped || self.absent[cpu] >> page & 1 == 1;
        may_fault.then_some(Violation::FaultsOnMapped { cpu, page })
    }

    /// Reuses a frame.
    pub(crate) fn reuse(&mut self, frame: usize) -> Option<Violation> {
        self.incarnations[frame] += 1;
        self.check()
    }

    /// Frees the table: no walker may use it.
    pub(crate) fn free_table(&mut self) -> Option<Violation> {
        self.is_table_free = true;
        self.check()
    }

    fn check(&self) -> Option<Violation> {
        let walkers = self.walkers & self.online;
        if self.is_table_free && walkers != 0 {
            let walker = walkers.trailing_zeros() as usize;
            return Some(Violation::walks_freed(walker, self.cached.len()));
        }
        let online = (0..self.cached.len()).filter(|cpu| self.online >> cpu & 1 == 1);
        online.into_iter().find_map(|cpu| {
            let is_old = |&&(_, entry, incarnation): &&(usize, Entry, u32)| {
                incarnation != self.incarnations[entry.target()]
            };
            let is_in_user = self.in_user >> cpu & 1 == 1;
            let is_used = |&&(page, ..): &&CachedPage| !is_in_user || page == ENTRY_PAGE;
            let &(page, ..) = self.cached[cpu].iter().filter(is_used).find(is_old)?;
            Some(Violation::UsesReusedKernel { cpu, page })
        })
    }
}

/// Hashes everything that can change during a run.
impl Hash for KernelPages {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { is_table_free, walkers, walkers_since, unlinked, .. } = self;
        let Self { incarnations, cached, since_complete, absent, .. } = self;
        let Self { unpublished, online, in_user, tagged, broadcasts, .. } = self;
        (is_table_free, walkers, walkers_since, unlinked, online, in_user, tagged).hash(state);
        (incarnations, cached, since_complete, absent, unpublished, broadcasts).hash(state);
    }
}
