//! ABIS (Amit, "Optimizing the TLB Shootdown Algorithm with Page Access Tracking", USENIX ATC
//! 2017): a flush interrupts the CPUs that may have cached one of its entries, as far as accessed
//! bits show that. Everything else is [`Linux412`], close to Linux 4.5, the base of ABIS.
//!
//! The fault that maps a page puts its translation into the TLB of its own CPU, by way of a second
//! hierarchy of page tables, and leaves the accessed bit of the real entry clear. The entry has the
//! number of that CPU. If the bit is still clear when the entry is changed, no CPU has walked to
//! it, and only that CPU can have the translation: see [`Holder`]. A page that was mapped in
//! advance and never accessed is in no TLB.
//!
//! If page tables are freed, all CPUs of the mask are interrupted, because they cache upper levels.
//! While a flush is under way, its entries are marked, so that another call that finds one of
//! them empty, or maps a page there and unmaps it, also interrupts all CPUs of the mask.
//!
//! The model follows the abstract, and what later papers say of the mechanism. The other pages of
//! the publication were not read.
//!
//! # Limits
//!
//! - A page whose accessed bit is set counts as used by all CPUs until it is flushed, even if they
//!   have all flushed everything since.
//! - A CPU that evicts a translation walks to it again, and sets the bit.
//! - The numbers are in free bits of entries, also of entries that are clear until their flush, and
//!   do not limit the number of CPUs.
//! - Reclaim takes a page for unused if its bit is clear, also one that its CPU uses.
//! - The second hierarchy is not simulated. Its use costs two loads of a root and a walk.

use std::collections::BTreeSet;
use std::rc::Rc;

use shootdown::Extent;
use shootdown_sim::{Holder, Sim};
use shootdown_vm::{Change, FirstUse, Freed, PAGE_BYTES, Policy};

use super::{Linux412, Mm};
use crate::linux::LinuxRule;

/// The CPUs that a flush concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushTargets {
    /// All CPUs of the mask.
    Mask,
    /// Those that may have cached an entry.
    Holders,
}

impl Linux412 {
    /// Creates the design `abis` on this machine. It breaks the rule `broken`, for tests that
    /// expect the oracle to detect that.
    pub fn abis(sim: Rc<Sim>, broken: Option<LinuxRule>) -> Self {
        sim.track_holders();
        Self { targets: FlushTargets::Holders, broken, ..Self::new(sim) }
    }

    pub(super) fn policy_with_abis(&self, policy: Policy) -> Policy {
        match self.targets {
            FlushTargets::Mask => policy,
            FlushTargets::Holders => Policy { first_use: FirstUse::Inserted, ..policy },
        }
    }

    /// Returns the CPUs that may have cached an entry of a change; `None` for all of the mask.
    /// Marks the entries until [`mark_flushed`](Self::mark_flushed).
    pub(super) fn holders(&self, space: &Mm, change: &Change) -> Option<BTreeSet<usize>> {
        let mut holders = BTreeSet::new();
        let mut is_any = false;
        for address in self.tracked_pages(change)? {
            match self.sim.begin_holder_flush(space.root, address) {
                Holder::None => {}
                Holder::One(cpu) => _ = holders.insert(cpu),
                Holder::Any if self.broken == Some(LinuxRule::SeeAccessed) => {}
                Holder::Any | Holder::Flushing(_) => is_any = true,
            }
        }
        if self.broken == Some(LinuxRule::MarkFlushing) {
            self.mark_flushed(space, change);
        }
        (!is_any).then_some(holders)
    }

    /// Records that the flush of a change is complete.
    pub(super) fn mark_flushed(&self, space: &Mm, change: &Change) {
        for address in self.tracked_pages(change).into_iter().flatten() {
            self.sim.holders_flushed(space.root, address);
        }
    }

    /// The addresses of a change, if entries tell what a flush of it concerns.
    fn tracked_pages(&self, change: &Change) -> Option<Vec<u64>> {
        let is_exact = change.range.is_some()
            && !change.extents.is_whole()
            && change.freed == Freed::Pages
            && self.targets == FlushTargets::Holders;
        let pages = |extent: &Extent| {
            let bytes = extent.page_count() as u64 * extent.page_size().bytes();
            (extent.start()..extent.start() + bytes).step_by(PAGE_BYTES as usize)
        };
        is_exact.then(|| change.extents.as_slice().iter().flat_map(pages).collect())
    }
}
