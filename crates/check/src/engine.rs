//! The engine on the hostile machine, and programs that drive it as a kernel does.

#![expect(unsafe_code, reason = "implements `Machine`, and switches spaces")]

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire};

use shootdown::{
    Batch, Cpu, CpuId, CpuSet, Entries, Extent, Here, Lifetime, Machine, Pending, Root, Rule,
    Shootdown, Space, StaleWrites, Tag, TagSlot, Tagging, Word,
};

use crate::explore::Scene;
use crate::hardware::{Entry, Keeps, PAGES, SLOTS};
use crate::machine::{PageTables, Upper};
use crate::memory::{CheckWord, fence};
use crate::sometimes::Sometimes;
use crate::system::System;
use crate::world::{Outcome, Setting, World, run, with_world};

/// The hostile machine, as the engine sees it.
#[derive(Debug)]
pub struct Hostile {
    cpus: Vec<Cpu<Self>>,
    tags: usize,
    broken: Option<Rule>,
    /// Which CPU has retired each space: by the number of its root.
    retired_by: RefCell<Vec<(usize, usize)>>,
}

// SAFETY: a run and all that belongs to it stays on one thread of the host.
unsafe impl Sync for Hostile {}

impl Hostile {
    fn new(world: &World, config: Config) -> Self {
        let cpu = |number| {
            let first = world.memory.borrow().word_count();
            let cpu = Cpu::new();
            world.memory.borrow_mut().name_from(first, |place| {
                let name = CPU_WORDS.get(place).unwrap_or(&"another word");
                format!("{name} of CPU {number}")
            });
            cpu
        };
        let cpus = (0..config.cpus).map(cpu).collect();
        let Config { tags, broken, .. } = config;
        Self { cpus, tags, broken, retired_by: RefCell::default() }
    }
}

// SAFETY: everything takes effect before the method returns; interrupts arrive, for every CPU takes
// them whenever it does not mask them, and none does so for ever.
unsafe impl Machine for Hostile {
    type Word = CheckWord;
    type CpuBits = [u64; 1];
    type TagSlots = [TagSlot; 2];
    type TagWords = [CheckWord; 0];

    const LIFETIME: Lifetime = Lifetime::Handoff;

    fn state(&self, cpu: CpuId) -> &Cpu<Self> {
        &self.cpus[cpu.index()]
    }
    fn cpu(&self) -> CpuId {
        CpuId(with_world(World::cpu) as u32)
    }
    fn interrupts_masked(&self) -> bool {
        with_world(World::is_masked)
    }
    fn fence(&self) {
        fence();
    }
    fn publish(&self) {
        fence();
    }
    fn tagging(&self) -> Tagging {
        Tagging::PerCpu
    }
    fn tag_count(&self) -> usize {
        self.tags
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
        let keeps = if self.tags == 0 { Keeps::Nothing } else { Keeps::Everything };
        with_world(|world| world.load_root(None, Tag::KERNEL.0, keeps));
    }
    fn invalidate(&self, _: Tag, extent: Extent) {
        let upper = if extent.frees_tables() { Upper::Dropped } else { Upper::Kept };
        with_world(|world| world.drop_pages(|page| covers(extent, page), upper));
    }
    fn invalidate_tag(&self, tag: Tag) {
        with_world(|world| world.drop_tag(Some(tag.0)));
    }
    fn invalidate_kernel(&self, _: Extent) {}
    fn invalidate_all(&self) {
        with_world(|world| world.drop_tag(None));
    }
    fn traps_stale_writes(&self) -> bool {
        with_world(|world| world.hardware.borrow().profile().traps_stale_writes)
    }
    fn ring(&self, cpus: &CpuSet<Self>) {
        for cpu in cpus.iter() {
            with_world(|world| world.ring(cpu.index()));
        }
    }
    fn reclaim(&self, space: NonNull<Space<Self>>) {
        // SAFETY: it is ours again, and spaces live as long as the run.
        let root = unsafe { space.as_ref() }.root().0 as usize;
        with_world(|world| {
            world.free_root(root);
            if !self.retired_by.borrow().contains(&(root, world.cpu())) {
                world.reach(Sometimes::HandedOff);
            }
        });
    }
    fn spin(&self) {
        with_world(World::relax);
    }
    fn relax(&self, _: &CpuSet<Self>) {
        with_world(World::relax);
    }
    fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
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

/// Whether an extent covers a page.
fn covers(extent: Extent, page: usize) -> bool {
    let first = (extent.start() >> 12) as usize;
    extent.is_whole() || (first..first + extent.page_count()).contains(&page)
}

fn page(page: usize) -> Extent {
    Extent::page((page as u64) << 12)
}

/// How large a system is, and what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// CPUs.
    pub cpus: usize,
    /// Address spaces.
    pub spaces: usize,
    /// Tags of each CPU: up to 2.
    pub tags: usize,
    /// A rule that the engine breaks.
    pub broken: Option<Rule>,
}

