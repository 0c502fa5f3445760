//! The processor, and the kernel's promises about it.

use shootdown::{Extent, NotifyCosts, PageSize};

use crate::aarch64::features::Features;
use crate::aarch64::operation::{Operation, Scope};
use crate::aarch64::plan::Plan;

/// An `AArch64` processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aarch64 {
    pub(super) features: Features,
    largest_leaf: PageSize,
    pub(super) costs: NotifyCosts,
    /// `true` if each broadcast must be issued twice: see [`Self::repeating`].
    pub(super) is_repeating: bool,
}

/// Estimates for one socket, from the lab's machines `ampere-emag-32` and `arm64-2s`, which have
/// the source of each number.
///
/// An interrupt takes about 50 ns to send, 300 to deliver, 250 to enter and 60 to acknowledge. Each
/// further target costs its sending, and 460 that it loses with the return. A broadcast costs the
/// measured 350 ns by which an `mprotect` with its flush is slower than without. Further operations
/// are only passed to the interconnect. The engine [measures] the time in its queue.
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
    /// A processor with these features. All CPUs of a kernel must get the same features: see
    /// [`Features::common`].
    #[must_use]
    pub const fn new(features: Features) -> Self {
        let largest_leaf = features.granule.largest_leaf();
        Self { features, largest_leaf, costs: COSTS, is_repeating: false }
    }

    /// Declares that no page table of the kernel or of users has a leaf larger than `largest_leaf`.
    ///
    /// Operations on leaves of this size can then have a level hint (`FEAT_TTL`). Without this
    /// promise, they cannot: an [`Extent`] has the size of its *smallest* page, and an operation
    /// with that level may leave larger leaves cached.
    #[must_use]
    pub const fn with_leaves_up_to(self, largest_leaf: PageSize) -> Self {
        Self { largest_leaf, ..self }
    }

    /// Sets the measured costs of notification.
    #[must_use]
    pub const fn with_costs(self, costs: NotifyCosts) -> Self {
        Self { costs, ..self }
    }

    /// Declares that the processor has the erratum that requires repeated broadcasts: each
    /// broadcast is issued, completed, and issued again.
    #[must_use]
    pub const fn repeating(self) -> Self {
        Self { is_repeating: true, ..self }
    }

    /// The operations that drop an extent, in order; at least one.
    pub fn operations(&self, scope: Scope, extent: Extent) -> impl Iterator<Item = Operation> {
        let plan = Plan::new(&self.features, self.largest_leaf, scope, extent);
        let everything = plan.is_none().then_some(match scope {
            Scope::Tag(tag) => Operation::Tag(tag),
            Scope::AllTags => Operation::All,
        });
        plan.into_iter().flatten().chain(everything)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aarch64::features::tests::V8_0;
    use shootdown::Tag;
    use std::vec::Vec;

    #[test]
    fn long_and_whole_extents_drop_the_tag() {
        let (old, tag) = (Aarch64::new(V8_0), Scope::Tag(Tag(7)));
        let all = |scope, extent| old.operations(scope, extent).collect::<Vec<_>>();
        let too_much = Extent::pages(0, 512, PageSize::SIZE_4K);
        for extent in [too_much, Extent::whole(), too_much.freeing_tables()] {
            assert_eq!(all(tag, extent), [Operation::Tag(Tag(7))]);
            assert_eq!(all(Scope::AllTags, extent), [Operation::All]);
        }
        assert_eq!(all(tag, Extent::pages(0, 511, PageSize::SIZE_4K)).len(), 511);
    }
}
