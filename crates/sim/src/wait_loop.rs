//! Loops that wait until other CPUs have flushed, in few iterations.

use crate::time::Time;

/// A loop that waits until other CPUs have flushed: the beginning of its first iteration, and the
/// end of its last one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WaitLoop {
    began: Time,
    ended: Time,
}

impl WaitLoop {
    /// Returns the length of an iteration: `pause`, or a hundredth of the time since the loop began
    /// if it waits for long.
    pub(crate) fn next_pause(&mut self, now: Time, pause: Time) -> Time {
        /// Waits are rarely longer unless a hypervisor has stopped a CPU.
        const LONG: Time = Time::from_ns(100_000);
        /// An iteration takes less time besides its pause, and another flush more.
        const BETWEEN: Time = Time::from_ns(400);
        if now.saturating_sub(self.ended) > BETWEEN {
            self.began = now;
        }
        let waited = now - self.began;
        let pause = if waited < LONG { pause } else { pause.max(Time::from_ps(waited.ps() / 100)) };
        self.ended = now + pause;
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Time = Time::from_ns(50);

    /// Iterations of a loop that waits for a time, and the time that it takes in the end.
    fn wait(wait: &mut WaitLoop, from: Time, time: Time) -> (u32, Time) {
        let (mut now, mut iterations) = (from, 0);
        while now - from < time {
            now += wait.next_pause(now, PAUSE) + Time::from_ns(1);
            iterations += 1;
        }
        (iterations, now - from)
    }

    #[test]
    fn short_waits_have_short_iterations() {
        let mut loops = WaitLoop::default();
        let mut from = Time::ZERO;
        for _ in 0..100 {
            let (iterations, time) = wait(&mut loops, from, Time::from_ns(5000));
            assert_eq!((iterations, time), (99, Time::from_ns(5049)));
            // Another flush follows soon.
            from += time + Time::from_ns(500);
        }
    }

    #[test]
    fn long_waits_end_at_most_a_hundredth_late() {
        let (iterations, time) = wait(&mut WaitLoop::default(), Time::ZERO, Time::from_ms(100));
        assert!(iterations < 3000, "{iterations}");
        assert!(time < Time::from_ms(101), "{time}");
    }
}
