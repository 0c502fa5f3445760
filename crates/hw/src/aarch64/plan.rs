//! How an extent becomes operations: pages by one each, or ranges.

use shootdown::{Extent, PageSize};

use crate::aarch64::features::Features;
use crate::aarch64::granule::Granule;
use crate::aarch64::operation::{LevelHint, Levels, Operation, PageOperand, RangeOperand, Whose};

/// The most operations for one extent; with more, the whole tag is dropped instead.
///
/// Linux draws the line at 512 (`MAX_DVM_OPS`, the entries of a page table), and not for speed:
/// each operation is a message to every CPU (DVM: distributed virtual memory), which the
/// interconnect takes at its own pace. Many thousands have kept a CPU in its loop for so long that
/// the watchdog took it to be stuck ("arm64: fix soft lockup due to large tlb flush range", 2014).
/// It does the same where it invalidates locally.
pub const OPERATIONS_MAX: usize = 511;

/// The operations that drop the pages of an extent.
#[derive(Clone, Debug)]
pub struct Plan {
    whose: Whose,
    levels: Levels,
    level: Option<LevelHint>,
    granule: Granule,
    address: u64,
    /// How many granules are left.
    left: u64,
    /// From one page to the next, in granules.
    stride: u64,
    by: By,
}

/// Which operations are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Page,
    Range,
}

impl Plan {
    /// How to drop the pages of `extent`, where no leaf is larger than `largest`; `None` if it is
    /// [whole](Extent::is_whole), or would take more than [`OPERATIONS_MAX`].
    #[must_use]
    pub fn new(
        features: &Features,
        largest: PageSize,
        whose: Whose,
        extent: Extent,
    ) -> Option<Self> {
        if extent.is_whole() {
            return None;
        }
        let granule = features.granule;
        let leaf_shift = granule.leaf_shift(extent.page_size());
        let first = extent.start() >> leaf_shift;
        // In pages, of which even the last has a number: nothing wraps at the top.
        let bytes = (extent.page_count() as u64) << extent.page_size().shift();
        let last = extent.start().saturating_add(bytes - 1) >> leaf_shift;
        let count = last - first + 1;
        let granules_shift = leaf_shift - granule.shift();
        let granules = count << granules_shift;
        // One operation for one page is never more, and the only way to name the last of an odd
        // number.
        let by = if features.has_ranges && range_operations(granules) < count {
            By::Range
        } else {
            By::Page
        };
        let operations = if by == By::Range { range_operations(granules) } else { count };
        // Larger leaves may be cached for the same addresses, and with a hint need not be found. Of
        // upper levels, whose entries are to go with a table, no hint may say that they are leaves.
        let is_exact = features.has_level_hints
            && leaf_shift >= granule.leaf_shift(largest)
            && !extent.frees_tables();
        let level = granule.level_of_leaf(leaf_shift);
        (operations <= OPERATIONS_MAX as u64).then_some(Self {
            whose,
            levels: if extent.frees_tables() { Levels::All } else { Levels::Last },
            level: is_exact.then_some(LevelHint { granule, level }),
            granule,
            address: first << leaf_shift,
            left: granules,
            stride: 1 << granules_shift,
            by,
        })
    }

    /// The largest range that is not more than what is left.
    fn next_range(&self) -> Option<RangeOperand> {
        let (address, granule, level) = (self.address, self.granule, self.level);
        (0..=3).rev().find_map(|scale| {
            let units = (self.left / RangeOperand::unit(scale)).min(32);
            let number = units.checked_sub(1)?;
            Some(RangeOperand { address, granule, scale, number, level })
        })
    }
}

