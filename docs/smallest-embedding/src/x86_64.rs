//! x86-64, for CPUs with an x2APIC.

use shootdown::Root;
use shootdown_hw::x86_64::{KernelPages, detect};
pub use shootdown_hw::x86_64::{X2ApicIpi as Ipi, X86_64 as Processor};

use crate::ENGINE;

/// Once, on the first CPU.
///
/// # Safety
///
/// No other CPU runs yet. `cr3` is a page table that maps the kernel and nothing else, by pages
/// with the bit G, and stays valid. All CPUs have the features of this one. The IDT has the
/// handler at vector 0xf0, and each CPU enables its x2APIC before `start_cpu`.
pub unsafe fn start(cr3: u64) {
    // SAFETY: by the caller; `start_cpu` enables the features on each CPU.
    unsafe {
        let processor = Processor::new(detect(), KernelPages::Global);
        ENGINE.init(processor, Ipi::new(0xf0), Root(cr3));
    }
}
