//! Time: the stable counter, which all CPUs share, and the constant timer of each CPU, which counts
//! down at the same frequency.

#![expect(unsafe_code, reason = "reads counters and sets timers")]

use core::arch::asm;

use super::csr;
use crate::kernel::arch::ticks::{NS_PER_S, scale};

/// TCFG: enabled, not periodic. The initial value has its lowest two bits clear.
const ENABLED: u64 = 1;
const TICKS: u64 = 0xffff_ffff_fffc;

/// Nanoseconds since the machine was started.
pub(super) fn now_ns() -> u64 {
    let ticks: u64;
    // SAFETY: reading a counter has no side effect.
    unsafe {
        asm!("rdtime.d {}, $zero", out(reg) ticks, options(nostack, preserves_flags));
    }
    scale(ticks, frequency_hz(), NS_PER_S)
}

/// Requests one interrupt after at least `delay_ns`. Cancels a pending one.
pub(super) fn set_timer_ns(delay_ns: u64) {
    // One tick for the part of a tick that has passed, and up to four for the two bits that are
    // clear.
    let ticks = (scale(delay_ns, NS_PER_S, frequency_hz()) + 5).min(TICKS) & TICKS;
    // SAFETY: the kernel handles the timer's interrupt.
    unsafe {
        csr::write::<{ csr::TCFG }>(0);
        csr::write::<{ csr::TICLR }>(1);
        csr::write::<{ csr::TCFG }>(ticks | ENABLED);
    }
}

/// Clears the timer's interrupt.
pub(super) fn stop() {
    // SAFETY: the interrupt is being handled.
    unsafe { csr::write::<{ csr::TICLR }>(1) };
}

/// The frequency of a crystal times a fraction (manual, "CPUCFG", words 4 and 5).
fn frequency_hz() -> u64 {
    let (crystal_hz, fraction) = (configuration(4), configuration(5));
    crystal_hz * (fraction & 0xffff) / (fraction >> 16).max(1)
}

fn configuration(word: u64) -> u64 {
    let value: u64;
    // SAFETY: reads what never changes.
    unsafe {
        asm!("cpucfg {}, {}", out(reg) value, in(reg) word,
            options(pure, nomem, nostack, preserves_flags));
    }
    value & 0xffff_ffff
}
