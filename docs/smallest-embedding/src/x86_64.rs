//! x86-64: the kernel's half, for CPUs with an x2APIC.

use core::arch::asm;
use core::ptr::NonNull;

use shootdown::{CpuId, CpuSet, CpuState, Root, Shootdown, Space};
use shootdown_hw::x86_64::{KernelPages, X86_64, detect, enable, order_before_x2apic_write};
use shootdown_hw::{Bare, Kernel};

use crate::{Machine, controller_id, cpu_number, put_on_dead_list};

const VECTOR: u64 = 0xf0;
const X2APIC_ICR: u32 = 0x830;
const X2APIC_EOI: u32 = 0x80b;

pub struct MyKernel {
    cpus: [CpuState<Machine>; 64],
    root: Root,
}

// SAFETY: the number of a CPU and its state never change; the barrier makes the target observe all
// stores that came before the interrupt; `root` maps the kernel for ever.
unsafe impl Kernel for MyKernel {
    type Processor = X86_64;
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
        order_before_x2apic_write();
        for cpu in cpus.iter() {
            write_msr(X2APIC_ICR, controller_id(cpu.0) << 32 | VECTOR);
        }
    }
    fn reclaim(&self, space: NonNull<Space<Machine>>) {
        put_on_dead_list(space);
    }
}

/// Once, on the first CPU. `cr3` is a page table that maps the kernel and nothing else.
pub fn engine(cr3: u64) -> Shootdown<Machine> {
    let kernel = MyKernel { cpus: core::array::from_fn(|_| CpuState::new()), root: Root(cr3) };
    // SAFETY: `start_cpu` enables the features on each CPU; kernel pages have the bit G.
    Shootdown::new(Bare::new(kernel, unsafe { X86_64::new(detect(), KernelPages::Global) }))
}

/// On each CPU, when its vectors and its x2APIC are set up. Interrupts are masked.
pub fn start_cpu(engine: &Shootdown<Machine>) {
    // SAFETY: interrupts are masked; the features are those of every CPU.
    unsafe {
        enable(detect());
        engine.pin().online();
    }
}

/// The handler of `VECTOR`.
pub fn flush_interrupt(engine: &Shootdown<Machine>) {
    write_msr(X2APIC_EOI, 0);
    // SAFETY: interrupts are masked in a handler.
    unsafe { engine.pin() }.handle_flush_ipi();
}

fn write_msr(register: u32, value: u64) {
    let (low, high) = (value as u32, (value >> 32) as u32);
    // SAFETY: both registers only send and acknowledge interrupts.
    unsafe { asm!("wrmsr", in("ecx") register, in("eax") low, in("edx") high) };
}
