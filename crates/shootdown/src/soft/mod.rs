//! The software machine: threads as CPUs, and a TLB that never evicts.
//!
//! It is for tests, examples and benchmarks, of this crate and of kernels that embed it. Its TLB is
//! harsher than hardware. It never evicts a translation, so a missed invalidation stays visible
//! until a test touches the page. It caches upper levels as soon as a root is loaded, and walks
//! them at the worst moments.
//!
//! A page table is a flat array. Each page has one frame, which counts how often it was freed. A
//! translation records the count, and a [touch](OnCpu::touch) that finds a higher count has used a
//! [stale translation](Touch::Stale). This oracle does not depend on the engine.
//!
//! The [`Platform`] defines threads and words: [`Host`] has the host's threads and atomics, and the
//! tests add two model checkers.
//!
//! Limits: the machine has no page sizes, and a thread takes interrupts only where it calls
//! [`OnCpu::interrupt_point`].

#![expect(unsafe_code, reason = "implements `Machine`")]

mod broadcasts;
mod churn;
mod config;
mod device;
mod lifecycles;
mod nmi;
mod tlb;
mod worker;

use core::fmt;
use core::marker::PhantomData;
use core::panic::Location;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use crate::base::ids::{CpuId, Root, Tag};
use crate::base::memory::{Memory, Word};
use crate::base::rules::Rule;
use crate::parts::cpu_set::CpuSet;
use crate::parts::extent::Extent;
use crate::parts::stats::CpuStats;
use crate::parts::trace_event::{FlushTrace, WaitTrace};
use crate::state::cpu_state::CpuState;
use crate::state::engine::Shootdown;
use crate::state::machine::{Entries, Lifetime, Machine, Tagging};
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;
use crate::state::tag::slots::TagSlot;
use crate::state::vcpu::VcpuWord;
use broadcasts::Broadcasts;
use device::Device;
use tlb::{Table, Tlb};

pub use churn::Churn;
pub use config::{Answers, Config, Site};
pub use lifecycles::Lifecycles;
pub use tlb::Touch;
pub use worker::StressReport;

/// The threads and words that the machine is made of.
pub trait Platform: Send + Sync + Sized + 'static {
    /// The shared words of the engine and of page tables.
    type Word: Word;
    /// The frames of pages and page tables.
    type Frame: Frame;
    /// A full barrier.
    fn fence();
    /// Lets other threads run.
    fn spin_hint();
    /// The CPU that this thread is, as set by [`set_cpu`](Self::set_cpu).
    fn cpu() -> CpuId;
    /// Makes this thread the CPU `cpu`.
    fn set_cpu(cpu: CpuId);
    /// See [`Machine::LIFETIME`].
    const LIFETIME: Lifetime = Lifetime::Handoff;
    /// See [`Machine::TRACES`]. The machine then collects [traces](Soft::take_traces).
    const TRACES: bool = false;
}

/// A frame of memory, which counts how often it was reused.
///
/// A model checker's frame also checks that the engine's orderings put every use before the next
/// reuse.
pub trait Frame: Send + Sync {
    /// A frame that was not reused yet.
    fn new() -> Self;
    /// Uses the frame. Returns the number of times that it was reused.
    fn use_count(&self) -> u64;
    /// Frees the frame for another use.
    fn reuse(&self);
}

impl Frame for AtomicU64 {
    fn new() -> Self {
        Self::new(0)
    }
    fn use_count(&self) -> u64 {
        self.load(Relaxed)
    }
    fn reuse(&self) {
        self.fetch_add(1, Relaxed);
    }
}

/// The platform of the host's threads and atomics.
#[derive(Debug)]
pub struct Host;

std::thread_local! {
    static HOST_CPU: core::cell::Cell<CpuId> = const { core::cell::Cell::new(CpuId(0)) };
}

impl Platform for Host {
    type Word = AtomicU64;
    type Frame = AtomicU64;
    fn fence() {
        core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
    }
    fn spin_hint() {
        std::thread::yield_now();
    }
    fn cpu() -> CpuId {
        HOST_CPU.get()
    }
    fn set_cpu(cpu: CpuId) {
        HOST_CPU.set(cpu);
    }
}

