//! The software machine: threads as CPUs, and a TLB that never forgets.
//!
//! For tests, examples and benchmarks, of this crate and of kernels that embed it. It is meant to
//! be harsher than hardware in what a TLB may do: nothing is ever evicted, so a missed invalidation
//! stays visible for as long as one cares to look; upper levels are cached as soon as a root is
//! loaded, and walked at the worst moments.
//!
//! A page table is a flat array. Each page has one frame, which counts how often it was freed; a
//! translation remembers the count, and a [touch](OnCpu::touch) that finds another count has
//! [used a dead translation](Touch::Stale). That oracle needs no knowledge of the engine.
//!
//! The [`Platform`] says what a thread is and what a word is: [`Host`] is real threads and real
//! atomics, and the tests add two model checkers. What it is not: it does not evict, it has no
//! page sizes, and a thread takes interrupts only where it says so ([`OnCpu::interrupt_point`]).

#![expect(unsafe_code, reason = "implements `Machine`")]

mod churn;
mod lives;
mod tlb;
mod wire;

use core::fmt;
use core::marker::PhantomData;
use core::panic::Location;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use crate::broadcaster::{Broadcast, Broadcaster, Reach};
use crate::costs::NotifyCosts;
use crate::cpu_set::{CpuBits, CpuSet};
use crate::cpu_state::CpuState;
use crate::engine::Shootdown;
use crate::extent::Extent;
use crate::ids::{CpuId, Root, Tag};
use crate::machine::{Entries, Lifetime, Machine, Tagging};
use crate::memory::{Memory, Word};
use crate::pinned_cpu::PinnedCpu;
use crate::rules::Rule;
use crate::space::Space;
use crate::stats::CpuStats;
use crate::tag::slots::TagSlot;
use tlb::{Table, Tlb};
use wire::{Told, Wire};

pub use churn::{Churn, ChurnReport};
pub use lives::{Lives, LivesReport};
pub use tlb::Touch;

/// What threads and words are.
pub trait Platform: Send + Sync + Sized + 'static {
    /// The shared words of the engine, and of page tables.
    type Word: Word;
    /// What pages and page tables are made of.
    type Frame: Frame;
    /// A full barrier.
    fn fence();
    /// Lets other threads run.
    fn spin_hint();
    /// The CPU that this thread said it is.
    fn cpu() -> CpuId;
    /// Says which CPU this thread is from now on.
    fn set_cpu(cpu: CpuId);
    /// See [`Machine::LIFETIME`].
    const LIFETIME: Lifetime = Lifetime::Handoff;
}

/// A frame of memory, which knows how often it has been given away.
///
/// A model checker's frame also checks that every use comes before the reuse that follows it, by
/// the orderings of the engine and not by luck.
pub trait Frame: Send + Sync {
    /// A frame that has not been given away.
    fn new() -> Self;
    /// Uses the frame: how often it has been given away.
    fn use_count(&self) -> u64;
    /// Gives the frame away.
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

/// Threads and atomics of the host.
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

/// How large a [`Soft`] machine is.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// CPUs.
    pub cpus: u32,
    /// Page tables, each of which may be one space's.
    pub tables: usize,
    /// Pages that each table maps, from address 0 on, 4 KiB each.
    pub pages: usize,
    /// Tags: per CPU at most 6, global or renamed any number below 64.
    pub tags: usize,
    /// How they are given to spaces.
    pub tagging: Tagging,
    /// Whom broadcasts reach, if there are any.
    pub broadcast: Option<Reach>,
    /// What it takes to tell others: which way the engine chooses.
    pub costs: NotifyCosts,
    /// After how often these were asked for the other way is the cheaper one, and so on; 0 for
    /// never.
    pub costs_turn_after: u64,
    /// See [`Machine::traps_stale_writes`].
    pub traps_stale_writes: bool,
    /// See [`Machine::tolerates_mixed_sizes`].
    pub tolerates_mixed_sizes: bool,
    /// See [`Machine::catch_up_ceiling`]. As much as the log can hold, unless it says otherwise:
    /// what is dropped whole shows no mistake.
    pub catch_up_ceiling: usize,
    /// A rule that the engine shall break on this machine.
    pub broken: Option<Rule>,
    /// A rule that it shall break at one place of its source alone.
    pub broken_site: Option<Site>,
    /// Called with each place that asks about a rule: for tests that list these places.
    pub note_site: Option<fn(Site)>,
}

