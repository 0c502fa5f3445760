//! Counts of coherence work, and a switch that breaks it: for the comparison only.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use shootdown::CpuId;

use super::coherence::engine;

/// Work that all CPUs have done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Interrupts that were sent for TLB flushes.
    pub interrupts: u64,
    /// Pages that were invalidated one by one.
    pub pages_invalidated: u64,
    /// Invalidations of everything.
    pub flushes_full: u64,
}

/// Returns the work that all CPUs have done so far.
pub fn counts() -> Counts {
    let mut counts = Counts::default();
    for cpu in 0..crate::cpu::num_cpus() {
        let stats = engine().cpu(CpuId(cpu as u32)).stats();
        counts.interrupts += stats.interrupts_sent;
        counts.pages_invalidated += stats.pages_invalidated;
        counts.flushes_full += stats.flushes_full;
    }
    counts
}

static NOTIFIES: AtomicBool = AtomicBool::new(true);

/// From now on, no CPU is notified of another CPU's flush. This is a fault to inject: CPUs then use
/// translations of pages that belong to another owner.
pub fn notify_nobody() {
    NOTIFIES.store(false, Relaxed);
}

pub(super) fn notifies() -> bool {
    NOTIFIES.load(Relaxed)
}
