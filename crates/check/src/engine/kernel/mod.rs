//! A kernel on the engine: what each operation does, as the engine asks of whoever embeds it.

#![expect(unsafe_code, reason = "switches spaces, and retires them")]

mod bag;
mod several;
mod tables;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::{Extent, Lifetime, PinnedCpu, Quarantine, Root, Shootdown, Space, Word};

use self::bag::Bag;
use super::hostile::{COUNTED, HANDOFF, Hostile, SHOOT, covers};
use super::{Config, Op, Programs};
use crate::flush_scope::{FlushScope, Use};
use crate::hardware::{Entry, Outdated, PAGES, SLOTS};
use crate::sometimes::Sometimes;
use crate::world::{
    CheckWord, KernelTable, Outcome, PageTables, Setting, System, World, run, with_world,
};

/// One run.
///
/// # Panics
///
/// If sets of CPUs are to have two words where spaces end otherwise than by hand-off, or three.
pub(super) fn run_programs(programs: &Programs, setting: Setting<'_>) -> Outcome {
    let Config { cpus, lifetime, cpu_words, .. } = programs.config;
    match (lifetime, cpu_words) {
        (Lifetime::Handoff, 1) => {
            run(setting, cpus, |world| Kernel::<HANDOFF, 1>::new(world, programs))
        }
        (Lifetime::Handoff, 2) => {
            run(setting, cpus, |world| Kernel::<HANDOFF, 2>::new(world, programs))
        }
        (Lifetime::Shoot, 1) => {
            run(setting, cpus, |world| Kernel::<SHOOT, 1>::new(world, programs))
        }
        (Lifetime::Counted, 1) => {
            run(setting, cpus, |world| Kernel::<COUNTED, 1>::new(world, programs))
        }
        _ => panic!("{lifetime:?} with sets of {cpu_words} words: each would be another engine"),
    }
}

/// The engine, and what each CPU does.
#[derive(Debug)]
struct Kernel<'p, const LIFETIME: u8, const WORDS: usize> {
    engine: Shootdown<Hostile<LIFETIME, WORDS>>,
    spaces: Vec<KernelSpace<LIFETIME, WORDS>>,
    /// The kernel's own.
    pages: KernelTable,
    programs: &'p [Vec<Op>],
    /// The space of the thread that each CPU runs.
    current: Vec<Cell<Option<usize>>>,
}

#[derive(Debug)]
struct KernelSpace<const LIFETIME: u8, const WORDS: usize> {
    space: Space<Hostile<LIFETIME, WORDS>>,
    tables: PageTables,
    /// Whose frame has been given back, one for each page, if anybody wants to know.
    free_frames: Vec<CheckWord>,
    /// How many operations on it are yet to be done with it, if anybody retires it.
    uses_left: Option<CheckWord>,
    /// How many change its page tables, and flush that by themselves: who finds a page gone while
    /// others do relies on nothing. (A memory manager knows more: `flights` in `crates/vm`.)
    flights: Cell<u32>,
    /// Frames of large pages, if there will be any: one for each entry of the root.
    large_frames: Option<[usize; SLOTS]>,
    /// Tables that lazy CPUs may walk. It is never used across a step, as if under a lock; and who
    /// uses it [sees](World::see) what comes of that.
    quarantine: RefCell<Quarantine<Bag, 1>>,
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

impl<'p, const LIFETIME: u8, const WORDS: usize> Kernel<'p, LIFETIME, WORDS> {
    /// On a machine whose run is being set up. Every CPU is online, and runs nothing.
    fn new(world: &World, Programs { config, ops }: &'p Programs) -> Self {
        let engine = Shootdown::new(Hostile::new(world, *config));
        let mut spaces = take_spaces();
        spaces
            .extend((0..config.spaces).map(|number| KernelSpace::new(world, &engine, ops, number)));
        for (number, space) in spaces.iter().enumerate() {
            world.name_object(&space.space, || format!("space {number}"));
        }
        let current = (0..config.cpus).map(|_| Cell::new(None)).collect();
        let pages = KernelTable::new(world);
        let kernel = Self { engine, spaces, pages, programs: ops, current };
        for cpu in 0..config.cpus {
            world.as_cpu(cpu, || {
                kernel.pinned(PinnedCpu::online);
                world.set_online(true);
            });
        }
        kernel
    }

