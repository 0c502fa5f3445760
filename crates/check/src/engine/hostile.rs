//! The hostile machine, as the engine sees it.

#![expect(unsafe_code, reason = "implements `Machine`")]

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuId, CpuSet, CpuState, Entries, Extent, Lifetime, Machine,
    Memory, NotifyCosts, PageSize, Reach, Root, Rule, Space, Tag, TagSlot, Tagging,
};

use super::{Config, Tags};
use crate::hardware::{Keeps, PAGES, SLOTS};
use crate::sometimes::Sometimes;
use crate::world::{CheckWord, Upper, World, complete_accesses, fence, publish, with_world};

/// The hostile machine, as the engine sees it, with a way to end spaces, and sets of CPUs of so
/// many words.
#[derive(Debug)]
pub struct Hostile<const LIFETIME: u8, const WORDS: usize> {
    cpus: Vec<CpuState<Self>>,
    tags: Tags,
    broken: Option<Rule>,
    /// Which CPU has retired each space: by the number of its root.
    retired_by: RefCell<Vec<(usize, usize)>>,
    /// How many spaces each CPU has freed.
    freed: Vec<Cell<usize>>,
}

pub(super) const HANDOFF: u8 = 0;
pub(super) const SHOOT: u8 = 1;
pub(super) const COUNTED: u8 = 2;

/// CPUs of a word of a set.
const WORD_BITS: usize = 64;

// SAFETY: a run and all that belongs to it stays on one thread of the host.
unsafe impl<const LIFETIME: u8, const WORDS: usize> Sync for Hostile<LIFETIME, WORDS> {}

impl<const LIFETIME: u8, const WORDS: usize> Hostile<LIFETIME, WORDS> {
    pub(super) fn new(world: &World, config: Config) -> Self {
        let cpu = |number| {
            world.with_names(CpuState::new, |place| {
                let name = CPU_WORDS.get(place).unwrap_or(&"another word");
                format!("{name} of CPU {number}")
            })
        };
        let cpus = (0..config.cpus).map(cpu).collect();
        let freed = vec![Cell::new(0); config.cpus];
        let Config { tags, broken, .. } = config;
        Self { cpus, tags, broken, retired_by: RefCell::default(), freed }
    }

    /// The engine's number of a CPU: CPUs are dealt out to the words of sets in turn.
    pub(super) const fn id(cpu: usize) -> CpuId {
        CpuId((cpu % WORDS * WORD_BITS + cpu / WORDS) as u32)
    }

    /// The CPU with a number of the engine's.
    const fn cpu_of(id: CpuId) -> usize {
        id.index() % WORD_BITS * WORDS + id.index() / WORD_BITS
    }

    /// How many spaces the calling CPU has freed so far.
    pub(super) fn freed(&self) -> usize {
        self.freed[with_world(World::cpu)].get()
    }

    /// This CPU is about to retire the space with this root.
    pub(super) fn retires(&self, root: usize, cpu: usize) {
        self.retired_by.borrow_mut().push((root, cpu));
    }
}

// SAFETY: a fence takes effect before the method returns. `breaks` is only ever true in runs that
// expect the engine to fail.
unsafe impl<const LIFETIME: u8, const WORDS: usize> Memory for Hostile<LIFETIME, WORDS> {
    type Word = CheckWord;

    fn fence(&self) {
        fence();
    }
    fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }
}

// SAFETY: everything takes effect before the method returns; interrupts arrive, for every CPU takes
// them whenever it does not mask them, and none does so for ever.
unsafe impl<const LIFETIME: u8, const WORDS: usize> Machine for Hostile<LIFETIME, WORDS> {
    type CpuBits = [u64; WORDS];
    type TagSlots = [TagSlot; 2];
    type TagWords = [CheckWord; 2];
    type Broadcaster = Self;

    const LIFETIME: Lifetime = match LIFETIME {
        HANDOFF => Lifetime::Handoff,
        SHOOT => Lifetime::Shoot,
        COUNTED => Lifetime::Counted,
        _ => panic!("there are three"),
    };