/// The software machine, with room for `64 * WORDS` CPUs.
pub struct Soft<P: Platform, const WORDS: usize = 1> {
    config: Config,
    cpus: Vec<SoftCpu<P, WORDS>>,
    tables: Vec<Table<P>>,
    kernel: Table<P>,
    device: Device<P>,
    freed_table_walks: AtomicU64,
    stale_nmis: AtomicU64,
    cost_reads: AtomicU64,
    broadcasts: AtomicU64,
    is_unmasked: AtomicBool,
    /// One of the states below, of the one waiter that may sleep.
    sleeper: P::Word,
    reclaimed: Mutex<Vec<Reclaimed<P, WORDS>>>,
    traces: Mutex<(Vec<FlushTrace>, Vec<WaitTrace>)>,
    /// A clock for traces, which advances by 1 ns with each read.
    trace_clock_ns: AtomicU64,
}

/// No waiter sleeps.
const AWAKE: u64 = 0;
/// A waiter is registered, and not woken.
const ASLEEP: u64 = 1;
/// The waiter was woken.
const WOKEN: u64 = 2;

/// A space that no CPU has loaded any more.
struct Reclaimed<P: Platform, const WORDS: usize>(NonNull<Space<Soft<P, WORDS>>>);

// SAFETY: no CPU follows the pointer any more, so any one thread may.
unsafe impl<P: Platform, const WORDS: usize> Send for Reclaimed<P, WORDS> {}

struct SoftCpu<P: Platform, const WORDS: usize> {
    state: CpuState<Soft<P, WORDS>>,
    tlb: Mutex<Tlb>,
    /// 1 if the flush interrupt was sent and not taken.
    interrupt: P::Word,
    broadcasts: Broadcasts<P>,
    vcpu: VcpuWord<Soft<P, WORDS>>,
    /// A thread is this CPU.
    occupied: AtomicBool,
}

impl<P: Platform, const WORDS: usize> Soft<P, WORDS> {
    /// An engine on a machine with this configuration, with every CPU offline and no page mapped.
    ///
    /// # Panics
    ///
    /// If there are more than `64 * WORDS` CPUs.
    #[must_use]
    pub fn engine(config: Config) -> Shootdown<Self> {
        assert!(config.cpus as usize <= CpuSet::<[u64; WORDS]>::capacity(), "WORDS is too small");
        let cpus = (0..config.cpus).map(|_| SoftCpu {
            state: CpuState::default(),
            tlb: Mutex::default(),
            interrupt: P::Word::new(0),
            broadcasts: Broadcasts::new(),
            vcpu: VcpuWord::default(),
            occupied: AtomicBool::new(false),
        });
        Shootdown::from(Self {
            config,
            cpus: cpus.collect(),
            tables: (0..config.tables).map(|_| Table::new(config.pages)).collect(),
            kernel: Table::new(config.pages),
            device: Device::new(),
            freed_table_walks: AtomicU64::new(0),
            stale_nmis: AtomicU64::new(0),
            cost_reads: AtomicU64::new(0),
            broadcasts: AtomicU64::new(0),
            is_unmasked: AtomicBool::new(false),
            sleeper: P::Word::new(AWAKE),
            reclaimed: Mutex::default(),
            traces: Mutex::default(),
            trace_clock_ns: AtomicU64::new(1_000_000),
        })
    }

    /// Number of speculative walks of page tables that had been freed.
    pub fn freed_table_walks(&self) -> u64 {
        self.freed_table_walks.load(Relaxed)
    }

    /// Removes and returns the spaces that the engine has reclaimed, in that order. The page tables
    /// of each can be freed or reused.
    pub fn take_reclaimed(&self) -> Vec<NonNull<Space<Self>>> {
        guard(&self.reclaimed).drain(..).map(|Reclaimed(space)| space).collect()
    }

    /// Removes and returns the flushes and waits that were traced since the last call.
    pub fn take_traces(&self) -> (Vec<FlushTrace>, Vec<WaitTrace>) {
        core::mem::take(&mut guard(&self.traces))
    }

    /// Registers a waiter, which may sleep if
    /// [`Pending::poll_or_wake`](crate::Pending::poll_or_wake) then returns `false`.
    pub fn register_sleeper(&self) {
        // Relaxed: the engine orders this before the answer.
        self.sleeper.store(ASLEEP, Relaxed);
    }

    /// Returns `true` if the engine has woken the waiter since it was registered.
    pub fn is_woken(&self) -> bool {
        self.sleeper.load(Relaxed) == WOKEN
    }

