//! The clock, which all CPUs share, and the timer of each CPU, which the firmware sets.

use core::sync::atomic::{AtomicU64, Ordering};

use super::csr::read;
use super::firmware;
use crate::kernel::arch::ticks::{NS_PER_S, scale};

/// The frequency of the clock, from the device tree.
static FREQUENCY_HZ: AtomicU64 = AtomicU64::new(0);

/// Sets the frequency of the clock. Call this before the clock is read.
pub(super) fn set_frequency_hz(frequency_hz: u64) {
    assert!(frequency_hz > 0, "the clock stands still");
    FREQUENCY_HZ.store(frequency_hz, Ordering::Relaxed);
}

pub(super) fn now_ns() -> u64 {
    scale(read!("time"), frequency_hz(), NS_PER_S)
}

/// Requests one interrupt after `delay_ns`.
pub(super) fn set_timer_ns(delay_ns: u64) {
    // One tick more, so that the interrupt does not come too early.
    let ticks = scale(delay_ns, NS_PER_S, frequency_hz()) + 1;
    firmware::set_timer(read!("time").saturating_add(ticks));
}

/// Stops the timer. Until it is stopped or set again, it keeps interrupting.
pub(super) fn stop() {
    firmware::set_timer(u64::MAX);
}

fn frequency_hz() -> u64 {
    // Relaxed: other CPUs are started after the store.
    FREQUENCY_HZ.load(Ordering::Relaxed)
}
