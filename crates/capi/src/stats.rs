//! Counters, for reports.

#![expect(unsafe_code, reason = "the C interface: the kernel promises what Rust's types enforce")]

use shootdown::CpuId;

use crate::engine::engine;
use crate::machine::CPUS_MAX;
use crate::storage::{SpaceStorage, Storage};

/// Counters of one CPU. They only grow.
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
    /// CPUs that this CPU did not interrupt because they were away.
    pub skipped_away: u64,
    /// CPUs that this CPU did not interrupt for a flush of the kernel's pages, because they were in
    /// user mode.
    pub skipped_in_user: u64,
    /// Rounds in which this CPU answered other CPUs.
    pub answers: u64,
    /// Invalidations of a whole tag, or of all translations.
    pub flushes_full: u64,
    /// Ranges that were invalidated page by page.
    pub flushes_ranged: u64,
    /// Pages of these ranges.
    pub pages_invalidated: u64,
    /// Flushes with which the CPU caught up when it returned to a space.
    pub caught_up: u64,
    /// Loads of another space.
    pub switches: u64,
    /// Loads of another space that had to invalidate.
    pub switches_flushed: u64,
    /// Dead spaces that this CPU reclaimed.
    pub spaces_reclaimed: u64,
    /// Tags that this CPU allocated.
    pub tags_taken: u64,
    /// Times that no tag was left, and all of them became free again.
    pub rollovers: u64,
    /// Flushes that this CPU broadcast.
    pub broadcasts_sent: u64,
    /// Flushes that had no other CPU to notify.
    pub flushes_local: u64,
}

/// Counters of one space. They only grow.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SpaceCounts {
    /// Flushes of the whole space.
    pub flushes_full: u64,
    /// Ranges that were flushed. One flush may have several. Without the flushes of pages that were
    /// broadcast to every CPU.
    pub flushes_ranged: u64,
    /// CPUs of the space's mask that a flush did not interrupt because they did not use the space.
    pub skipped_elsewhere: u64,
    /// Times that the mask was trimmed.
    pub cpumask_trims: u64,
}

/// Returns the counters of a CPU. May be called on any CPU, at any time after `shootdown_cpu_init`
/// and `shootdown_init`.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 384.
///
/// # Panics
///
/// If `cpu` is not below `SHOOTDOWN_CPUS_MAX`.
#[unsafe(no_mangle)]
pub extern "C" fn shootdown_cpu_stats(cpu: u32) -> CpuCounts {
    assert!((cpu as usize) < CPUS_MAX, "shootdown_cpu_stats: there is no CPU {cpu}");
    let stats = engine().cpu(CpuId(cpu)).stats();
    CpuCounts {
        interrupts_sent: stats.interrupts_sent,
        rings_coalesced: stats.rings_coalesced,
        skipped_lazy: stats.skipped_lazy,
        skipped_elsewhere: stats.skipped_elsewhere,
        skipped_away: stats.skipped_away,
        skipped_in_user: stats.skipped_in_user,
        answers: stats.answers,
        flushes_full: stats.flushes_full,
        flushes_ranged: stats.flushes_ranged,
        pages_invalidated: stats.pages_invalidated,
        caught_up: stats.caught_up_from_log,
        switches: stats.switches,
        switches_flushed: stats.switches_flushed,
        spaces_reclaimed: stats.spaces_reclaimed,
        tags_taken: stats.tags_taken,
        rollovers: stats.rollovers,
        broadcasts_sent: stats.broadcasts_sent,
        flushes_local: stats.flushes_local,
    }
}

/// Returns the counters of a space. May be called on any CPU.
///
/// Interrupts: no. Waits: no. Reclaims: no. Callable: before shootdown_online. Stack: 128.
///
/// # Safety
///
/// `space` is initialised, and not reclaimed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shootdown_space_stats(space: *const SpaceStorage) -> SpaceCounts {
    // SAFETY: the caller's promise.
    let stats = unsafe { SpaceStorage::get(space) }.stats(engine().machine());
    SpaceCounts {
        flushes_full: stats.flushes_full,
        flushes_ranged: stats.flushes_ranged,
        skipped_elsewhere: stats.skipped_elsewhere,
        cpumask_trims: stats.cpumask_trims,
    }
}