    /// Does something with the interrupt masked.
    fn pinned<'k, R>(&'k self, f: impl FnOnce(&PinnedCpu<'k, Hostile<LIFETIME, WORDS>>) -> R) -> R {
        with_world(|world| {
            world.mask();
            // SAFETY: a CPU does not change while a program runs on it, and the interrupt is
            // masked.
            let result = f(&unsafe { self.engine.pin() });
            world.unmask();
            result
        })
    }

    fn perform(&self, op: Op) {
        with_world(|world| world.say_op(|| op.story()));
        match op {
            Op::Run(space) => self.run_space(space),
            Op::Idle => self.stop_using(PinnedCpu::enter_lazy),
            Op::Leave => self.stop_using(PinnedCpu::leave_space),
            Op::Unmap(space, page) => drop(self.unmap(space, page)),
            Op::UnmapMasked(space, page) => drop(self.pinned(|_| self.unmap(space, page))),
            Op::Map(space, page) => self.map(space, page),
            Op::Reclaim(space, page) => self.reclaim(&[space], page),
            Op::Protect(space, page) => self.protect(space, page),
            Op::Migrate(space, page) => {
                if self.unmap(space, page).is_some() {
                    self.map(space, page);
                }
            }
            Op::UnmapTable(space, slot) => _ = self.unmap_table(space, slot),
            Op::FreeTable(space, slot) => self.free_table(space, slot),
            Op::UnmapLarge(space, slot) => self.unmap_large(space, slot),
            Op::UnmapJoined(space, page) => self.unmap_joined([space, space ^ 1], page),
            Op::ReclaimBoth(space, page) => self.reclaim(&[space, space ^ 1], page),
            Op::FlushWalkers(space) => self.flush_walkers(space, Bag::default()),
            Op::TrimCpumask(space) => self.trim_cpumask(space),
            Op::Pin(space) => self.pin(space),
            Op::Reap => self.reap(),
            Op::UnmapKernel(page) => self.unmap_kernel(page),
            Op::Retire(space) => self.retire(space),
            Op::OfflineOnline => self.go_offline_and_come_back(),
        }
        if !matches!(op, Op::Run(_)) {
            op.spaces().for_each(|space| self.has_used(space));
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
        self.pinned(|pin| {
            with_world(|world| world.uses(Use::Switching));
            // SAFETY: spaces live as long as the run, and their tables until they are reclaimed.
            unsafe { pin.switch(own) };
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
        self.engine.cpu(Hostile::<LIFETIME, WORDS>::id(cpu)).stats().rollovers
    }

    fn stop_using<'k>(&'k self, stop: impl FnOnce(&PinnedCpu<'k, Hostile<LIFETIME, WORDS>>)) {
        self.pinned(|pin| {
            let idles = self.current[with_world(World::cpu)].get().is_none();
            if !idles {
                with_world(|world| world.uses(Use::Switching));
            }
            stop(pin);
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
        let scope = if extent.frees_tables() { FlushScope::Tables } else { FlushScope::Pages };
        with_world(|world| {
            let flush = || self.pinned(|pin| pin.flush(own, extent)).wait();
            world.flushing(tables.root(), scope, flush);
            world.flush_is_done(outdated);
        });
    }

    /// Relies on nobody using what somebody else has taken away: what was outdated when that was
    /// found gone.
    fn flush_if_batched(&self, space: usize, extent: Extent, outdated: Outdated) {
        let KernelSpace { space: own, tables, .. } = &self.spaces[space];
        with_world(|world| {
            if own.is_batched(self.engine.machine()) {
                world.reach(Sometimes::Settled);
            }
            let flush = || self.pinned(|pin| pin.flush_if_batched(own, extent)).wait();
            world.flushing(tables.root(), FlushScope::Pages, flush);
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
        let is_alone = flight.is_alone();
        with_world(|world| world.see(u64::from(is_alone)));
        if is_alone {
            self.flush_if_batched(space, page(number), outdated);
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

    fn unmap_kernel(&self, number: usize) {
        let entry = self.pages.swap(number, Entry::EMPTY);
        if entry.is_present() {
            self.pinned(|pin| pin.flush_kernel(page(number))).wait();
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
        let retiring = self.pinned(|pin| unsafe { pin.retire(NonNull::from(space)) });
        retiring.wait();
    }

    /// Has other CPUs let go of dead spaces.
    fn reap(&self) {
        let before = self.engine.machine().freed();
        self.pinned(PinnedCpu::reap).wait();
        if self.engine.machine().freed() > before {
            with_world(|world| world.reach(Sometimes::Reaped));
        }
    }

    fn trim_cpumask(&self, space: usize) {
        if self.pinned(|pin| pin.trim_cpumask(&self.spaces[space].space)) {
            with_world(|world| world.reach(Sometimes::TrimmedRoster));
        }
    }

    /// A device uses a space, by a tag that does not change meanwhile.
    fn pin(&self, space: usize) {
        let KernelSpace { space: own, tables, .. } = &self.spaces[space];
        let Some(tag) = self.pinned(|pin| pin.pin_tag(own)) else { return };
        with_world(|world| {
            if world.attach_device(tables.root(), tag.0) {
                world.reach(Sometimes::PinnedForDevice);
                world.detach_device();
            }
        });
        self.pinned(|pin| pin.unpin_tag(own));
    }

    fn go_offline_and_come_back(&self) {
        self.pinned(|pin| {
            with_world(|world| {
                world.set_online(false);
                world.uses(Use::Switching);
                pin.offline();
                world.uses(Use::None);
            });
            self.change_thread(None);
            pin.online();
            with_world(|world| world.set_online(true));
        });
    }
}

impl<const LIFETIME: u8, const WORDS: usize> KernelSpace<LIFETIME, WORDS> {
    fn new(
        world: &World,
        engine: &Shootdown<Hostile<LIFETIME, WORDS>>,
        programs: &[Vec<Op>],
        number: usize,
    ) -> Self {
        let ops = || programs.iter().flatten().filter(|op| op.spaces().any(|it| it == number));
        let tables = PageTables::new(world);
        let new_space = || engine.space(Root(tables.root() as u64));
        let space = world.with_names(new_space, |place| {
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
        let has_large = ops().any(|op| matches!(op, Op::UnmapLarge(..)));
        let large_frames = has_large.then(|| [(); SLOTS].map(|()| world.add_frame()));
        // With room for one table, or for two, which then leave together.
        let quarantine = RefCell::new(Quarantine::new(1 + number % 2));
        let flights = Cell::new(0);
        Self { space, tables, free_frames, uses_left, flights, large_frames, quarantine }
    }
}

fn page(page: usize) -> Extent {
    Extent::page((page as u64) << 12)
}

thread_local! {
    /// Where spaces are, from one run to the next: the engine's words hold their addresses, and the
    /// same choices are to find the same values.
    static ROOM: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

/// Room for spaces, where those of the last run were.
fn take_spaces<const LIFETIME: u8, const WORDS: usize>() -> Vec<KernelSpace<LIFETIME, WORDS>> {
    let room = ROOM.take().and_then(|room| room.downcast().ok());
    room.map_or_else(Vec::new, |room| *room)
}

impl<const LIFETIME: u8, const WORDS: usize> Drop for Kernel<'_, LIFETIME, WORDS> {
    fn drop(&mut self) {
        self.spaces.clear();
        let room: Box<Vec<KernelSpace<LIFETIME, WORDS>>> =
            Box::new(std::mem::take(&mut self.spaces));
        ROOM.set(Some(room));
    }
}

impl<const LIFETIME: u8, const WORDS: usize> System for Kernel<'_, LIFETIME, WORDS> {
    fn run(&self, cpu: usize) {
        for &op in &self.programs[cpu] {
            self.perform(op);
        }
        if self.current[cpu].get().is_some() {
            self.perform(Op::Idle);
        }
        let stats = self.engine.cpu(Hostile::<LIFETIME, WORDS>::id(cpu)).stats();
        let reached = [
            (stats.caught_up_from_log, Sometimes::CaughtUpFromLog),
            (stats.switches_without_flush, Sometimes::KeptItsTag),
            (stats.answers, Sometimes::Answered),
            (stats.flushes_local, Sometimes::ToldNobody),
            (stats.rings_coalesced, Sometimes::Coalesced),
            (stats.skipped_lazy, Sometimes::SkippedLazy),
            (stats.broadcasts_sent, Sometimes::Broadcast),
        ];
        let reached = reached.into_iter().filter(|&(count, _)| count > 0);
        with_world(|world| reached.for_each(|(_, what)| world.reach(what)));
    }
    fn interrupt(&self, _: usize) {
        self.pinned(PinnedCpu::handle_flush_ipi);
    }
}
