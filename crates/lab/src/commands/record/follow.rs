//! The choice of the side that selects the calls and faults of a command among those of all
//! programs.
//!
//! The kernel checks at each switch and wake-up of any thread whether the thread is one of the
//! command's, which costs a program that does little else a sixth of its time. The recorder can
//! select them as well, and the kernel then traces the calls and faults of all programs: more
//! events, if the other programs are busy.

use std::fs;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::param::clock_ticks_per_second;

use super::process_time;

/// The side that selects events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Follow {
    /// The kernel: it checks each switch of threads
    Kernel,
    /// The recorder: the kernel traces the calls and faults of all programs
    Recorder,
}

/// The part of all CPUs' time that other programs may use if the recorder is to select.
const IDLE_ENOUGH: f64 = 0.25;

/// The CPU time that all programs and this process have used up to a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    at: Instant,
    used: Duration,
    used_here: Duration,
}

impl Load {
    /// Reads the times. Returns `None` if the kernel does not say.
    pub(super) fn now() -> Option<Self> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let used = Duration::from_secs_f64(busy(&text)? as f64 / clock_ticks_per_second() as f64);
        Some(Self { at: Instant::now(), used, used_here: process_time() })
    }

    /// Returns the side that should select events, by the time that other programs used since.
    pub(super) fn follow(self, cpus: usize) -> Follow {
        let Some(now) = Self::now() else { return Follow::Kernel };
        let of_others = (now.used - self.used).saturating_sub(now.used_here - self.used_here);
        let all = (now.at - self.at) * cpus as u32;
        match of_others.as_secs_f64() <= IDLE_ENOUGH * all.as_secs_f64() {
            true => Follow::Recorder,
            false => Follow::Kernel,
        }
    }
}

/// Returns the ticks that all CPUs were not idle, from the text of `/proc/stat`.
fn busy(text: &str) -> Option<u64> {
    /// The columns of idle time, without and with requests to a device.
    const IDLE: [usize; 2] = [3, 4];
    /// User, nice, system, idle, wait, two of interrupts, and stolen time. Others are parts of
    /// these.
    const COLUMNS: usize = 8;
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let columns = line.split_whitespace().take(COLUMNS).enumerate();
    columns.filter(|(index, _)| !IDLE.contains(index)).map(|(_, it)| it.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_columns_are_left_out() {
        let text = "cpu  10 20 300 4000 5000 6 7 8 900 1000\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(busy(text), Some(10 + 20 + 300 + 6 + 7 + 8));
        assert_eq!(busy("intr 1 2 3\n"), None);
    }

    #[test]
    fn busy_machine_leaves_the_choice_to_the_kernel() {
        let second = Duration::from_secs(1);
        let Some(now) = Load::now() else { return };
        let ago = |used: Duration| Load { at: now.at - 100 * second, used: now.used - used, ..now };
        // Of 100 s and a million CPUs, nothing; of the same time and one CPU, 60 s.
        assert_eq!(ago(Duration::ZERO).follow(1_000_000), Follow::Recorder);
        let used = (60 * second).min(now.used);
        let expected = if used > 30 * second { Follow::Kernel } else { Follow::Recorder };
        assert_eq!(ago(used).follow(1), expected);
    }
}
