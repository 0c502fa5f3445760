//! The counters of the engine and of the kernel, by CPU and in total.

use shootdown::CpuStats;

use crate::kernel::counts::{self, CountValues};
use crate::kernel::machine::engine_of;

/// Counters of one CPU, or sums over all CPUs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) engine: CpuStats,
    pub(crate) counted: CountValues,
}

impl Totals {
    /// The counters of a CPU.
    pub(crate) fn of(cpu: u32) -> Self {
        Self { engine: engine_of(cpu).stats(), counted: counts::of(cpu).read() }
    }

    /// The sums over all CPUs.
    pub(crate) fn of_all(cpus: u32) -> Self {
        (0..cpus).map(Self::of).fold(Self::default(), |mut sum, of_cpu| {
            sum.engine += of_cpu.engine;
            sum.counted = sum.counted.combine(of_cpu.counted, u64::wrapping_add);
            sum
        })
    }

    /// The difference to an earlier reading.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let engine = engine_since(&self.engine, &earlier.engine);
        Self { engine, counted: self.counted.combine(earlier.counted, u64::wrapping_sub) }
    }
}

macro_rules! engine_stats {
    ($($name:ident),* $(,)?) => {
        fn engine_since(now: &CpuStats, earlier: &CpuStats) -> CpuStats {
            CpuStats { $($name: now.$name - earlier.$name,)* }
        }

        /// The engine's counters with their names.
        pub(crate) fn engine_by_name(
            stats: &CpuStats,
        ) -> impl Iterator<Item = (&'static str, u64)> {
            [$((stringify!($name), stats.$name),)*].into_iter()
        }
    };
}

engine_stats! {
    interrupts_sent, rings_coalesced, skipped_lazy, skipped_elsewhere, skipped_away,
    skipped_in_user, answers, flushes_full, flushes_ranged, pages_invalidated, caught_up_from_log,
    switches, switches_flushed, switches_without_flush, spaces_reclaimed, tags_taken, rollovers,
    broadcasts_sent, flushes_local,
}