/// What a kernel does on a CPU, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Runs a thread of this space from now on, which is in user mode for a while; what follows are
    /// its system calls.
    Run(usize),
    /// Goes idle, with the space still loaded.
    Idle,
    /// Loads the kernel's own root.
    Leave,
    /// Takes a page of a space away, flushes, waits, and gives its frame to somebody else.
    Unmap(usize, usize),
    /// The same, and takes no interrupt while it waits.
    UnmapMasked(usize, usize),
    /// Reclaims a page of a space: takes it, and flushes that with others.
    Take(usize, usize),
    /// Lets nobody write to a page of a space any more.
    Protect(usize, usize),
    /// Takes a table out of a space, with its pages, flushes, and frees it when nobody walks it.
    UnmapTable(usize, usize),
    /// Waits until nobody runs the space any more, nor will: its tables are freed when nobody walks
    /// them.
    Retire(usize),
    /// Goes offline, and comes back.
    OfflineOnline,
}

/// What each CPU does on a machine with this engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// The machine and the engine.
    pub config: Config,
    /// For each CPU.
    pub ops: Vec<Vec<Op>>,
}

impl Programs {
    /// The same with as few operations as it can have so that `fails` says so all the same.
    #[must_use]
    pub fn shrunken(&self, fails: impl Fn(&Self) -> bool) -> Self {
        let mut smallest = self.clone();
        // In parts that become smaller, down to one operation.
        let count = |ops: &[Vec<Op>]| ops.iter().map(Vec::len).sum::<usize>();
        let mut part = count(&smallest.ops).div_ceil(2);
        while part > 0 {
            let mut start = 0;
            while start < count(&smallest.ops) {
                let smaller = smallest.without(start..start + part);
                if fails(&smaller) {
                    smallest = smaller;
                } else {
                    start += part;
                }
            }
            part /= 2;
        }
        smallest
    }

    /// Without some of the operations, which are counted from CPU to CPU.
    fn without(&self, left_out: Range<usize>) -> Self {
        let mut number = 0;
        let mut stays = |_: &Op| {
            number += 1;
            !left_out.contains(&(number - 1))
        };
        let mut smaller = self.clone();
        smaller.ops.iter_mut().for_each(|ops| ops.retain(&mut stays));
        smaller
    }
}

impl Scene for Programs {
    fn run(&self, setting: Setting<'_>) -> Outcome {
        let set_up = |world: &World| Kernel::new(world, self.config, &self.ops);
        run(setting, self.config.cpus, set_up)
    }
}

/// The engine, and what each CPU does.
#[derive(Debug)]
struct Kernel<'p> {
    engine: Shootdown<Hostile>,
    spaces: Vec<KernelSpace>,
    programs: &'p [Vec<Op>],
    /// The space of the thread that each CPU runs.
    current: Vec<Cell<Option<usize>>>,
}

#[derive(Debug)]
struct KernelSpace {
    space: Space<Hostile>,
    tables: PageTables,
    /// How often it is yet to be run, and left again.
    runs_left: CheckWord,
    /// How many change its page tables, and flush that by themselves: who finds a page gone while
    /// others do relies on nothing. (A memory manager knows more: `flights` in `crates/vm`.)
    flights: Cell<u32>,
}

/// One that changes page tables, until it has flushed that.
struct Flight<'s>(&'s KernelSpace);

impl KernelSpace {
    fn begin_flight(&self) -> Flight<'_> {
        self.flights.set(self.flights.get() + 1);
        Flight(self)
    }
}

impl Flight<'_> {
    fn is_alone(&self) -> bool {
        self.0.flights.get() == 1
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.0.flights.set(self.0.flights.get() - 1);
    }
}

