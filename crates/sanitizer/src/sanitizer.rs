//! The events of a guest, and what each means for the shadow TLBs.
//!
//! No function has the locks of two CPUs. An event that concerns several CPUs takes their locks one
//! after the other.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};

use crate::arch::{Architecture, Context};
use crate::cpu::{Changed, Cpu, State, Use, mode};
use crate::frames::{self, Frames};
use crate::invalidation::Invalidation;
use crate::report::{Act, Change, Deed, Line, Mode, Moment, Report, Reports, Totals};
use crate::shadow::Entry;
use crate::speculation::{Changes, Look, Tables};
use crate::translation::{Access, Kind, Pointer, Slot, Translation};

/// The largest number of CPUs.
pub const CPUS_MAX: usize = 512;
const PAGE_SHIFT: u8 = 12;
const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;
/// User pages up to this size are listed by frame. So are small kernel pages, and no larger ones:
/// they map all of memory.
const LISTED_MAX: u64 = 1 << 30;

/// The emulator, as the sanitizer sees it.
pub trait Host: Sync + Send {
    /// Reads a word of physical memory, if there is memory.
    fn read(&self, address: u64) -> Option<u64>;

    /// Makes a CPU call [`Sanitizer::fetch`] before it executes its next block.
    fn attend(&self, cpu: usize);

    /// Prints a line.
    fn print(&self, line: &Line);
}

/// The faults to look for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The modes.
    pub modes: Vec<Mode>,
    /// The largest number of distinct faults that are printed.
    pub limit: u64,
    /// `true` if there is a hook that settles changes.
    pub settles: bool,
}

/// An access of a CPU, or a fetch.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The CPU.
    pub cpu: usize,
    /// The program counter.
    pub pc: u64,
    /// `true` in user mode.
    pub in_user_mode: bool,
}

/// The state of all CPUs of a guest.
#[derive(Debug)]
pub struct Sanitizer<H> {
    arch: &'static dyn Architecture,
    host: H,
    options: Options,
    cpus: Box<[OnceLock<Cpu>]>,
    cpu_count: AtomicUsize,
    frames: Frames,
    /// The tables that CPUs may have walked, if unused entries are looked for.
    tables: Option<Tables>,
    clock: AtomicU64,
    mark: AtomicU64,
    reused: AtomicU64,
    settled: AtomicU64,
    reports: Mutex<Reports>,
    refused: Once,
}

impl<H: Host> Sanitizer<H> {
    /// A sanitizer without CPUs.
    pub fn new(arch: &'static dyn Architecture, host: H, options: Options) -> Self {
        let tables = options.modes.contains(&Mode::Speculation).then(Tables::default);
        Self {
            arch,
            host,
            options,
            tables,
            cpus: (0..CPUS_MAX).map(|_| OnceLock::new()).collect(),
            cpu_count: AtomicUsize::new(0),
            frames: Frames::default(),
            clock: AtomicU64::new(1),
            mark: AtomicU64::new(0),
            reused: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            reports: Mutex::default(),
            refused: Once::new(),
        }
    }

