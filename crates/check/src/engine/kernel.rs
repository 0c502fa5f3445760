//! A kernel on the engine: what each operation does, as the engine asks of whoever embeds it.

#![expect(unsafe_code, reason = "switches spaces, and retires them")]

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::{
    Batch, CpuId, Extent, Here, Lifetime, PageSize, Root, Shootdown, Space, StaleWrites, Word,
};

use super::hostile::{COUNTED, HANDOFF, Hostile, SHOOT, covers};
use super::{Op, Programs};
use crate::hardware::{Entry, Outdated, PAGES, SLOTS};
use crate::machine::{KernelTable, PageTables};
use crate::memory::CheckWord;
use crate::run::{Outcome, Setting, run};
use crate::sometimes::Sometimes;
use crate::system::System;
use crate::telling::{Told, Use};
use crate::world::{World, with_world};

/// One run.
pub(super) fn run_programs(programs: &Programs, setting: Setting<'_>) -> Outcome {
    let cpus = programs.config.cpus;
    match programs.config.lifetime {
        Lifetime::Handoff => run(setting, cpus, |world| Kernel::<HANDOFF>::new(world, programs)),
        Lifetime::Shoot => run(setting, cpus, |world| Kernel::<SHOOT>::new(world, programs)),
        Lifetime::Counted => run(setting, cpus, |world| Kernel::<COUNTED>::new(world, programs)),
    }
}

/// The engine, and what each CPU does.
#[derive(Debug)]
struct Kernel<'p, const LIFETIME: u8> {
    engine: Shootdown<Hostile<LIFETIME>>,
    spaces: Vec<KernelSpace<LIFETIME>>,
    /// The kernel's own.
    pages: KernelTable,
    programs: &'p [Vec<Op>],
    /// The space of the thread that each CPU runs.
    current: Vec<Cell<Option<usize>>>,
}

#[derive(Debug)]
struct KernelSpace<const LIFETIME: u8> {
    space: Space<Hostile<LIFETIME>>,
    tables: PageTables,
    /// Whose frame has been given back, one for each page, if anybody wants to know.
    free_frames: Vec<CheckWord>,
    /// How many operations on it are yet to be done with it, if anybody retires it.
    uses_left: Option<CheckWord>,
    /// How many change its page tables, and flush that by themselves: who finds a page gone while
    /// others do relies on nothing. (A memory manager knows more: `flights` in `crates/vm`.)
    flights: Cell<u32>,
}

/// One that changes page tables, until it has flushed that.
struct Flight<'s>(&'s Cell<u32>);

