//! The processor on RISC-V with 64 bits.

use shootdown_hw::Ipi;
use shootdown_hw::riscv64::{Features, RiscV64, SbiIpi};

use crate::config::{
    Config, SHOOTDOWN_NEVER_BROADCAST, SHOOTDOWN_RISCV64_SATP_ENDS_WALKS, SHOOTDOWN_RISCV64_SVINVAL,
};

pub(super) type Native = RiscV64;

/// The flags of `shootdown_config.processor` that this processor uses.
pub(crate) const FLAGS: u32 =
    SHOOTDOWN_RISCV64_SVINVAL | SHOOTDOWN_RISCV64_SATP_ENDS_WALKS | SHOOTDOWN_NEVER_BROADCAST;

/// The processor, with the features of this CPU.
pub(super) fn processor(config: &Config) -> RiscV64 {
    let has = |flag| config.processor & flag != 0;
    let features = Features { has_svinval: has(SHOOTDOWN_RISCV64_SVINVAL), ..Features::detect() };
    // SAFETY: `shootdown_online` refuses a CPU that lacks the features. The kernel promises the
    // rest in `shootdown_init`.
    let mut processor = unsafe { RiscV64::new(features) };
    if has(SHOOTDOWN_RISCV64_SATP_ENDS_WALKS) {
        // SAFETY: the kernel promises it by the flag.
        processor = unsafe { processor.assuming_satp_ends_walks() };
    }
    #[cfg(feature = "broadcast")]
    if !has(SHOOTDOWN_NEVER_BROADCAST) {
        use shootdown::CpuId;
        // SAFETY: the kernel defines the function without preconditions.
        let hart = |cpu: CpuId| unsafe { crate::os::shootdown_os_hart(cpu.0) };
        // SAFETY: the feature's description has the firmware's part as a requirement, and the
        // function's contract has the rest.
        processor = unsafe { processor.with_remote_fences(hart) };
    }
    processor
}

/// The software interrupt, which has no number.
///
/// # Safety
///
/// As [`SbiIpi::new`].
pub(crate) unsafe fn ipi(_: u32) -> impl Ipi {
    // SAFETY: the caller's promise.
    unsafe { SbiIpi::new() }
}
