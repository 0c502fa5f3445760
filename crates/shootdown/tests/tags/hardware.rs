//! A machine on one thread. At each load of a root, it checks which CPUs have loaded the tag, and
//! what is cached under it.
//!
//! Each root maps 2 MiB: as a block, as small pages, or not at all. The TLB never evicts. A
//! broadcast takes effect when it is completed. A test can run a hook on other CPUs in the middle
//! of a switch.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuId, CpuSet, CpuState, CpuStats, Entries, Extent, Machine,
    Memory, NotifyCosts, PageSize, PinnedCpu, Reach, Refused, Root, Rule, Shootdown, Space,
    SpaceStats, Tag, TagSlot, Tagging,
};

/// Size and properties of the machine.
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

/// A cached translation: its root, the version of the page, and the size of the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Translation {
    root: Root,
    version: u64,
    size: PageSize,
}

/// A broadcast: its target CPUs, the tag, and the extent.
type IssuedBroadcast = (Vec<usize>, Tag, Extent);

#[derive(Default)]
struct Core {
    root: Option<Root>,
    tag: u16,
    /// Translations that are cached under each tag, at most one of each size.
    cached: HashMap<u16, Vec<Translation>>,
    /// Page tables that are cached under each tag: their root, and their version.
    upper: HashMap<u16, (Root, u64)>,
    /// Number of times that the whole TLB was emptied.
    emptied: u64,
    /// Broadcasts that this CPU has issued and not completed.
    issued: Vec<IssuedBroadcast>,
    /// The CPU is in the middle of a load, and about to replace the loaded root.
    is_loading: bool,
}

/// The state of a root's page and page tables.
struct Table {
    /// Version of the page, which counts its changes.
    version: AtomicU64,
    /// No CPU may use a version of the page below this one.
    freed: AtomicU64,
    /// Version of the page tables, which counts how often they were replaced.
    tables: AtomicU64,
    /// No CPU may walk a version of the page tables below this one.
    freed_tables: AtomicU64,
    /// Size with which the page is mapped; `None` if it is not mapped.
    mapped: Mutex<Option<PageSize>>,
}

/// The point at which a hook runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HookPoint {
    /// Before a root is loaded.
    Load,
    /// Before a flush chooses how to notify the CPUs that it has found present.
    Choice,
}

type Hook = Box<dyn FnOnce() + Send>;

/// The machine. `WORDS` is the room for the ASID allocator.
pub(crate) struct Hardware<const WORDS: usize> {
    size: Size,
    current: AtomicU32,
    states: Vec<CpuState<Self>>,
    cores: Vec<Mutex<Core>>,
    interrupts: Vec<AtomicBool>,
    tables: Vec<Table>,
    hook: Mutex<Option<(HookPoint, Hook)>>,
    /// Number of walks after which two sizes of one page were cached.
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
            hook: Mutex::new(None),
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

    /// Walks the loaded page tables, as speculation may at any moment.
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
        if cached.iter().all(|translation| translation.size != size) {
            cached.push(Translation { root, version: table.version.load(Relaxed), size });
        }
        self.conflicts.fetch_add(u64::from(cached.len() > 1), Relaxed);
    }

    /// Drops an extent under a tag. Of the small pages, tests use only the first.
    fn drop_extent(core: &mut Core, tag: Tag, extent: Extent) {
        if extent.is_whole() || extent.covers(0) {
            core.cached.remove(&tag.0);
        }
        if extent.is_whole() || extent.frees_tables() {
            core.upper.remove(&tag.0);
        }
    }

    /// Runs the hook, if there is one for this point.
    fn run_hook(&self, now: HookPoint) {
        let cpu = self.cpu();
        let hook = lock(&self.hook).take_if(|(point, _)| *point == now);
        if let Some((_, run)) = hook {
            run();
            self.current.store(cpu.0, Relaxed);
        }
    }

    /// Asserts that no other CPU has loaded another root under this tag.
    fn assert_unshared(&self, root: Root, tag: Tag) {
        for (other, core) in self.cores.iter().enumerate() {
            if other == self.cpu().index() || self.size.tagging != Tagging::Global {
                continue;
            }
            let core = lock(core);
            let is_other = core.root.is_some_and(|loaded| loaded != root) && !core.is_loading;
            let is_shared = core.tag == tag.0 && is_other;
            assert!(!is_shared, "{tag:?} has {root:?} here, and {:?} on CPU {other}", core.root);
        }
    }
}