    /// Makes [`Machine::interrupts_masked`] return `false` from now on, so that no CPU can be
    /// pinned. CPUs still take the interrupt at interrupt points only.
    pub fn unmask(&self) {
        self.is_unmasked.store(true, Relaxed);
    }

    /// Makes [`Machine::interrupts_masked`] return `true` from now on, as it does at first.
    pub fn mask(&self) {
        self.is_unmasked.store(false, Relaxed);
    }

    /// Maps a page to its frame. The page must not be mapped already.
    pub fn map(&self, space: &Space<Self>, page: usize) {
        self.table(space).map(page);
    }

    /// Clears a page's entry. Flush the page before you free its frame.
    pub fn unmap(&self, space: &Space<Self>, page: usize) {
        self.table(space).unmap(page);
    }

    /// Clears a page's entry with an ordered read-modify-write, for entries that several CPUs may
    /// clear. Returns `true` if the page was mapped.
    pub fn try_unmap(&self, space: &Space<Self>, page: usize) -> bool {
        self.table(space).try_unmap(page)
    }

    /// Frees a page's frame. A CPU that still uses it from now on gets [`Touch::Stale`].
    pub fn free(&self, space: &Space<Self>, page: usize) {
        self.table(space).free(page);
    }

    /// Replaces the page tables of a space. Flush the old ones with [`Extent::freeing_tables`]
    /// before you free them.
    pub fn unhook_tables(&self, space: &Space<Self>) {
        self.table(space).unhook_tables();
    }

    /// Frees the page tables that were unhooked first. Walks of them from now on are counted in
    /// [`freed_table_walks`](Self::freed_table_walks).
    pub fn free_tables(&self, space: &Space<Self>) {
        self.table(space).free_tables();
    }

    /// Maps a page of the kernel.
    pub fn map_kernel(&self, page: usize) {
        self.kernel.map(page);
    }

    /// Clears the entry of a page of the kernel.
    pub fn unmap_kernel(&self, page: usize) {
        self.kernel.unmap(page);
    }

    /// Frees the frame of a page of the kernel.
    pub fn free_kernel(&self, page: usize) {
        self.kernel.free(page);
    }

    /// Sum of the statistics of all CPUs.
    pub fn total_stats(&self) -> CpuStats {
        let mut total = CpuStats::default();
        for cpu in &self.cpus {
            total += cpu.state.stats();
        }
        total
    }

    fn table(&self, space: &Space<Self>) -> &Table<P> {
        &self.tables[space.root().0 as usize]
    }

    /// Uses the TLB of the CPU that this thread is.
    fn tlb<R>(&self, f: impl FnOnce(&mut Tlb) -> R) -> R {
        let cpu = &self.cpus[P::cpu().index()];
        let mut tlb = guard(&cpu.tlb);
        if self.config.broadcast.is_some() {
            cpu.broadcasts.using(&mut tlb, f)
        } else {
            f(&mut tlb)
        }
    }

    /// Uses the TLB after a last speculative walk.
    fn tlb_after_walk(&self, f: impl FnOnce(&mut Tlb)) {
        self.count_walk(self.tlb(|tlb| {
            let walked_freed = tlb.speculate(&self.tables);
            f(tlb);
            walked_freed
        }));
    }

    fn load_root(&self, root: Option<Root>, tag: Tag, entries: Entries) {
        self.count_walk(self.tlb(|tlb| tlb.load(&self.tables, root, tag, entries)));
    }

    fn count_walk(&self, walked_freed: bool) {
        self.freed_table_walks.fetch_add(u64::from(walked_freed), Relaxed);
    }
}

/// Locks a mutex, poisoned or not: a panic while it is locked fails the test anyway.
fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// SAFETY: the words and the barrier are the platform's. `breaks` returns `true` only in tests that
// expect the engine to fail.
unsafe impl<P: Platform, const WORDS: usize> Memory for Soft<P, WORDS> {
    type Word = P::Word;

    fn fence(&self) {
        P::fence();
    }
    #[track_caller]
    fn breaks(&self, rule: Rule) -> bool {
        let Config { broken, broken_site, note_site, .. } = self.config;
        let site = Site { rule, location: Location::caller() };
        if let Some(note) = note_site {
            note(site);
        }
        broken == Some(rule) || broken_site == Some(site)
    }
}

