//! A machine on one thread, that looks at each load of a root: who has a tag, and what is cached
//! under it.
//!
//! Each root maps 2 MiB, as a block, as small pages, or not now. Nothing is ever evicted, a
//! broadcast takes effect when it is completed, and a test can have something happen on other CPUs
//! in the middle of a switch.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuId, CpuSet, CpuState, CpuStats, Entries, Extent, Machine,
    Memory, NotifyCosts, PageSize, PinnedCpu, Reach, Root, Rule, Shootdown, Space, Tag, TagSlot,
    Tagging,
};

/// How many CPUs, spaces and tags there are, and how the latter are given.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) cpus: u32,
    pub(crate) spaces: usize,
    pub(crate) tags: usize,
    pub(crate) tagging: Tagging,
    pub(crate) broadcast: Option<Reach>,
    pub(crate) broken: Option<Rule>,
}

impl Size {
    pub(crate) const SMALL: Self = Self {
        cpus: 4,
        spaces: 20,
        tags: 7,
        tagging: Tagging::Global,
        broadcast: Some(Reach::Everyone),
        broken: None,
    };
}

/// What a walk has found: of which root, when that was, and how large the page was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Walked {
    root: Root,
    version: u64,
    size: PageSize,
}

/// What a broadcast drops, and where.
type Told = (Vec<usize>, Tag, Extent);

#[derive(Default)]
struct Core {
    root: Option<Root>,
    tag: u16,
    /// What is cached under each tag: one for each size.
    cached: HashMap<u16, Vec<Walked>>,
    /// The page tables that are cached under each tag: of which root, and the how-many-th.
    upper: HashMap<u16, (Root, u64)>,
    emptied: u64,
    issued: Vec<Told>,
    /// In the middle of a load: what is loaded is on its way out.
    is_loading: bool,
}

/// What became of a root so far.
struct Table {
    /// Its page was changed so often, and all that was cached before this change must be gone.
    version: AtomicU64,
    freed: AtomicU64,
    /// The same of its tables.
    tables: AtomicU64,
    freed_tables: AtomicU64,
    /// As what it is mapped now, if at all.
    mapped: Mutex<Option<PageSize>>,
}

/// When something happens on other CPUs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Before a root is loaded.
    Load,
    /// Before a flush chooses how to tell those whom it has found.
    Choice,
}

/// What happens.
type Interlude = Box<dyn FnOnce() + Send>;

/// The machine. `WORDS` is the room for the book of tags and of pins.
pub(crate) struct Hardware<const WORDS: usize> {
    size: Size,
    current: AtomicU32,
    states: Vec<CpuState<Self>>,
    cores: Vec<Mutex<Core>>,
    interrupts: Vec<AtomicBool>,
    tables: Vec<Table>,
    interlude: Mutex<Option<(Moment, Interlude)>>,
    /// Both sizes of one page were cached at the same time.
    pub(crate) conflicts: AtomicU64,
    pub(crate) freed_table_walks: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<const WORDS: usize> Hardware<WORDS> {
    fn new(size: Size) -> Self {
        let table = |_| Table {
            version: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            tables: AtomicU64::new(0),
            freed_tables: AtomicU64::new(0),
            mapped: Mutex::new(Some(PageSize::SIZE_4K)),
        };
        Self {
            size,
            current: AtomicU32::new(0),
            states: (0..size.cpus).map(|_| CpuState::new()).collect(),
            cores: (0..size.cpus).map(|_| Mutex::default()).collect(),
            interrupts: (0..size.cpus).map(|_| AtomicBool::new(false)).collect(),
            tables: (0..size.spaces).map(table).collect(),
            interlude: Mutex::new(None),
            conflicts: AtomicU64::new(0),
            freed_table_walks: AtomicU64::new(0),
        }
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.cores[self.cpu().index()])
    }

    fn table(&self, root: Root) -> &Table {
        &self.tables[root.0 as usize]
    }