impl<'p> Kernel<'p> {
    /// On a machine whose run is being set up. Every CPU is online, and runs nothing.
    fn new(world: &World, config: Config, programs: &'p [Vec<Op>]) -> Self {
        let engine = Shootdown::new(Hostile::new(world, config));
        let space = |number| {
            let tables = PageTables::new(world);
            let runs =
                programs.iter().flatten().filter(|&&op| op == Op::Run(number)).count() as u64;
            let first = world.memory.borrow().word_count();
            let space = engine.space(Root(tables.root() as u64));
            world.memory.borrow_mut().name_from(first, |place| {
                let what = if place == 0 { "the generation" } else { "a word" };
                format!("{what} of space {number}")
            });
            let runs_left = CheckWord::named(runs, || format!("the threads of space {number}"));
            KernelSpace { space, tables, runs_left, flights: Cell::new(0) }
        };
        let mut spaces = SPACES.take();
        spaces.extend((0..config.spaces).map(space));
        let current = (0..config.cpus).map(|_| Cell::new(None)).collect();
        let kernel = Self { engine, spaces, programs, current };
        for cpu in 0..config.cpus {
            world.as_cpu(cpu, || kernel.pinned(Here::online));
        }
        kernel
    }

    /// Does something with the interrupt masked.
    fn pinned<'k, R>(&'k self, f: impl FnOnce(&Here<'k, Hostile>) -> R) -> R {
        with_world(|world| {
            world.mask();
            // SAFETY: a CPU does not change while a program runs on it, and the interrupt is
            // masked.
            let result = f(&unsafe { self.engine.here() });
            world.unmask();
            result
        })
    }

    fn perform(&self, op: Op) {
        with_world(|world| world.say(|| format!("— {op}")));
        match op {
            Op::Run(space) => self.run_space(space),
            Op::Idle => {
                self.pinned(Here::enter_lazy);
                self.change_thread(None);
            }
            Op::Leave => {
                self.pinned(Here::leave);
                self.change_thread(None);
            }
            Op::Unmap(space, page) => self.unmap(space, page),
            Op::UnmapMasked(space, page) => self.pinned(|_| self.unmap(space, page)),
            Op::Take(space, page) => self.reclaim(space, page),
            Op::Protect(space, page) => self.protect(space, page),
            Op::UnmapTable(space, slot) => self.unmap_table(space, slot),
            Op::Retire(space) => self.retire(space),
            Op::OfflineOnline => {
                self.pinned(|here| {
                    here.offline();
                    self.change_thread(None);
                    here.online();
                });
            }
        }
    }

    fn run_space(&self, space: usize) {
        // SAFETY: spaces live as long as the run, and their tables until they are reclaimed.
        self.pinned(|here| unsafe { here.switch(&self.spaces[space].space) });
        self.change_thread(Some(space));
        with_world(World::stay_in_user_mode);
    }

    /// This CPU runs another thread, or none: that of before is gone.
    fn change_thread(&self, space: Option<usize>) {
        with_world(|world| {
            // With release and acquire, as a kernel counts: who finds none left comes after what
            // they did.
            if let Some(left) = self.current[world.cpu()].replace(space) {
                self.spaces[left].runs_left.fetch_add(1_u64.wrapping_neg(), AcqRel);
            }
        });
    }

    fn flush(&self, space: usize, extent: Extent) {
        let KernelSpace { space, tables, .. } = &self.spaces[space];
        let outdated = with_world(|world| world.outdated(tables.root(), |it| covers(extent, it)));
        let pending: Pending<'_, _> = self.pinned(|here| here.flush(space, extent));
        pending.wait();
        with_world(|world| world.flush_is_done(outdated));
    }

    fn unmap(&self, space: usize, number: usize) {
        let flight = self.spaces[space].begin_flight();
        let entry = self.spaces[space].tables.swap(number, Entry::EMPTY);
        if entry.is_present() {
            self.flush(space, page(number));
            with_world(|world| world.reuse_frame(entry.target()));
        } else if flight.is_alone() {
            self.settle(space, page(number));
        }
    }

    /// Relies on nobody using pages that somebody else has taken away.
    fn settle(&self, space: usize, extent: Extent) {
        let KernelSpace { space, tables, .. } = &self.spaces[space];
        let outdated = with_world(|world| world.outdated(tables.root(), |it| covers(extent, it)));
        if space.is_held_back(self.engine.machine()) {
            with_world(|world| world.reach(Sometimes::Settled));
        }
        self.pinned(|here| here.settle(space, extent)).wait();
        with_world(|world| world.flush_is_done(outdated));
    }

    fn reclaim(&self, space: usize, number: usize) {
        let KernelSpace { space, tables, .. } = &self.spaces[space];
        let mut batch: Batch<&Space<Hostile>, Frames, 1> = Batch::new();
        let Ok(in_batch) = batch.space(self.engine.machine(), &space) else { return };
        let entry = tables.swap(number, Entry::EMPTY);
        if !entry.is_present() {
            return drop(self.pinned(|here| batch.send(here)));
        }
        let stale_writes = StaleWrites::Possible;
        self.pinned(|here| in_batch.unmapped(here, page(number), stale_writes)).wait();
        // Its entry did not say that it was written.
        with_world(|world| world.write_out(entry.target(), false));
        batch.free_later(entry.target());
        let sent = self.pinned(|here| batch.send(here));
        if let Some(frame) = sent.wait().0 {
            with_world(|world| world.reuse_frame(frame));
        }
    }