// SAFETY: one thread is each CPU in turn. A test that breaks a rule expects the engine to fail.
unsafe impl<const WORDS: usize> Memory for Hardware<WORDS> {
    type Word = AtomicU64;

    fn fence(&self) {}
    fn breaks(&self, rule: Rule) -> bool {
        self.size.broken == Some(rule)
    }
}

// SAFETY: one thread is each CPU in turn, and each operation takes effect before it returns.
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
        self.run_hook(HookPoint::Load);
        self.core().is_loading = false;
        if tag != Tag::KERNEL {
            self.assert_unshared(root, tag);
        }
        let mut core = self.core();
        self.walk(&mut core);
        (core.root, core.tag) = (Some(root), tag.0);
        if entries == Entries::Discard {
            Self::drop_extent(&mut core, tag, Extent::whole());
        }
        let is_of_another = |translation: &Translation| translation.root != root;
        let is_mixed = core.cached.get(&tag.0).is_some_and(|of| of.iter().any(is_of_another));
        assert!(!is_mixed, "a page of another space is cached under {tag:?}");
        self.walk(&mut core);
    }
    fn load_kernel(&self) {
        let mut core = self.core();
        self.walk(&mut core);
        (core.root, core.tag) = (None, 0);
        if self.size.tags == 0 {
            Self::drop_extent(&mut core, Tag::KERNEL, Extent::whole());
        }
        self.walk(&mut core);
    }
    fn invalidate(&self, tag: Tag, extent: Extent) {
        let mut core = self.core();
        self.walk(&mut core);
        Self::drop_extent(&mut core, tag, extent);
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
        // The CPU may refill the TLB immediately, from the root that is still loaded.
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
        panic!("there is no other thread, so {waiting:?} will not answer");
    }
}

