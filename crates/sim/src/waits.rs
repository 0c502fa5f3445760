//! The distribution of durations: of flushes, from the beginning of each to the end of waiting for
//! it, and of the parts of a program.

use core::fmt;

use hdrhistogram::Histogram;

use crate::time::Time;

/// Durations, to three significant digits.
#[derive(Clone)]
pub struct FlushWaits(Histogram<u64>);

impl FlushWaits {
    /// Adds a duration.
    pub fn record(&mut self, wait: Time) {
        // The histogram grows with its values.
        let is_recorded = self.0.record(wait.ns()).is_ok();
        debug_assert!(is_recorded, "{wait:?}");
    }

    /// Adds the durations of another run.
    pub fn add(&mut self, other: &Self) {
        self.0 += &other.0;
    }

    /// The duration that the given share of all flushes, from 0 to 1, does not exceed; zero without
    /// flushes.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Time {
        Time::from_ns(self.0.value_at_quantile(share).min(self.0.max()))
    }

    /// The longest duration.
    #[must_use]
    pub fn max(&self) -> Time {
        Time::from_ns(self.0.max())
    }
}

impl Default for FlushWaits {
    /// Creates an empty distribution.
    fn default() -> Self {
        let mut all = Histogram::new(3).expect("three digits are a valid precision");
        all.auto(true);
        Self(all)
    }
}

impl fmt::Debug for FlushWaits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlushWaits").field("flushes", &self.0.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_correct_to_three_digits() {
        let mut waits = FlushWaits::default();
        for us in 1..=1000 {
            waits.record(Time::from_ns(us * 1000));
        }
        let near = |time: Time, ns: u64| time.ns().abs_diff(ns) <= ns / 500;
        assert!(near(waits.quantile(0.5), 500_000), "{:?}", waits.quantile(0.5));
        assert!(near(waits.quantile(0.99), 990_000), "{:?}", waits.quantile(0.99));
        assert!(near(waits.max(), 1_000_000), "{:?}", waits.max());
        let mut both = waits.clone();
        both.add(&waits);
        assert_eq!(both.quantile(0.5), waits.quantile(0.5));
        assert_eq!(FlushWaits::default().max(), Time::ZERO);
    }
}