    fn protect(&self, space: usize, number: usize) {
        let tables = &self.spaces[space].tables;
        let entry = tables.entry(number);
        let _flight = self.spaces[space].begin_flight();
        if entry.is_present()
            && entry.is_writable()
            && tables.replace(number, entry, Entry::to(entry.target()))
        {
            self.flush(space, page(number));
        }
    }

    fn unmap_table(&self, space: usize, slot: usize) {
        let _flight = self.spaces[space].begin_flight();
        let tables = &self.spaces[space].tables;
        let pages = slot * PAGES..(slot + 1) * PAGES;
        let frames: Vec<_> = pages.clone().map(|page| tables.swap(page, Entry::EMPTY)).collect();
        let table = tables.unhook(slot);
        let range = (pages.start as u64) << 12..(pages.end as u64) << 12;
        let extent = Extent::range(range, shootdown::PageSize::SIZE_4K).freeing_tables();
        self.flush(space, extent);
        with_world(|world| {
            for frame in frames.into_iter().filter(|entry| entry.is_present()) {
                world.reuse_frame(frame.target());
            }
            world.free_table(table);
        });
    }

    fn retire(&self, space: usize) {
        let KernelSpace { space, runs_left, .. } = &self.spaces[space];
        with_world(|world| {
            world.wait_until(|| runs_left.load(Acquire) == 0);
            let root = space.root().0 as usize;
            self.engine.machine().retired_by.borrow_mut().push((root, world.cpu()));
        });
        // SAFETY: no program switches to a space that it has retired.
        let retiring = self.pinned(|here| unsafe { here.retire(NonNull::from(space)) });
        drop(retiring);
    }
}

/// The frames of a batch, which are few: nothing is allocated that a run given up would lose.
#[derive(Debug, Default)]
struct Frames(Option<usize>);

impl Extend<usize> for Frames {
    fn extend<I: IntoIterator<Item = usize>>(&mut self, frames: I) {
        self.0 = frames.into_iter().last().or(self.0);
    }
}

impl Drop for Kernel<'_> {
    fn drop(&mut self) {
        self.spaces.clear();
        SPACES.set(std::mem::take(&mut self.spaces));
    }
}

thread_local! {
    /// Where spaces are, from one run to the next: the engine's words hold their addresses, and the
    /// same choices are to find the same values.
    static SPACES: Cell<Vec<KernelSpace>> = const { Cell::new(Vec::new()) };
}

impl System for Kernel<'_> {
    fn run(&self, cpu: usize) {
        for &op in &self.programs[cpu] {
            self.perform(op);
        }
        if self.current[cpu].get().is_some() {
            self.perform(Op::Idle);
        }
        let stats = self.engine.cpu(CpuId(cpu as u32)).stats();
        let reached = [
            (stats.caught_up_from_log, Sometimes::CaughtUpFromLog),
            (stats.switches_without_flush, Sometimes::KeptItsTag),
            (stats.answers, Sometimes::Answered),
            (stats.flushes_told_nobody, Sometimes::ToldNobody),
            (stats.rings_coalesced, Sometimes::Coalesced),
        ];
        let reached = reached.into_iter().filter(|&(count, _)| count > 0);
        with_world(|world| reached.for_each(|(_, what)| world.reach(what)));
    }
    fn interrupt(&self, _: usize) {
        self.pinned(Here::answer);
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Run(space) => write!(f, "runs space {space}"),
            Self::Idle => f.write_str("goes idle"),
            Self::Leave => f.write_str("leaves its space"),
            Self::Unmap(space, page) => write!(f, "unmaps page {page} of space {space}"),
            Self::UnmapMasked(space, page) => {
                write!(f, "unmaps page {page} of space {space}, with interrupts masked")
            }
            Self::Take(space, page) => write!(f, "reclaims page {page} of space {space}"),
            Self::Protect(space, page) => write!(f, "write-protects page {page} of space {space}"),
            Self::UnmapTable(space, slot) => write!(f, "unmaps table {slot} of space {space}"),
            Self::Retire(space) => write!(f, "retires space {space}"),
            Self::OfflineOnline => f.write_str("goes offline, and comes back"),
        }
    }
}

const _: () = assert!(SLOTS * PAGES <= 64);
