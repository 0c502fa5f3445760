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
mod config;
mod device;
mod machine;
mod nmi;
mod on_cpu;
mod platform;
mod tlb;

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use crate::base::ids::{Root, Tag};
use crate::base::memory::Word;
use crate::parts::cpu_set::CpuSet;
use crate::parts::stats::CpuStats;
use crate::parts::trace_event::{FlushTrace, WaitTrace};
use crate::state::cpu_state::CpuState;
use crate::state::engine::Shootdown;
use crate::state::machine::Entries;
use crate::state::space::Space;
use crate::state::vcpu::VcpuWord;
use broadcasts::Broadcasts;
use device::Device;
use tlb::{Table, Tlb};

pub use config::{Answers, Config, Site};
pub use on_cpu::OnCpu;
pub use platform::{Frame, Host, Platform};
pub use tlb::Touch;

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

    /// Makes [`Machine::interrupts_masked`](crate::Machine::interrupts_masked) return `false` from
    /// now on, so that no CPU can be pinned. CPUs still take the interrupt at interrupt points
    /// only.
    pub fn unmask(&self) {
        self.is_unmasked.store(true, Relaxed);
    }

    /// Makes [`Machine::interrupts_masked`](crate::Machine::interrupts_masked) return `true` from
    /// now on, as it does at first.
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

    /// Replaces the page tables of a space. Flush the old ones with
    /// [`Extent::freeing_tables`](crate::Extent::freeing_tables) before you free them.
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

    /// Replaces the kernel's page tables. Flush the old ones with
    /// [`Extent::freeing_tables`](crate::Extent::freeing_tables) before you free them.
    pub fn unhook_kernel_tables(&self) {
        self.kernel.unhook_tables();
    }

    /// Frees the kernel's page tables that were unhooked first. Walks of them from now on are
    /// counted in [`freed_table_walks`](Self::freed_table_walks).
    pub fn free_kernel_tables(&self) {
        self.kernel.free_tables();
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

impl<P: Platform, const WORDS: usize> fmt::Debug for Soft<P, WORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Soft").field("config", &self.config).finish_non_exhaustive()
    }
}
