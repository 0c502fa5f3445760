//! The processor on RISC-V with 64 bits.

use shootdown_hw::Ipi;
use shootdown_hw::riscv64::errata::Identity;
use shootdown_hw::riscv64::{ClintIpi, Features, RiscV64, SbiIpi};

use crate::config::{
    Config, SHOOTDOWN_NEVER_BROADCAST, SHOOTDOWN_RISCV64_KERNEL_LOADS,
    SHOOTDOWN_RISCV64_NO_FIRMWARE, SHOOTDOWN_RISCV64_SATP_ENDS_WALKS, SHOOTDOWN_RISCV64_SVINVAL,
};

pub(super) type Native = RiscV64;

/// The flags of `shootdown_config.processor` that this processor uses.
pub(crate) const FLAGS: u32 = SHOOTDOWN_RISCV64_SVINVAL
    | SHOOTDOWN_RISCV64_SATP_ENDS_WALKS
    | SHOOTDOWN_RISCV64_KERNEL_LOADS
    | SHOOTDOWN_RISCV64_NO_FIRMWARE
    | SHOOTDOWN_NEVER_BROADCAST;

/// The processor, with the features of this CPU.
pub(super) fn processor(config: &Config) -> RiscV64 {
    let has = |flag| config.processor & flag != 0;
    let detected = if has(SHOOTDOWN_RISCV64_NO_FIRMWARE) {
        // A hart that needs no workaround, as the flag promises.
        Features::detect_as(Some(Identity { vendor: 0, architecture: 0, implementation: 0 }))
    } else {
        Features::detect()
    };
    let features = Features { has_svinval: has(SHOOTDOWN_RISCV64_SVINVAL), ..detected };
    // SAFETY: `shootdown_online` refuses a CPU that lacks the features. The kernel promises the
    // rest in `shootdown_init`.
    let mut processor = unsafe { RiscV64::new(features) };
    if has(SHOOTDOWN_RISCV64_SATP_ENDS_WALKS) {
        // SAFETY: the kernel promises it by the flag.
        processor = unsafe { processor.assuming_satp_ends_walks() };
    }
    if has(SHOOTDOWN_RISCV64_NO_FIRMWARE) {
        // SAFETY: as above.
        processor = unsafe { processor.without_firmware() };
    }
    if has(SHOOTDOWN_RISCV64_KERNEL_LOADS) {
        // SAFETY: as above.
        processor = unsafe { processor.loaded_by_kernel() };
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

/// The software interrupt, sent by the firmware, or by the device whose registers are at an address
/// other than 0.
///
/// # Safety
///
/// As [`SbiIpi::new`] or [`ClintIpi::new`].
pub(crate) unsafe fn ipi(registers: u64) -> Software {
    // SAFETY: the caller's promise.
    match registers {
        0 => Software::Firmware(unsafe { SbiIpi::new() }),
        registers => Software::Device(unsafe { ClintIpi::new(registers as usize) }),
    }
}

/// The software interrupt, by one of two senders.
pub(crate) enum Software {
    Firmware(SbiIpi),
    Device(ClintIpi),
}

// SAFETY: both are such interrupts.
unsafe impl Ipi for Software {
    #[inline]
    fn send(&self, targets: impl Iterator<Item = u64>) {
        match self {
            Self::Firmware(ipi) => ipi.send(targets),
            Self::Device(ipi) => ipi.send(targets),
        }
    }

    /// In the same way.
    #[inline]
    fn acknowledge(&self) {
        match self {
            Self::Firmware(ipi) => ipi.acknowledge(),
            Self::Device(ipi) => ipi.acknowledge(),
        }
    }
}
