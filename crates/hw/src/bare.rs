//! The two halves together.

#![expect(unsafe_code, reason = "fulfils the engine's contract by what the halves promise")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use shootdown::{
    Cpu, CpuId, CpuSet, Entries, Extent, FlushCosts, Lifetime, Machine, Memory, Root, Space, Tag,
    Tagging,
};

use crate::kernel::Kernel;
use crate::processor::Processor;

/// A kernel on a processor: the engine's machine.
#[derive(Debug)]
pub struct Bare<K: Kernel> {
    kernel: K,
    processor: K::Processor,
}

impl<K: Kernel> Bare<K> {
    /// This kernel on this processor.
    pub const fn new(kernel: K, processor: K::Processor) -> Self {
        Self { kernel, processor }
    }

    /// The kernel's half.
    pub const fn kernel(&self) -> &K {
        &self.kernel
    }

    /// The processor's half.
    pub const fn processor(&self) -> &K::Processor {
        &self.processor
    }
}

// SAFETY: the memory is the processor's.
unsafe impl<K: Kernel> Memory for Bare<K> {
    type Word = AtomicU64;

    const PREFETCHES: bool = K::Processor::PREFETCHES;

    #[inline]
    fn fence(&self) {
        self.processor.fence();
    }
    #[inline]
    fn store_then_fence(&self, word: &AtomicU64, value: u64, order: Ordering) {
        self.processor.store_then_fence(word, value, order);
    }
    #[inline]
    fn fetch_add_then_fence(&self, word: &AtomicU64, value: u64, order: Ordering) -> u64 {
        self.processor.fetch_add_then_fence(word, value, order)
    }
    #[inline]
    fn fetch_or_then_fence(&self, word: &AtomicU64, value: u64, order: Ordering) -> u64 {
        self.processor.fetch_or_then_fence(word, value, order)
    }
    #[inline]
    fn prefetch(&self, word: &AtomicU64) {
        self.processor.prefetch(word);
    }
}

// SAFETY: each method is that of the half that promises what is asked of it.
unsafe impl<K: Kernel> Machine for Bare<K> {
    type CpuBits = K::CpuBits;
    type TagSlots = <K::Processor as Processor>::TagSlots;
    type TagWords = <K::Processor as Processor>::TagWords;
    type Broadcaster = <K::Processor as Processor>::Broadcaster;

    const LIFETIME: Lifetime = K::LIFETIME;

    #[inline]
    fn state(&self, cpu: CpuId) -> &Cpu<Self> {
        self.kernel.state(cpu)
    }
    #[inline]
    fn cpu(&self) -> CpuId {
        self.kernel.cpu()
    }
    #[inline]
    fn interrupts_masked(&self) -> bool {
        self.processor.interrupts_masked()
    }
    #[inline]
    fn synchronize(&self) {
        self.processor.synchronize();
    }
    #[inline]
    fn publish(&self) {
        self.processor.publish();
    }
    #[inline]
    fn tagging(&self) -> Tagging {
        self.processor.tagging()
    }
    #[inline]
    fn tag_count(&self) -> usize {
        self.processor.tag_count()
    }
    #[inline]
    fn cpu_limit(&self) -> usize {
        self.kernel.cpu_limit()
    }
    #[inline]
    fn flush_ceiling(&self) -> usize {
        self.processor.flush_ceiling()
    }
    #[inline]
    fn flush_costs(&self) -> FlushCosts {
        self.processor.flush_costs()
    }
    #[inline]
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        // SAFETY: as our caller promises.
        unsafe { self.processor.load(root, tag, entries) }
    }
    #[inline]
    fn load_kernel(&self) {
        // SAFETY: the kernel promises that this root stays.
        unsafe { self.processor.load_kernel(self.kernel.root()) }
    }
    #[inline]
    fn invalidate(&self, tag: Tag, extent: Extent) {
        self.processor.invalidate(tag, extent);
    }
    #[inline]
    fn invalidate_tag(&self, tag: Tag) {
        self.processor.invalidate_tag(tag);
    }
    #[inline]
    fn invalidate_kernel(&self, extent: Extent) {
        self.processor.invalidate_kernel(extent);
    }
    #[inline]
    fn invalidate_all(&self) {
        self.processor.invalidate_all();
    }
    #[inline]
    fn traps_stale_writes(&self) -> bool {
        self.processor.traps_stale_writes()
    }
    #[inline]
    fn tolerates_mixed_sizes(&self) -> bool {
        self.processor.tolerates_mixed_sizes()
    }
    #[inline]
    fn ring(&self, cpus: &CpuSet<K::CpuBits>) {
        self.kernel.ring(cpus);
    }
    #[inline]
    fn broadcaster(&self) -> Option<&Self::Broadcaster> {
        self.processor.broadcaster()
    }
    fn reclaim(&self, space: NonNull<Space<Self>>) {
        self.kernel.reclaim(space);
    }
    #[inline]
    fn spin(&self) {
        self.processor.relax();
    }
    #[inline]
    fn relax(&self, waiting: &CpuSet<K::CpuBits>) {
        self.kernel.relax(waiting);
        self.processor.relax();
    }
}
