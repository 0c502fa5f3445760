//! The processor, and what a kernel may say of it.

use shootdown::{Broadcast, Extent, PageSize, Reach, TellingCosts};

use crate::features::Features;
use crate::operation::{Operation, Whose};
use crate::plan::{OPERATIONS_MAX, Plan};

/// An `AArch64` processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aarch64 {
    features: Features,
    largest_leaf: PageSize,
    costs: TellingCosts,
    issue: Issue,
}

/// How often a broadcast operation is issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Issue {
    Once,
    Twice,
}

/// Estimates for one socket, as the lab's `ampere-emag-32` and `arm64-2s` have them, with the
/// source of each.
///
/// To be interrupted takes some 50 ns to send, 300 to deliver, 250 to enter and 60 to acknowledge;
/// each further target is sent to, and loses 460 with the way back. A broadcast is the measured 350
/// of an `mprotect` with its flush and without. Further operations are but handed to the
/// interconnect; where others queue for it, the engine [measures] that itself.
///
/// [measures]: shootdown_bare::Processor::complete_broadcasts
const COSTS: TellingCosts = TellingCosts {
    interrupt_ns: 660,
    interrupt_each_ns: 510,
    broadcast_ns: 350,
    broadcast_each_ns: 0,
    operation_ns: 10,
};

/// Into how many operations with ranges pages of one extent fall apart: one for each of three
/// scales, and one for an odd page.
const OPERATIONS_OF_RANGE: usize = 4;

/// Linux's `MAX_TLBI_RANGE_PAGES`: what one operation of the largest scale covers, 8 GiB.
const RANGE_PAGES_MAX: usize = 32 << 16;

impl Aarch64 {
    /// A processor with these features. All CPUs of a kernel are to be told of the same: see
    /// [`Features::common`].
    #[must_use]
    pub const fn new(features: Features) -> Self {
        let largest_leaf = features.granule.largest_leaf();
        Self { features, largest_leaf, costs: COSTS, issue: Issue::Once }
    }

    /// What it can do.
    #[must_use]
    pub const fn features(&self) -> &Features {
        &self.features
    }

    /// The kernel promises that no page table of its own or of users has a leaf larger than this.
    ///
    /// The processor can then be told at which level to look for leaves of this size (`FEAT_TTL`).
    /// Without, it cannot: an [`Extent`] knows the size of the *smallest* page in it, and an
    /// operation with that level may leave larger ones cached.
    #[must_use]
    pub const fn with_leaves_up_to(self, largest_leaf: PageSize) -> Self {
        Self { largest_leaf, ..self }
    }

    /// The kernel has measured what telling costs.
    #[must_use]
    pub const fn with_costs(self, costs: TellingCosts) -> Self {
        Self { costs, ..self }
    }

    /// The processor is one of those that must be told twice: each broadcast is issued, waited for,
    /// and issued again.
    #[must_use]
    pub const fn repeating(self) -> Self {
        Self { issue: Issue::Twice, ..self }
    }

    /// The operations that drop an extent, in order; at least one.
    pub fn operations(&self, whose: Whose, extent: Extent) -> impl Iterator<Item = Operation> {
        let plan = Plan::new(&self.features, self.largest_leaf, whose, extent);
        let everything = match whose {
            Whose::Tag(tag) => Operation::Tag(tag),
            Whose::Everyone => Operation::All,
        };
        let whole = plan.is_none().then_some(everything);
        plan.into_iter().flatten().chain(whole)
    }

    pub(crate) const fn issue(&self) -> Issue {
        self.issue
    }

    pub(crate) const fn costs(&self) -> TellingCosts {
        self.costs
    }

    /// How many tags there are besides the kernel's.
    pub(crate) const fn tags(&self) -> usize {
        (1 << self.features.tag_bits) - 1
    }

    /// Linux names up to 511 pages one by one, here or everywhere: see [`OPERATIONS_MAX`]. With
    /// ranges it draws the line at what one operation covers.
    pub(crate) const fn pages_max(&self) -> usize {
        if self.features.has_ranges { RANGE_PAGES_MAX } else { OPERATIONS_MAX }
    }

    pub(crate) const fn broadcasts(&self) -> Broadcast {
        // An extent of all pages that there can be takes as many operations as are counted for it;
        // one of two pages takes as many, too.
        let pages_per_operation = if self.features.has_ranges {
            Extent::MAX_PAGES.div_ceil(OPERATIONS_OF_RANGE)
        } else {
            1
        };
        Broadcast { reach: Reach::Everyone, pages_per_operation, operation_ceiling: OPERATIONS_MAX }
    }

    /// So many turns of the counter, in ns.
    pub(crate) fn ns_of(&self, turns: u64) -> u64 {
        // More than 10 s at 1 GHz would be cut off.
        turns.saturating_mul(1_000_000_000).checked_div(self.features.counter_hz).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::tests::{V8_0, V8_4};
    use shootdown::Tag;
    use std::vec::Vec;

    #[test]
    fn what_is_too_much_or_whole_is_everything_of_the_tag() {
        let (old, tag) = (Aarch64::new(V8_0), Whose::Tag(Tag(7)));
        let all = |whose, extent| old.operations(whose, extent).collect::<Vec<_>>();
        let too_much = Extent::pages(0, 512, PageSize::SIZE_4K);
        for extent in [too_much, Extent::whole(), too_much.freeing_tables()] {
            assert_eq!(all(tag, extent), [Operation::Tag(Tag(7))]);
            assert_eq!(all(Whose::Everyone, extent), [Operation::All]);
        }
        assert_eq!(all(tag, Extent::pages(0, 511, PageSize::SIZE_4K)).len(), 511);
    }

    /// The engine counts operations by pages; what it counts is what is issued, or less by the
    /// scales of one range.
    #[test]
    fn operations_are_as_many_as_the_engine_counts() {
        for (features, beyond) in [(V8_0, 0), (V8_4, OPERATIONS_OF_RANGE - 1)] {
            let processor = Aarch64::new(features);
            let broadcast = processor.broadcasts();
            for count in (1..=Extent::MAX_PAGES).filter(|count| *count <= processor.pages_max()) {
                let extent = Extent::pages(1 << 30, count, PageSize::SIZE_4K);
                let counted = count.div_ceil(broadcast.pages_per_operation);
                let issued = processor.operations(Whose::Everyone, extent).count();
                assert!(issued <= counted + beyond, "{count}: {issued} for {counted}");
                assert!(counted <= broadcast.operation_ceiling);
            }
        }
    }

    #[test]
    fn tags_are_all_but_the_kernels() {
        assert_eq!(Aarch64::new(V8_0).tags(), 65535);
        assert_eq!(Aarch64::new(Features { tag_bits: 8, ..V8_0 }).tags(), 255);
    }

    #[test]
    fn turns_are_time() {
        let processor = Aarch64::new(V8_0);
        assert_eq!(processor.ns_of(62_500), 1_000_000);
        assert_eq!(processor.ns_of(1), 16);
        let silent = Aarch64::new(Features { counter_hz: 0, ..V8_0 });
        assert_eq!(silent.ns_of(1_000), 0);
    }
}
