//! The machine of the adapters' tests: two CPUs that walk real page tables, with TLBs that evict
//! nothing. One thread plays both: CPU 1 runs where CPU 0 waits for it.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};

use shootdown::{
    CpuId, CpuSet, CpuState, EngineCell, Entries, Extent, Machine, Memory, NoBroadcaster,
    PinnedCpu, Root, Space, Tag, TagSlot,
};

/// Number of entries of a TLB.
const TLB: usize = 64;

/// An entry of a TLB: the first address of a page, the number of its bytes (0 if the entry is
/// empty), and the physical address that it maps to.
#[derive(Debug, Default)]
struct Entry {
    page: AtomicU64,
    bytes: AtomicU64,
    physical: AtomicU64,
}

impl Entry {
    fn covers(&self, address: u64) -> bool {
        address.wrapping_sub(self.page.load(SeqCst)) < self.bytes.load(SeqCst)
    }
}

/// Two CPUs.
#[derive(Debug)]
pub(crate) struct TwoCpus {
    states: [CpuState<Self>; 2],
    tlbs: [[Entry; TLB]; 2],
    is_rung: [AtomicBool; 2],
    /// Number of invalidations that dropped everything under a tag.
    pub(crate) full_flushes: AtomicU64,
    /// Number of invalidations of pages that dropped the paths to them as well.
    pub(crate) path_flushes: AtomicU64,
    cpu: AtomicU32,
}

/// The engine.
pub(crate) static ENGINE: EngineCell<TwoCpus> = EngineCell::new();

impl TwoCpus {
    /// Initialises the engine, and makes both CPUs use `space`. CPU 0 runs then.
    pub(crate) fn boot(space: &'static Space<Self>) -> &'static Self {
        for cpu in [1, 0] {
            Self::run_as(cpu);
            pin().online();
            // SAFETY: a static stays in place, and the tests do not end the space.
            unsafe { pin().switch(space) };
        }
        ENGINE.machine()
    }

    /// The machine for the engine.
    pub(crate) fn new() -> Self {
        Self {
            states: [CpuState::new(), CpuState::new()],
            tlbs: core::array::from_fn(|_| core::array::from_fn(|_| Entry::default())),
            is_rung: [AtomicBool::new(false), AtomicBool::new(false)],
            full_flushes: AtomicU64::new(0),
            path_flushes: AtomicU64::new(0),
            cpu: AtomicU32::new(0),
        }
    }

    /// Calls `operation` on each CPU. The one that runs now runs then.
    #[allow(dead_code, reason = "for hardware that broadcasts")]
    pub(crate) fn on_both(operation: impl Fn(&Self)) {
        let machine = ENGINE.machine();
        let caller = machine.cpu.load(SeqCst);
        for cpu in [1 - caller, caller] {
            Self::run_as(cpu);
            operation(machine);
        }
    }

    fn run_as(cpu: u32) {
        ENGINE.machine().cpu.store(cpu, SeqCst);
    }

    /// The physical address that an access of `cpu` finds: from its TLB, or else from `walk`, which
    /// returns a page, its bytes and its physical address, and is cached.
    pub(crate) fn access(
        &self,
        cpu: usize,
        address: u64,
        walk: impl FnOnce() -> Option<(u64, u64, u64)>,
    ) -> Option<u64> {
        let tlb = &self.tlbs[cpu];
        let cached = tlb.iter().find(|entry| entry.covers(address));
        let found = cached.or_else(|| {
            let (page, bytes, physical) = walk()?;
            let empty = tlb.iter().find(|entry| entry.bytes.load(SeqCst) == 0)?;
            empty.page.store(page, SeqCst);
            empty.bytes.store(bytes, SeqCst);
            empty.physical.store(physical, SeqCst);
            Some(empty)
        })?;
        Some(found.physical.load(SeqCst) + (address - found.page.load(SeqCst)))
    }

    fn tlb(&self) -> &[Entry; TLB] {
        &self.tlbs[self.cpu().index()]
    }

    fn drop_where(&self, is_dropped: impl Fn(&Entry) -> bool) {
        for entry in self.tlb().iter().filter(|entry| is_dropped(entry)) {
            entry.bytes.store(0, SeqCst);
        }
    }
}

/// The pin guard of the CPU that runs.
pub(crate) fn pin() -> PinnedCpu<'static, TwoCpus> {
    // SAFETY: there are no interrupts, and one thread.
    unsafe { ENGINE.try_pin() }.expect("the test has booted")
}

/// Number of interrupts that CPU 0 has sent.
pub(crate) fn interrupts() -> u64 {
    ENGINE.cpu(CpuId(0)).stats().interrupts_sent
}

// SAFETY: the words are atomics, and the fence is a full barrier.
unsafe impl Memory for TwoCpus {
    type Word = AtomicU64;

    fn fence(&self) {
        fence(SeqCst);
    }
}

// SAFETY: there is one thread, so invalidations act in program order. A CPU that is rung answers
// where the other one waits.
unsafe impl Machine for TwoCpus {
    type CpuBits = [u64; 1];
    type TagSlots = [TagSlot; 0];
    type TagWords = [AtomicU64; 0];
    type Broadcaster = NoBroadcaster;

    fn state(&self, cpu: CpuId) -> &CpuState<Self> {
        &self.states[cpu.index()]
    }
    fn cpu(&self) -> CpuId {
        CpuId(self.cpu.load(SeqCst))
    }
    fn interrupts_masked(&self) -> bool {
        true
    }
    fn publish(&self) {}
    fn tag_count(&self) -> usize {
        0
    }
    unsafe fn load(&self, _: Root, _: Tag, _: Entries) {
        self.drop_where(|_| true);
    }
    fn load_kernel(&self) {
        self.drop_where(|_| true);
    }
    /// Drops the entries that translate the first address of a page, of whatever size, as `INVLPG`
    /// does.
    fn invalidate(&self, _: Tag, extent: Extent) {
        self.path_flushes.fetch_add(extent.frees_tables().into(), SeqCst);
        self.drop_where(|entry| extent.addresses().any(|address| entry.covers(address)));
    }
    fn invalidate_tag(&self, _: Tag) {
        self.full_flushes.fetch_add(1, SeqCst);
        self.drop_where(|_| true);
    }
    fn invalidate_kernel(&self, extent: Extent) {
        if extent.is_whole() { self.invalidate_all() } else { self.invalidate(Tag(0), extent) }
    }
    fn invalidate_all(&self) {
        self.drop_where(|_| true);
    }
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        cpus.iter().for_each(|cpu| self.is_rung[cpu.index()].store(true, SeqCst));
    }
    fn reclaim(&self, _: NonNull<Space<Self>>) {}
    /// The other CPU takes its interrupt.
    fn wait_hint(&self, _: &CpuSet<Self::CpuBits>) {
        let waiter = self.cpu().0;
        let other = 1 - waiter;
        if self.is_rung[other as usize].swap(false, SeqCst) {
            Self::run_as(other);
            pin().handle_flush_ipi();
            Self::run_as(waiter);
        }
    }
}
