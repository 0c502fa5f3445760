//! Converts an extent to operations: one for each page, or ranges.

use shootdown::{Extent, PageSize};

use crate::aarch64::features::Features;
use crate::aarch64::granule::Granule;
use crate::aarch64::operation::{LevelHint, Levels, Operation, PageOperand, RangeOperand, Scope};

/// The largest number of operations for one extent. An extent that needs more is invalidated by its
/// whole tag.
///
/// Linux's limit is 512 (`MAX_DVM_OPS`, the entries of a page table), and its reason is not speed.
/// Each operation is a message to every CPU (DVM: distributed virtual memory), which the
/// interconnect handles at its own pace. Many thousands of operations have kept a CPU in its loop
/// until the watchdog reported a lockup ("arm64: fix soft lockup due to large tlb flush range",
/// 2014). Linux has the same limit for local operations.
pub const OPERATIONS_MAX: usize = 511;

/// An iterator over the operations that drop the pages of an extent.
#[derive(Clone, Debug)]
pub struct Plan {
    scope: Scope,
    levels: Levels,
    level: Option<LevelHint>,
    granule: Granule,
    address: u64,
    /// Number of granules that are left.
    left: u64,
    /// Distance from one page to the next, in granules.
    stride: u64,
    method: Method,
}

/// The kind of operations that a plan uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Page,
    Range,
    /// One operation for all pages of the scope, as if they were one granule.
    Everything,
}

impl Plan {
    /// Plans the operations for `extent`, if no leaf is larger than `largest`. Returns `None` if
    /// the extent is [whole](Extent::is_whole) or needs more than [`OPERATIONS_MAX`] operations.
    #[must_use]
    #[inline(always)]
    pub fn new(
        features: &Features,
        largest: PageSize,
        scope: Scope,
        extent: Extent,
    ) -> Option<Self> {
        if extent.is_whole() || extent.is_long() && !features.has_ranges {
            return None;
        }
        let granule = features.granule_of(scope);
        let leaf_shift = granule.leaf_shift(extent.page_size());
        let first = extent.start() >> leaf_shift;
        // Computed from page numbers, because the end address of the last page could wrap.
        let bytes = (extent.page_count() as u64) << extent.page_size().shift();
        let last = extent.start().saturating_add(bytes - 1) >> leaf_shift;
        let count = last - first + 1;
        let granules_shift = leaf_shift - granule.shift();
        let granules = count << granules_shift;
        // A range operation covers an even number of granules, so the last of an odd number needs a
        // page operation. Ranges are used only if they need fewer operations than pages do.
        // The pages of a long extent may consist of smaller ones, which a range drops as well. They
        // have an even number of granules.
        let ranges = || range_operations(granules);
        let has_fewer = || extent.is_long() || count > 1 && ranges() < count;
        let method = if features.has_ranges && has_fewer() { Method::Range } else { Method::Page };
        let operations = if method == Method::Range { ranges() } else { count };
        // A hint is only correct if no larger leaf can be cached for the addresses, because with
        // the hint the processor may leave a larger leaf cached. If tables are freed, entries of
        // upper levels must be dropped, and a hint would restrict the operation to leaves. Level 0
        // is no hint without `FEAT_LPA2`.
        let level = if features.has_level_hints
            && !extent.frees_tables()
            && !extent.is_long()
            && leaf_shift >= granule.leaf_shift(largest)
        {
            let level = granule.level_of_leaf(leaf_shift);
            (level > 0).then_some(LevelHint { granule, level })
        } else {
            None
        };
        (operations <= OPERATIONS_MAX as u64).then_some(Self {
            scope,
            levels: if extent.frees_tables() { Levels::All } else { Levels::Last },
            level,
            granule,
            address: first << leaf_shift,
            left: granules,
            stride: 1 << granules_shift,
            method,
        })
    }

    /// The operation that drops all pages of the scope.
    #[inline(always)]
    pub(super) fn of_everything(scope: Scope) -> Self {
        Self {
            scope,
            levels: Levels::All,
            level: None,
            granule: Granule::Size4K,
            address: 0,
            left: 1,
            stride: 1,
            method: Method::Everything,
        }
    }

    /// The next operation by a method. Something must be left.
    #[inline(always)]
    fn next_by(&mut self, method: Method) -> Operation {
        let range = if method == Method::Range { self.next_range() } else { None };
        let (operation, covered) = match (method, range) {
            (Method::Everything, _) => (self.scope.everything(), 1),
            (_, Some(range)) => {
                let covered = (range.number + 1) * RangeOperand::unit(range.scale);
                (Operation::Range(self.scope, self.levels, range), covered)
            }
            (_, None) => {
                let page = PageOperand { address: self.address, level: self.level };
                (Operation::Page(self.scope, self.levels, page), self.stride)
            }
        };
        self.left -= covered;
        // The address may wrap at the top of the address space, when nothing is left.
        self.address = self.address.wrapping_add(covered << self.granule.shift());
        operation
    }

    /// The largest range that fits in the granules that are left.
    #[inline]
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
        (self.left > 0).then(|| self.next_by(self.method))
    }
}

/// The way to execute an operation. (The compiler does not inline a closure at several places.)
#[cfg(any(target_arch = "aarch64", test))]
pub(super) trait Execute: Copy {
    fn execute(self, operation: Operation);
}