    /// Walks what is loaded, as speculation may at any moment.
    fn walk(&self, core: &mut Core) {
        if let Some(root) = core.root {
            let tables = self.table(root).tables.load(Relaxed);
            core.upper.entry(core.tag).or_insert((root, tables));
        }
        if let Some(&(root, tables)) = core.upper.get(&core.tag)
            && tables < self.table(root).freed_tables.load(Relaxed)
        {
            self.freed_table_walks.fetch_add(1, Relaxed);
        }
        let Some(root) = core.root else { return };
        let table = self.table(root);
        let Some(size) = *lock(&table.mapped) else { return };
        let cached = core.cached.entry(core.tag).or_default();
        if cached.iter().all(|walked| walked.size != size) {
            cached.push(Walked { root, version: table.version.load(Relaxed), size });
        }
        self.conflicts.fetch_add(u64::from(cached.len() > 1), Relaxed);
    }

    /// Drops what is told: of the page's small ones, no test has another than the first.
    fn drop_told(core: &mut Core, tag: Tag, extent: Extent) {
        if extent.is_whole() || extent.covers(0) {
            core.cached.remove(&tag.0);
        }
        if extent.is_whole() || extent.frees_tables() {
            core.upper.remove(&tag.0);
        }
    }

    /// Has it happen now, if it is to.
    fn play_interlude(&self, now: Moment) {
        let cpu = self.cpu();
        let interlude = lock(&self.interlude).take_if(|(moment, _)| *moment == now);
        if let Some((_, play)) = interlude {
            play();
            self.current.store(cpu.0, Relaxed);
        }
    }

    /// No CPU that has a space loaded has its tag from another one.
    fn assert_unshared(&self, root: Root, tag: Tag) {
        for (other, core) in self.cores.iter().enumerate() {
            if other == self.cpu().index() || self.size.tagging != Tagging::Global {
                continue;
            }
            let core = lock(core);
            let is_other = core.root.is_some_and(|loaded| loaded != root) && !core.is_loading;
            let is_shared = core.tag == tag.0 && is_other;
            assert!(!is_shared, "{tag:?} is {root:?} and, on CPU {other}, {:?}", core.root);
        }
    }
}

// SAFETY: one thread is all CPUs by turns. A test that breaks a rule expects the engine to fail.
unsafe impl<const WORDS: usize> Memory for Hardware<WORDS> {
    type Word = AtomicU64;

    fn fence(&self) {}
    fn breaks(&self, rule: Rule) -> bool {
        self.size.broken == Some(rule)
    }
}

// SAFETY: one thread is all CPUs by turns, and everything takes effect at once.
unsafe impl<const WORDS: usize> Machine for Hardware<WORDS> {
    type CpuBits = [u64; 1];
    type TagSlots = [TagSlot; 6];
    type TagWords = [AtomicU64; WORDS];
    type Broadcaster = Self;

