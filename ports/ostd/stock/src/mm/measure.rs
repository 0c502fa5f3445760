//! Counts of coherence work, and a switch that breaks it: for the comparison only.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

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

static INTERRUPTS: AtomicU64 = AtomicU64::new(0);
static PAGES_INVALIDATED: AtomicU64 = AtomicU64::new(0);
static FLUSHES_FULL: AtomicU64 = AtomicU64::new(0);

/// Returns the work that all CPUs have done so far.
pub fn counts() -> Counts {
    Counts {
        interrupts: INTERRUPTS.load(Relaxed),
        pages_invalidated: PAGES_INVALIDATED.load(Relaxed),
        flushes_full: FLUSHES_FULL.load(Relaxed),
    }
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

pub(super) fn sent(interrupts: usize) {
    INTERRUPTS.fetch_add(interrupts as u64, Relaxed);
}

pub(super) fn invalidated(pages: usize) {
    PAGES_INVALIDATED.fetch_add(pages as u64, Relaxed);
}

pub(super) fn flushed_everything() {
    FLUSHES_FULL.fetch_add(1, Relaxed);
}
