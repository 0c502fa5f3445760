use super::*;
use crate::parts::extent::PageSize;
use proptest::prelude::*;
use std::vec::Vec;

fn page(number: u64) -> Extent {
    Extent::page(number << 12)
}

#[test]
fn adjacent_extents_join_and_distant_ones_do_not() {
    let mut extents = ExtentSet::new();
    assert!(extents.is_empty());
    for number in [3, 4, 5, 100, 101, 2, 4] {
        extents.add(page(number));
    }
    let expected = [
        Extent::pages(2 << 12, 4, PageSize::SIZE_4K),
        Extent::pages(100 << 12, 2, PageSize::SIZE_4K),
    ];
    assert_eq!(extents.as_slice(), expected);
}

#[test]
fn fifth_extent_joins_the_one_growing_least() {
    let mut extents = ExtentSet::new();
    for number in [0, 1000, 2000, 3000, 2010] {
        extents.add(page(number));
    }
    assert_eq!(extents.as_slice().len(), 4);
    assert_eq!(extents.as_slice()[2], Extent::pages(2000 << 12, 11, PageSize::SIZE_4K));
    let shown = std::format!("{extents:?}");
    assert_eq!(shown, "[0x0+1x4K, 0x3e8000+1x4K, 0x7d0000+11x4K, 0xbb8000+1x4K]");
}

/// Neither the length of the joined extent nor its relative growth counts.
#[test]
fn growth_is_counted_in_pages() {
    for (number, longer) in [(110, 0), (152, 1)] {
        let mut extents = ExtentSet::new();
        extents.add(Extent::pages(0, 100, PageSize::SIZE_4K));
        for number in [200, 5000, 9000] {
            extents.add(page(number));
        }
        let before = extents;
        extents.add(page(number));
        for (index, extent) in extents.as_slice().iter().enumerate() {
            assert_eq!(*extent != before.as_slice()[index], index == longer, "{extents:?}");
        }
    }
}

#[test]
fn too_many_or_distant_pages_are_whole() {
    let mut far = ExtentSet::new();
    for number in [0, 5000, 10_000, 15_000, 20_000] {
        far.add(page(number));
    }
    assert_eq!(far.as_slice(), [Extent::whole()]);
    let mut most = ExtentSet::new();
    most.add(Extent::pages(0, 4000, PageSize::SIZE_4K));
    most.add(Extent::pages(1 << 30, 95, PageSize::SIZE_4K));
    assert_eq!((most.as_slice().len(), most.page_count()), (2, Extent::MAX_PAGES));
    let mut many = ExtentSet::new();
    many.add(Extent::pages(0, 4000, PageSize::SIZE_4K).freeing_tables());
    many.add(Extent::pages(1 << 30, 96, PageSize::SIZE_4K));
    assert_eq!(many.as_slice(), [Extent::whole().freeing_tables()]);
    assert!(many.free_tables());
}

#[test]
fn several_extents_above_the_ceiling_become_one() {
    let mut extents = ExtentSet::new();
    extents.add(Extent::pages(0, 20, PageSize::SIZE_4K));
    assert_eq!(extents.up_to(19), extents.as_slice(), "a single extent is kept");
    extents.add(page(100));
    assert_eq!(extents.up_to(21), extents.as_slice());
    assert_eq!(extents.up_to(20), [Extent::whole()]);
    extents.add(page(101).freeing_tables());
    assert_eq!(extents.up_to(20), [Extent::whole().freeing_tables()]);
}

#[test]
fn extents_of_two_page_sizes_do_not_join() {
    let mut extents = ExtentSet::new();
    extents.add(page(0));
    extents.add(Extent::pages(0, 1, PageSize::SIZE_2M));
    assert_eq!(extents.as_slice().len(), 2);
}

proptest! {
    /// The set covers each extent that was added, and frees tables if one of them did.
    #[test]
    #[cfg_attr(miri, ignore = "takes seconds, and there is no unsafe code in this module")]
    fn added_extent_is_covered(
        pages in prop::collection::vec((0u64..9000, 1usize..300, 0u8..2, any::<bool>()), 1..40)
    ) {
        let mut extents = ExtentSet::new();
        let mut added = Vec::new();
        for (number, count, size, tables) in pages {
            let size = PageSize::from_shift(12 + 9 * size);
            let extent = Extent::pages(number << size.shift(), count, size);
            let extent = if tables { extent.freeing_tables() } else { extent };
            extents.add(extent);
            added.push(extent);
        }
        for extent in added {
            let covers = |known: &Extent| {
                known.is_whole() && (known.frees_tables() || !extent.frees_tables())
                    || known.contains(extent)
            };
            prop_assert!(extents.as_slice().iter().any(covers));
        }
        prop_assert!(extents.page_count() <= Extent::MAX_PAGES);
    }
}