/// A place in the engine's source that follows a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// The rule.
    pub rule: Rule,
    /// The place that names it.
    pub location: &'static Location<'static>,
}

impl Default for Config {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Config {
    /// Two CPUs, two page tables of four pages, six tags for each CPU, nothing broken.
    pub const DEFAULT: Self = Self {
        cpus: 2,
        tables: 2,
        pages: 4,
        tags: 6,
        tagging: Tagging::PerCpu,
        broadcast: None,
        costs: NotifyCosts {
            interrupt_ns: 1,
            interrupt_each_ns: 0,
            broadcast_ns: 0,
            broadcast_each_ns: 0,
            operation_ns: 0,
        },
        costs_turn_after: 0,
        traps_stale_writes: true,
        tolerates_mixed_sizes: false,
        catch_up_ceiling: 33,
        broken: None,
        broken_site: None,
        note_site: None,
    };

    /// With tags that all CPUs share, and hardware that tells everyone at no cost.
    #[must_use]
    pub const fn with_broadcasts(self, tags: usize) -> Self {
        Self { tags, tagging: Tagging::Global, broadcast: Some(Reach::Everyone), ..self }
    }
}

/// The software machine, with room for `64 * WORDS` CPUs.
pub struct Soft<P: Platform, const WORDS: usize = 1> {
    config: Config,
    cpus: Vec<SoftCpu<P, WORDS>>,
    tables: Vec<Table<P>>,
    kernel: Table<P>,
    freed_table_walks: AtomicU64,
    costs_asked: AtomicU64,
    is_unmasked: AtomicBool,
    reclaimed: Mutex<Vec<Reclaimed<P, WORDS>>>,
}

/// A space that nobody holds any more.
struct Reclaimed<P: Platform, const WORDS: usize>(NonNull<Space<Soft<P, WORDS>>>);

// SAFETY: a pointer, which whoever takes it may follow: no CPU does so any more.
unsafe impl<P: Platform, const WORDS: usize> Send for Reclaimed<P, WORDS> {}

struct SoftCpu<P: Platform, const WORDS: usize> {
    state: CpuState<Soft<P, WORDS>>,
    tlb: Mutex<Tlb>,
    /// The interrupt's wire.
    interrupt: P::Word,
    wire: Wire<P>,
    occupied: AtomicBool,
}

impl<P: Platform, const WORDS: usize> Soft<P, WORDS> {
    /// An engine on a machine of this size, with every CPU offline and nothing mapped.
    ///
    /// # Panics
    ///
    /// If there are more CPUs than `64 * WORDS`.
    #[must_use]
    pub fn engine(config: Config) -> Shootdown<Self> {
        assert!(config.cpus as usize <= CpuSet::<[u64; WORDS]>::capacity(), "WORDS is too small");
        let cpus = (0..config.cpus).map(|_| SoftCpu {
            state: CpuState::new(),
            tlb: Mutex::new(Tlb::new()),
            interrupt: P::Word::new(0),
            wire: Wire::new(),
            occupied: AtomicBool::new(false),
        });
        Shootdown::new(Self {
            config,
            cpus: cpus.collect(),
            tables: (0..config.tables).map(|_| Table::new(config.pages)).collect(),
            kernel: Table::new(config.pages),
            freed_table_walks: AtomicU64::new(0),
            costs_asked: AtomicU64::new(0),
            is_unmasked: AtomicBool::new(false),
            reclaimed: Mutex::default(),
        })
    }

    /// How often speculation walked page tables that had been freed.
    pub fn freed_table_walks(&self) -> u64 {
        self.freed_table_walks.load(Relaxed)
    }

    /// The spaces that the engine gave back, each with its page tables, in that order.
    pub fn take_reclaimed(&self) -> Vec<NonNull<Space<Self>>> {
        self.reclaimed().drain(..).map(|Reclaimed(space)| space).collect()
    }

