//! Errata of the processor: the kernel's duties and settings.

#![cfg_attr(
    any(target_arch = "aarch64", test),
    expect(unsafe_code, reason = "the C interface: the kernel promises what constructors require")
)]

use shootdown_hw::errata::Workarounds;

use crate::config::{
    SHOOTDOWN_DUTY_BREAK_EXECUTABLE, SHOOTDOWN_DUTY_IGNORE_LATE_MARKS,
    SHOOTDOWN_DUTY_NO_DIRTY_MARKS,
};

/// The duties that workarounds leave to the kernel, as flags.
pub(crate) fn duties(workarounds: Workarounds) -> u32 {
    let duties = [
        (Workarounds::BREAK_EXECUTABLE, SHOOTDOWN_DUTY_BREAK_EXECUTABLE),
        (Workarounds::NO_DIRTY_MARKS, SHOOTDOWN_DUTY_NO_DIRTY_MARKS),
        (Workarounds::LATE_MARKS, SHOOTDOWN_DUTY_IGNORE_LATE_MARKS),
    ];
    let owed = duties.into_iter().filter(|(workaround, _)| workarounds.contains(*workaround));
    owed.fold(0, |flags, (_, flag)| flags | flag)
}

/// The processor on `AArch64` that `config` describes.
///
/// # Safety
///
/// As [`Aarch64::new`](shootdown_hw::aarch64::Aarch64::new), and what the members of `config`
/// promise is true.
#[cfg(any(target_arch = "aarch64", test))]
pub(crate) unsafe fn aarch64(
    features: shootdown_hw::aarch64::Features,
    config: &crate::config::Config,
) -> shootdown_hw::aarch64::Aarch64 {
    use shootdown_hw::aarch64::{Aarch64, FlushInterrupt};

    use crate::config::{
        SHOOTDOWN_AARCH64_FIQ, SHOOTDOWN_AARCH64_MIXED_CORES, SHOOTDOWN_NEVER_BROADCAST,
    };

    let has = |flag| config.processor & flag != 0;
    let features =
        if has(SHOOTDOWN_AARCH64_MIXED_CORES) { features.for_mixed_cores() } else { features };
    // SAFETY: the caller's promise.
    let mut processor = unsafe { Aarch64::new(features) };
    if let Some(interrupt) = config.interrupt_sme {
        // SAFETY: the caller's promise.
        processor = unsafe { processor.with_sme_interrupt(interrupt) };
    }
    if has(SHOOTDOWN_AARCH64_FIQ) {
        processor = processor.notified_by(FlushInterrupt::Fiq);
    }
    if has(SHOOTDOWN_NEVER_BROADCAST) { processor.without_broadcasts() } else { processor }
}