    /// The architecture.
    pub fn arch(&self) -> &'static dyn Architecture {
        self.arch
    }

    /// The emulator.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Adds a CPU, with an empty TLB also if it is plugged again. Numbers from [`CPUS_MAX`] on are
    /// ignored.
    pub fn add_cpu(&self, cpu: usize) {
        if let Some(place) = self.cpus.get(cpu) {
            let place = place.get_or_init(Cpu::default);
            let mut state = place.lock();
            state.reset();
            place.clear_fast();
            self.cpu_count.fetch_max(cpu + 1, Ordering::SeqCst);
        }
    }

    /// Refuses the guest: later results would be wrong.
    fn refuse(&self, cause: impl FnOnce() -> String) {
        self.refused.call_once(|| self.host.print(&Line::Refused { cause: cause() }));
    }

    fn cpu(&self, cpu: usize) -> Option<&Cpu> {
        self.cpus.get(cpu)?.get()
    }

    fn count(&self) -> usize {
        self.cpu_count.load(Ordering::SeqCst)
    }

    fn now(&self, pc: u64) -> Moment {
        Moment { time: self.clock.fetch_add(1, Ordering::Relaxed), pc }
    }

    /// Records the registers that select page tables, when they have changed.
    pub fn select_tables(&self, cpu: usize, context: Context) {
        let Some(cpu) = self.cpu(cpu) else { return };
        let is_new = self.look(|tables, look| tables.enter(look, &context)).unwrap_or(false);
        let mut state = cpu.lock();
        state.counts.root_loads += u64::from(state.context.halves != context.halves);
        state.select(context, self.now(0).time);
        cpu.clear_fast();
        drop(state);
        if is_new {
            self.clear_all_fast();
        }
    }

    /// Calls `act` with the tables that CPUs may have walked, if unused entries are looked for.
    fn look<R>(&self, act: impl FnOnce(&Tables, Look<'_>) -> R) -> Option<R> {
        let tables = self.tables.as_ref()?;
        let read = |address| self.host.read(address);
        let now = self.now(0).time;
        Some(act(tables, Look { arch: self.arch, read: &read, frames: &self.frames, now }))
    }

    /// CPUs may hold entries without a use that the tables do not have any more.
    fn speculate(&self, change: Change, found: &Changes) -> Vec<Changed> {
        let mut changed = Vec::new();
        if found.is_new {
            self.clear_all_fast();
        }
        if found.removed.is_empty() {
            return changed;
        }
        for (index, cpu) in self.cpus[..self.count()].iter().enumerate() {
            let Some(cpu) = cpu.get() else { continue };
            let mut state = cpu.lock();
            for removed in &found.removed {
                if let Some(tag) = state.speculate(removed, change) {
                    let slot = removed.slot;
                    let is_page = slot.kind == Kind::Page && slot.bytes() <= LISTED_MAX;
                    let bytes = if is_page { slot.bytes() } else { PAGE_BYTES };
                    self.frames.hold(index, removed.frame, bytes);
                    changed.push(Changed { cpu: index, tag, slot, change });
                }
            }
        }
        changed
    }

    /// As [`select_tables`](Self::select_tables), after the CPU was halted or stopped. If
    /// translation is off and no instruction has disabled it, the CPU was reset: its TLB is empty.
    pub fn resume(&self, cpu: usize, context: Context) {
        if self.context(cpu).is_on && !context.is_on {
            self.add_cpu(cpu);
        }
        self.select_tables(cpu, context);
    }

    /// The tables that a CPU uses.
    pub fn context(&self, cpu: usize) -> Context {
        self.cpu(cpu).map_or_else(Context::default, |cpu| cpu.lock().context)
    }

    /// Translates an address as the page tables of a CPU have it now.
    pub fn translate(&self, cpu: usize, address: u64) -> Option<u64> {
        let found = self.arch.walk(&self.context(cpu), address, &|at| self.host.read(at))?;
        Some(found.frame + (address & ((1 << found.shift) - 1)))
    }

    /// Executes an invalidation, on one CPU or on all.
    pub fn invalidate(&self, event: Event, invalidation: &Invalidation, is_broadcast: bool) {
        let at = self.now(event.pc);
        let only = (!is_broadcast).then_some(event.cpu);
        for (index, cpu) in self.cpus[..self.count()].iter().enumerate() {
            if only.is_none_or(|only| only == index)
                && let Some(cpu) = cpu.get()
            {
                cpu.invalidate(&mut cpu.lock(), at, event.cpu, invalidation);
                self.host.attend(index);
            }
        }
    }

    /// Returns `true` if this use of the address needs no call of [`access`](Self::access).
    #[inline]
    pub fn is_fast(&self, cpu: usize, address: u64, wanted: Use) -> bool {
        self.cpu(cpu).is_none_or(|cpu| cpu.is_fast(address, wanted))
    }

    /// A load or store of this many bytes that was executed.
    ///
    /// The page tables are read after the access. If another CPU has changed them in between, the
    /// entry is the new one, which the CPU may hold as well.
    pub fn access(&self, event: Event, address: u64, bytes: u64, wanted: Use) {
        let Some(cpu) = self.cpu(event.cpu) else { return };
        let address = self.arch.canonical(address);
        let state = cpu.lock();
        if !state.context.is_on {
            return;
        }
        if let Some(physical) = self.use_entry(event, cpu, state, (address, wanted))
            && wanted == Use::Store
            && self.frames.is_table(physical)
        {
            self.store_into_table(event, physical, bytes);
        }
    }

    /// Before a CPU executes a block: on another page than the last block, in another mode, or
    /// after [`Host::attend`].
    pub fn fetch(&self, event: Event) {
        let Some(cpu) = self.cpu(event.cpu) else { return };
        if cpu.is_fast(event.pc, Use::Fetch) {
            return;
        }
        let address = self.arch.canonical(event.pc);
        let mut state = cpu.lock();
        if !state.context.is_on {
            return;
        }
        if event.in_user_mode {
            cpu.ran_user_code.store(true, Ordering::Relaxed);
        }
        if cpu.attention.load(Ordering::SeqCst) {
            self.report_possible(event, cpu, &mut state);
        }
        self.use_entry(event, cpu, state, (address, Use::Fetch));
    }

    /// Uses the entry that the CPU holds for an address, or fills one. An entry that does not allow
    /// the use is removed: the CPU has walked again, since the access was executed.
    fn use_entry(
        &self,
        event: Event,
        cpu: &Cpu,
        mut state: MutexGuard<'_, State>,
        (address, wanted): (u64, Use),
    ) -> Option<u64> {
        let (physical, is_new) = match state.tlb.find(state.context.tag, address) {
            Some((tag, slot, entry)) if entry.access.has(wanted.needs()) => {
                let physical = entry.frame + (address - slot.start);
                match entry.act {
                    None => self.allow_fast(cpu, address, wanted, physical),
                    Some(act) if !entry.is_reported => {
                        state.tlb.set_reported(tag, &slot);
                        let place = (event.cpu, self.now(event.pc), event.in_user_mode, true);
                        self.report(state.report(place, (tag, &slot, &entry, act)));
                    }
                    Some(_) => {}
                }
                (Some(physical), false)
            }
            refused => {
                if let Some((tag, slot, _)) = refused {
                    state.tlb.remove(tag, &slot);
                }
                self.fill(event, cpu, &mut state, (address, wanted))
            }
        };
        drop(state);
        if is_new {
            self.clear_all_fast();
        }
        physical
    }

    /// Lets later uses of the address's 4 KiB pass, except stores into page tables.
    fn allow_fast(&self, cpu: &Cpu, address: u64, wanted: Use, physical: u64) {
        if wanted != Use::Store || !self.frames.is_table(physical) {
            cpu.set_fast(address, wanted);
        }
    }

    /// Reports the marked entries that the CPU could use now: in user mode the pages of user mode,
    /// and in any mode pointers to tables of user addresses, which the CPU may follow by itself.
    fn report_possible(&self, event: Event, cpu: &Cpu, state: &mut State) {
        let at = self.now(event.pc);
        let kinds: &[Kind] =
            if event.in_user_mode { &[Kind::Table, Kind::Page] } else { &[Kind::Table] };
        let mut found = Vec::new();
        let tag = state.context.tag;
        for tlb in [&mut state.tlb, &mut state.unused] {
            tlb.report_pending(tag, kinds, |tag, slot, entry| {
                found.extend(entry.act.map(|act| (tag, *slot, *entry, act)));
            });
        }
        for (tag, slot, entry, act) in &found {
            let place = (event.cpu, at, event.in_user_mode, false);
            self.report(state.report(place, (*tag, slot, entry, *act)));
        }
        cpu.attention.store(state.pending() != 0, Ordering::SeqCst);
    }

    /// Keeps the translation of an address, as the page tables have it now. Returns the physical
    /// address, and `true` if a frame is now known to be a page table.
    fn fill(
        &self,
        event: Event,
        cpu: &Cpu,
        state: &mut State,
        (address, wanted): (u64, Use),
    ) -> (Option<u64>, bool) {
        let read = |address| self.host.read(address);
        let context = state.context;
        let found = self.arch.walk(&context, address, &read);
        let Some(found) = found.filter(|found| found.access.has(wanted.needs())) else {
            // Another CPU has removed the translation since the access.
            state.counts.not_in_tables += 1;
            return (None, false);
        };
        state.counts.fills += 1;
        let half = &context.halves[(address >> 63) as usize];
        state.tlb.fill((context.tag, half.root), address, &found, self.now(event.pc));
        let is_new = self.hold(event.cpu, &context, address, &found);
        let slot = Slot::covering(Kind::Page, found.shift, address);
        // A store into the tables after the walk may have found no bit of this CPU.
        if self.arch.walk(&context, address, &read) != Some(found) {
            state.tlb.remove(found.tag, &slot);
            state.counts.not_in_tables += 1;
            return (None, is_new);
        }
        let physical = found.frame + (address - slot.start);
        self.allow_fast(cpu, address, wanted, physical);
        (Some(physical), is_new)
    }

    /// Records the frames that a translation names and was read from.
    fn hold(&self, cpu: usize, context: &Context, address: u64, found: &Translation) -> bool {
        let bytes = 1 << found.shift;
        let is_user = found.access.has(Access::USER);
        let half = &context.halves[(address >> 63) as usize];
        if half.page_shift != PAGE_SHIFT {
            self.refuse(|| "the kernel's smallest page is not one of 4 KiB".to_owned());
        }
        let is_listed = bytes == PAGE_BYTES || is_user && bytes <= LISTED_MAX;
        if found.entry >= frames::LIMIT || is_listed && found.frame >= frames::LIMIT {
            self.refuse(|| format!("the guest uses memory at {:#x}", found.frame));
        }
        if is_listed {
            self.frames.hold(cpu, found.frame, bytes);
        }
        for pointer in found.pointers() {
            self.frames.hold(cpu, pointer.table, PAGE_BYTES);
            self.frames.hold(cpu, pointer.entry & !(PAGE_BYTES - 1), PAGE_BYTES);
        }
        self.frames.hold(cpu, found.entry & !(PAGE_BYTES - 1), PAGE_BYTES);
        // After the bits of this CPU: see `store_into_table`.
        let mut is_new = self.frames.becomes_table(half.root);
        for pointer in found.pointers() {
            is_new |= self.frames.becomes_table(pointer.table);
        }
        is_new
    }

    /// Makes the next store of every CPU an event: it may be one into a page table.
    fn clear_all_fast(&self) {
        for cpu in self.cpus[..self.count()].iter().filter_map(OnceLock::get) {
            let _state = cpu.lock();
            cpu.clear_fast();
        }
    }

    /// A store into a page table: entries that were read from its words may be old now.
    fn store_into_table(&self, event: Event, physical: u64, bytes: u64) {
        let at = self.now(event.pc);
        let change = Change { at, cpu: event.cpu };
        let table = physical & !(PAGE_BYTES - 1);
        let mut found = Changes::default();
        let words = (physical & !7..physical + bytes).step_by(8);
        self.look(|tables, look| {
            words.clone().for_each(|source| tables.store(look, source, &mut found));
        });
        let mut changed = self.speculate(change, &found);
        for index in self.frames.holders(physical, self.count()) {
            let Some(cpu) = self.cpu(index) else { continue };
            let mut state = cpu.lock();
            if !state.tlb.uses_table(table) {
                self.frames.release(index, table, self.count());
                continue;
            }
            let context = state.context;
            for source in words.clone() {
                state.tlb.change_source(source, |tag, slot, entry| {
                    let is_old = !self.still_has(&context, slot, entry);
                    if is_old && entry.change.is_none() {
                        entry.change = Some(change);
                        changed.push(Changed { cpu: index, tag, slot: *slot, change });
                    } else if !is_old && entry.act.is_none() {
                        entry.change = None;
                    }
                });
            }
        }
        // Without entries, the frame may have become anything.
        if !self.tables.as_ref().is_some_and(|tables| tables.has(table)) {
            self.frames.is_no_table(table);
        }
        if let Some(cpu) = self.cpu(event.cpu) {
            let mut state = cpu.lock();
            state.counts.table_stores += 1;
            if self.options.settles {
                state.changed.append(&mut changed);
            }
        }
    }

    /// Returns `true` if the page tables still allow all that the TLB's entry allows. The root of a
    /// kernel page may be gone: each root has the pages of the kernel.
    fn still_has(&self, context: &Context, slot: &Slot, entry: &Entry) -> bool {
        let mut half = context.halves[(slot.start >> 63) as usize];
        if slot.start >> 63 == 0 {
            half.root = entry.root;
        }
        let (mut pointers, read) = (Default::default(), |at| self.host.read(at));
        let found = self.arch.walk_from(&half, 0, slot.start, &read, &mut pointers);
        match slot.kind {
            Kind::Page => found.is_some_and(|found| {
                let within = slot.start & ((1 << found.shift) - 1);
                let is_whole = found.shift >= slot.shift;
                is_whole && found.frame + within == entry.frame && found.access.has(entry.access)
            }),
            Kind::Table => {
                let is_it =
                    |found: &Pointer| (found.shift, found.table) == (slot.shift, entry.frame);
                pointers.iter().any(is_it)
            }
        }
    }

    /// Frames get a new owner. A page of the kernel is concerned if its page table has changed: the
    /// kernel keeps all of memory mapped.
    pub fn reuse(&self, event: Event, first: u64, frames: u64, hook: usize) {
        let act = Act { deed: Deed::Reused(hook), at: self.now(event.pc), cpu: event.cpu };
        if first >= frames::LIMIT {
            let pc = event.pc;
            return self.refuse(|| format!("the hook at {pc:#x} names a frame at {first:#x}"));
        }
        self.reused.fetch_add(frames, Ordering::Relaxed);
        let first = first & !(PAGE_BYTES - 1);
        for frame in (0..frames).map(|number| first + number * PAGE_BYTES) {
            let mut found = Changes::default();
            self.look(|tables, look| tables.free(look, frame, &mut found));
            self.speculate(Change { at: act.at, cpu: act.cpu }, &found);
            for index in self.frames.holders(frame, self.count()) {
                let Some(cpu) = self.cpu(index) else { continue };
                let mut state = cpu.lock();
                let is_concerned = |_, slot: &Slot, entry: &Entry| {
                    let is_user = entry.access.has(Access::USER) && slot.start >> 63 == 0;
                    let is_concerned = match slot.kind {
                        Kind::Page => is_user || entry.change.is_some(),
                        Kind::Table => slot.start >> 63 == 0,
                    };
                    (is_concerned && self.is_wanted(slot, entry.is_unused, act)).then_some(act)
                };
                let used = state.tlb.mark_frame(frame, is_concerned);
                match used.max(state.unused.mark_frame(frame, is_concerned)) {
                    // The bit may also stand for entries that were read from the frame.
                    None if !self.frames.is_table(frame) => {
                        self.frames.release(index, frame, self.count());
                    }
                    None | Some(0) => {}
                    Some(_) => self.attend(index, cpu),
                }
            }
        }
    }

    fn is_wanted(&self, slot: &Slot, is_unused: bool, act: Act) -> bool {
        self.options.modes.contains(&mode(slot, act, is_unused))
    }

    fn attend(&self, index: usize, cpu: &Cpu) {
        cpu.attention.store(true, Ordering::SeqCst);
        cpu.clear_fast();
        self.host.attend(index);
    }

    /// The kernel relies on all changes of page tables that this CPU has made: their flushes are
    /// complete.
    pub fn settle(&self, event: Event, hook: usize) {
        let act = Act { deed: Deed::Settled(hook), at: self.now(event.pc), cpu: event.cpu };
        self.settled.fetch_add(1, Ordering::Relaxed);
        let Some(cpu) = self.cpu(event.cpu) else { return };
        let changed = std::mem::take(&mut cpu.lock().changed);
        for Changed { cpu: index, tag, slot, change } in changed {
            let Some(cpu) = self.cpu(index) else { continue };
            let mut state = cpu.lock();
            let is_marked = self.is_wanted(&slot, false, act)
                && state.tlb.mark(tag, &slot, &change, act)
                || self.is_wanted(&slot, true, act) && state.unused.mark(tag, &slot, &change, act);
            if is_marked {
                self.attend(index, cpu);
            }
        }
    }

    /// Sets the number that later reports have.
    pub fn mark(&self, mark: u64) {
        self.mark.store(mark, Ordering::SeqCst);
    }

    fn report(&self, mut report: Report) {
        report.mark = self.mark.load(Ordering::SeqCst);
        let (is_new, faults) = {
            let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
            (reports.add(&report), reports.totals().1)
        };
        if is_new && faults <= self.options.limit {
            self.host.print(&Line::Fault(Box::new(report)));
        }
    }

    /// The totals so far.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals { cpus: self.count(), ..Totals::default() };
        for cpu in self.cpus[..self.count()].iter().filter_map(OnceLock::get) {
            let state = cpu.lock();
            let counts = &state.counts;
            totals.cpus_in_user_mode += usize::from(cpu.ran_user_code.load(Ordering::Relaxed));
            totals.held += state.tlb.held() + state.unused.held();
            totals.fills += counts.fills;
            totals.invalidations += counts.invalidations;
            totals.root_loads += counts.root_loads;
            totals.table_stores += counts.table_stores;
            totals.dropped_in_time += counts.dropped_in_time;
            totals.not_in_tables += counts.not_in_tables;
        }
        totals.reused = self.reused.load(Ordering::Relaxed);
        totals.settled = self.settled.load(Ordering::Relaxed);
        let reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        (totals.reports, totals.faults) = reports.totals();
        totals
    }
}