#[cfg(any(target_arch = "aarch64", test))]
impl Plan {
    /// Executes the operations, in order. In a loop for each method, an operation is an instruction
    /// and its operand: plan and execution of a page take a quarter of the instructions that they
    /// take by [`next`](Iterator::next).
    #[inline(always)]
    pub(super) fn execute_by(mut self, executor: impl Execute) {
        match self.method {
            Method::Page => {
                while self.left > 0 {
                    executor.execute(self.next_by(Method::Page));
                }
            }
            Method::Range => self.execute_ranges_by(executor),
            Method::Everything => executor.execute(self.scope.everything()),
        }
    }

    /// A function of its own, so that a page does not save its registers.
    #[inline(never)]
    fn execute_ranges_by(mut self, executor: impl Execute) {
        while self.left > 0 {
            executor.execute(self.next_by(Method::Range));
        }
    }
}

/// Number of operations for a range: one for each scale whose digit is not 0, one for an odd
/// granule, and one for each 32 units of the largest scale.
#[inline(always)]
fn range_operations(granules: u64) -> u64 {
    let digits = (0..3).filter(|scale| granules / RangeOperand::unit(*scale) % 32 != 0).count();
    granules % 2 + digits as u64 + (granules / RangeOperand::unit(3)).div_ceil(32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aarch64::features::tests::{V8_0, V8_4};
    use shootdown::Tag;
    use std::vec::Vec;

    const TAG: Scope = Scope::Tag(Tag(3));

    fn plan(features: &Features, extent: Extent) -> Option<Plan> {
        Plan::new(features, features.granule.largest_leaf(), TAG, extent)
    }

    /// The range of addresses that operations cover. Fails if they are not in order or have gaps.
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
    fn pages_are_named_without_ranges() {
        let extent = Extent::pages(0x7000_0000, 3, PageSize::SIZE_4K);
        let operations: Vec<_> = plan(&V8_0, extent).unwrap().collect();
        let page =
            |address| Operation::Page(TAG, Levels::Last, PageOperand { address, level: None });
        assert_eq!(operations, [0x7000_0000, 0x7000_1000, 0x7000_2000].map(page));
        let most = |count| plan(&V8_0, Extent::pages(0, count, PageSize::SIZE_4K)).is_some();
        assert_eq!((most(511), most(512)), (true, false));
        assert!(plan(&V8_4, Extent::whole()).is_none());
    }

    /// Tests all extents of each page size.
    #[test]
    fn operations_cover_exactly_the_extent() {
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

    /// A long extent is dropped by ranges without a level, and by its tag where there are none.
    #[test]
    fn long_extent_needs_ranges() {
        for pages in [4096, 4097, 1 << 18, 4095 << 9, 1 << 22] {
            let (start, bytes) = (1_u64 << 40, pages << 12);
            let extent = Extent::long(start..start + bytes, PageSize::SIZE_4K);
            assert!(extent.is_long() && plan(&V8_0, extent).is_none());
            for largest in [PageSize::SIZE_2M, PageSize::SIZE_1G] {
                let plan = Plan::new(&V8_4, largest, TAG, extent).unwrap();
                assert!(plan.clone().count() <= 5, "{}", plan.clone().count());
                let is_hinted = |it| matches!(it, Operation::Range(.., it) if it.level.is_some());
                assert!(!plan.clone().any(is_hinted));
                let size = extent.page_size().bytes();
                let end = start + bytes.next_multiple_of(size);
                assert_eq!(covered(plan, size), (start, end));
            }
        }
    }

    #[test]
    fn small_pages_need_at_most_four_ranges() {
        let counts =
            |count, size| plan(&V8_4, Extent::pages(1 << 30, count, size)).unwrap().count();
        let small = |count| counts(count, PageSize::SIZE_4K);
        assert_eq!([1, 2, 3, 64, 65, 2048, 4095].map(small), [1, 1, 2, 1, 2, 1, 4]);
        for count in 1..=Extent::MAX_PAGES {
            let extent = Extent::pages(1 << 30, count, PageSize::SIZE_4K);
            let counted = range_operations(count as u64) as usize;
            assert_eq!(plan(&V8_4, extent).unwrap().count(), counted);
        }
        // A block has 512 granules, 8 units of scale 1, so ranges are better from two blocks on.
        assert_eq!([1, 2, 4095].map(|count| counts(count, PageSize::SIZE_2M)), [1, 1, 3]);
    }

    /// C5.5, "TLBI RVAE1", field TTL: with a level, `BaseADDR` must be aligned to what a leaf of
    /// that level maps.
    #[test]
    fn hinted_ranges_are_aligned_to_leaves() {
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

    /// The page size of an extent is that of its smallest page.
    #[test]
    fn level_hint_requires_no_larger_leaf() {
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
    fn freeing_tables_drops_all_levels() {
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
    fn last_page_does_not_wrap() {
        for features in [&V8_0, &V8_4] {
            let extent = Extent::pages(u64::MAX - 0x1fff, 2, PageSize::SIZE_4K);
            let operations = plan(features, extent).unwrap();
            assert_eq!(covered(operations, 1 << 12), (u64::MAX - 0x1fff, 0));
            let beyond = Extent::pages(u64::MAX, 3, PageSize::SIZE_4K);
            assert_eq!(covered(plan(features, beyond).unwrap(), 1 << 12), (u64::MAX - 0xfff, 0));
        }
    }

    /// Freed tables are reported as a page of 4 KiB, and pages of 4 KiB may be unaligned to the
    /// granule.
    #[test]
    fn larger_granules_are_covered_whole() {
        let features = Features { granule: Granule::Size64K, ..V8_4 };
        let extent = Extent::pages(0x1_f000, 2, PageSize::SIZE_4K);
        let operations = plan(&features, extent).unwrap();
        assert_eq!(covered(operations, 1 << 16), (0x1_0000, 0x3_0000));
    }
}
