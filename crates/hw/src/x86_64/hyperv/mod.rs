//! Guests of Hyper-V: a hypercall that flushes on named virtual CPUs, as a broadcaster.
//!
//! The hypervisor empties the TLB of a virtual CPU that does not run before it runs the CPU again,
//! and interrupts one that runs without its kernel. So a flush waits for no virtual CPU, and the
//! kernels of the others take no interrupt. (Linux: `hyperv_flush_tlb_multi`.) KVM offers
//! the same calls to their guests (`hv-tlbflush`).
//!
//! [`HyperV`] wraps a processor of x86-64 with PCIDs, and gives each space the same tag on all
//! CPUs, as [broadcasts](shootdown::Broadcaster) require. The hypervisor does not know tags: it
//! names an address space by its CR3. This broadcaster names all address spaces of the target CPUs
//! instead (the flag `HV_FLUSH_ALL_VIRTUAL_ADDRESS_SPACES`), because a broadcast names its space by
//! the tag alone. For a list of pages, that costs the other spaces of those CPUs a few entries. A
//! flush of a whole space makes its targets drop everything but global pages.
//!
//! The source is Microsoft's *Hypervisor Top Level Functional Specification* (TLFS), "Hypercall
//! Interface" and "Virtual MMU". [`call`] encodes hypercalls, and is tested on any host.
//!
//! # Requirements
//!
//! - The features that the hypervisor recommends (CPUID leaf 0x4000_0004, EAX): bit 2, hypercalls
//!   for remote flushes; bit 11, sets of virtual processors, if there are more than 64.
//! - PCIDs. Without tags, the engine cannot broadcast, and this processor is the one that it wraps.
//! - A hypercall may be refused. The engine then interrupts the CPUs.
//! - The kernel's pages are flushed by interrupts, because the engine broadcasts these only where a
//!   broadcast reaches everyone.
//!
//! # Limits
//!
//! Tested with recorded hypercalls, and not under Hyper-V.

#![expect(unsafe_code, reason = "implements the processor's half of the engine's contract")]

pub mod call;

use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuId, CpuSet, Extent, Memory, NotifyCosts, Reach, Refused,
    Tag, Tagging,
};

use crate::{Processor, forward_memory, forward_processor};
use call::{Flush, InputPage, PAGES_PER_RANGE};

/// The kernel's half of a hypercall.
///
/// # Safety
///
/// An implementation guarantees:
///
/// - [`input`](Self::input) returns the input page of the CPU that runs the call, which nothing
///   else reads or writes;
/// - [`call`](Self::call) executes the hypercall with that page's physical address as its input,
///   and is a compiler barrier;
/// - [`virtual_processor`](Self::virtual_processor) is the number by which the hypervisor knows the
///   CPU.
pub unsafe trait Hypercalls: Sync {
    /// The input page of this CPU. The flush interrupt is masked.
    fn input(&self) -> *mut InputPage;

    /// Executes a hypercall with this CPU's input page, and returns its result (`RAX`).
    fn call(&self, control: u64) -> u64;

    /// The hypervisor's number of a CPU (MSR `HV_X64_MSR_VP_INDEX`), below 4096.
    fn virtual_processor(&self, cpu: CpuId) -> u32;
}

/// A processor of x86-64 that [`HyperV`] can wrap.
///
/// # Safety
///
/// An implementation guarantees that the processor can have [`pcid_max`](Self::pcid_max) tags, each
/// of which names one space on all CPUs. Its methods never use a PCID of a tag for anything else.
pub unsafe trait PcidProcessor: Processor {
    /// The largest tag that this processor can load; 0 if it has no tags.
    fn pcid_max(&self) -> usize;
}

/// The costs of a hypercall until the kernel has measured them. The sum for one target is that of
/// an interrupt that leaves the guest twice; none of these numbers was measured.
const ASSUMED_COSTS: NotifyCosts = NotifyCosts {
    interrupt_ns: 4000,
    interrupt_each_ns: 1500,
    broadcast_ns: 3000,
    broadcast_each_ns: 500,
    operation_ns: 50,
};

