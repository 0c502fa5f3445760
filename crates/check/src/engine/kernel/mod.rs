//! A kernel on the engine: performs each operation as the engine asks of an embedding kernel.

#![expect(unsafe_code, reason = "switches and retires spaces")]

mod free_list;
mod batches;
mod devices;
mod discards;
mod secondary;
mod tables;
mod unflushed;
mod user_mode;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use shootdown::{
    Entries, Extent, Lifetime, Machine as _, PageSize, PinnedCpu, Quarantine, Root, Shootdown,
    Space, Word,
};

use self::free_list::FreeList;
use self::secondary::Secondary;
use super::hostile::words::{engine_word, space_word};
use super::hostile::{COUNTED, EngineMachine, HANDOFF, SHOOT, covers};
use super::{Config, Fault, Op, Programs};
use crate::hardware::{Entry, PAGES, SLOTS, StaleEntries};
use crate::interrupt_oracle::{FlushScope, SpaceUse};
use crate::machine::{
    CheckWord, HostileMachine, KernelTable, Outcome, PageTables, RunSettings, System, run,
    with_machine,
};
use crate::sometimes::Sometimes;

/// Executes one run.
///
/// # Panics
///
/// If CPU sets have two words with a lifetime policy other than hand-off, or more than two words.
pub(super) fn run_programs(programs: &Programs, settings: RunSettings<'_>) -> Outcome {
    let Config { cpus, lifetime, cpu_words, .. } = programs.config;
    match (lifetime, cpu_words) {
        (Lifetime::Handoff, 1) => {
            run(settings, cpus, |machine| Kernel::<HANDOFF, 1>::new(machine, programs))
        }
        (Lifetime::Handoff, 2) => {
            run(settings, cpus, |machine| Kernel::<HANDOFF, 2>::new(machine, programs))
        }
        (Lifetime::Shoot, 1) => {
            run(settings, cpus, |machine| Kernel::<SHOOT, 1>::new(machine, programs))
        }
        (Lifetime::Counted, 1) => {
            run(settings, cpus, |machine| Kernel::<COUNTED, 1>::new(machine, programs))
        }
        _ => {
            panic!("{lifetime:?} with sets of {cpu_words} words: each would compile another engine")
        }
    }
}

/// The engine, and the program of each CPU.
#[derive(Debug)]
struct Kernel<'p, const LIFETIME: u8, const WORDS: usize> {
    engine: Shootdown<EngineMachine<LIFETIME, WORDS>>,
    spaces: Vec<KernelSpace<LIFETIME, WORDS>>,
    /// The kernel's own pages.
    pages: KernelTable,
    programs: &'p [Vec<Op>],
    fault: Option<Fault>,
    /// The space of the thread that each CPU runs.
    current: Vec<Cell<Option<usize>>>,
    /// Whether each CPU is in user mode without interrupts for the kernel.
    in_user: Vec<Cell<bool>>,
}

#[derive(Debug)]
struct KernelSpace<const LIFETIME: u8, const WORDS: usize> {
    space: Space<EngineMachine<LIFETIME, WORDS>>,
    tables: PageTables,
    /// For each page, its frame plus 1 if the frame is free, otherwise 0. Empty if no program maps
    /// a page again.
    free_frames: Vec<CheckWord>,
    /// Number of operations that have yet to finish with the space, if a program retires it.
    uses_left: Option<CheckWord>,
    /// Number of operations that are changing the page tables and will flush their own changes. An
    /// operation that finds a page gone claims nothing about it while other operations are in
    /// flight. (A memory manager can know more: see `in_flight` in `crates/vm`.)
    in_flight: Cell<u32>,
    /// Frames of large pages, one for each entry of the root, if a program needs them.
    large_frames: Option<[usize; SLOTS]>,
    /// A hypervisor's table, if a program has its faults.
    secondary: Option<Secondary<LIFETIME, WORDS>>,
    /// Tables that lazy CPUs may walk. No borrow lasts across a step, as if a lock were held. An
    /// operation that uses the quarantine [observes](HostileMachine::observe) the result.
    quarantine: RefCell<Quarantine<FreeList, 1>>,
}

