//! `AArch64`: the kernel's half, for CPUs with a `GICv3`, at EL1.

use core::arch::asm;
use core::ptr::NonNull;

use shootdown::{CpuId, CpuSet, CpuState, Root, Shootdown, Space};
use shootdown_hw::aarch64::{Aarch64, Features};
use shootdown_hw::{Bare, Kernel};

use crate::{Machine, controller_id, cpu_number, put_on_dead_list};

/// The number of the software-generated interrupt.
const FLUSH_SGI: u64 = 1;

pub struct MyKernel {
    cpus: [CpuState<Machine>; 64],
    empty_root: Root,
}

// SAFETY: the number of a CPU and its state never change; the barrier makes the target observe all
// stores that came before the interrupt; `empty_root` is never freed.
unsafe impl Kernel for MyKernel {
    type Processor = Aarch64;
    type CpuBits = [u64; 1];

    fn state(&self, cpu: CpuId) -> &CpuState<Machine> {
        &self.cpus[cpu.index()]
    }
    fn cpu(&self) -> CpuId {
        CpuId(cpu_number())
    }
    fn root(&self) -> Root {
        self.empty_root
    }
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        // SAFETY: a barrier.
        unsafe { asm!("dsb ishst", options(nostack, preserves_flags)) };
        for cpu in cpus.iter() {
            // The affinity and the target list of the CPU, as ICC_SGI1R_EL1 has them.
            let target = controller_id(cpu.0);
            // SAFETY: `flush_interrupt` handles it.
            unsafe { asm!("msr icc_sgi1r_el1, {}", in(reg) target | FLUSH_SGI << 24) };
        }
        // SAFETY: the interrupts are sent before anything that follows.
        unsafe { asm!("isb", options(nostack, preserves_flags)) };
    }
    fn reclaim(&self, space: NonNull<Space<Machine>>) {
        put_on_dead_list(space);
    }
}

/// Once, on the first CPU, when TCR_EL1 is set up: A1 = 0, and AS = 1 for ASIDs of 16 bits.
/// `ttbr0` is an empty page table: the kernel is in TTBR1.
pub fn engine(ttbr0: u64) -> Shootdown<Machine> {
    let cpus = core::array::from_fn(|_| CpuState::new());
    let kernel = MyKernel { cpus, empty_root: Root(ttbr0) };
    Shootdown::new(Bare::new(kernel, Aarch64::new(Features::detect())))
}

/// On each CPU, when its vectors, TCR_EL1 and its GIC are set up. Interrupts are masked.
pub fn start_cpu(engine: &Shootdown<Machine>) {
    // SAFETY: interrupts are masked.
    unsafe { engine.pin() }.online();
}

/// The handler of `FLUSH_SGI`.
pub fn flush_interrupt(engine: &Shootdown<Machine>) {
    // SAFETY: ends the interrupt that is being handled.
    unsafe { asm!("msr icc_eoir1_el1, {}", in(reg) FLUSH_SGI) };
    // SAFETY: interrupts are masked in a handler.
    unsafe { engine.pin() }.handle_flush_ipi();
}