/// A processor of x86-64 under Hyper-V.
#[derive(Debug)]
pub struct HyperV<P, H> {
    processor: P,
    hypercalls: H,
    costs: NotifyCosts,
}

impl<P: PcidProcessor, H: Hypercalls> HyperV<P, H> {
    /// A processor under Hyper-V.
    pub const fn new(processor: P, hypercalls: H) -> Self {
        Self { processor, hypercalls, costs: ASSUMED_COSTS }
    }

    /// The processor that this one wraps.
    pub const fn processor(&self) -> &P {
        &self.processor
    }

    /// Sets the measured costs of notification.
    #[must_use]
    pub fn with_costs(self, costs: NotifyCosts) -> Self {
        Self { costs, ..self }
    }
}

// SAFETY: all methods are those of the processor.
unsafe impl<P: PcidProcessor, H: Hypercalls> Memory for HyperV<P, H> {
    forward_memory! { self => self.processor, P }
}

// SAFETY: all methods but four are those of the processor, which has room for a global tag for each
// PCID, and can load those up to `pcid_max`. These four depend on values that never change.
unsafe impl<P: PcidProcessor, H: Hypercalls> Processor for HyperV<P, H> {
    type TagSlots = P::TagSlots;
    type TagWords = P::TagWords;
    type Broadcaster = Self;

    forward_processor! { self => self.processor;
        set_up_cpu, workarounds, publish, synchronize, interrupts_masked, flush_ceiling,
        flush_costs, load, load_kernel, invalidate, invalidate_tag, invalidate_kernel,
        invalidate_all, forget_refused, publish_kernel, traps_stale_writes, tolerates_mixed_sizes,
        spin_hint,
    }

    /// Global if the processor has tags.
    #[inline]
    fn tagging(&self) -> Tagging {
        if self.tag_count() == 0 { self.processor.tagging() } else { Tagging::Global }
    }

    #[inline]
    fn tag_count(&self) -> usize {
        self.processor.pcid_max()
    }

    #[inline]
    fn broadcaster(&self) -> Option<&Self> {
        (self.tag_count() != 0).then_some(self)
    }
}

// SAFETY: when a hypercall returns, the target CPUs have dropped the named translations, or will do
// so before they run (TLFS, "HvCallFlushVirtualAddressList").
unsafe impl<P: PcidProcessor, H: Hypercalls> Broadcaster for HyperV<P, H> {
    fn capabilities(&self) -> Broadcast {
        Broadcast {
            reach: Reach::Targets,
            pages_per_operation: PAGES_PER_RANGE,
            operation_ceiling: call::RANGES_MAX,
            completes_at_issue: true,
        }
    }

    #[inline]
    fn costs(&self) -> NotifyCosts {
        self.costs
    }

    /// One hypercall, which is complete when it returns.
    fn broadcast<B: CpuBits>(
        &self,
        cpus: &CpuSet<B>,
        _: Tag,
        extent: Extent,
    ) -> Result<(), Refused> {
        // A locked operation: the hypervisor reads page tables, and interrupts the targets.
        self.fence();
        let processors = || cpus.iter().map(|cpu| self.hypercalls.virtual_processor(cpu));
        // SAFETY: this CPU's page, of which no other reference exists.
        let input = unsafe { &mut *self.hypercalls.input() };
        let mut flush = Flush::encode(input, processors, extent);
        loop {
            let result = self.hypercalls.call(flush.control());
            if result & call::STATUS != 0 {
                return Err(Refused);
            }
            if flush.advance(result) {
                return Ok(());
            }
        }
    }

    /// Always refused: the kernel's pages are flushed by interrupts.
    fn broadcast_kernel(&self, _: Extent) -> Result<(), Refused> {
        Err(Refused)
    }

    /// Each hypercall was complete when it returned.
    #[inline]
    fn complete(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests;
