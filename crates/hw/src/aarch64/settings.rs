//! The processor, and what a kernel may say of it.

use shootdown::{Extent, NotifyCosts, PageSize};

use crate::aarch64::features::Features;
use crate::aarch64::operation::{Operation, Whose};
use crate::aarch64::plan::Plan;

/// An `AArch64` processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aarch64 {
    features: Features,
    largest_leaf: PageSize,
    costs: NotifyCosts,
    issue: Issue,
}

/// How often a broadcast operation is issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issue {
    /// As the architecture has it.
    Once,
    /// Again when it is complete: see [`Aarch64::repeating`].
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
/// [measures]: shootdown::Broadcaster::complete
const COSTS: NotifyCosts = NotifyCosts {
    interrupt_ns: 660,
    interrupt_each_ns: 510,
    broadcast_ns: 350,
    broadcast_each_ns: 0,
    operation_ns: 10,
};

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
    pub const fn with_costs(self, costs: NotifyCosts) -> Self {
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
        let everything = plan.is_none().then_some(match whose {
            Whose::Tag(tag) => Operation::Tag(tag),
            Whose::Everyone => Operation::All,
        });
        plan.into_iter().flatten().chain(everything)
    }

    /// How often each broadcast is issued.
    #[must_use]
    pub const fn issue(&self) -> Issue {
        self.issue
    }

    /// What telling costs.
    #[must_use]
    pub const fn costs(&self) -> NotifyCosts {
        self.costs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aarch64::features::tests::V8_0;
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
}
