//! Invalidations of other CPUs' TLBs that were issued and are not complete.

use core::ops::Range;

use crate::time::Time;
use crate::tlb::{Levels, Tlb};

/// An invalidation that was issued and is not complete.
#[derive(Clone, Debug)]
pub(crate) struct Invalidation {
    pub(crate) tag: u16,
    pub(crate) drops: Drops,
    /// Sequence number of the invalidation: entries that are cached later are not affected.
    pub(crate) issued: u64,
}

/// The entries that an operation drops.
#[derive(Clone, Debug)]
pub(crate) enum Drops {
    Pages(Range<u64>, Levels),
    Tag,
    Everything,
}

/// The broadcasts that a CPU has issued and not yet waited for.
#[derive(Debug, Default)]
pub(crate) struct PendingBroadcasts {
    /// Each with the CPUs that it reaches.
    pub(crate) operations: Vec<(Range<usize>, Invalidation)>,
    pub(crate) done_at: Time,
}

impl Invalidation {
    pub(crate) fn apply(&self, tlb: &mut Tlb) {
        match &self.drops {
            Drops::Pages(range, levels) => {
                tlb.invalidate_range(self.tag, range, *levels, self.issued);
            }
            Drops::Tag => tlb.invalidate_tag(self.tag, self.issued),
            Drops::Everything => tlb.invalidate_all(self.issued),
        }
        if self.tag == tlb.tag || matches!(self.drops, Drops::Everything) {
            tlb.invalidation_count += 1;
        }
    }
}