    fn state(&self, cpu: CpuId) -> &CpuState<Self> {
        &self.cpus[Self::cpu_of(cpu)]
    }
    fn cpu(&self) -> CpuId {
        Self::id(with_world(World::cpu))
    }
    fn cpu_limit(&self) -> usize {
        let ids = (0..self.cpus.len()).map(|cpu| Self::id(cpu).index());
        ids.max().map_or(0, |last| last + 1)
    }
    fn interrupts_masked(&self) -> bool {
        with_world(World::is_masked)
    }
    fn publish(&self) {
        publish();
    }
    fn synchronize(&self) {
        complete_accesses();
    }
    fn tagging(&self) -> Tagging {
        match self.tags {
            Tags::PerCpu(_) => Tagging::PerCpu,
            Tags::Global(_) | Tags::Broadcast(_) => Tagging::Global,
            Tags::Renamed(_) => Tagging::Renamed,
        }
    }
    fn tag_count(&self) -> usize {
        match self.tags {
            Tags::PerCpu(count)
            | Tags::Global(count)
            | Tags::Broadcast(count)
            | Tags::Renamed(count) => count,
        }
    }
    fn catch_up_ceiling(&self) -> usize {
        self.flush_ceiling()
    }
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        let keeps = match entries {
            Entries::Keep => Keeps::Everything,
            Entries::Discard => Keeps::Nothing,
        };
        with_world(|world| world.load_root(Some(root.0 as usize), tag.0, keeps));
    }
    fn load_kernel(&self) {
        // Where there are no tags, user translations are under the kernel's.
        let keeps = if self.tag_count() == 0 { Keeps::Nothing } else { Keeps::Everything };
        with_world(|world| world.load_root(None, Tag::KERNEL.0, keeps));
    }
    fn invalidate(&self, _: Tag, extent: Extent) {
        with_world(|world| world.drop_pages(|page| covers(extent, page), upper(extent)));
    }
    fn invalidate_tag(&self, tag: Tag) {
        with_world(|world| world.drop_tag(Some(tag.0)));
    }
    fn invalidate_kernel(&self, extent: Extent) {
        with_world(|world| world.drop_kernel_pages(|page| covers(extent, page)));
    }
    fn invalidate_all(&self) {
        with_world(|world| world.drop_tag(None));
    }
    fn traps_stale_writes(&self) -> bool {
        with_world(|world| world.profile().traps_stale_writes)
    }
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        for cpu in cpus.iter() {
            if cpu.index() >= WORD_BITS {
                with_world(|world| world.reach(Sometimes::RangInSecondWord));
            }
            with_world(|world| world.ring(Self::cpu_of(cpu)));
        }
    }
    fn broadcaster(&self) -> Option<&Self> {
        matches!(self.tags, Tags::Broadcast(_)).then_some(self)
    }
    fn reclaim(&self, space: NonNull<Space<Self>>) {
        // SAFETY: it is ours again, and spaces live as long as the run.
        let root = unsafe { space.as_ref() }.root().0 as usize;
        with_world(|world| {
            world.free_root(root);
            self.freed[world.cpu()].update(|count| count + 1);
            if !self.retired_by.borrow().contains(&(root, world.cpu())) {
                world.reach(Sometimes::HandedOff);
            }
        });
    }
    fn spin_hint(&self) {
        with_world(World::spin_hint);
    }
    fn wait_hint(&self, _: &CpuSet<Self::CpuBits>) {
        with_world(World::spin_hint);
    }
}

// SAFETY: a broadcast takes effect on every CPU before `complete` returns.
unsafe impl<const LIFETIME: u8, const WORDS: usize> Broadcaster for Hostile<LIFETIME, WORDS> {
    fn capabilities(&self) -> Broadcast {
        Broadcast { reach: Reach::Everyone, pages_per_operation: 1, operation_ceiling: 4 }
    }
    fn costs(&self) -> NotifyCosts {
        // The engine broadcasts whenever it may.
        NotifyCosts { interrupt_ns: 1000, interrupt_each_ns: 1000, ..NotifyCosts::default() }
    }
    fn broadcast<B: CpuBits>(&self, _: &CpuSet<B>, tag: Tag, extent: Extent) {
        let covered = |page| covers(extent, page);
        with_world(|world| world.broadcast_under(tag.0, covered, upper(extent)));
    }
    fn broadcast_kernel(&self, extent: Extent) {
        with_world(|world| world.broadcast_kernel(|page| covers(extent, page)));
    }
    fn complete(&self) -> u64 {
        with_world(World::complete_broadcasts);
        0
    }
}

/// A CPU's words, in the order in which the engine makes them: for histories alone.
const CPU_WORDS: [&str; 7] = [
    "the presence",
    "what is held",
    "what is seen",
    "the tag",
    "the last tag",
    "the bell",
    "the answer",
];

/// Whether an extent covers a page of a table, by its number, or the large page of an entry of the
/// root, whose number comes after those. An extent of large pages need not cover small ones there.
pub(super) fn covers(extent: Extent, page: usize) -> bool {
    let is_covered = |page: usize| extent.covers((page as u64) << 12);
    match page.checked_sub(SLOTS * PAGES) {
        _ if extent.is_whole() => true,
        None => extent.page_size() == PageSize::SIZE_4K && is_covered(page),
        Some(slot) => (slot * PAGES..(slot + 1) * PAGES).any(is_covered),
    }
}

fn upper(extent: Extent) -> Upper {
    if extent.frees_tables() || extent.is_whole() { Upper::Dropped } else { Upper::Kept }
}