// SAFETY: `cpu` is the CPU that the thread has entered, and only one thread at a time can be that
// CPU. The TLB drops translations before each `invalidate` method returns. A CPU that is rung
// handles the interrupt at its next interrupt point.
unsafe impl<P: Platform, const WORDS: usize> Machine for Soft<P, WORDS> {
    type CpuBits = [u64; WORDS];
    type TagSlots = [TagSlot; 6];
    type TagWords = [P::Word; 2];
    type Broadcaster = Self;

    const LIFETIME: Lifetime = P::LIFETIME;
    const TRACES: bool = P::TRACES;

    fn trace_clock_ns(&self) -> u64 {
        self.trace_clock_ns.fetch_add(1, Relaxed)
    }
    fn trace_flush(&self, trace: &FlushTrace) {
        guard(&self.traces).0.push(*trace);
    }
    fn trace_wait(&self, trace: &WaitTrace) {
        guard(&self.traces).1.push(*trace);
    }
    fn state(&self, cpu: CpuId) -> &CpuState<Self> {
        &self.cpus[cpu.index()].state
    }
    fn cpu(&self) -> CpuId {
        P::cpu()
    }
    fn interrupts_masked(&self) -> bool {
        !self.is_unmasked.load(Relaxed)
    }
    fn publish(&self) {}
    fn wake_waiters(&self, _: CpuId) {
        if self.sleeper.load(Relaxed) == ASLEEP {
            self.sleeper.store(WOKEN, Relaxed);
        }
    }
    fn tagging(&self) -> Tagging {
        self.config.tagging
    }
    fn tag_count(&self) -> usize {
        self.config.tags
    }
    fn cpu_limit(&self) -> usize {
        self.config.cpus as usize
    }
    fn is_away(&self, cpu: CpuId) -> bool {
        self.config.is_guest && self.cpus[cpu.index()].vcpu.defer_flush(self)
    }
    fn invalidate_devices(&self, space: &Space<Self>, extents: &[Extent]) {
        self.invalidate_on_device(space, extents);
    }
    fn broadcaster(&self) -> Option<&Self> {
        self.config.broadcast.map(|_| self)
    }
    fn catch_up_ceiling(&self) -> usize {
        self.config.catch_up_ceiling
    }
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        self.load_root(Some(root), tag, entries);
    }
    fn load_kernel(&self) {
        let entries = if self.config.tags == 0 { Entries::Discard } else { Entries::Keep };
        self.load_root(None, Tag::KERNEL, entries);
    }
    fn invalidate(&self, tag: Tag, extent: Extent) {
        if self.config.answers == Answers::EarlyWithNmis {
            self.take_nmi();
        }
        self.tlb_after_walk(|tlb| tlb.invalidate(tag, extent));
    }
    fn invalidate_tag(&self, tag: Tag) {
        self.tlb_after_walk(|tlb| tlb.discard(tag));
    }
    fn invalidate_kernel(&self, extent: Extent) {
        self.tlb(|tlb| tlb.invalidate_kernel(extent));
    }
    fn invalidate_all(&self) {
        self.tlb(Tlb::invalidate_all);
    }
    fn traps_stale_writes(&self) -> bool {
        self.config.traps_stale_writes
    }
    fn tolerates_mixed_sizes(&self) -> bool {
        self.config.tolerates_mixed_sizes
    }
    fn answers_early(&self) -> bool {
        self.config.answers != Answers::Late
    }
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        for cpu in cpus.iter() {
            self.cpus[cpu.index()].interrupt.store(1, Release);
        }
    }
    fn reclaim(&self, space: NonNull<Space<Self>>) {
        // SAFETY: the space exists until a test gets it from `take_reclaimed` and frees it.
        self.table(unsafe { space.as_ref() }).free_in_place();
        guard(&self.reclaimed).push(Reclaimed(space));
    }
    fn spin_hint(&self) {
        P::spin_hint();
    }
    fn wait_hint(&self, _waiting: &CpuSet<Self::CpuBits>) {
        P::spin_hint();
    }
}

impl<P: Platform, const WORDS: usize> fmt::Debug for Soft<P, WORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Soft").field("config", &self.config).finish_non_exhaustive()
    }
}

impl<P: Platform, const WORDS: usize> Shootdown<Soft<P, WORDS>> {
    /// Makes this thread CPU `cpu`, until the returned value is dropped.
    ///
    /// # Panics
    ///
    /// If a thread is that CPU already.
    pub fn enter(&self, cpu: CpuId) -> OnCpu<'_, P, WORDS> {
        let occupied = &self.machine().cpus[cpu.index()].occupied;
        assert!(!occupied.swap(true, Acquire), "another thread is CPU {}", cpu.0);
        P::set_cpu(cpu);
        OnCpu { engine: self, cpu, not_send: PhantomData }
    }
}

