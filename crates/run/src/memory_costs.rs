//! What a design's savings cost in memory, as the rows of results have it.

use crate::numbers::numbers;
use crate::outcome::Outcome;

numbers! {
    /// The prices in memory of the policies that save flushes, in the whole run: pages that were
    /// [discarded in place](shootdown_vm::Discards::InPlace) and are given back late, pages that a
    /// [prediction](shootdown_vm::ZeroPage::Predicted) allocated, and page tables of
    /// [replicas](shootdown_vm::Replication).
    pub struct MemoryCosts {
        /// Number of discards of a page in place.
        pub pages_discarded_in_place: u64,
        /// Greatest number of pages at any time that were discarded and not freed yet, so that they
        /// could be reclaimed. All processes together.
        pub pages_reclaimable_max: u64,
        /// Time from the discard of a page until it was freed, or was found to be in use again, in
        /// nanoseconds, added up over all pages. Divided by the time of the run, it is the mean
        /// number of pages by which memory in use was larger, at most.
        pub late_page_ns: u64,
        /// Number of pages that were allocated when they were first read, because a write was
        /// predicted. This number and the next ones are of all processes that have ended.
        pub pages_predicted: u64,
        /// Number of these pages that were not written by the end of their series of 16.
        pub pages_predicted_in_vain: u64,
        /// Number of page tables that replicas had of their own.
        pub replica_tables: u64,
        /// Number of links from replicas to page tables of the last level.
        pub replica_links: u64,
        /// Number of page faults that only made such a link.
        pub replica_link_faults: u64,
    }
}

impl MemoryCosts {
    /// Returns the means over several runs, and the greatest maximum.
    #[must_use]
    pub fn mean(all: &[Self]) -> Self {
        let max = all.iter().map(|one| one.pages_reclaimable_max).max();
        Self { pages_reclaimable_max: max.unwrap_or_default(), ..Self::means(all) }
    }
}

impl From<&Outcome> for MemoryCosts {
    fn from(outcome: &Outcome) -> Self {
        let Outcome { discards, memory, .. } = outcome;
        Self {
            pages_discarded_in_place: discards.in_place,
            pages_reclaimable_max: discards.peak,
            late_page_ns: discards.late_page_ns,
            pages_predicted: memory.predicted,
            pages_predicted_in_vain: memory.predicted_in_vain,
            replica_tables: memory.replica_tables,
            replica_links: memory.linked,
            replica_link_faults: memory.link_faults,
        }
    }
}
