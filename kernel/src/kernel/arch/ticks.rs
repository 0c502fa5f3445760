//! Conversion between the ticks of a counter and nanoseconds.

pub(super) const NS_PER_S: u64 = 1_000_000_000;

/// Converts `count` ticks of a clock of `from` Hz to ticks of a clock of `to` Hz, rounded down.
pub(super) const fn scale(count: u64, from: u64, to: u64) -> u64 {
    // The product of a remainder and a frequency fits in 64 bits for frequencies up to 18 GHz.
    (count / from) * to + (count % from) * to / from
}
