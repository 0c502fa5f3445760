//! The simulated machine as an implementation of the engine's interface. The engine's source runs
//! on it unchanged.

#![expect(unsafe_code, reason = "implements `Machine`")]

use core::fmt;
use core::iter::once;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuId, CpuSet, CpuState, DomainCosts, Entries, Extent,
    FlushCosts, Lifetime, Machine, Memory, NotifyCosts, PageSize, PinnedCpu, Reach, Refused, Root,
    Rule, Shootdown, Space, Tag, TagSlot, Tagging, Word,
};

use shootdown_sim::{BroadcastScope, Sim, SimWord, TagEntries, Time, machine, with_running};

use super::batch::{Clean, Waiting};
use super::notify_by::{self, NotifyBy};

/// What an embedder chooses when it compiles the engine, as a type.
pub trait SpaceLifetime: Sync + Sized + 'static {
    /// The value of [`Machine::LIFETIME`].
    const LIFETIME: Lifetime;
    /// The value of [`Machine::FLUSHES_AT_REUSE`].
    const FLUSHES_AT_REUSE: bool = false;

    /// Defers the flush of a batch: a call that does not compile without
    /// [`FLUSHES_AT_REUSE`](Self::FLUSHES_AT_REUSE).
    fn defer<const WORDS: usize>(
        pin: &PinnedCpu<'_, SimMachine<WORDS, Self>>,
        batch: Clean<SimMachine<WORDS, Self>>,
    ) -> Waiting<SimMachine<WORDS, Self>> {
        let _ = (pin, batch);
        unreachable!("no policy of this machine flushes at reuse")
    }
}

/// As [`Handoff`]; and the flush of clean pages can wait until their frames are reused.
#[derive(Debug)]
pub struct HandoffAtReuse;

impl SpaceLifetime for HandoffAtReuse {
    const LIFETIME: Lifetime = Lifetime::Handoff;
    const FLUSHES_AT_REUSE: bool = true;

    fn defer<const WORDS: usize>(
        pin: &PinnedCpu<'_, SimMachine<WORDS, Self>>,
        batch: Clean<SimMachine<WORDS, Self>>,
    ) -> Waiting<SimMachine<WORDS, Self>> {
        batch.defer(pin)
    }
}

macro_rules! lifetimes {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name;

        impl SpaceLifetime for $name {
            const LIFETIME: Lifetime = Lifetime::$name;
        }
    )*};
}

lifetimes! {
    /// The last CPU that is lazy on a dead space frees it.
    Handoff
    /// The exit of a space interrupts the CPUs that are lazy on it.
    Shoot
    /// A CPU that goes lazy on a space takes a reference to it.
    Counted
}

/// A machine for the engine, with room for `64 * WORDS` CPUs. All its operations apply to the
/// simulation that runs on this thread of the host. Before a run, nothing is loaded, and they do
/// nothing.
pub struct SimMachine<const WORDS: usize, L: SpaceLifetime> {
    cpus: Vec<CpuState<Self>>,
    /// For each CPU, the roots of dead spaces that it was the last to leave.
    dead: Vec<Mutex<Vec<Root>>>,
    dead_count: AtomicUsize,
    lifetime: PhantomData<fn() -> L>,
    tagging: Tagging,
    machine: machine::Machine,
    broadcast: Option<Broadcast>,
    notify_costs: NotifyCosts,
    answers_early: bool,
    broken: Option<Rule>,
    flush_costs: FlushCosts,
}

impl<const WORDS: usize, L: SpaceLifetime> SimMachine<WORDS, L> {
    /// Creates an engine on the machine of `sim`. It breaks the rule `broken`, for tests that
    /// expect the oracle to detect that.
    ///
    /// # Panics
    ///
    /// If there are more than `64 * WORDS` CPUs.
    #[must_use]
    pub fn engine(sim: &Sim, notify_by: NotifyBy, broken: Option<Rule>) -> Shootdown<Self> {
        let cpus = sim.machine().cpu_count();
        assert!(cpus <= 64 * WORDS, "{cpus} CPUs need {} words", cpus.div_ceil(64));
        let machine = sim.machine();
        let tlb = &machine.tlb;
        let tagging = match machine.tagging {
            machine::Tagging::PerCpu => Tagging::PerCpu,
            machine::Tagging::Global => Tagging::Global,
            machine::Tagging::Renamed => Tagging::Renamed,
        };
        Shootdown::from(Self {
            cpus: (0..cpus).map(|_| CpuState::default()).collect(),
            dead: (0..cpus).map(|_| Mutex::default()).collect(),
            dead_count: AtomicUsize::new(0),
            lifetime: PhantomData,
            tagging,
            machine: machine.clone(),
            broadcast: notify_by::broadcast(machine, notify_by),
            notify_costs: notify_by::costs(machine, notify_by),
            answers_early: notify_by == NotifyBy::EarlyAnswers,
            broken,
            flush_costs: FlushCosts {
                invalidate_page_ns: tlb.invalidate_page.ns()
                    / tlb.pages_per_invalidation.max(1) as u64,
                full_flush_ns: tlb.load_root_and_discard.ns(),
            },
        })
    }

