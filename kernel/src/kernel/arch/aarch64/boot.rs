//! From `boot.s` to the kernel's entry points.

use core::arch::global_asm;

use super::register::{read, run, write};
use super::{console, firmware, gic, tables};
use crate::kernel::arch::contract::Boot;
use crate::kernel::arch::high_half::{free_memory, phys_to_virt, virt_to_phys};
use crate::kernel::arch::{device_tree, payload, upcalls};

global_asm!(include_str!("boot.s"));

/// Physical address at which memory begins.
const MEMORY: u64 = 0x4000_0000;
/// Size of memory if there is no device tree.
const MEMORY_BYTES: u64 = 512 << 20;
/// Largest size of memory. The tables for more would not fit below [`LOAD`].
const MEMORY_BYTES_MAX: u64 = 16 << 30;
/// Physical address at which `shootdown boot` puts the load.
const LOAD: u64 = 0x4400_0000;

/// Entry of the first CPU, which comes from `boot.s` on its own stack.
#[unsafe(no_mangle)]
extern "C" fn begin_on_first_cpu() -> ! {
    // SAFETY: `Aarch64::cpu` reads the CPU's number there.
    unsafe { write!("tpidr_el1", 0) };
    console::set_up();
    let marks_entries = read!("id_aa64mmfr1_el1") & 0xf;
    assert!(marks_entries >= 2, "page tables are in a format for FEAT_HAFDBS");
    let memory_end = memory_end();
    tables::set_up(MEMORY..memory_end, LOAD);
    gic::set_up();
    // SAFETY: the memory is mapped, and is not part of `Boot::memory`.
    let load = unsafe { payload::at(phys_to_virt(LOAD)) };
    let memory = free_memory(LOAD, load.len(), memory_end);
    upcalls::main_on_first_cpu(&Boot { memory, load })
}

/// Entry of every other CPU, which comes from `boot.s` on the stack that [`start_cpu`] was given.
#[unsafe(no_mangle)]
extern "C" fn begin_on_other_cpu() -> ! {
    let affinity = read!("mpidr_el1") & 0xffff;
    let cpu = (0..gic::CPUS_MAX).find(|cpu| gic::affinity(*cpu) == affinity).unwrap_or(u32::MAX);
    // SAFETY: `Aarch64::cpu` reads the CPU's number there.
    unsafe { write!("tpidr_el1", cpu.into()) };
    tables::leave_boot_tables();
    upcalls::main_on_other_cpu(cpu)
}

/// Sets up this CPU. A CPU has computed its number before; it must be the number it was started
/// with.
pub(super) fn set_up_cpu(cpu: u32) {
    assert_eq!(read!("tpidr_el1"), u64::from(cpu), "this is another CPU");
    gic::set_up_cpu(cpu);
}

/// Starts a CPU. Its caches are off until its MMU is on, so until then it uses only registers and
/// the kernel's image.
pub(super) fn start_cpu(cpu: u32, stack_end: usize) {
    unsafe extern "C" {
        fn start_other();
    }
    let start = virt_to_phys(start_other as *const ());
    // Make earlier stores visible to the CPU once its MMU is on.
    run!("dsb ish");
    // `boot.s` branches to `begin_on_other_cpu`.
    firmware::start_cpu(gic::affinity(cpu), start, stack_end as u64);
}

fn memory_end() -> u64 {
    // SAFETY: QEMU puts the device tree there, below the kernel, or leaves zeros.
    let tree = unsafe { device_tree::words(phys_to_virt(MEMORY)) };
    let bytes = tree.and_then(device_tree::memory_bytes);
    MEMORY + bytes.unwrap_or(MEMORY_BYTES).min(MEMORY_BYTES_MAX)
}