    fn reclaimed(&self) -> MutexGuard<'_, Vec<Reclaimed<P, WORDS>>> {
        self.reclaimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on, CPUs say that the flush interrupt is not masked, so that no token can be made.
    /// They take it at interrupt points alone, whatever they say.
    pub fn unmask(&self) {
        self.is_unmasked.store(true, Relaxed);
    }

    /// From here on, CPUs say that the flush interrupt is masked, as they do at first.
    pub fn mask(&self) {
        self.is_unmasked.store(false, Relaxed);
    }

    /// Maps a page to its frame. It must not be mapped already.
    pub fn map(&self, space: &Space<Self>, page: usize) {
        self.table(space).map(page);
    }

    /// Clears a page's entry. Its translation must be flushed before its frame is freed.
    pub fn unmap(&self, space: &Space<Self>, page: usize) {
        self.table(space).unmap(page);
    }

    /// Clears a page's entry, if that maps it; says so. Ordered with the same done by another CPU,
    /// as changes of entries must be where two may come to the same one.
    pub fn take(&self, space: &Space<Self>, page: usize) -> bool {
        self.table(space).take(page)
    }

    /// Gives a page's frame away: who still uses it from now on is wrong.
    pub fn free(&self, space: &Space<Self>, page: usize) {
        self.table(space).free(page);
    }

    /// Puts other page tables in the place of a space's. The old ones must be flushed with
    /// [`Extent::freeing_tables`] before they are freed.
    pub fn unhook_tables(&self, space: &Space<Self>) {
        self.table(space).unhook_tables();
    }

    /// Gives the page tables that were unhooked away: who still walks them from now on is wrong.
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

    /// Gives the frame of a page of the kernel away.
    pub fn free_kernel(&self, page: usize) {
        self.kernel.free(page);
    }

    /// What all CPUs did together.
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

    /// Uses the TLB of the CPU that we are on. A panic meanwhile is the test's own failure.
    fn tlb<R>(&self, f: impl FnOnce(&mut Tlb) -> R) -> R {
        let cpu = &self.cpus[P::cpu().index()];
        let mut tlb = cpu.tlb.lock().unwrap_or_else(PoisonError::into_inner);
        if self.config.broadcast.is_some() { cpu.wire.using(&mut tlb, f) } else { f(&mut tlb) }
    }

    fn load_root(&self, root: Option<Root>, tag: Tag, entries: Entries) {
        self.note_walk(self.tlb(|tlb| tlb.load(&self.tables, root, tag, entries)));
    }

    fn send(&self, to: Vec<CpuId>, told: Told) {
        self.cpus[P::cpu().index()].wire.issue(to, told);
    }

    fn everyone(&self) -> Vec<CpuId> {
        (0..self.config.cpus).map(CpuId).collect()
    }

    /// Speculation has walked page tables, freed ones or not.
    fn note_walk(&self, were_freed: bool) {
        self.freed_table_walks.fetch_add(u64::from(were_freed), Relaxed);
    }
}

// SAFETY: the words and the barrier are the platform's. `breaks` is only ever true in tests that
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

// SAFETY: `cpu` is the CPU that the thread declared when it entered it, which only one thread at a
// time can have done. The TLB drops at once what it is asked to drop. A CPU that is rung answers at
// its next interrupt point.
unsafe impl<P: Platform, const WORDS: usize> Machine for Soft<P, WORDS> {
    type CpuBits = [u64; WORDS];
    type TagSlots = [TagSlot; 6];
    type TagWords = [P::Word; 2];
    type Broadcaster = Self;

