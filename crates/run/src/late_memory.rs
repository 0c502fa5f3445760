//! Memory that is given back late, as the rows of results have it.

use serde::Serialize;
use shootdown_vm::DiscardStats;

/// Pages that were [discarded in place](shootdown_vm::Discards::InPlace), in the whole run, and the
/// price of that: memory that is given back late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LateMemory {
    /// Number of discards of a page in place.
    pub pages_discarded_in_place: u64,
    /// Greatest number of pages at any time that were discarded and not freed yet, so that they
    /// could be reclaimed. All processes together.
    pub pages_reclaimable_max: u64,
    /// Time from the discard of a page until it was freed, or was found to be in use again, in
    /// nanoseconds, added up over all pages. Divided by the time of the run, it is the mean number
    /// of pages by which memory in use was larger, at most.
    pub late_page_ns: u64,
}

impl LateMemory {
    /// The names of the numbers, in the order of [`values`](Self::values).
    pub const NAMES: [&str; 3] =
        ["pages_discarded_in_place", "pages_reclaimable_max", "late_page_ns"];

    /// Returns the numbers, in the order of [`NAMES`](Self::NAMES).
    #[must_use]
    pub const fn values(&self) -> [u64; 3] {
        [self.pages_discarded_in_place, self.pages_reclaimable_max, self.late_page_ns]
    }

    /// Returns the means over several runs, and the greatest maximum.
    #[must_use]
    pub fn mean(all: &[Self]) -> Self {
        let mean = |of: fn(&Self) -> u64| all.iter().map(of).sum::<u64>() / all.len().max(1) as u64;
        let max = all.iter().map(|one| one.pages_reclaimable_max).max();
        Self {
            pages_discarded_in_place: mean(|one| one.pages_discarded_in_place),
            pages_reclaimable_max: max.unwrap_or_default(),
            late_page_ns: mean(|one| one.late_page_ns),
        }
    }
}

impl From<DiscardStats> for LateMemory {
    fn from(stats: DiscardStats) -> Self {
        Self {
            pages_discarded_in_place: stats.in_place,
            pages_reclaimable_max: stats.peak,
            late_page_ns: stats.late_page_ns,
        }
    }
}