// SAFETY: broadcasts take effect when they are completed.
unsafe impl<const WORDS: usize> Broadcaster for Hardware<WORDS> {
    fn capabilities(&self) -> Broadcast {
        let reach = self.size.broadcast.expect("the machine has a broadcaster");
        Broadcast { reach, pages_per_operation: 1, operation_ceiling: 8, completes_at_issue: false }
    }
    fn costs(&self) -> NotifyCosts {
        self.run_hook(HookPoint::Choice);
        NotifyCosts { interrupt_ns: 1000, broadcast_ns: 1, ..NotifyCosts::default() }
    }
    fn broadcast<B: CpuBits>(
        &self,
        cpus: &CpuSet<B>,
        tag: Tag,
        extent: Extent,
    ) -> Result<(), Refused> {
        let targets = match self.size.broadcast {
            Some(Reach::Targets) => cpus.iter().map(CpuId::index).collect(),
            _ => (0..self.cores.len()).collect(),
        };
        self.core().issued.push((targets, tag, extent));
        Ok(())
    }
    fn broadcast_kernel(&self, _extent: Extent) -> Result<(), Refused> {
        unreachable!("no test flushes the kernel's translations");
    }
    fn complete(&self) -> u64 {
        let issued = std::mem::take(&mut self.core().issued);
        for (targets, tag, extent) in issued {
            for cpu in targets {
                let mut core = lock(&self.cores[cpu]);
                self.walk(&mut core);
                Self::drop_extent(&mut core, tag, extent);
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
        // SAFETY: the one thread is that CPU now, and the methods of a CPU's `PinnedCpu`s do not
        // nest.
        unsafe { self.engine.pin() }
    }

    pub(crate) fn switch(&self, cpu: u32, space: usize) {
        // SAFETY: the spaces live as long as the machine, and do not move.
        unsafe { self.pin(cpu).switch(&self.spaces[space]) };
    }

    /// Ends a space, which no other CPU uses.
    pub(crate) fn retire(&self, cpu: u32, space: usize) {
        // SAFETY: the spaces live as long as the machine, and do not move. No CPU uses this one.
        drop(unsafe { self.pin(cpu).retire(NonNull::from(&self.spaces[space])) });
    }

    /// Sets a hook, which runs once at the next such point.
    pub(crate) fn before_next(&self, point: HookPoint, hook: impl FnOnce() + Send + 'static) {
        *lock(&self.machine().hook) = Some((point, Box::new(hook)));
    }

    /// Changes the page of a space, flushes it on `cpu`, handles the interrupts on all CPUs that
    /// are interrupted, and waits.
    pub(crate) fn flush(&self, cpu: u32, space: usize, extent: Extent) {
        let table = &self.machine().tables[space];
        let version = table.version.fetch_add(1, Relaxed) + 1;
        let tables = match extent.frees_tables() {
            true => table.tables.fetch_add(1, Relaxed) + 1,
            false => table.freed_tables.load(Relaxed),
        };
        let mut pending = self.pin(cpu).flush(&self.spaces[space], extent);
        self.handle_all_ipis();
        self.pin(cpu);
        pending.wait();
        table.freed.fetch_max(version, Relaxed);
        table.freed_tables.fetch_max(tables, Relaxed);
    }

    /// Replaces the page tables of a space.
    pub(crate) fn unhook_tables(&self, space: usize) {
        self.machine().tables[space].tables.fetch_add(1, Relaxed);
    }

    /// Frees the page tables that were unhooked.
    pub(crate) fn free_tables(&self, space: usize) {
        let Table { tables, freed_tables, .. } = &self.machine().tables[space];
        freed_tables.store(tables.load(Relaxed), Relaxed);
    }

    /// Maps the page of a space with another size, or unmaps it.
    pub(crate) fn map(&self, space: usize, size: Option<PageSize>) {
        *lock(&self.machine().tables[space].mapped) = size;
    }

    /// Handles the interrupts on all CPUs that were interrupted.
    pub(crate) fn handle_all_ipis(&self) {
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

    /// Uses the page of the loaded space on `cpu`, and asserts that it was not freed.
    pub(crate) fn touch(&self, cpu: u32) {
        self.speculate(cpu);
        let core = lock(&self.machine().cores[cpu as usize]);
        let root = core.root.expect("a space is loaded");
        let freed = self.machine().table(root).freed.load(Relaxed);
        for used in core.cached.get(&core.tag).into_iter().flatten() {
            assert!(used.root == root && used.version >= freed, "CPU {cpu} uses {used:?}");
        }
    }

    pub(crate) fn stats(&self, cpu: u32) -> CpuStats {
        self.engine.cpu(CpuId(cpu)).stats()
    }

    pub(crate) fn space_stats(&self, space: usize) -> SpaceStats {
        self.spaces[space].stats(self.machine())
    }

    /// Sum of the statistics of all CPUs.
    pub(crate) fn total_stats(&self) -> CpuStats {
        let mut total = CpuStats::default();
        (0..self.machine().size.cpus).for_each(|cpu| total += self.stats(cpu));
        total
    }

    /// Number of times that a CPU's whole TLB was emptied.
    pub(crate) fn emptied(&self, cpu: u32) -> u64 {
        lock(&self.machine().cores[cpu as usize]).emptied
    }

    /// The tag that a CPU has loaded.
    pub(crate) fn tag(&self, cpu: u32) -> u16 {
        lock(&self.machine().cores[cpu as usize]).tag
    }
}
