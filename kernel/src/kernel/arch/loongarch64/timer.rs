//! Time: the stable counter, which all CPUs have in common, and each CPU's constant timer, which
//! counts down at the same rate.

#![expect(unsafe_code, reason = "reads counters and sets timers")]

use core::arch::asm;

use super::csr;

/// TCFG: on, and not periodic; the initial value is what is above its lowest two bits.
const ENABLED: u64 = 1;
const TICKS: u64 = 0xffff_ffff_fffc;
const NS_PER_S: u64 = 1_000_000_000;

/// Nanoseconds since the machine was started.
pub(super) fn now_ns() -> u64 {
    let ticks: u64;
    // SAFETY: reads a counter.
    unsafe {
        asm!("rdtime.d {}, $zero", out(reg) ticks, options(nostack, preserves_flags));
    }
    scale(ticks, frequency_hz(), NS_PER_S)
}

/// One interrupt, no earlier than so much later. One that is pending is taken back.
pub(super) fn set_timer_ns(delay_ns: u64) {
    // One for the part of a tick that has passed, and up to four for the bits that there are not.
    let ticks = (scale(delay_ns, NS_PER_S, frequency_hz()) + 5).min(TICKS) & TICKS;
    // SAFETY: the timer is this CPU's.
    unsafe {
        csr::write::<{ csr::TCFG }>(0);
        csr::write::<{ csr::TICLR }>(1);
        csr::write::<{ csr::TCFG }>(ticks | ENABLED);
    }
}

/// The interrupt has come, and does not come again.
pub(super) fn stop() {
    // SAFETY: as above.
    unsafe { csr::write::<{ csr::TICLR }>(1) };
}

/// `count` of what there are `from` of in a second, as what there are `to` of.
const fn scale(count: u64, from: u64, to: u64) -> u64 {
    // The product of a rest and a rate has no more than 64 bits up to 18 GHz.
    (count / from) * to + (count % from) * to / from
}

/// A crystal's frequency, times a fraction (manual, "CPUCFG", words 4 and 5).
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
