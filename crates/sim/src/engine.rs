//! The simulated machine as the engine sees it: Shootdown's own source runs on it unchanged.

#![expect(unsafe_code, reason = "implements `Machine`")]

use core::fmt;
use core::sync::atomic::Ordering;

use shootdown::{
    Cpu, CpuId, CpuSet, Entries, Extent, Machine, Root, Rule, Shootdown, Tag, TagSlot, Word,
};

use crate::mmu::TagEntries;
use crate::sim::Sim;
use crate::word::{SimWord, with_running};

/// A machine for the engine, with room for `64 * WORDS` CPUs. All that it does, it does to the
/// simulation that runs on this thread of the host.
pub struct SimMachine<const WORDS: usize> {
    cpus: Vec<Cpu<Self>>,
    tags: usize,
    flush_ceiling: usize,
    broken: Option<Rule>,
}

impl<const WORDS: usize> SimMachine<WORDS> {
    /// The engine on the machine of `sim`. `broken` is a rule that it shall break, for tests that
    /// expect it to be caught.
    ///
    /// # Panics
    ///
    /// If there are more than `64 * WORDS` CPUs.
    #[must_use]
    pub fn engine(sim: &Sim, broken: Option<Rule>) -> Shootdown<Self> {
        let cpus = sim.machine().cpu_count();
        assert!(cpus <= 64 * WORDS, "{cpus} CPUs need {} words", cpus.div_ceil(64));
        let tlb = &sim.machine().tlb;
        Shootdown::new(Self {
            cpus: (0..cpus).map(|_| Cpu::new()).collect(),
            tags: tlb.tags,
            flush_ceiling: tlb.flush_ceiling,
            broken,
        })
    }
}

/// What the engine asks of the machine comes from code that runs on it; before that, nothing is
/// loaded that would have to be changed.
fn on_machine(f: impl FnOnce(&Sim)) {
    with_running(f);
}

// SAFETY: `cpu` is the CPU whose turn it is, and each CPU has its own element of `cpus`; accesses
// happen one after the other, and `fence` costs what it would cost to make that so; the TLB of the
// simulation forgets at once what it is told to forget, INVLPG including what is cached of upper
// levels; interrupts arrive after finite time; `breaks` is only ever true in tests that expect the
// oracle to notice.
unsafe impl<const WORDS: usize> Machine for SimMachine<WORDS> {
    type Word = SimWord;
    type CpuBits = [u64; WORDS];
    type TagSlots = [TagSlot; 6];

    fn state(&self, cpu: CpuId) -> &Cpu<Self> {
        &self.cpus[cpu.index()]
    }
    fn cpu(&self) -> CpuId {
        CpuId(with_running(Sim::cpu).unwrap_or(0) as u32)
    }
    fn interrupts_masked(&self) -> bool {
        with_running(Sim::is_masked).unwrap_or(true)
    }
    fn fence(&self) {
        on_machine(Sim::fence);
    }
    // As on x86, a locked operation is a full barrier.
    fn store_then_fence(&self, word: &SimWord, value: u64, order: Ordering) {
        word.swap(value, order);
    }
    fn fetch_add_then_fence(&self, word: &SimWord, value: u64, order: Ordering) -> u64 {
        word.fetch_add(value, order)
    }
    fn fetch_or_then_fence(&self, word: &SimWord, value: u64, order: Ordering) -> u64 {
        word.fetch_or(value, order)
    }
    fn prefetch(&self, word: &SimWord) {
        word.prefetch();
    }
    fn publish(&self) {}
    fn tag_count(&self) -> usize {
        self.tags
    }
    fn flush_ceiling(&self) -> usize {
        self.flush_ceiling
    }
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        let entries = match entries {
            Entries::Keep => TagEntries::Kept,
            Entries::Discard => TagEntries::Discarded,
        };
        on_machine(|sim| sim.load_root(root.0 >> 12, tag.0, entries));
    }
    fn load_kernel(&self) {
        on_machine(Sim::load_kernel_root);
    }
    fn invalidate(&self, _tag: Tag, extent: Extent) {
        on_machine(|sim| sim.invalidate(extent.addresses()));
    }
    fn invalidate_tag(&self, _tag: Tag) {
        on_machine(Sim::invalidate_tag);
    }
    fn invalidate_kernel(&self, extent: Extent) {
        on_machine(|sim| sim.invalidate(extent.addresses()));
    }
    fn invalidate_all(&self) {
        on_machine(Sim::invalidate_all);
    }
    fn ring(&self, cpus: &CpuSet<Self>) {
        on_machine(|sim| sim.send_flush_interrupt(cpus.iter().map(CpuId::index)));
    }
    fn relax(&self, _waiting: &CpuSet<Self>) {
        on_machine(Sim::relax);
    }
    fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }
}

impl<const WORDS: usize> fmt::Debug for SimMachine<WORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimMachine").field("cpus", &self.cpus.len()).finish_non_exhaustive()
    }
}
