//! RISC-V: the kernel's half, in S-mode above SBI firmware.

use core::arch::asm;
use core::ptr::NonNull;

use shootdown::{CpuId, CpuSet, CpuState, Root, Shootdown, Space};
use shootdown_hw::riscv64::{Features, RiscV64, sbi};
use shootdown_hw::{Bare, Kernel};

use crate::{Machine, controller_id, cpu_number, put_on_dead_list};

/// The software interrupt in `sip`.
const SSIP: u64 = 1 << 1;

pub struct MyKernel {
    cpus: [CpuState<Machine>; 64],
    root: Root,
}

// SAFETY: the number of a CPU and its state never change; `send_ipis` makes the target observe all
// stores that came before the interrupt; `root` maps the kernel for ever.
unsafe impl Kernel for MyKernel {
    type Processor = RiscV64;
    type CpuBits = [u64; 1];

    fn state(&self, cpu: CpuId) -> &CpuState<Machine> {
        &self.cpus[cpu.index()]
    }
    fn cpu(&self) -> CpuId {
        CpuId(cpu_number())
    }
    fn root(&self) -> Root {
        self.root
    }
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        // The number of a hart is its number in the firmware.
        sbi::send_ipis(cpus.iter().map(|cpu| controller_id(cpu.0)));
    }
    fn reclaim(&self, space: NonNull<Space<Machine>>) {
        put_on_dead_list(space);
    }
}

/// Once, on the first CPU, when `satp` holds `root`, a page table that maps the kernel and nothing
/// else. `isa` is the property `riscv,isa` of the device tree.
pub fn engine(root: u64, isa: &[u8]) -> Shootdown<Machine> {
    let kernel = MyKernel { cpus: core::array::from_fn(|_| CpuState::new()), root: Root(root) };
    let features = Features::detect().with_extensions(isa);
    Shootdown::new(Bare::new(kernel, RiscV64::new(features)))
}

/// On each CPU, when its vector is set up and `satp` holds the kernel's root. Interrupts are
/// masked.
pub fn start_cpu(engine: &Shootdown<Machine>) {
    // SAFETY: interrupts are masked.
    unsafe { engine.pin() }.online();
}

/// The handler of the software interrupt.
pub fn flush_interrupt(engine: &Shootdown<Machine>) {
    // SAFETY: clear first: a CPU that rings from here on sends another interrupt. The barrier makes
    // the handler observe all stores that came before the interrupt.
    unsafe { asm!("csrc sip, {}", "fence", in(reg) SSIP, options(nostack, preserves_flags)) };
    // SAFETY: interrupts are masked in a handler.
    unsafe { engine.pin() }.handle_flush_ipi();
}