    /// Takes the root of a dead space that this CPU was the last to leave, and whose tables it may
    /// free.
    #[must_use]
    pub fn take_dead(&self) -> Option<Root> {
        if self.dead_count.load(Relaxed) == 0 {
            return None;
        }
        let root = self.dead_of_cpu().pop()?;
        self.dead_count.fetch_sub(1, Relaxed);
        Some(root)
    }

    fn dead_of_cpu(&self) -> std::sync::MutexGuard<'_, Vec<Root>> {
        self.dead[self.cpu().index()].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ranges of an extent that is not whole. Pages of the smallest size are one range. A larger
/// page is a range at its first address, because one operation names one page of any size.
fn ranges(extent: Extent) -> Vec<Range<u64>> {
    const SMALLEST: PageSize = PageSize::from_shift(12);
    let bytes = SMALLEST.bytes();
    if extent.is_whole() {
        Vec::new()
    } else if extent.page_size() == SMALLEST {
        let length = extent.page_count() as u64 * bytes;
        once(extent.start()..extent.start().saturating_add(length)).collect()
    } else {
        extent.addresses().map(|address| address..address.saturating_add(bytes)).collect()
    }
}

/// The entries that a broadcast of an extent drops.
fn scope(extent: Extent, ranges: &[Range<u64>]) -> BroadcastScope<'_> {
    if extent.is_whole() {
        BroadcastScope::Tag
    } else if extent.frees_tables() {
        BroadcastScope::Tables(ranges)
    } else {
        BroadcastScope::Pages(ranges)
    }
}

// SAFETY: all accesses are sequentially consistent, and `fence` only charges the cost of a fence.
// `breaks` is true only in tests that expect the oracle to detect it.
unsafe impl<const WORDS: usize, L: SpaceLifetime> Memory for SimMachine<WORDS, L> {
    type Word = SimWord;

    fn fence(&self) {
        with_running(Sim::fence);
    }
    // As on x86, a locked operation is a full barrier.
    #[track_caller]
    fn store_then_fence(&self, word: &SimWord, value: u64, order: Ordering) {
        word.swap(value, order);
    }
    #[track_caller]
    fn fetch_add_then_fence(&self, word: &SimWord, value: u64, order: Ordering) -> u64 {
        word.fetch_add(value, order)
    }
    #[track_caller]
    fn fetch_or_then_fence(&self, word: &SimWord, value: u64, order: Ordering) -> u64 {
        word.fetch_or(value, order)
    }
    const PREFETCHES_FOR_WRITE: bool = true;

    #[track_caller]
    fn prefetch(&self, word: &SimWord) {
        word.prefetch();
    }
    #[track_caller]
    fn prefetch_for_write(&self, word: &SimWord) {
        word.prefetch_for_write();
    }
    fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }
}

// SAFETY: `cpu` is the CPU whose turn it is, and each CPU has its own element of `cpus`. The TLB of
// the simulation drops entries immediately, and its INVLPG also drops upper-level entries.
// Interrupts arrive after finite time.
unsafe impl<const WORDS: usize, L: SpaceLifetime> Machine for SimMachine<WORDS, L> {
    type CpuBits = [u64; WORDS];
    type TagSlots = [TagSlot; 256];
    type TagWords = [SimWord; 2048];
    type Broadcaster = Self;

    const LIFETIME: Lifetime = L::LIFETIME;
    const FLUSHES_AT_REUSE: bool = L::FLUSHES_AT_REUSE;