/// How a thread waits for a flush.
#[derive(Clone, Copy)]
enum Wait {
    Polling,
    /// Until it is woken.
    Asleep,
}

/// Counts as a change in flight while it lives.
struct InFlight<'s>(&'s Cell<u32>);

impl<'s> InFlight<'s> {
    fn begin(count: &'s Cell<u32>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }

    fn is_alone(&self) -> bool {
        self.0.get() == 1
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<'p, const LIFETIME: u8, const WORDS: usize> Kernel<'p, LIFETIME, WORDS> {
    /// Sets up the kernel on a machine. Every CPU is online and runs no space.
    fn new(machine: &HostileMachine, Programs { config, ops }: &'p Programs) -> Self {
        let is_guest = ops.iter().flatten().any(|op| matches!(op, Op::Stop | Op::StopInWalk(..)));
        let own = EngineMachine::new(machine, *config, is_guest);
        let engine = machine.with_names(
            || Shootdown::from(own),
            |place| format!("{} of the kernel", engine_word(place)),
        );
        let mut spaces = take_spaces();
        spaces.extend(
            (0..config.spaces).map(|number| KernelSpace::new(machine, &engine, ops, number)),
        );
        for (number, space) in spaces.iter().enumerate() {
            machine.name_object(&space.space, || format!("space {number}"));
        }
        let current = (0..config.cpus).map(|_| Cell::new(None)).collect();
        let pages = KernelTable::new(machine);
        let fault = config.fault;
        let in_user = vec![Cell::new(false); config.cpus];
        let kernel = Self { engine, spaces, pages, programs: ops, fault, current, in_user };
        for cpu in 0..config.cpus {
            machine.as_cpu(cpu, || {
                kernel.pinned(PinnedCpu::online);
                machine.set_online(true);
            });
        }
        kernel
    }

    /// Calls `f` with interrupts masked.
    fn pinned<'k, R>(
        &'k self,
        f: impl FnOnce(&PinnedCpu<'k, EngineMachine<LIFETIME, WORDS>>) -> R,
    ) -> R {
        with_machine(|machine| {
            machine.mask();
            // SAFETY: a program does not migrate between CPUs, and interrupts are masked.
            let result = f(&unsafe { self.engine.pin() });
            machine.unmask();
            result
        })
    }

    fn perform(&self, op: Op) {
        with_machine(|machine| machine.record_op(|| op.describe()));
        let tables = op.spaces().filter(|_| op.changes_primary());
        let tables = tables.filter_map(|space| self.spaces[space].secondary.as_ref());
        // Ends when its flush is done. A hypervisor may end it earlier.
        let changes: Vec<_> = tables.map(|it| it.start(self.engine.machine())).collect();
        match op {
            Op::Run(space) => self.run_space(space),
            Op::Idle => self.stop_using(PinnedCpu::enter_lazy),
            Op::Leave => self.stop_using(PinnedCpu::leave_space),
            Op::Unmap(space, page) => _ = self.unmap(space, page, Wait::Polling),
            Op::UnmapMasked(space, page) => {
                _ = self.pinned(|_| self.unmap(space, page, Wait::Polling));
            }
            Op::UnmapAsleep(space, page) => _ = self.unmap(space, page, Wait::Asleep),
            Op::Map(space, page) => self.map(space, page),
            Op::Reclaim(space, page) => self.reclaim(&[space], page),
            Op::Protect(space, page) => self.protect(space, page),
            Op::DeferAndReuse(space, page) => self.defer_and_reuse(space, page),
            Op::Migrate(space, page) => {
                if self.unmap(space, page, Wait::Polling).is_some() {
                    self.map(space, page);
                }
            }
            Op::UnmapTable(space, slot) => _ = self.unmap_table(space, slot),
            Op::FreeTable(space, slot) => self.free_table(space, slot),
            Op::UnmapLarge(space, slot) => self.unmap_large(space, slot),
            Op::UnmapJoined(space, page) => self.unmap_joined([space, space ^ 1], page),
            Op::ReclaimBoth(space, page) => self.reclaim(&[space, space ^ 1], page),
            Op::FreeDiscarded(space, slot) => self.free_discarded(space, slot),
            Op::FlushWalkers(space) => self.flush_walkers(space, FreeList::default()),
            Op::TrimCpumask(space) => self.trim_cpumask(space),
            Op::Pin(space) => self.pin(space),
            Op::Attach(space) => self.attach(space),
            Op::Stop => self.stop(),
            Op::StopInWalk(space, slot) => self.stop_in_walk(space, slot),
            Op::Reap => self.reap(),
            Op::UnmapKernel(page) => self.unmap_kernel(page),
            Op::UnmapKernelTable => self.unmap_kernel_table(),
            Op::Retire(space) => self.retire(space),
            Op::OfflineOnline => self.go_offline_and_come_back(),
            Op::StayInUser => self.stay_in_user(),
            Op::Shadow(space, page) => self.shadow(space, page),
        }
        drop(changes);
        if !matches!(op, Op::Run(_)) {
            op.spaces().for_each(|space| self.has_used(space));
        }
    }

    /// Records that an operation is done with a space. A kernel's reference count releases and
    /// acquires as well: an operation that finds the count at its end comes after this one.
    fn has_used(&self, space: usize) {
        if let Some(left) = &self.spaces[space].uses_left {
            left.fetch_add(1_u64.wrapping_neg(), AcqRel);
        }
    }

    fn run_space(&self, space: usize) {
        let KernelSpace { space: own, tables, .. } = &self.spaces[space];
        let rollovers = self.rollovers();
        self.pinned(|pin| {
            with_machine(|machine| machine.set_use(SpaceUse::Switching));
            // SAFETY: spaces live as long as the run, and their tables until they are reclaimed.
            unsafe { pin.switch(own) };
            with_machine(|machine| machine.set_use(SpaceUse::Active(tables.root())));
        });
        with_machine(|machine| {
            if self.rollovers() != rollovers && machine.is_any_flushing() {
                machine.reach(Sometimes::RolledOverDuringFlush);
            }
        });
        self.change_thread(Some(space));
        tables.mark(LAST_PAGE);
        self.engine.machine().stay_in_user_mode();
    }

    fn rollovers(&self) -> u64 {
        let cpu = with_machine(HostileMachine::cpu);
        self.engine.cpu(EngineMachine::<LIFETIME, WORDS>::id(cpu)).stats().rollovers
    }

    fn stop_using<'k>(&'k self, stop: impl FnOnce(&PinnedCpu<'k, EngineMachine<LIFETIME, WORDS>>)) {
        self.pinned(|pin| {
            let idles = self.current[with_machine(HostileMachine::cpu)].get().is_none();
            if !idles {
                with_machine(|machine| machine.set_use(SpaceUse::Switching));
            }
            stop(pin);
            with_machine(|machine| machine.set_use(SpaceUse::None));
        });
        self.change_thread(None);
    }

    /// Switches this CPU to another thread, or to none. The previous thread ends.
    fn change_thread(&self, space: Option<usize>) {
        if let Some(left) = with_machine(|machine| self.current[machine.cpu()].replace(space)) {
            self.has_used(left);
        }
    }

    /// Returns the stale entries of an extent that CPUs may hold.
    fn stale_entries(&self, space: usize, extent: Extent) -> StaleEntries {
        let root = self.spaces[space].tables.root();
        with_machine(|machine| machine.stale_entries(root, |it| covers(extent, it)))
    }

    /// Flushes a change that was just made, waits, and claims that the entries are flushed.
    fn flush(&self, space: usize, extent: Extent, stale_entries: StaleEntries) {
        self.flush_and(Wait::Polling, space, extent, stale_entries);
    }

    /// As [`flush`](Self::flush), with a method of waiting.
    fn flush_and(&self, wait: Wait, space: usize, extent: Extent, stale_entries: StaleEntries) {
        let KernelSpace { space: own, tables, .. } = &self.spaces[space];
        let scope = if extent.frees_tables() { FlushScope::Tables } else { FlushScope::Pages };
        with_machine(|machine| {
            let flush = || match wait {
                Wait::Polling if machine.is_masked() => {
                    self.pinned(|pin| pin.flush_and_wait(own, extent));
                }
                Wait::Polling => self.pinned(|pin| pin.flush(own, extent)).wait(),
                Wait::Asleep => {
                    let pending = self.pinned(|pin| pin.flush(own, extent));
                    self.engine.machine().sleep_until_done(pending);
                }
            };
            machine.flushing(tables.root(), scope, flush);
            machine.complete_flush(stale_entries);
        });
    }

    /// Flushes pages that another operation has unmapped, if their flush waits in a batch, and
    /// claims that they are flushed. `stale_entries` are their entries when they were found gone.
    fn flush_if_batched(&self, space: usize, extent: Extent, stale_entries: StaleEntries) {
        let KernelSpace { space: own, tables, .. } = &self.spaces[space];
        with_machine(|machine| {
            if own.is_batched(self.engine.machine()) {
                machine.reach(Sometimes::FlushedBatched);
            }
            let flush = || self.pinned(|pin| pin.flush_if_batched(own, extent)).wait();
            machine.flushing(tables.root(), FlushScope::Pages, flush);
            machine.complete_flush(stale_entries);
        });
    }

    /// Unmaps a page. Returns its frame if the page was mapped.
    fn unmap(&self, space: usize, number: usize, wait: Wait) -> Option<usize> {
        let KernelSpace { tables, in_flight, .. } = &self.spaces[space];
        let own = InFlight::begin(in_flight);
        let entry = tables.swap(number, Entry::EMPTY);
        let stale_entries = self.stale_entries(space, page(number));
        if self.is_mapped(entry) {
            self.flush_and(wait, space, page(number), stale_entries);
            // By now, everything that CPUs wrote to the page is in its frame.
            with_machine(|machine| machine.write_out(entry.target(), true));
            self.free_frame(space, number, entry.target());
            return Some(entry.target());
        }
        let is_alone = own.is_alone();
        with_machine(|machine| machine.observe(u64::from(is_alone)));
        if is_alone {
            self.flush_if_batched(space, page(number), stale_entries);
        }
        None
    }

    /// Returns `true` if an entry maps a page. A kernel that compares with an empty entry takes a
    /// mark that came late for a mapping.
    fn is_mapped(&self, entry: Entry) -> bool {
        entry.is_present() || self.fault == Some(Fault::NoWorkaround) && entry != Entry::EMPTY
    }

    /// Reuses a frame, and then makes it available to [`Op::Map`].
    fn free_frame(&self, space: usize, number: usize, frame: usize) {
        with_machine(|machine| machine.reuse_frame(frame));
        if let Some(free) = self.spaces[space].free_frames.get(number) {
            free.store(frame as u64 + 1, Release);
        }
    }

    fn map(&self, space: usize, number: usize) {
        let KernelSpace { tables, free_frames, .. } = &self.spaces[space];
        let free = free_frames[number].swap(0, AcqRel);
        if free != 0 && tables.has_table(number) {
            tables.swap(number, Entry::to(free as usize - 1).writable());
        }
    }

    fn protect(&self, space: usize, number: usize) {
        let KernelSpace { tables, in_flight, .. } = &self.spaces[space];
        let entry = tables.entry(number);
        let _in_flight = InFlight::begin(in_flight);
        if entry.is_present()
            && entry.is_writable()
            && tables.replace(number, entry, Entry::to(entry.target()))
        {
            self.flush(space, page(number), self.stale_entries(space, page(number)));
        }
    }

    fn unmap_kernel(&self, number: usize) {
        let entry = self.pages.swap(number, Entry::EMPTY);
        if entry.is_present() {
            self.pinned(|pin| pin.flush_kernel(page(number))).wait();
            with_machine(|machine| machine.reuse_kernel_frame(entry.target()));
        }
    }

    /// Removes the kernel's page table with its pages, and frees all.
    fn unmap_kernel_table(&self) {
        if !self.pages.unlink() {
            return;
        }
        let entries = [0, 1].map(|number| self.pages.swap(number, Entry::EMPTY));
        let extent = Extent::pages(0, SLOTS, PageSize::SIZE_4K).freeing_tables();
        self.pinned(|pin| pin.flush_kernel(extent)).wait();
        with_machine(|machine| {
            if self.fault != Some(Fault::KernelTableOnDevice) {
                machine.invalidate_kernel_on_device();
            }
            machine.free_kernel_table();
            for entry in entries.into_iter().filter(|entry| entry.is_present()) {
                machine.reuse_kernel_frame(entry.target());
            }
            machine.reach(Sometimes::FreedKernelTable);
        });
    }

    fn retire(&self, number: usize) {
        let KernelSpace { space, uses_left, tables, .. } = &self.spaces[number];
        if with_machine(|machine| self.current[machine.cpu()].get()).is_some() {
            // Another CPU that retires a space may be waiting for this CPU to finish with it.
            self.perform(Op::Idle);
        }
        with_machine(|machine| {
            // All operations but this one.
            machine.wait_until(|| uses_left.as_ref().is_none_or(|left| left.load(Acquire) <= 1));
            self.engine.machine().note_retired(tables.root(), machine.cpu());
        });
        // SAFETY: no program switches to a space after it has retired it.
        let retiring = self.pinned(|pin| unsafe { pin.retire(NonNull::from(space)) });
        retiring.wait();
    }

    /// Makes other CPUs drop their hazards of dead spaces.
    fn reap(&self) {
        let before = self.engine.machine().freed();
        self.pinned(PinnedCpu::reap).wait();
        if self.engine.machine().freed() > before {
            with_machine(|machine| machine.reach(Sometimes::Reaped));
        }
    }

    fn trim_cpumask(&self, space: usize) {
        if self.pinned(|pin| pin.trim_cpumask(&self.spaces[space].space)) {
            with_machine(|machine| machine.reach(Sometimes::TrimmedCpumask));
        }
    }

    fn stop(&self) {
        let entries = self.engine.machine().stop();
        with_machine(|machine| {
            if entries == Entries::Discard {
                machine.reach(Sometimes::EmptiedOnReturn);
            }
            if self.current[machine.cpu()].get().is_some() {
                self.engine.machine().stay_in_user_mode();
            }
        });
    }

    fn stop_in_walk(&self, space: usize, slot: usize) {
        if with_machine(|machine| self.current[machine.cpu()].get()) != Some(space) {
            return;
        }
        // No masked interrupt delays a broadcast, so such a kernel walks in another way, which the
        // engine has no part in: see `begin_walk`.
        if self.engine.machine().broadcaster().is_some() {
            return self.stop();
        }
        self.pinned(|pin| {
            let _walk = pin.begin_walk();
            if let Some(table) = self.spaces[space].tables.linked_table(slot) {
                self.engine.machine().stop();
                with_machine(|machine| machine.read_table(table));
            }
        });
    }

    fn go_offline_and_come_back(&self) {
        self.pinned(|pin| {
            with_machine(|machine| {
                machine.set_online(false);
                machine.set_use(SpaceUse::Switching);
                pin.offline();
                machine.set_use(SpaceUse::None);
            });
            self.change_thread(None);
            pin.online();
            with_machine(|machine| machine.set_online(true));
        });
    }
}

impl<const LIFETIME: u8, const WORDS: usize> KernelSpace<LIFETIME, WORDS> {
    fn new(
        machine: &HostileMachine,
        engine: &Shootdown<EngineMachine<LIFETIME, WORDS>>,
        programs: &[Vec<Op>],
        number: usize,
    ) -> Self {
        let ops = || programs.iter().flatten().filter(|op| op.spaces().any(|it| it == number));
        let tables = PageTables::new(machine);
        for op in ops() {
            if let Op::DeferAndReuse(_, page) = *op {
                tables.store(page, Entry::to(tables.entry(page).target()));
            }
        }
        let new_space = || engine.space(Root(tables.root() as u64));
        let mut space = machine
            .with_names(new_space, |place| format!("{} of space {number}", space_word(place)));
        if let Some(tag) = engine.machine().assigned_tag(number) {
            space.assign_tag(tag);
        }
        let is_retired = ops().any(|op| matches!(op, Op::Retire(_)));
        let uses_left = is_retired.then(|| {
            let what = || format!("uses left of space {number}");
            CheckWord::named(ops().count() as u64, what)
        });
        let is_mapped_again = ops().any(|op| matches!(op, Op::Map(..) | Op::Migrate(..)));
        let frames = if is_mapped_again { SLOTS * PAGES } else { 0 };
        let free_frame =
            |page| CheckWord::named(0, || format!("free frame of page {page} of space {number}"));
        let free_frames = (0..frames).map(free_frame).collect();
        let has_large = ops().any(|op| matches!(op, Op::UnmapLarge(..)));
        let large_frames = has_large.then(|| [(); SLOTS].map(|()| machine.add_frame()));
        // Room for one table, or for two, which then leave together.
        let quarantine = RefCell::new(Quarantine::new(1 + number % 2));
        let in_flight = Cell::new(0);
        let secondary =
            ops().any(|op| matches!(op, Op::Shadow(..))).then(|| Secondary::new(number));
        Self {
            space,
            tables,
            free_frames,
            uses_left,
            in_flight,
            large_frames,
            secondary,
            quarantine,
        }
    }
}

/// The page that a thread accesses first.
const LAST_PAGE: usize = SLOTS * PAGES - 1;

fn page(page: usize) -> Extent {
    Extent::page((page as u64) << 12)
}

thread_local! {
    /// The allocation of the spaces, which one run hands to the next. The engine's words contain
    /// the addresses of spaces, and the same choices must give the same values.
    static ROOM: RefCell<Option<Box<dyn Any>>> = const { RefCell::new(None) };
}

/// Returns an empty vector that has the allocation of the last run's spaces.
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
        let stats = self.engine.cpu(EngineMachine::<LIFETIME, WORDS>::id(cpu)).stats();
        let reached = [
            (stats.caught_up_from_log, Sometimes::CaughtUpFromLog),
            (stats.switches_without_flush, Sometimes::KeptItsTag),
            (stats.answers, Sometimes::HandledInterrupt),
            (stats.flushes_local, Sometimes::NotifiedNone),
            (stats.rings_coalesced, Sometimes::Coalesced),
            (stats.skipped_lazy, Sometimes::SkippedLazy),
            (stats.broadcasts_sent, Sometimes::Broadcast),
            (stats.skipped_in_user, Sometimes::SkippedInUser),
        ];
        let reached = reached.into_iter().filter(|&(count, _)| count > 0);
        with_machine(|machine| reached.for_each(|(_, what)| machine.reach(what)));
    }
    fn handle_interrupt(&self, cpu: usize) {
        self.pinned(|pin| self.in_kernel(cpu, pin, PinnedCpu::handle_flush_ipi));
        self.engine.machine().note_interrupt();
    }
}