impl<'s> Flight<'s> {
    fn begin(count: &'s Cell<u32>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }

    fn is_alone(&self) -> bool {
        self.0.get() == 1
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<'p, const LIFETIME: u8> Kernel<'p, LIFETIME> {
    /// On a machine whose run is being set up. Every CPU is online, and runs nothing.
    fn new(world: &World, Programs { config, ops }: &'p Programs) -> Self {
        let engine = Shootdown::new(Hostile::new(world, *config));
        let mut spaces = take_spaces();
        spaces
            .extend((0..config.spaces).map(|number| KernelSpace::new(world, &engine, ops, number)));
        let current = (0..config.cpus).map(|_| Cell::new(None)).collect();
        let pages = KernelTable::new(world);
        let kernel = Self { engine, spaces, pages, programs: ops, current };
        for cpu in 0..config.cpus {
            world.as_cpu(cpu, || {
                kernel.pinned(Here::online);
                world.set_online(true);
            });
        }
        kernel
    }

    /// Does something with the interrupt masked.
    fn pinned<'k, R>(&'k self, f: impl FnOnce(&Here<'k, Hostile<LIFETIME>>) -> R) -> R {
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
        with_world(|world| world.say_op(|| op.story()));
        match op {
            Op::Run(space) => self.run_space(space),
            Op::Idle => self.stop_using(Here::enter_lazy),
            Op::Leave => self.stop_using(Here::leave),
            Op::Unmap(space, page) => drop(self.unmap(space, page)),
            Op::UnmapMasked(space, page) => drop(self.pinned(|_| self.unmap(space, page))),
            Op::Map(space, page) => self.map(space, page),
            Op::Reclaim(space, page) => self.reclaim(space, page),
            Op::Protect(space, page) => self.protect(space, page),
            Op::Migrate(space, page) => {
                if self.unmap(space, page).is_some() {
                    self.map(space, page);
                }
            }
            Op::UnmapTable(space, slot) => self.unmap_table(space, slot),
            Op::UnmapKernel(page) => self.unmap_kernel(page),
            Op::Retire(space) => self.retire(space),
            Op::OfflineOnline => self.go_offline_and_come_back(),
        }
        if let (Some(space), false) = (op.space(), matches!(op, Op::Run(_))) {
            self.has_used(space);
        }
    }

    /// What was to be done with a space is done: with release and acquire, as a kernel counts. Who
    /// finds nothing left comes after it.
    fn has_used(&self, space: usize) {
        if let Some(left) = &self.spaces[space].uses_left {
            left.fetch_add(1_u64.wrapping_neg(), AcqRel);
        }
    }

    fn run_space(&self, space: usize) {
        let KernelSpace { space: own, tables, .. } = &self.spaces[space];
        let rollovers = self.rollovers();
        self.pinned(|here| {
            with_world(|world| world.uses(Use::Switching));
            // SAFETY: spaces live as long as the run, and their tables until they are reclaimed.
            unsafe { here.switch(own) };
            with_world(|world| world.uses(Use::Of(tables.root())));
        });
        with_world(|world| {
            if self.rollovers() != rollovers && world.is_any_flushing() {
                world.reach(Sometimes::RolledOverDuringFlush);
            }
        });
        self.change_thread(Some(space));
        with_world(World::stay_in_user_mode);
    }

    fn rollovers(&self) -> u64 {
        let cpu = with_world(World::cpu);
        self.engine.cpu(CpuId(cpu as u32)).stats().rollovers
    }

    fn stop_using<'k>(&'k self, stop: impl FnOnce(&Here<'k, Hostile<LIFETIME>>)) {
        self.pinned(|here| {
            let idles = self.current[here.id().index()].get().is_none();
            if !idles {
                with_world(|world| world.uses(Use::Switching));
            }
            stop(here);
            with_world(|world| world.uses(Use::None));
        });
        self.change_thread(None);
    }

    /// This CPU runs another thread, or none: that of before is gone.
    fn change_thread(&self, space: Option<usize>) {
        if let Some(left) = with_world(|world| self.current[world.cpu()].replace(space)) {
            self.has_used(left);
        }
    }

    /// What CPUs may hold of pages that are otherwise by now.
    fn outdated(&self, space: usize, extent: Extent) -> Outdated {
        let root = self.spaces[space].tables.root();
        with_world(|world| world.outdated(root, |it| covers(extent, it)))
    }

    /// Flushes what has just been changed, waits, and relies on that.
    fn flush(&self, space: usize, extent: Extent, outdated: Outdated) {
        let KernelSpace { space: own, tables, .. } = &self.spaces[space];
        let told = if extent.frees_tables() { Told::Tables } else { Told::Pages };
        with_world(|world| {
            let flush = || self.pinned(|here| here.flush(own, extent)).wait();
            world.flushing(tables.root(), told, flush);
            world.flush_is_done(outdated);
        });
    }

    /// Relies on nobody using what somebody else has taken away: what was outdated when that was
    /// found gone.
    fn settle(&self, space: usize, extent: Extent, outdated: Outdated) {
        let KernelSpace { space: own, tables, .. } = &self.spaces[space];
        with_world(|world| {
            if own.is_held_back(self.engine.machine()) {
                world.reach(Sometimes::Settled);
            }
            let settle = || self.pinned(|here| here.settle(own, extent)).wait();
            world.flushing(tables.root(), Told::Pages, settle);
            world.flush_is_done(outdated);
        });
    }

    /// Takes a page away. Returns its frame, if it was there.
    fn unmap(&self, space: usize, number: usize) -> Option<usize> {
        let KernelSpace { tables, flights, .. } = &self.spaces[space];
        let flight = Flight::begin(flights);
        let entry = tables.swap(number, Entry::EMPTY);
        let outdated = self.outdated(space, page(number));
        if entry.is_present() {
            self.flush(space, page(number), outdated);
            // Whatever was written there is in the frame by now.
            with_world(|world| world.write_out(entry.target(), true));
            self.free_frame(space, number, entry.target());
            return Some(entry.target());
        }
        if flight.is_alone() {
            self.settle(space, page(number), outdated);
        }
        None
    }

    /// The frame is somebody else's, and then to be had again.
    fn free_frame(&self, space: usize, number: usize, frame: usize) {
        with_world(|world| world.reuse_frame(frame));
        if let Some(free) = self.spaces[space].free_frames.get(number) {
            free.store(frame as u64 + 1, Release);
        }
    }

    fn map(&self, space: usize, number: usize) {
        let KernelSpace { tables, free_frames, .. } = &self.spaces[space];
        let free = free_frames[number].swap(0, AcqRel);
        if free != 0 && tables.is_hooked(number) {
            tables.swap(number, Entry::to(free as usize - 1).writable());
        }
    }

    fn reclaim(&self, space: usize, number: usize) {
        let KernelSpace { space: own, tables, .. } = &self.spaces[space];
        let root = tables.root();
        let mut batch: Batch<&Space<_>, Frames, 1> = Batch::new();
        let Ok(in_batch) = batch.space(self.engine.machine(), &own) else { return };
        let entry = tables.swap(number, Entry::EMPTY);
        if !entry.is_present() {
            return drop(self.pinned(|here| batch.send(here)));
        }
        let (frame, stale_writes) = (entry.target(), StaleWrites::Possible);
        let unmapped = || {
            self.pinned(|here| in_batch.unmapped(here, page(number), stale_writes)).wait();
        };
        with_world(|world| world.flushing(root, Told::Pages, unmapped));
        // Its entry did not say that it was written.
        with_world(|world| world.write_out(frame, false));
        batch.free_later(frame);
        let send = || {
            let sent = self.pinned(|here| batch.send(here));
            sent.wait()
        };
        if let Frames(Some(frame)) = with_world(|world| world.flushing(root, Told::Pages, send)) {
            self.free_frame(space, number, frame);
        }
    }

    fn protect(&self, space: usize, number: usize) {
        let KernelSpace { tables, flights, .. } = &self.spaces[space];
        let entry = tables.entry(number);
        let _flight = Flight::begin(flights);
        if entry.is_present()
            && entry.is_writable()
            && tables.replace(number, entry, Entry::to(entry.target()))
        {
            self.flush(space, page(number), self.outdated(space, page(number)));
        }
    }

    fn unmap_table(&self, space: usize, slot: usize) {
        let KernelSpace { tables, flights, .. } = &self.spaces[space];
        if !tables.is_hooked(slot * PAGES) {
            return;
        }
        let _flight = Flight::begin(flights);
        let Some(table) = tables.unhook(slot) else { return };
        let pages = slot * PAGES..(slot + 1) * PAGES;
        let frames: Vec<_> = pages.clone().map(|page| tables.swap(page, Entry::EMPTY)).collect();
        let range = (pages.start as u64) << 12..(pages.end as u64) << 12;
        let extent = Extent::range(range, PageSize::SIZE_4K).freeing_tables();
        self.flush(space, extent, self.outdated(space, extent));
        for (number, entry) in pages.zip(frames).filter(|(_, entry)| entry.is_present()) {
            self.free_frame(space, number, entry.target());
        }
        with_world(|world| world.free_table(table));
    }

    fn unmap_kernel(&self, number: usize) {
        let entry = self.pages.swap(number, Entry::EMPTY);
        if entry.is_present() {
            self.pinned(|here| here.flush_kernel(page(number))).wait();
            with_world(|world| world.reuse_kernel_frame(entry.target()));
        }
    }

    fn retire(&self, number: usize) {
        let KernelSpace { space, uses_left, tables, .. } = &self.spaces[number];
        if with_world(|world| self.current[world.cpu()].get()).is_some() {
            // Whoever else retires a space may be waiting for this CPU to be done with it.
            self.perform(Op::Idle);
        }
        with_world(|world| {
            // All but this one.
            world.wait_until(|| uses_left.as_ref().is_none_or(|left| left.load(Acquire) <= 1));
            self.engine.machine().retires(tables.root(), world.cpu());
        });
        // SAFETY: no program switches to a space that it has retired.
        let retiring = self.pinned(|here| unsafe { here.retire(NonNull::from(space)) });
        retiring.wait();
    }

    fn go_offline_and_come_back(&self) {
        self.pinned(|here| {
            with_world(|world| {
                world.set_online(false);
                world.uses(Use::Switching);
                here.offline();
                world.uses(Use::None);
            });
            self.change_thread(None);
            here.online();
            with_world(|world| world.set_online(true));
        });
    }
}

impl<const LIFETIME: u8> KernelSpace<LIFETIME> {
    fn new(
        world: &World,
        engine: &Shootdown<Hostile<LIFETIME>>,
        programs: &[Vec<Op>],
        number: usize,
    ) -> Self {
        let ops = || programs.iter().flatten().filter(|op| op.space() == Some(number));
        let tables = PageTables::new(world);
        let first = world.memory.borrow().word_count();
        let space = engine.space(Root(tables.root() as u64));
        world.memory.borrow_mut().name_from(first, |place| {
            let what = if place == 0 { "the generation" } else { "a word" };
            format!("{what} of space {number}")
        });
        let is_retired = ops().any(|op| matches!(op, Op::Retire(_)));
        let uses_left = is_retired.then(|| {
            let what = || format!("the uses of space {number} that are left");
            CheckWord::named(ops().count() as u64, what)
        });
        let is_mapped_again = ops().any(|op| matches!(op, Op::Map(..) | Op::Migrate(..)));
        let frames = if is_mapped_again { SLOTS * PAGES } else { 0 };
        let free_frame = |page| {
            CheckWord::named(0, || format!("the free frame of page {page} of space {number}"))
        };
        let free_frames = (0..frames).map(free_frame).collect();
        Self { space, tables, free_frames, uses_left, flights: Cell::new(0) }
    }
}

fn page(page: usize) -> Extent {
    Extent::page((page as u64) << 12)
}

/// The frames of a batch, which are few: nothing is allocated that a run given up would lose.
#[derive(Debug, Default)]
struct Frames(Option<usize>);

impl Extend<usize> for Frames {
    fn extend<I: IntoIterator<Item = usize>>(&mut self, frames: I) {
        self.0 = frames.into_iter().last().or(self.0);
    }
}

thread_local! {
    /// Where spaces are, from one run to the next: the engine's words hold their addresses, and the
    /// same choices are to find the same values.
    static ROOM: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

/// Room for spaces, where those of the last run were.
fn take_spaces<const LIFETIME: u8>() -> Vec<KernelSpace<LIFETIME>> {
    let room = ROOM.take().and_then(|room| room.downcast().ok());
    room.map_or_else(Vec::new, |room| *room)
}

impl<const LIFETIME: u8> Drop for Kernel<'_, LIFETIME> {
    fn drop(&mut self) {
        self.spaces.clear();
        let room: Box<Vec<KernelSpace<LIFETIME>>> = Box::new(std::mem::take(&mut self.spaces));
        ROOM.set(Some(room));
    }
}

impl<const LIFETIME: u8> System for Kernel<'_, LIFETIME> {
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
            (stats.skipped_lazy, Sometimes::SkippedLazy),
            (stats.broadcasts_sent, Sometimes::Broadcast),
        ];
        let reached = reached.into_iter().filter(|&(count, _)| count > 0);
        with_world(|world| reached.for_each(|(_, what)| world.reach(what)));
    }
    fn interrupt(&self, _: usize) {
        self.pinned(Here::answer);
    }
}
