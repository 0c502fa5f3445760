//! What each CPU did, besides what the engine counts.

use core::array;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::kernel::arch::{Arch, Architecture};

/// As many CPUs as there can be.
pub(crate) const CPUS_MAX: usize = 64;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Of one CPU, which alone writes them.
        #[repr(align(64))]
        pub(crate) struct CpuCounts { $($(#[$doc])* pub(crate) $name: Count,)* }

        /// What was counted.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Counted { $(pub(crate) $name: u64,)* }

        impl CpuCounts {
            const fn new() -> Self {
                Self { $($name: Count(AtomicU64::new(0)),)* }
            }

            pub(crate) fn read(&self) -> Counted {
                Counted { $($name: self.$name.read(),)* }
            }
        }

        impl Counted {
            /// Each by its name.
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
    /// Flush interrupts sent, one for each target.
    flush_interrupts_sent,
    /// Flush interrupts taken.
    flush_interrupts_taken,
    /// Time in them.
    interrupted_ns,
    /// Other CPUs' schedulers woken.
    wake_interrupts_sent,
    wake_interrupts_taken,
    timer_interrupts_taken,
    /// Flushes sent.
    flushes,
    /// Time between the sending of a flush and the end of waiting for it.
    flush_wait_ns,
    /// How often it dropped all of a tag because it had loaded a space, or come back to one.
    flushes_full_at_switch,
    /// How often it dropped single pages then.
    flushes_ranged_at_switch,
    /// Page faults.
    faults,
    /// Stays in user mode.
    user_runs,
    /// Steps of threads.
    steps,
    /// Context switches, those to nothing and from nothing included.
    switches,
    /// Threads that came from another CPU.
    migrations,
    /// Pages copied to another frame.
    copied,
}

/// A number that goes up.
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Counts, on the CPU whose it is; its handlers count elsewhere.
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

static COUNTS: [CpuCounts; CPUS_MAX] = [const { CpuCounts::new() }; CPUS_MAX];

/// Those of the calling CPU.
pub(crate) fn pin() -> &'static CpuCounts {
    of(Arch::cpu())
}

/// Those of a CPU.
pub(crate) fn of(cpu: u32) -> &'static CpuCounts {
    &COUNTS[cpu as usize]
}

/// How long flushes took: a histogram whose classes are an eighth of a power of two apart.
pub(crate) static WAITS: Waits = Waits([const { AtomicU64::new(0) }; CLASSES], AtomicU64::new(0));

const CLASSES: usize = 8 * 62;

pub(crate) struct Waits([AtomicU64; CLASSES], AtomicU64);

impl Waits {
    pub(crate) fn record(&self, ns: u64) {
        self.0[class(ns)].fetch_add(1, Relaxed);
        self.1.fetch_max(ns, Relaxed);
    }

    /// The median, the 99th percentile and the longest, in nanoseconds; rounded down to a class,
    /// but for the last.
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

/// Eight classes of one number each, and then eight for each power of two.
fn class(ns: u64) -> usize {
    let log = ns.max(8).ilog2();
    (8 * (log - 3) as usize + (ns >> (log - 3)) as usize).min(CLASSES - 1)
}

fn smallest(class: usize) -> u64 {
    match class.checked_sub(8) {
        None => class as u64,
        Some(above) => (8 + above as u64 % 8) << (above / 8),
    }
}
