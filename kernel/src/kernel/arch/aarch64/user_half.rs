//! The ASIDs of user mode. With the feature `kpti`, they are not those of the kernel.

use shootdown_hw::aarch64::Aarch64;
#[cfg(feature = "kpti")]
use shootdown_hw::aarch64::Kpti;

#[cfg(feature = "kpti")]
use super::register::{run, write};

#[cfg(not(feature = "kpti"))]
pub(super) type Processor = Aarch64;
#[cfg(feature = "kpti")]
pub(super) type Processor = Kpti;

#[cfg(not(feature = "kpti"))]
pub(super) fn processor(processor: Aarch64) -> Processor {
    processor
}

#[cfg(feature = "kpti")]
pub(super) fn processor(processor: Aarch64) -> Processor {
    // SAFETY: `run` is the only way to user mode. TTBR1 has the kernel's tables in both modes.
    unsafe { Kpti::new(processor) }
}

/// Calls `stay`, which runs user mode.
#[cfg(not(feature = "kpti"))]
pub(super) fn run<R>(stay: impl FnOnce() -> R) -> R {
    stay()
}

/// Calls `stay`, which runs user mode, under the ASID of the user half. Interrupts are masked
/// outside of user mode.
#[cfg(feature = "kpti")]
pub(super) fn run<R>(stay: impl FnOnce() -> R) -> R {
    let load = |value: u64| {
        // SAFETY: the root is the one that is loaded, and TTBR1 maps the kernel.
        unsafe { write!("ttbr0_el1", value) };
        run!("isb");
    };
    let halves = Kpti::halves();
    load(halves.user);
    let result = stay();
    load(halves.kernel);
    result
}