/// A thread that is a CPU of the software machine. One thread may be several CPUs in turn.
pub struct OnCpu<'e, P: Platform, const WORDS: usize = 1> {
    engine: &'e Shootdown<Soft<P, WORDS>>,
    cpu: CpuId,
    not_send: PhantomData<*mut ()>,
}

impl<'e, P: Platform, const WORDS: usize> OnCpu<'e, P, WORDS> {
    /// Pins the engine to this CPU.
    #[must_use]
    pub fn pin(&self) -> PinnedCpu<'e, Soft<P, WORDS>> {
        P::set_cpu(self.cpu);
        // SAFETY: only this thread is this CPU. It takes interrupts only at interrupt points, and
        // no other `PinnedCpu` of this CPU is in use there.
        unsafe { self.engine.pin() }
    }

    /// Uses a page of the space that is loaded.
    pub fn touch(&self, page: usize) -> Touch {
        P::set_cpu(self.cpu);
        let machine = self.engine.machine();
        machine.tlb(|tlb| tlb.touch(&machine.tables, page))
    }

    /// Uses a page of the kernel.
    pub fn touch_kernel(&self, page: usize) -> Touch {
        P::set_cpu(self.cpu);
        let machine = self.engine.machine();
        machine.tlb(|tlb| tlb.touch_kernel(&machine.kernel, page))
    }

    /// Walks page tables as speculation may at any moment. A walk of freed tables is counted.
    pub fn speculate(&self) {
        P::set_cpu(self.cpu);
        let machine = self.engine.machine();
        machine.count_walk(machine.tlb(|tlb| tlb.speculate(&machine.tables)));
    }

    /// Takes the flush interrupt, if it was sent.
    pub fn interrupt_point(&self) {
        let interrupt = &self.engine.machine().cpus[self.cpu.index()].interrupt;
        if interrupt.load(Relaxed) != 0 && interrupt.swap(0, Acquire) != 0 {
            self.pin().handle_flush_ipi();
        }
    }
}

impl<P: Platform, const WORDS: usize> OnCpu<'_, P, WORDS> {
    /// Plays the hypervisor, which stops this CPU. Until it [resumes](Self::resume), the CPU must
    /// do nothing.
    pub fn stop(&self) {
        // SAFETY: the machine's user promises that the CPU does nothing.
        unsafe { self.vcpu().stop(self.engine.machine()) };
    }

    /// Plays the hypervisor, which runs this CPU again, and empties its TLB if a flush has
    /// requested that.
    pub fn resume(&self) {
        P::set_cpu(self.cpu);
        let machine = self.engine.machine();
        // SAFETY: the TLB is emptied here.
        if unsafe { self.vcpu().resume(machine) } == Entries::Discard {
            machine.invalidate_all();
        }
    }

    /// Walks the page tables of `space` by software, with the interrupt masked, and calls
    /// `meanwhile` when it has found a table and not yet read it. A walk of freed tables is
    /// counted.
    pub fn walk_by_software(&self, space: &Space<Soft<P, WORDS>>, meanwhile: impl FnOnce()) {
        let walk = self.pin().begin_walk();
        let table = self.engine.machine().table(space);
        let upper = table.upper(space.root());
        meanwhile();
        P::set_cpu(self.cpu);
        self.engine.machine().count_walk(table.has_freed(upper));
        drop(walk);
    }

    /// Plays the handler that stops this CPU in a crash: it loads the kernel's root. After this,
    /// the CPU must do nothing until another one has [disconnected](PinnedCpu::disconnect) it.
    pub fn halt(&self) {
        P::set_cpu(self.cpu);
        self.engine.machine().load_kernel();
    }

    fn vcpu(&self) -> &VcpuWord<Soft<P, WORDS>> {
        &self.engine.machine().cpus[self.cpu.index()].vcpu
    }
}

impl<P: Platform, const WORDS: usize> Drop for OnCpu<'_, P, WORDS> {
    fn drop(&mut self) {
        self.engine.machine().cpus[self.cpu.index()].occupied.store(false, Release);
    }
}

impl<P: Platform, const WORDS: usize> fmt::Debug for OnCpu<'_, P, WORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnCpu").field(&self.cpu).finish()
    }
}
