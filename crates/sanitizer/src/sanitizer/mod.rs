//! The events of a guest, and what each means for the shadow TLBs: `uses` are accesses and
//! fetches, which fill entries and report them; `owners` are stores into page tables and frames
//! with new owners, which make entries old.
//!
//! No function has the locks of two CPUs. An event that concerns several CPUs takes their locks one
//! after the other.

mod owners;
mod uses;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use crate::arch::{Architecture, Context};
use crate::cpu::Cpu;
use crate::frames::Frames;
use crate::gone::Gone;
use crate::invalidation::Invalidation;
use crate::report::{Line, Mode, Moment, Report, Reports, Totals};
use crate::speculation::{Look, Tables};

pub use crate::frames::CPUS_MAX;

const PAGE_SHIFT: u8 = 12;
const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;
/// Events whose callers are remembered.
const CALLERS: usize = 1 << 14;

/// The emulator, as the sanitizer sees it.
pub trait Host: Sync + Send {
    /// Reads a word of physical memory, if there is memory.
    fn read(&self, address: u64) -> Option<u64>;

    /// Makes a CPU call [`Sanitizer::fetch`] before it executes its next block.
    fn attend(&self, cpu: usize);

    /// The callers of the function that this thread's CPU executes at `pc`, the last one first.
    fn callers(&self, arch: &dyn Architecture, cpu: usize, pc: u64) -> Vec<u64>;

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
    /// `true` if new owners are found without a hook.
    pub infers: bool,
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
    /// The frames that have lost a mapping.
    gone: Gone,
    /// The callers at events, by time.
    callers: Mutex<VecDeque<(u64, Vec<u64>)>>,
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
            gone: Gone::default(),
            callers: Mutex::default(),
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

    /// Before an instruction of a CPU that invalidates, and may load another root. The CPU is known
    /// to have the root when [`select_tables`](Self::select_tables) is called.
    pub fn load_root(&self, event: Event, invalidation: &Invalidation) {
        self.invalidate(event, invalidation, false);
        if let Some(cpu) = self.cpu(event.cpu) {
            cpu.lock().loading = Some(*invalidation);
        }
    }
    /// Sets the number that later reports have.
    pub fn mark(&self, mark: u64) {
        self.mark.store(mark, Ordering::SeqCst);
    }

    /// Remembers the callers at an event of the CPU of this thread.
    fn note_callers(&self, cpu: usize, at: Moment) {
        let found = self.host.callers(self.arch, cpu, at.pc);
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if callers.len() == CALLERS {
            callers.pop_front();
        }
        callers.push_back((at.time, found));
    }

    fn callers(&self, time: u64) -> Vec<u64> {
        let callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        let found = callers.iter().rev().find(|(at, _)| *at == time);
        found.map_or_else(Vec::new, |(_, callers)| callers.clone())
    }

    fn report(&self, mut report: Report) {
        report.act_callers = self.callers(report.act.at.time);
        report.change_callers =
            report.change.map_or_else(Vec::new, |change| self.callers(change.at.time));
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
