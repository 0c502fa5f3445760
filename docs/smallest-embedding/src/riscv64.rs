//! RISC-V, in S-mode above SBI firmware.

use shootdown::Root;
use shootdown_hw::riscv64::Features;
pub use shootdown_hw::riscv64::{RiscV64 as Processor, SbiIpi as Ipi};

use crate::ENGINE;

/// Once, on the first CPU. `isa` is the property `riscv,isa` of the device tree.
///
/// # Safety
///
/// No other CPU runs yet. `root` is the physical address of the page table in `satp`, which maps
/// the kernel and nothing else, and stays valid. Each CPU loads it, and has a handler of software
/// interrupts, before `start_cpu`. Kernel pages have G, and no other entries have.
pub unsafe fn start(root: u64, isa: &[u8]) {
    // SAFETY: by the caller; `start_cpu` refuses a CPU that lacks the features.
    unsafe {
        let processor = Processor::new(Features::detect().with_extensions(isa));
        ENGINE.init(processor, Ipi::new(), Root(root));
    }
}
