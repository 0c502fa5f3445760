//! How much there is of what the engine counts.

use shootdown::{Broadcast, Extent, Reach};

use crate::aarch64::plan::OPERATIONS_MAX;
use crate::aarch64::settings::Aarch64;

/// Into how many operations with ranges pages of one extent fall apart: one for each of three
/// scales, and one for an odd page.
const OPERATIONS_OF_RANGE: usize = 4;

/// Linux's `MAX_TLBI_RANGE_PAGES`: what one operation of the largest scale covers, 8 GiB.
const RANGE_PAGES_MAX: usize = 32 << 16;

impl Aarch64 {
    /// How many tags there are besides the kernel's.
    pub(crate) const fn tags(&self) -> usize {
        (1 << self.features().tag_bits) - 1
    }

    /// Linux names up to 511 pages one by one, here or everywhere: see [`OPERATIONS_MAX`]. With
    /// ranges it draws the line at what one operation covers.
    pub(crate) const fn pages_max(&self) -> usize {
        if self.features().has_ranges { RANGE_PAGES_MAX } else { OPERATIONS_MAX }
    }

    pub(crate) const fn broadcasts(&self) -> Broadcast {
        // An extent of all pages that there can be takes as many operations as are counted for it;
        // one of two pages takes as many, too.
        let pages_per_operation = if self.features().has_ranges {
            Extent::MAX_PAGES.div_ceil(OPERATIONS_OF_RANGE)
        } else {
            1
        };
        Broadcast { reach: Reach::Everyone, pages_per_operation, operation_ceiling: OPERATIONS_MAX }
    }

    /// So many turns of the counter, in ns.
    pub(crate) fn ns_of(&self, turns: u64) -> u64 {
        // More than 10 s at 1 GHz would be cut off.
        turns.saturating_mul(1_000_000_000).checked_div(self.features().counter_hz).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aarch64::features::Features;
    use crate::aarch64::features::tests::{V8_0, V8_4};
    use crate::aarch64::operation::Whose;
    use shootdown::PageSize;

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
    fn with_ranges_no_extent_is_too_long() {
        let processor = Aarch64::new(V8_4);
        let most = Extent::pages(1 << 30, Extent::MAX_PAGES, PageSize::SIZE_4K);
        assert!(processor.pages_max() >= Extent::MAX_PAGES);
        let counted = Extent::MAX_PAGES.div_ceil(processor.broadcasts().pages_per_operation);
        assert_eq!(processor.operations(Whose::Everyone, most).count(), counted);
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
