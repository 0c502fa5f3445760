//! Where a kernel keeps things: the half of the machine that is its own.

#![expect(unsafe_code, reason = "the half of the engine's contract that is the kernel's")]

use core::ptr::NonNull;

use shootdown::{CpuBits, CpuId, CpuSet, CpuState, Lifetime, Root, Space};

use crate::bare::Bare;
use crate::processor::Processor;

/// What the engine asks of a kernel, on any processor. Each method is what the method of the same
/// name of [`Machine`](shootdown::Machine) is.
///
/// # Safety
///
/// What [`Machine`](shootdown::Machine) asks of these methods.
pub unsafe trait Kernel: Sync + Sized {
    /// The processor that it runs on.
    type Processor: Processor;
    /// One bit per possible CPU.
    type CpuBits: CpuBits;

    /// How the memory of spaces is kept from being freed under lazy CPUs.
    const LIFETIME: Lifetime = Lifetime::Handoff;

    /// The engine's state of a CPU.
    fn state(&self, cpu: CpuId) -> &CpuState<Bare<Self>>;

    /// The CPU that runs this call.
    fn cpu(&self) -> CpuId;

    /// How many CPUs there can be at most.
    fn cpu_limit(&self) -> usize {
        CpuSet::<Self::CpuBits>::capacity()
    }

    /// The page table that maps the kernel and nothing else, for ever.
    fn root(&self) -> Root;

    /// Sends the flush interrupt, and sees to it that who takes it finds memory as it is now.
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>);

    /// A space that was retired is the kernel's again.
    fn reclaim(&self, space: NonNull<Space<Bare<Self>>>);

    /// Called over and over while waiting for other CPUs, before
    /// [the processor's](Processor::spin_hint): a place to count, or to yield a virtual CPU.
    fn wait_hint(&self, waiting: &CpuSet<Self::CpuBits>) {
        let _ = waiting;
    }
}
