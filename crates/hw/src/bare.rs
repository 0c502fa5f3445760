//! Combines a kernel and its processor into the engine's machine.

#![expect(unsafe_code, reason = "fulfils the engine's contract by the contracts of the halves")]

use core::ptr::NonNull;

use shootdown::{
    CpuId, CpuSet, CpuState, DeviceTicket, Extent, FlushTrace, Lifetime, Machine, Memory, Space,
    StallReport, WaitTrace,
};

use crate::kernel::Kernel;
use crate::processor::Processor;
use crate::{forward, forward_memory, forward_processor};

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
        fn this_cpu() -> (CpuId, &CpuState<Self>);
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

    forward_processor! { self => self.processor;
        publish, synchronize, interrupts_masked, tagging, tag_count, flush_ceiling, flush_costs,
        load, invalidate, invalidate_tag, invalidate_kernel, invalidate_all, traps_stale_writes,
        tolerates_mixed_sizes, broadcaster, spin_hint,
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
