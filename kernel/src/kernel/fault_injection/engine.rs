//! The engine into which faults are injected: the kernel's half of its machine, and a processor
//! that can have a fault.

#![expect(unsafe_code, reason = "implements the kernel's half of the engine's contract")]

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use shootdown::{
    CauseCounters, CauseStats, CpuId, CpuSet, CpuState, EngineCell, FlushCause, FlushTrace,
    PinnedCpu, Root, Shootdown, Space, WaitTrace,
};
use shootdown_hw::{Bare, Kernel, Processor as _};

use crate::kernel::arch::{Arch, Architecture, Interrupt};
use crate::kernel::boot_memory::BootMemory;
use crate::kernel::console::println;
use crate::kernel::fault_injection::fault::Faulty;
use crate::kernel::fault_injection::stop;
use crate::kernel::load::Settings;
use crate::kernel::sync::masked;

pub(crate) type Machine = Bare<FaultyKernel>;

/// The kernel's half of the machine in fault injection.
#[derive(Debug)]
pub(crate) struct FaultyKernel {
    cpus: &'static [CpuState<Bare<Self>>],
}

/// Flush interrupts sent, one for each target.
static SENT: AtomicU64 = AtomicU64::new(0);
/// Dead spaces that the engine has reclaimed.
static RECLAIMED: AtomicU64 = AtomicU64::new(0);

// SAFETY: CPUs keep their numbers, and their states stay allocated. The architecture's `send` makes
// earlier stores visible to the CPU that takes the interrupt. The kernel's root is never freed.
unsafe impl Kernel for FaultyKernel {
    type Processor = Faulty<<Arch as Architecture>::Processor>;
    type CpuBits = [u64; 1];

    const TRACES: bool = true;
    const ISOLATES: bool = true;
    const FLUSHES_AT_REUSE: bool = true;

    fn trace_clock_ns(&self) -> u64 {
        Arch::now_ns()
    }
    fn trace_flush(&self, trace: &FlushTrace) {
        CAUSES.record_flush(trace);
    }
    fn trace_wait(&self, trace: &WaitTrace) {
        CAUSES.record_wait(trace);
    }
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
    fn wait_hint(&self, waiting: &CpuSet<Self::CpuBits>) {
        stop::watch(waiting);
        Arch::spin_hint();
    }
    fn reclaim(&self, _: NonNull<Space<Bare<Self>>>) {
        // No memory of a scenario is used again.
        RECLAIMED.fetch_add(1, Ordering::Relaxed);
    }
}

static ENGINE: EngineCell<Machine> = EngineCell::new();

/// Creates the engine. Call this on the first CPU, before there are others.
pub(crate) fn set_up(memory: &mut BootMemory, settings: &Settings) {
    let cpus = memory.keep(settings.cpus as usize, |_| CpuState::new());
    let processor = settings.notify.processor();
    let processor = Faulty { processor, drop_in_part: |_, _| false };
    // SAFETY: this is the first CPU, and no other one runs yet.
    unsafe { ENGINE.init(Bare::new(FaultyKernel { cpus }, processor)) };
}

/// Returns `true` if there is an engine.
pub(crate) fn exists() -> bool {
    ENGINE.find().is_some()
}

pub(crate) fn engine() -> &'static Shootdown<Machine> {
    &ENGINE
}

/// Returns `true` if the TLB tags its entries.
pub(crate) fn has_tags() -> bool {
    engine().machine().processor().tag_count() > 0
}

/// Calls `f` with the pin guard of this CPU and with interrupts masked.
pub(crate) fn with_pinned<R>(f: impl FnOnce(&PinnedCpu<'static, Machine>) -> R) -> R {
    // SAFETY: interrupts are masked, and nothing moves this thread to another CPU. Handlers that
    // cannot be masked end the run.
    masked(|| f(&unsafe { engine().pin() }))
}

/// The flushes so far, by cause.
static CAUSES: CauseCounters = CauseCounters::new();

/// Prints the flushes of each cause.
pub(crate) fn print_causes() {
    for cause in FlushCause::ALL {
        let CauseStats { flushes, pages, targets, wait_ns, .. } = CAUSES.stats(cause);
        if flushes != 0 {
            println!(
                "flushes cause={cause:?} count={flushes} pages={pages} targets={targets} \
                 wait_ns={wait_ns}"
            );
        }
    }
}

/// Number of dead spaces that the engine has reclaimed.
pub(crate) fn reclaimed() -> u64 {
    RECLAIMED.load(Ordering::Relaxed)
}

/// Number of times that a flush has disturbed other CPUs: interrupts sent, and broadcasts of the
/// CPU that changes page tables.
pub(crate) fn disturbances() -> u64 {
    SENT.load(Ordering::Relaxed) + engine().cpu(CpuId(0)).stats().broadcasts_sent
}
