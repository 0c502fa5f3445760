//! Counters, for reports.

use crate::engine::engine;
use crate::machine::CPUS_MAX;

/// What a CPU has done so far. All numbers only grow.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct CpuCounts {
    /// Flush interrupts that this CPU sent.
    pub interrupts_sent: u64,
    /// Rings that sent no interrupt, because one was on its way.
    pub rings_coalesced: u64,
    /// CPUs that this CPU did not interrupt because they were lazy.
    pub skipped_lazy: u64,
    /// CPUs that this CPU did not interrupt because they did not use the space.
    pub skipped_elsewhere: u64,
    /// Rounds in which this CPU answered other CPUs.
    pub answers: u64,
    /// Invalidations of a whole tag, or of all translations.
    pub flushes_full: u64,
    /// Ranges that were invalidated page by page.
    pub flushes_ranged: u64,
    /// Flushes with which the CPU caught up when it returned to a space.
    pub caught_up: u64,
    /// Loads of another space.
    pub switches: u64,
    /// Dead spaces that this CPU reclaimed.
    pub spaces_reclaimed: u64,
}

/// Returns the counters of a CPU. May be called on any CPU, at any time after `shootdown_cpu_init`
/// and `shootdown_init`.
///
/// # Panics
///
/// If `cpu` is not below `SHOOTDOWN_CPUS_MAX`.
#[unsafe(no_mangle)]
#[expect(unsafe_code, reason = "exports a function to C")]
pub extern "C" fn shootdown_cpu_stats(cpu: u32) -> CpuCounts {
    assert!((cpu as usize) < CPUS_MAX, "shootdown_cpu_stats: there is no CPU {cpu}");
    let stats = engine().cpu(shootdown::CpuId(cpu)).stats();
    CpuCounts {
        interrupts_sent: stats.interrupts_sent,
        rings_coalesced: stats.rings_coalesced,
        skipped_lazy: stats.skipped_lazy,
        skipped_elsewhere: stats.skipped_elsewhere,
        answers: stats.answers,
        flushes_full: stats.flushes_full,
        flushes_ranged: stats.flushes_ranged,
        caught_up: stats.caught_up_from_log,
        switches: stats.switches,
        spaces_reclaimed: stats.spaces_reclaimed,
    }
}