    const LIFETIME: Lifetime = P::LIFETIME;

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
    fn tagging(&self) -> Tagging {
        self.config.tagging
    }
    fn tag_count(&self) -> usize {
        self.config.tags
    }
    fn cpu_limit(&self) -> usize {
        self.config.cpus as usize
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
        self.note_walk(self.tlb(|tlb| tlb.invalidate(&self.tables, tag, extent)));
    }
    fn invalidate_tag(&self, tag: Tag) {
        self.note_walk(self.tlb(|tlb| tlb.invalidate_tag(&self.tables, tag)));
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
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        for cpu in cpus.iter() {
            self.cpus[cpu.index()].interrupt.store(1, Release);
        }
    }
    fn reclaim(&self, space: NonNull<Space<Self>>) {
        // SAFETY: nobody has been told yet that it is free.
        self.table(unsafe { space.as_ref() }).free_in_place();
        self.reclaimed().push(Reclaimed(space));
    }
    fn spin_hint(&self) {
        P::spin_hint();
    }
    fn wait_hint(&self, _waiting: &CpuSet<Self::CpuBits>) {
        P::spin_hint();
    }
}

// SAFETY: a broadcast is delivered to every CPU that it reaches before `complete` returns, and a
// CPU that uses its TLB applies what was delivered first.
unsafe impl<P: Platform, const WORDS: usize> Broadcaster for Soft<P, WORDS> {
    fn capabilities(&self) -> Broadcast {
        let reach = self.config.broadcast.expect("the machine has a broadcaster");
        Broadcast { reach, pages_per_operation: 1, operation_ceiling: self.flush_ceiling() }
    }
    fn costs(&self) -> NotifyCosts {
        let Config { costs, costs_turn_after, .. } = self.config;
        let asked = self.costs_asked.fetch_add(1, Relaxed);
        let turns = asked.checked_div(costs_turn_after).unwrap_or(0);
        if turns.is_multiple_of(2) {
            return costs;
        }
        let NotifyCosts { interrupt_ns, broadcast_ns, .. } = costs;
        NotifyCosts { interrupt_ns: broadcast_ns, broadcast_ns: interrupt_ns, ..costs }
    }
    fn broadcast<B: CpuBits>(&self, cpus: &CpuSet<B>, tag: Tag, extent: Extent) {
        let to = match self.config.broadcast {
            Some(Reach::Targets) => cpus.iter().collect(),
            _ => self.everyone(),
        };
        self.send(to, Told::Tag(tag, extent));
    }
    fn broadcast_kernel(&self, extent: Extent) {
        self.send(self.everyone(), Told::Kernel(extent));
    }
    fn complete(&self) -> u64 {
        for (cpus, told) in self.cpus[P::cpu().index()].wire.take_issued() {
            for cpu in cpus {
                self.cpus[cpu.index()].wire.deliver(told);
            }
        }
        0
    }
}

impl<P: Platform, const WORDS: usize> fmt::Debug for Soft<P, WORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Soft").field("config", &self.config).finish_non_exhaustive()
    }
}

impl<P: Platform, const WORDS: usize> Shootdown<Soft<P, WORDS>> {
    /// Makes this thread a CPU, until the returned value is dropped.
    ///
    /// # Panics
    ///
    /// If another thread is that CPU.
    pub fn enter(&self, cpu: CpuId) -> OnCpu<'_, P, WORDS> {
        let occupied = &self.machine().cpus[cpu.index()].occupied;
        assert!(!occupied.swap(true, Acquire), "CPU {} is taken", cpu.0);
        P::set_cpu(cpu);
        OnCpu { engine: self, cpu, not_send: PhantomData }
    }
}

/// A thread that is a CPU of the software machine. One thread may be several, by turns.
pub struct OnCpu<'e, P: Platform, const WORDS: usize = 1> {
    engine: &'e Shootdown<Soft<P, WORDS>>,
    cpu: CpuId,
    not_send: PhantomData<*mut ()>,
}

impl<'e, P: Platform, const WORDS: usize> OnCpu<'e, P, WORDS> {
    /// The engine's token for this CPU.
    #[must_use]
    pub fn pin(&self) -> PinnedCpu<'e, Soft<P, WORDS>> {
        P::set_cpu(self.cpu);
        // SAFETY: this thread alone is this CPU, and takes interrupts only at interrupt points,
        // where it uses no other token.
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

    /// Walks page tables as speculation may at any moment. A walk of freed ones is counted.
    pub fn speculate(&self) {
        P::set_cpu(self.cpu);
        let machine = self.engine.machine();
        machine.note_walk(machine.tlb(|tlb| tlb.speculate(&machine.tables)));
    }

    /// Takes the flush interrupt, if it was sent.
    pub fn interrupt_point(&self) {
        let interrupt = &self.engine.machine().cpus[self.cpu.index()].interrupt;
        if interrupt.load(Relaxed) != 0 && interrupt.swap(0, Acquire) != 0 {
            self.pin().handle_flush_ipi();
        }
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
