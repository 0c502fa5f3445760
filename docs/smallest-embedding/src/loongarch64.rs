//! `LoongArch64`: the kernel's half.

use core::arch::asm;
use core::ptr::NonNull;

use shootdown::{CpuId, CpuSet, CpuState, Root, Shootdown, Space};
use shootdown_hw::loongarch64::LoongArch64;
use shootdown_hw::{Bare, Kernel};

use crate::{Machine, controller_id, cpu_number, put_on_dead_list};

/// The number of the inter-processor interrupt.
const FLUSH_IPI: u64 = 1;
/// IOCSRs: interrupts of this CPU to clear, and interrupts to send.
const IPI_CLEAR: u64 = 0x100c;
const IPI_SEND: u64 = 0x1040;

pub struct MyKernel {
    cpus: [CpuState<Machine>; 64],
    empty_root: Root,
}

// SAFETY: the number of a CPU and its state never change; the barrier makes the target observe all
// stores that came before the interrupt; `empty_root` is never freed.
unsafe impl Kernel for MyKernel {
    type Processor = LoongArch64;
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
        unsafe { asm!("dbar 0", options(nostack, preserves_flags)) };
        for cpu in cpus.iter() {
            write_iocsr(IPI_SEND, 1 << 31 | controller_id(cpu.0) << 16 | FLUSH_IPI);
        }
    }
    fn reclaim(&self, space: NonNull<Space<Machine>>) {
        put_on_dead_list(space);
    }
}

/// Once, on the first CPU. `pgdl` is an empty page table: the kernel is in windows or PGDH.
pub fn engine(pgdl: u64) -> Shootdown<Machine> {
    let cpus = core::array::from_fn(|_| CpuState::new());
    let kernel = MyKernel { cpus, empty_root: Root(pgdl) };
    Shootdown::new(Bare::new(kernel, LoongArch64::detect()))
}

/// On each CPU, when its vectors, PWCL and PWCH are set up. Interrupts are masked.
pub fn start_cpu(engine: &Shootdown<Machine>) {
    // SAFETY: interrupts are masked.
    unsafe { engine.pin() }.online();
}

/// The handler of `FLUSH_IPI`.
pub fn flush_interrupt(engine: &Shootdown<Machine>) {
    // Clear first: a CPU that rings from here on sends another interrupt.
    write_iocsr(IPI_CLEAR, 1 << FLUSH_IPI);
    // SAFETY: a barrier. Stores before the interrupt are observed by the handler.
    unsafe { asm!("dbar 0", options(nostack, preserves_flags)) };
    // SAFETY: interrupts are masked in a handler.
    unsafe { engine.pin() }.handle_flush_ipi();
}

fn write_iocsr(register: u64, value: u64) {
    // SAFETY: both registers only send and clear interrupts.
    unsafe { asm!("iocsrwr.w {}, {}", in(reg) value, in(reg) register) };
}
