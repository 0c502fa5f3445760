//! From `boot.s` to the kernel's entry points.

use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use shootdown_hw::errata::Workarounds;
use shootdown_hw::riscv64::Features;
use shootdown_hw::riscv64::encoding::Mode;

use super::{firmware, harts, interrupts, tables, timer};
use crate::kernel::arch::contract::Boot;
use crate::kernel::arch::high_half::{free_memory, phys_to_virt, virt_to_phys};
use crate::kernel::arch::{device_tree, payload, upcalls};

global_asm!(include_str!("boot.s"));

/// Physical address at which memory begins.
const MEMORY: u64 = 0x8000_0000;
/// Largest size of memory. The tables for more would not fit below [`LOAD`].
const MEMORY_BYTES_MAX: u64 = 16 << 30;
/// Physical address at which `shootdown boot` puts the load.
const LOAD: u64 = 0x8400_0000;
const PAGE_BYTES: u64 = 4096;

// The features of the processor. They are stored before other CPUs are started.
static ASID_BITS: AtomicU32 = AtomicU32::new(0);
static HAS_SVINVAL: AtomicBool = AtomicBool::new(false);
static HAS_WHOLE_FENCES: AtomicBool = AtomicBool::new(false);

/// Entry of the first CPU, which comes from `boot.s` on its own stack.
#[unsafe(no_mangle)]
extern "C" fn begin_on_first_cpu(hart: u32, tree: u64) -> ! {
    set_number(0);
    harts::set_first(hart);
    // SAFETY: the firmware has put a device tree there, and the boot tables map it.
    let tree_words = unsafe { device_tree::words(phys_to_virt(tree)) };
    let tree_words = tree_words.expect("a1 has the address of a device tree");
    let frequency = device_tree::property(tree_words, "timebase-frequency");
    let frequency = frequency.and_then(|words| words.first()).copied().map(u32::from_be);
    timer::set_frequency_hz(frequency.expect("the clock has a frequency").into());
    detect(tree_words);
    let bytes = device_tree::memory_bytes(tree_words).expect("the device tree has memory");
    // The firmware puts the tree at the end of memory.
    let memory_end = (MEMORY + bytes.min(MEMORY_BYTES_MAX)).min(tree & !(PAGE_BYTES - 1));
    tables::set_up(memory_end, LOAD);
    // SAFETY: the memory is mapped, and is not part of `Boot::memory`.
    let load = unsafe { payload::at(phys_to_virt(LOAD)) };
    let memory = free_memory(LOAD, load.len(), memory_end);
    upcalls::main_on_first_cpu(&Boot { memory, load })
}

/// Entry of every other CPU, which comes from `boot.s` on the stack that [`start_cpu`] was given.
#[unsafe(no_mangle)]
extern "C" fn begin_on_other_cpu(hart: u32) -> ! {
    let cpu = harts::cpu_of(hart);
    set_number(cpu);
    tables::leave_boot_tables();
    upcalls::main_on_other_cpu(cpu)
}

/// Stores the features of the processor. The boot tables are loaded.
fn detect(tree: &[u32]) {
    let isa = device_tree::property(tree, "riscv,isa").unwrap_or_default();
    // SAFETY: words consist of bytes.
    let isa = unsafe { core::slice::from_raw_parts(isa.as_ptr().cast::<u8>(), size_of_val(isa)) };
    let features = Features::detect().with_extensions(isa);
    assert!(features.mode == Mode::Sv48, "the boot tables are in another format");
    ASID_BITS.store(features.asid_bits, Ordering::Relaxed);
    HAS_SVINVAL.store(features.has_svinval, Ordering::Relaxed);
    let has_whole_fences = features.workarounds.contains(Workarounds::WHOLE_FENCES);
    HAS_WHOLE_FENCES.store(has_whole_fences, Ordering::Relaxed);
}

/// The features of the processor.
pub(super) fn features() -> Features {
    Features {
        mode: Mode::Sv48,
        asid_bits: ASID_BITS.load(Ordering::Relaxed),
        has_svinval: HAS_SVINVAL.load(Ordering::Relaxed),
        workarounds: if HAS_WHOLE_FENCES.load(Ordering::Relaxed) {
            Workarounds::WHOLE_FENCES
        } else {
            Workarounds::NONE
        },
    }
}

/// Keeps the number of this CPU in `tp`, where `Riscv64::cpu` reads it. No code here has
/// thread-local variables, for which the compiler would use this register.
fn set_number(cpu: u32) {
    // SAFETY: nothing else uses the register.
    unsafe { core::arch::asm!("mv tp, {}", in(reg) u64::from(cpu), options(nomem, nostack)) };
}

/// Sets up this CPU, which must be the one that it was started as.
pub(super) fn set_up_cpu(cpu: u32) {
    assert_eq!(super::cpu(), cpu, "this is another CPU");
    interrupts::set_up();
}

/// Starts a CPU.
pub(super) fn start_cpu(cpu: u32, stack_end: usize) {
    unsafe extern "C" {
        fn start_other();
    }
    let start = virt_to_phys(start_other as *const ());
    // `boot.s` branches to `begin_on_other_cpu`. The call of the firmware orders earlier stores.
    firmware::start_hart(harts::of_cpu(cpu), start, stack_end as u64);
}