    fn state(&self, cpu: CpuId) -> &CpuState<Self> {
        &self.cpus[cpu.index()]
    }
    fn cpu(&self) -> CpuId {
        CpuId(with_running(Sim::cpu).unwrap_or(0) as u32)
    }
    fn interrupts_masked(&self) -> bool {
        with_running(Sim::is_masked).unwrap_or(true)
    }
    fn publish(&self) {}
    fn traps_stale_writes(&self) -> bool {
        self.machine.stale_writes == machine::StaleWrites::Trapped
    }
    fn tolerates_mixed_sizes(&self) -> bool {
        self.machine.mixed_sizes == machine::MixedSizes::Tolerated
    }
    fn answers_early(&self) -> bool {
        self.answers_early
    }
    fn tagging(&self) -> Tagging {
        self.tagging
    }
    fn tag_count(&self) -> usize {
        self.machine.tlb.tags
    }
    fn cpu_limit(&self) -> usize {
        self.cpus.len()
    }
    fn flush_ceiling(&self) -> usize {
        self.machine.tlb.flush_ceiling
    }
    fn flush_costs(&self) -> FlushCosts {
        self.flush_costs
    }
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        let entries = match entries {
            Entries::Keep => TagEntries::Kept,
            Entries::Discard => TagEntries::Discarded,
        };
        with_running(|sim| sim.load_root(root.0 >> 12, tag.0, entries));
    }
    fn load_kernel(&self) {
        with_running(Sim::load_kernel_root);
    }
    fn invalidate(&self, _tag: Tag, extent: Extent) {
        with_running(|sim| sim.invalidate(extent.addresses()));
    }
    fn invalidate_tag(&self, _tag: Tag) {
        with_running(Sim::invalidate_tag);
    }
    fn invalidate_kernel(&self, extent: Extent) {
        with_running(|sim| sim.invalidate(extent.addresses()));
    }
    fn invalidate_all(&self) {
        with_running(Sim::invalidate_all);
    }
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        with_running(|sim| sim.send_flush_interrupt(cpus.iter().map(CpuId::index)));
    }
    fn is_away(&self, cpu: CpuId) -> bool {
        with_running(|sim| sim.defer_flush(cpu.index())).unwrap_or(false)
    }
    fn broadcaster(&self) -> Option<&Self> {
        self.broadcast.map(|_| self)
    }
    fn reclaim(&self, space: NonNull<Space<Self>>) {
        // SAFETY: the owner of the space keeps it until its root was taken from the list.
        let root = unsafe { space.as_ref() }.root();
        self.dead_of_cpu().push(root);
        self.dead_count.fetch_add(1, Relaxed);
    }
    fn spin_hint(&self) {
        with_running(|sim| {
            sim.mask();
            sim.flush_wait_hint();
            sim.unmask();
        });
    }
    fn wait_hint(&self, _waiting: &CpuSet<Self::CpuBits>) {
        with_running(Sim::flush_wait_hint);
    }
}

// SAFETY: a broadcast has taken effect when its issuer has waited for it, and a remote fence has
// taken effect when it returns.
unsafe impl<const WORDS: usize, L: SpaceLifetime> Broadcaster for SimMachine<WORDS, L> {
    fn capabilities(&self) -> Broadcast {
        self.broadcast.expect("the machine has a broadcaster")
    }
    fn costs(&self) -> NotifyCosts {
        self.notify_costs
    }
    fn broadcast<B: CpuBits>(
        &self,
        cpus: &CpuSet<B>,
        tag: Tag,
        extent: Extent,
    ) -> Result<(), Refused> {
        let ranges = ranges(extent);
        with_running(|sim| match self.capabilities().reach {
            Reach::Everyone | Reach::Domains => sim.broadcast(tag.0, scope(extent, &ranges)),
            Reach::Targets => {
                // An SBI fence of addresses keeps upper-level entries.
                let whole = extent.is_whole() || extent.frees_tables();
                let scope =
                    if whole { BroadcastScope::Tag } else { BroadcastScope::Pages(&ranges) };
                sim.remote_fence(cpus.iter().map(CpuId::index), tag.0, scope);
            }
        });
        Ok(())
    }
    fn costs_in_domains<B: CpuBits>(&self, cpus: &CpuSet<B>) -> Option<DomainCosts> {
        let cpus: Vec<_> = cpus.iter().map(CpuId::index).collect();
        notify_by::costs_in_domains(&self.machine, self.cpu().index(), &cpus)
    }
    fn broadcast_in_domains<B: CpuBits>(&self, cpus: &CpuSet<B>, tag: Tag) -> Result<(), Refused> {
        with_running(|sim| sim.broadcast_in_domains(cpus.iter().map(CpuId::index), tag.0));
        Ok(())
    }
    fn broadcast_kernel(&self, extent: Extent) -> Result<(), Refused> {
        let ranges = ranges(extent);
        let whole = extent.is_whole();
        let scope = if whole { BroadcastScope::Everything } else { BroadcastScope::Pages(&ranges) };
        with_running(|sim| sim.broadcast(Tag::KERNEL.0, scope));
        Ok(())
    }
    fn complete(&self) -> u64 {
        let waited = with_running(|sim| {
            let began = sim.now();
            sim.complete_broadcasts();
            sim.now() - began
        });
        waited.unwrap_or(Time::ZERO).ns()
    }
    fn clock_ns(&self) -> u64 {
        with_running(|sim| sim.now().ns()).unwrap_or(0)
    }
}

impl<const WORDS: usize, L: SpaceLifetime> fmt::Debug for SimMachine<WORDS, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimMachine").field("cpus", &self.cpus.len()).finish_non_exhaustive()
    }
}
