//! `LoongArch64`.

use shootdown::Root;
pub use shootdown_hw::loongarch64::{IocsrIpi as Ipi, LoongArch64 as Processor};

use crate::ENGINE;

/// Once, on the first CPU.
///
/// # Safety
///
/// No other CPU runs yet. `pgdl` is an empty page table, which stays: the kernel is in windows
/// or PGDH. Each CPU sets PWCL and PWCH, and has a handler of interrupt 1 from other cores,
/// before `start_cpu`.
pub unsafe fn start(pgdl: u64) {
    let processor = Processor::detect();
    // SAFETY: by the caller.
    unsafe { ENGINE.init(processor, Ipi::new(1), Root(pgdl)) };
}
