//! Noise of start times and costs, which follows from a seed.
//!
//! Simulated results can be chaotic in a parameter: with exact costs, threads meet at a lock in the
//! same order each time. Several seeds show how much of a result is due to that order.

use crate::rng::Rng;
use crate::sim::Sim;
use crate::time::Time;

/// The largest delay of a thread's start.
const START_MAX: Time = Time::from_ns(20_000);
/// The largest change of a cost, in hundredths of a percent of it.
const COST_MAX: u64 = 500;

impl Sim {
    /// Makes each thread start up to 20 µs late, and each [jittered](Self::jittered) cost up to 5 %
    /// smaller or larger. Without this call, there is no jitter.
    pub fn set_jitter(&self, seed: u64) {
        self.jitter.replace(Some(Rng::new(seed)));
    }

    /// Returns a cost with jitter, whose mean is the cost.
    #[must_use]
    pub fn jittered(&self, cost: Time) -> Time {
        match &mut *self.jitter.borrow_mut() {
            None => cost,
            Some(rng) => {
                let part = 10_000 - COST_MAX + rng.below(2 * COST_MAX + 1);
                Time::from_ps((u128::from(cost.ps()) * u128::from(part) / 10_000) as u64)
            }
        }
    }

    /// Delays the calling thread, which starts. Without jitter, this is not a step of the thread.
    pub fn delay_start(&self) {
        let late = self.jitter.borrow_mut().as_mut().map(|rng| rng.below(START_MAX.ps()));
        if let Some(late) = late {
            self.spend(Time::from_ps(late));
        }
    }
}
