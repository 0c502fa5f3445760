//! Simulated time, in picoseconds, so that a cycle of a fast CPU is not rounded away. It is an
//! integer, so that results are the same on every host.

use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Mul, Sub};

/// A point in simulated time since the start, or a duration. Sums and products saturate: an
/// impossible machine then runs out of time, and nothing overflows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The start, or a duration of zero.
    pub const ZERO: Self = Self(0);
    /// The shortest duration.
    pub const TICK: Self = Self(1);
    /// Later than every event.
    pub const NEVER: Self = Self(u64::MAX);
    /// The latest time that the event queue can represent: 75 minutes.
    pub const END: Self = Self((1 << 52) - 1);

    /// Creates a time from picoseconds.
    #[must_use]
    #[inline]
    pub const fn from_ps(ps: u64) -> Self {
        Self(ps)
    }

    /// Creates a time from nanoseconds; [`NEVER`](Self::NEVER) if the number is too large.
    #[must_use]
    #[inline]
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns.saturating_mul(1000))
    }

    /// Creates a time from milliseconds.
    #[must_use]
    #[inline]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms * 1_000_000_000)
    }

    /// The time in picoseconds.
    #[must_use]
    #[inline]
    pub const fn ps(self) -> u64 {
        self.0
    }

    /// The time in nanoseconds, rounded down.
    #[must_use]
    #[inline]
    pub const fn ns(self) -> u64 {
        self.0 / 1000
    }

    /// The time in microseconds.
    #[must_use]
    #[inline]
    pub fn us(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The time in seconds.
    #[must_use]
    #[inline]
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// The difference to `other`; zero if `other` is larger.
    #[must_use]
    #[inline]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Time {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Time {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Time {
    type Output = Self;
    #[inline]
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl Mul<u64> for Time {
    type Output = Self;
    #[inline]
    fn mul(self, times: u64) -> Self {
        Self(self.0.saturating_mul(times))
    }
}

impl Sum for Time {
    #[inline]
    fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
        times.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0..1_000_000 => write!(f, "{:.1} ns", self.0 as f64 / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.2} µs", self.us()),
            1_000_000_000..1_000_000_000_000 => write!(f, "{:.2} ms", self.0 as f64 / 1e9),
            _ => write!(f, "{:.3} s", self.seconds()),
        }
    }
}