    fn state(&self, cpu: CpuId) -> &CpuState<Self> {
        &self.states[cpu.index()]
    }
    fn cpu(&self) -> CpuId {
        CpuId(self.current.load(Relaxed))
    }
    fn interrupts_masked(&self) -> bool {
        true
    }
    fn publish(&self) {}
    fn tagging(&self) -> Tagging {
        self.size.tagging
    }
    fn tag_count(&self) -> usize {
        self.size.tags
    }
    fn cpu_limit(&self) -> usize {
        self.size.cpus as usize
    }
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        self.core().is_loading = true;
        self.play_interlude(Moment::Load);
        self.core().is_loading = false;
        if tag != Tag::KERNEL {
            self.assert_unshared(root, tag);
        }
        let mut core = self.core();
        self.walk(&mut core);
        (core.root, core.tag) = (Some(root), tag.0);
        if entries == Entries::Discard {
            Self::drop_told(&mut core, tag, Extent::whole());
        }
        let is_of_another = |walked: &Walked| walked.root != root;
        let is_mixed = core.cached.get(&tag.0).is_some_and(|of| of.iter().any(is_of_another));
        assert!(!is_mixed, "{tag:?} still has another space's page");
        self.walk(&mut core);
    }
    fn load_kernel(&self) {
        let mut core = self.core();
        self.walk(&mut core);
        (core.root, core.tag) = (None, 0);
        if self.size.tags == 0 {
            Self::drop_told(&mut core, Tag::KERNEL, Extent::whole());
        }
        self.walk(&mut core);
    }
    fn invalidate(&self, tag: Tag, extent: Extent) {
        let mut core = self.core();
        self.walk(&mut core);
        Self::drop_told(&mut core, tag, extent);
    }
    fn invalidate_tag(&self, tag: Tag) {
        self.invalidate(tag, Extent::whole());
    }
    fn invalidate_kernel(&self, _extent: Extent) {}
    fn invalidate_all(&self) {
        let mut core = self.core();
        core.cached.clear();
        core.upper.clear();
        core.emptied += 1;
        // At once, with what is loaded still.
        self.walk(&mut core);
    }
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        cpus.iter().for_each(|cpu| self.interrupts[cpu.index()].store(true, Relaxed));
    }
    fn broadcaster(&self) -> Option<&Self> {
        self.size.broadcast.map(|_| self)
    }
    fn reclaim(&self, _space: NonNull<Space<Self>>) {}
    fn wait_hint(&self, waiting: &CpuSet<Self::CpuBits>) {
        panic!("nobody else runs, to answer for {waiting:?}");
    }
}

// SAFETY: broadcasts take effect when they are completed.
unsafe impl<const WORDS: usize> Broadcaster for Hardware<WORDS> {
    fn capabilities(&self) -> Broadcast {
        let reach = self.size.broadcast.expect("the machine has a broadcaster");
        Broadcast { reach, pages_per_operation: 1, operation_ceiling: 8 }
    }
    fn costs(&self) -> NotifyCosts {
        self.play_interlude(Moment::Choice);
        NotifyCosts { interrupt_ns: 1000, broadcast_ns: 1, ..NotifyCosts::default() }
    }
    fn broadcast<B: CpuBits>(&self, cpus: &CpuSet<B>, tag: Tag, extent: Extent) {
        let to = match self.size.broadcast {
            Some(Reach::Targets) => cpus.iter().map(CpuId::index).collect(),
            _ => (0..self.cores.len()).collect(),
        };
        self.core().issued.push((to, tag, extent));
    }
    fn broadcast_kernel(&self, _extent: Extent) {
        unreachable!("no test flushes the kernel's translations");
    }
    fn complete(&self) -> u64 {
        let issued = std::mem::take(&mut self.core().issued);
        for (to, tag, extent) in issued {
            for cpu in to {
                let mut core = lock(&self.cores[cpu]);
                self.walk(&mut core);
                Self::drop_told(&mut core, tag, extent);
            }
        }
        0
    }
}

/// The machine with its spaces, and all CPUs online.
pub(crate) struct System<const WORDS: usize> {
    pub(crate) engine: Shootdown<Hardware<WORDS>>,
    pub(crate) spaces: Vec<Space<Hardware<WORDS>>>,
}

impl<const WORDS: usize> System<WORDS> {
    pub(crate) fn new(size: Size) -> Self {
        let engine = Shootdown::new(Hardware::new(size));
        let spaces = (0..size.spaces as u64).map(|root| engine.space(Root(root))).collect();
        let system = Self { engine, spaces };
        (0..size.cpus).for_each(|cpu| system.pin(cpu).online());
        system
    }

    pub(crate) fn machine(&self) -> &Hardware<WORDS> {
        self.engine.machine()
    }

