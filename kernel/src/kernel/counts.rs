//! Counters of each CPU for events that the engine does not count.

use core::array;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::kernel::arch::{Arch, Architecture};

/// The largest number of CPUs.
pub(crate) const CPUS_MAX: usize = 64;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of one CPU. Only that CPU writes them.
        #[repr(align(64))]
        pub(crate) struct CpuCounts { $($(#[$doc])* pub(crate) $name: Count,)* }

        /// The values of the counters.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct CountValues { $(pub(crate) $name: u64,)* }

        impl CpuCounts {
            const fn new() -> Self {
                Self { $($name: Count(AtomicU64::new(0)),)* }
            }

            pub(crate) fn read(&self) -> CountValues {
                CountValues { $($name: self.$name.read(),)* }
            }
        }

        impl CountValues {
            /// The values with the names of their counters.
            pub(crate) fn by_name(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            pub(crate) fn combine(self, other: Self, combine: impl Fn(u64, u64) -> u64) -> Self {
                Self { $($name: combine(self.$name, other.$name),)* }
            }
        }
    };
}

counts! {
    /// Flush interrupts sent, one for each target CPU.
    flush_interrupts_sent,
    /// Flush interrupts taken.
    flush_interrupts_taken,
    /// Time in handlers of flush interrupts.
    interrupted_ns,
    /// Interrupts sent to wake other CPUs' schedulers.
    wake_interrupts_sent,
    wake_interrupts_taken,
    timer_interrupts_taken,
    /// Flushes sent.
    flushes,
    /// Time from sending a flush to the end of the wait for it.
    flush_wait_ns,
    /// Invalidations of a whole tag because the CPU loaded a space or returned to one.
    flushes_full_at_switch,
    /// Invalidations of single pages because the CPU loaded a space or returned to one.
    flushes_ranged_at_switch,
    /// Page faults.
    faults,
    /// Entries to user mode.
    user_runs,
    /// Steps of workload threads.
    steps,
    /// Context switches, including those to and from the idle loop.
    switches,
    /// Switches to a thread that last ran on another CPU.
    migrations,
    /// Pages copied to another frame.
    copied,
    /// Pages read from stored files.
    read_in,
}

/// A counter of one CPU.
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds `count`. Call this only on the counter's CPU, and never in both a handler and the code
    /// that the handler may interrupt: the addition is not atomic.
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

static COUNTS: [CpuCounts; CPUS_MAX] = [const { CpuCounts::new() }; CPUS_MAX];

/// The counters of the calling CPU.
pub(crate) fn this_cpu() -> &'static CpuCounts {
    of(Arch::cpu())
}

/// The counters of a CPU.
pub(crate) fn of(cpu: u32) -> &'static CpuCounts {
    &COUNTS[cpu as usize]
}

/// Durations of flushes, from sending to the end of the wait, in nanoseconds.
pub(crate) static FLUSH_WAITS: Histogram =
    Histogram([const { AtomicU64::new(0) }; CLASSES], AtomicU64::new(0));

const CLASSES: usize = 8 * 62;

/// A histogram whose classes are an eighth of a power of two apart, and the maximum.
pub(crate) struct Histogram([AtomicU64; CLASSES], AtomicU64);

impl Histogram {
    pub(crate) fn record(&self, ns: u64) {
        self.0[class(ns)].fetch_add(1, Relaxed);
        self.1.fetch_max(ns, Relaxed);
    }

    /// The median, the 99th percentile and the maximum, in nanoseconds. The first two are rounded
    /// down to a class.
    pub(crate) fn quantiles(&self) -> [u64; 3] {
        let counts: [u64; CLASSES] = array::from_fn(|index| self.0[index].load(Relaxed));
        let total: u64 = counts.iter().sum();
        let quantile = |percent: u64| {
            let mut rest = (total * percent).div_ceil(100);
            let found = counts.iter().position(|&count| {
                let is_here = rest <= count;
                rest = rest.saturating_sub(count);
                is_here
            });
            found.map_or(0, smallest)
        };
        [quantile(50), quantile(99), self.1.load(Relaxed)]
    }
}

/// The class of a value: eight classes of one number each, then eight for each power of two.
fn class(ns: u64) -> usize {
    let log = ns.max(8).ilog2();
    (8 * (log - 3) as usize + (ns >> (log - 3)) as usize).min(CLASSES - 1)
}

/// The smallest value of a class.
fn smallest(class: usize) -> u64 {
    match class.checked_sub(8) {
        None => class as u64,
        Some(above) => (8 + above as u64 % 8) << (above / 8),
    }
}
