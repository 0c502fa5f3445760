//! The engine that faults are injected into: the kernel's half of its machine, and a processor with
//! a fault.

#![expect(unsafe_code, reason = "the kernel's half of the engine's contract")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use shootdown::{CpuId, CpuSet, CpuState, PinnedCpu, Root, Shootdown, Space};
use shootdown_hw::{Bare, Kernel, Processor as _};

use crate::kernel::arch::{Arch, Architecture, Interrupt};
use crate::kernel::boot_memory::BootMemory;
use crate::kernel::fault_injection::fault::Faulty;
use crate::kernel::sync::{Once, masked};

pub(crate) type Machine = Bare<FaultyKernel>;

/// Where the trials' kernel keeps things.
#[derive(Debug)]
pub(crate) struct FaultyKernel {
    cpus: &'static [CpuState<Bare<Self>>],
}

/// Flush interrupts sent, one for each target.
static SENT: AtomicU64 = AtomicU64::new(0);

// SAFETY: CPUs keep their numbers, and their states stay; the architecture sends interrupts so that
// who takes them finds memory as it is; the kernel's root is never given back.
unsafe impl Kernel for FaultyKernel {
    type Processor = Faulty<<Arch as Architecture>::Processor>;
    type CpuBits = [u64; 1];

    fn state(&self, cpu: CpuId) -> &CpuState<Bare<Self>> {
        &self.cpus[cpu.index()]
    }
    fn cpu(&self) -> CpuId {
        CpuId(Arch::cpu())
    }
    fn root(&self) -> Root {
        Arch::kernel_root()
    }
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        SENT.fetch_add(cpus.len() as u64, Ordering::Relaxed);
        Arch::send(&mut cpus.iter().map(|cpu| cpu.0), Interrupt::Flush);
    }
    fn wait_hint(&self, _: &CpuSet<Self::CpuBits>) {
        Arch::spin_hint();
    }
    fn reclaim(&self, _: NonNull<Space<Bare<Self>>>) {
        // Nothing of a trial is used again.
    }
}

static ENGINE: Once<Shootdown<Machine>> = Once::new();

/// Makes the engine, on the first CPU.
pub(crate) fn make(memory: &mut BootMemory, cpus: u32) {
    let cpus = memory.keep(cpus as usize, |_| CpuState::new());
    let machine = |_| Shootdown::new(Bare::new(FaultyKernel { cpus }, Faulty(Arch::processor())));
    ENGINE.publish(&memory.keep(1, machine)[0]);
}

/// Whether there is an engine.
pub(crate) fn is_made() -> bool {
    ENGINE.find().is_some()
}

pub(crate) fn engine() -> &'static Shootdown<Machine> {
    ENGINE.get()
}

/// Whether what is cached is cached under a tag.
pub(crate) fn has_tags() -> bool {
    engine().machine().processor().tag_count() > 0
}

/// Calls `f` with the token of this CPU, interrupts masked.
pub(crate) fn pin<R>(f: impl FnOnce(&PinnedCpu<'static, Machine>) -> R) -> R {
    // SAFETY: interrupts are masked, and nothing moves this thread to another CPU; handlers that
    // cannot be masked end the run.
    masked(|| f(&unsafe { engine().pin() }))
}

/// How often another CPU has been disturbed for a flush: interrupts sent, and broadcasts of the CPU
/// that changes page tables.
pub(crate) fn disturbances() -> u64 {
    SENT.load(Ordering::Relaxed) + engine().cpu(CpuId(0)).stats().broadcasts_sent
}
