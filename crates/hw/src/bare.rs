//! Combines a kernel and its processor into the engine's machine.

#![expect(unsafe_code, reason = "fulfils the engine's contract by the contracts of the halves")]

use core::ptr::NonNull;

use shootdown::{
    CpuId, CpuSet, CpuState, DeviceTicket, Entries, Extent, FlushCosts, FlushTrace, Lifetime,
    Machine, Memory, Root, Space, StallReport, Tag, Tagging, WaitTrace,
};

use crate::kernel::Kernel;
use crate::processor::Processor;
use crate::{forward, forward_memory};

/// A kernel on a processor, as the engine's machine.
#[derive(Debug)]
pub struct Bare<K: Kernel> {
    kernel: K,
    processor: K::Processor,
}

impl<K: Kernel> Bare<K> {
    /// Combines a kernel and a processor.
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

// SAFETY: all methods are those of the processor.
unsafe impl<K: Kernel> Memory for Bare<K> {
    forward_memory! { self => self.processor, K::Processor }
}

// SAFETY: each method is a method of the half whose contract has the same requirement.
unsafe impl<K: Kernel> Machine for Bare<K> {
    type CpuBits = K::CpuBits;
    type TagSlots = <K::Processor as Processor>::TagSlots;
    type TagWords = <K::Processor as Processor>::TagWords;
    type Broadcaster = <K::Processor as Processor>::Broadcaster;

    const LIFETIME: Lifetime = K::LIFETIME;
    const TRACES: bool = K::TRACES;
    const CHECKS: bool = K::CHECKS;
    const ISOLATES: bool = K::ISOLATES;
    const FLUSHES_AT_REUSE: bool = K::FLUSHES_AT_REUSE;

    forward! { self => self.kernel;
        fn state(cpu: CpuId) -> &CpuState<Self>;
        fn cpu() -> CpuId;
        fn cpu_limit() -> usize;
        fn ring(cpus: &CpuSet<K::CpuBits>);
        fn answers_early() -> bool;
        fn is_away(cpu: CpuId) -> bool;
        fn is_used_on_entry(extent: Extent) -> bool;
        fn issue_to_devices(space: &Space<Self>, extents: &[Extent]) -> DeviceTicket;
        fn devices_are_done(ticket: DeviceTicket) -> bool;
        fn reclaim(space: NonNull<Space<Self>>);
        fn wake_waiters(cpu: CpuId);
        fn trace_clock_ns() -> u64;
        fn trace_flush(trace: &FlushTrace);
        fn trace_wait(trace: &WaitTrace);
        fn report_stall(report: &StallReport<'_, Self>);
    }

    forward! { self => self.processor;
        fn interrupts_masked() -> bool;
        fn synchronize();
        fn publish();
        fn tagging() -> Tagging;
        fn tag_count() -> usize;
        fn flush_ceiling() -> usize;
        fn flush_costs() -> FlushCosts;
        fn invalidate(tag: Tag, extent: Extent);
        fn invalidate_tag(tag: Tag);
        fn invalidate_kernel(extent: Extent);
        fn invalidate_all();
        fn traps_stale_writes() -> bool;
        fn tolerates_mixed_sizes() -> bool;
        fn broadcaster() -> Option<&Self::Broadcaster>;
        fn spin_hint();
    }

    #[inline]
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        // SAFETY: the caller promises what the processor requires.
        unsafe { self.processor.load(root, tag, entries) }
    }

    #[inline]
    fn load_kernel(&self) {
        // SAFETY: the kernel promises that its root stays valid.
        unsafe { self.processor.load_kernel(self.kernel.root()) }
    }

    #[inline]
    fn wait_hint(&self, waiting: &CpuSet<K::CpuBits>) {
        self.kernel.wait_hint(waiting);
        self.processor.spin_hint();
    }
}