impl Iterator for Plan {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        if self.left == 0 {
            return None;
        }
        let range = if self.by == By::Range { self.next_range() } else { None };
        let (operation, covered) = if let Some(range) = range {
            let covered = (range.number + 1) * RangeOperand::unit(range.scale);
            (Operation::Range(self.whose, self.levels, range), covered)
        } else {
            let page = PageOperand { address: self.address, level: self.level };
            (Operation::Page(self.whose, self.levels, page), self.stride)
        };
        self.left -= covered;
        // At the top of the address space nothing is left.
        self.address = self.address.wrapping_add(covered << self.granule.shift());
        Some(operation)
    }
}

/// How many operations a range takes: for each scale one, as far as its digit is not 0, and one for
/// an odd granule; and more of the largest scale.
fn range_operations(granules: u64) -> u64 {
    let digits =
        (0..3).filter(|scale| !(granules / RangeOperand::unit(*scale)).is_multiple_of(32)).count();
    granules % 2 + digits as u64 + (granules / RangeOperand::unit(3)).div_ceil(32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aarch64::features::tests::{V8_0, V8_4};
    use shootdown::Tag;
    use std::vec::Vec;

    const TAG: Whose = Whose::Tag(Tag(3));

    fn plan(features: &Features, extent: Extent) -> Option<Plan> {
        Plan::new(features, features.granule.largest_leaf(), TAG, extent)
    }

    /// The addresses that operations cover, in order and without gaps, as a range.
    fn covered(operations: impl Iterator<Item = Operation>, stride: u64) -> (u64, u64) {
        let (mut start, mut end) = (None, 0);
        for operation in operations {
            let (address, bytes) = match operation {
                Operation::Page(_, _, page) => (page.address, stride),
                Operation::Range(_, _, range) => {
                    assert!(range.scale < 4 && range.number < 32, "{range:?}");
                    let granules = (range.number + 1) << (5 * range.scale + 1);
                    (range.address, granules << range.granule.shift())
                }
                other => panic!("{other:?} covers everything"),
            };
            assert_eq!(address, start.map_or(address, |_| end));
            start.get_or_insert(address);
            end = address.wrapping_add(bytes);
        }
        (start.unwrap(), end)
    }

    #[test]
    fn without_ranges_each_page_is_named() {
        let extent = Extent::pages(0x7000_0000, 3, PageSize::SIZE_4K);
        let operations: Vec<_> = plan(&V8_0, extent).unwrap().collect();
        let page =
            |address| Operation::Page(TAG, Levels::Last, PageOperand { address, level: None });
        assert_eq!(operations, [0x7000_0000, 0x7000_1000, 0x7000_2000].map(page));
        let most = |count| plan(&V8_0, Extent::pages(0, count, PageSize::SIZE_4K)).is_some();
        assert_eq!((most(511), most(512)), (true, false));
        assert!(plan(&V8_4, Extent::whole()).is_none());
    }

    /// All that there can be of one size, and each page of them.
    #[test]
    fn what_is_covered_is_the_extent() {
        for (features, shift) in
            [&V8_0, &V8_4].into_iter().flat_map(|f| [12, 16, 21, 25, 30].map(|shift| (f, shift)))
        {
            for count in 1..=Extent::MAX_PAGES {
                let size = PageSize::from_shift(shift);
                let start = 1 << 40;
                let Some(plan) = plan(features, Extent::pages(start, count, size)) else {
                    assert!(count > OPERATIONS_MAX / 16, "{count} of {shift}");
                    continue;
                };
                let stride = 1 << Granule::Size4K.leaf_shift(size);
                assert!(plan.clone().count() <= OPERATIONS_MAX);
                assert_eq!(covered(plan, stride), (start, start + ((count as u64) << shift)));
            }
        }
    }

    #[test]
    fn small_pages_take_four_ranges_at_most() {
        let counts =
            |count, size| plan(&V8_4, Extent::pages(1 << 30, count, size)).unwrap().count();
        let small = |count| counts(count, PageSize::SIZE_4K);
        assert_eq!([1, 2, 3, 64, 65, 2048, 4095].map(small), [1, 1, 2, 1, 2, 1, 4]);
        for count in 1..=Extent::MAX_PAGES {
            let extent = Extent::pages(1 << 30, count, PageSize::SIZE_4K);
            let counted = range_operations(count as u64) as usize;
            assert_eq!(plan(&V8_4, extent).unwrap().count(), counted);
        }
        // 512 granules are one of scale 1, so that a range is better from two blocks on.
        assert_eq!([1, 2, 4095].map(|count| counts(count, PageSize::SIZE_2M)), [1, 1, 3]);
    }

    /// C5.5, "TLBI RVAE1", field TTL: with a level, `BaseADDR` is to be aligned to what a leaf
    /// there maps.
    #[test]
    fn hinted_ranges_begin_at_a_leaf() {
        for count in 1..=Extent::MAX_PAGES {
            let extent = Extent::pages(7 << 21, count, PageSize::SIZE_2M);
            for operation in Plan::new(&V8_4, PageSize::SIZE_2M, TAG, extent).unwrap() {
                let (address, level) = match operation {
                    Operation::Page(_, _, page) => (page.address, page.level),
                    Operation::Range(_, _, range) => (range.address, range.level),
                    other => panic!("{other:?} covers everything"),
                };
                assert_eq!(level.unwrap().level, 2);
                assert_eq!(address % (2 << 20), 0);
            }
        }
    }

    /// The size of an extent is that of the smallest page in it.
    #[test]
    fn a_level_is_only_hinted_at_where_no_larger_leaf_is() {
        let hint =
            |features: &Features, largest, extent| match Plan::new(features, largest, TAG, extent)
                .unwrap()
                .next()
            {
                Some(Operation::Page(_, _, page)) => page.level.map(|hint| hint.level),
                other => panic!("{other:?}"),
            };
        let small = Extent::page(0x1000);
        let large = Extent::pages(0x20_0000, 1, PageSize::SIZE_2M);
        assert_eq!(hint(&V8_4, PageSize::SIZE_4K, small), Some(3));
        assert_eq!(hint(&V8_4, PageSize::SIZE_2M, small), None);
        assert_eq!(hint(&V8_4, PageSize::SIZE_2M, large), Some(2));
        assert_eq!(hint(&V8_4, PageSize::SIZE_1G, large), None);
        assert_eq!(hint(&V8_4, PageSize::SIZE_4K, small.freeing_tables()), None);
        assert_eq!(hint(&V8_0, PageSize::SIZE_4K, small), None);
    }

    #[test]
    fn with_a_table_goes_the_way_to_it() {
        for extent in [Extent::page(0x1000), Extent::pages(0, 64, PageSize::SIZE_4K)] {
            for (extent, expected) in
                [(extent, Levels::Last), (extent.freeing_tables(), Levels::All)]
            {
                match plan(&V8_4, extent).unwrap().next() {
                    Some(Operation::Page(_, levels, _) | Operation::Range(_, levels, _)) => {
                        assert_eq!(levels, expected);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn the_last_page_of_all_is_no_wrap() {
        for features in [&V8_0, &V8_4] {
            let extent = Extent::pages(u64::MAX - 0x1fff, 2, PageSize::SIZE_4K);
            let operations = plan(features, extent).unwrap();
            assert_eq!(covered(operations, 1 << 12), (u64::MAX - 0x1fff, 0));
            let beyond = Extent::pages(u64::MAX, 3, PageSize::SIZE_4K);
            assert_eq!(covered(plan(features, beyond).unwrap(), 1 << 12), (u64::MAX - 0xfff, 0));
        }
    }

    /// The page of 4 KiB by which a freed table is told, and pages of 4 KiB at odd places.
    #[test]
    fn larger_granules_are_named_whole() {
        let features = Features { granule: Granule::Size64K, ..V8_4 };
        let extent = Extent::pages(0x1_f000, 2, PageSize::SIZE_4K);
        let operations = plan(&features, extent).unwrap();
        assert_eq!(covered(operations, 1 << 16), (0x1_0000, 0x3_0000));
    }
}