    pub(crate) fn pin(&self, cpu: u32) -> PinnedCpu<'_, Hardware<WORDS>> {
        self.machine().current.store(cpu, Relaxed);
        // SAFETY: the one thread is that CPU now, and no token is in use in two places at a time.
        unsafe { self.engine.pin() }
    }

    pub(crate) fn switch(&self, cpu: u32, space: usize) {
        // SAFETY: the spaces live as long as the machine, and do not move.
        unsafe { self.pin(cpu).switch(&self.spaces[space]) };
    }

    /// Has something happen when the next such moment comes.
    pub(crate) fn before_next(&self, moment: Moment, play: impl FnOnce() + Send + 'static) {
        *lock(&self.machine().interlude) = Some((moment, Box::new(play)));
    }

    /// Changes the page of a space, flushes on `cpu`, has all who are interrupted answer; waits.
    pub(crate) fn flush(&self, cpu: u32, space: usize, extent: Extent) {
        let table = &self.machine().tables[space];
        let version = table.version.fetch_add(1, Relaxed) + 1;
        let tables = match extent.frees_tables() {
            true => table.tables.fetch_add(1, Relaxed) + 1,
            false => table.freed_tables.load(Relaxed),
        };
        let mut pending = self.pin(cpu).flush(&self.spaces[space], extent);
        self.answer_all();
        self.pin(cpu);
        pending.wait();
        table.freed.fetch_max(version, Relaxed);
        table.freed_tables.fetch_max(tables, Relaxed);
    }

    /// Puts other page tables in the place of a space's.
    pub(crate) fn unhook_tables(&self, space: usize) {
        self.machine().tables[space].tables.fetch_add(1, Relaxed);
    }

    /// Gives those away that were unhooked.
    pub(crate) fn free_tables(&self, space: usize) {
        let Table { tables, freed_tables, .. } = &self.machine().tables[space];
        freed_tables.store(tables.load(Relaxed), Relaxed);
    }

    /// Maps what a space maps in another size, or not at all.
    pub(crate) fn map(&self, space: usize, size: Option<PageSize>) {
        *lock(&self.machine().tables[space].mapped) = size;
    }

    /// All CPUs that were interrupted answer.
    pub(crate) fn answer_all(&self) {
        for (cpu, interrupt) in (0..).zip(&self.machine().interrupts) {
            if interrupt.swap(false, Relaxed) {
                self.pin(cpu).handle_flush_ipi();
            }
        }
    }

    pub(crate) fn speculate(&self, cpu: u32) {
        let machine = self.machine();
        machine.walk(&mut lock(&machine.cores[cpu as usize]));
    }

    /// `cpu` uses the page of the space that it has loaded: it must not be one that was given away.
    pub(crate) fn touch(&self, cpu: u32) {
        self.speculate(cpu);
        let core = lock(&self.machine().cores[cpu as usize]);
        let root = core.root.expect("a space is loaded");
        let freed = self.machine().table(root).freed.load(Relaxed);
        for walked in core.cached.get(&core.tag).into_iter().flatten() {
            assert!(walked.root == root && walked.version >= freed, "CPU {cpu} uses {walked:?}");
        }
    }

    pub(crate) fn stats(&self, cpu: u32) -> CpuStats {
        self.engine.cpu(CpuId(cpu)).stats()
    }

    /// What all CPUs did together.
    pub(crate) fn total_stats(&self) -> CpuStats {
        let mut total = CpuStats::default();
        (0..self.machine().size.cpus).for_each(|cpu| total += self.stats(cpu));
        total
    }

    /// How often a CPU's TLB was emptied.
    pub(crate) fn emptied(&self, cpu: u32) -> u64 {
        lock(&self.machine().cores[cpu as usize]).emptied
    }

    /// The tag that a CPU has loaded.
    pub(crate) fn tag(&self, cpu: u32) -> u16 {
        lock(&self.machine().cores[cpu as usize]).tag
    }
}
