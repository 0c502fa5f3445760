//! `AArch64`, for CPUs with a `GICv3`, at EL1.

use shootdown::Root;
use shootdown_hw::aarch64::Features;
pub use shootdown_hw::aarch64::{Aarch64 as Processor, GicIpi as Ipi};

use crate::ENGINE;

/// Once, on the first CPU, when TCR_EL1 is set up: A1 = 0, and AS = 1 for ASIDs of 16 bits.
///
/// # Safety
///
/// No other CPU runs yet. `ttbr0` is an empty page table, which stays: the kernel is in TTBR1.
/// Each CPU has the same TCR_EL1, and enables its GIC, with a handler of SGI 1, before
/// `start_cpu`. Kernel pages are global, and user pages are not.
pub unsafe fn start(ttbr0: u64) {
    // SAFETY: by the caller; `start_cpu` refuses a CPU that lacks the features.
    unsafe {
        let processor = Processor::new(Features::detect());
        ENGINE.init(processor, Ipi::new(1), Root(ttbr0));
    }
}
