use super::*;
use proptest::prelude::*;
use std::format;

#[test]
fn too_many_pages_widen_to_the_whole_space() {
    assert_eq!(Extent::pages(0, 4095, PageSize::SIZE_4K).page_count(), 4095);
    assert!(Extent::pages(0, 4096, PageSize::SIZE_4K).is_whole());
    assert!(Extent::range(0x1000..0x1000 + 4096 * 4096, PageSize::SIZE_4K).is_whole());
}

/// The first count that is long, and the last one before its pages become larger again.
#[test]
fn long_extent_counts_larger_pages() {
    const START: u64 = 1 << 40;
    let long = |start: u64, pages: u64| {
        let extent = Extent::long(start..start + (pages << 12), PageSize::SIZE_4K);
        assert!(extent.covers(start) && extent.covers(start + (pages << 12) - 1));
        assert_eq!(Extent::from_bits(extent.to_bits()), extent);
        (extent.page_count(), extent.page_size().shift(), extent.is_long())
    };
    assert_eq!(long(START, 4095), (4095, 12, false));
    assert_eq!(long(START, 4096), (8, 21, true));
    assert_eq!(long(START + 0x1000, 4096), (9, 21, true));
    assert_eq!(long(START, 4095 << 9), (4095, 21, true));
    assert_eq!(long(START, (4095 << 9) + 1), (8, 30, true));
    assert!(Extent::long(0..1 << 55, PageSize::SIZE_4K).is_whole());
    assert!(Extent::long(Range { start: 0x5000, end: 0x1000 }, PageSize::SIZE_4K).is_whole());
    assert!(Extent::long(0x1000..0x1000, PageSize::SIZE_4K).is_empty());
    let gigabyte = Extent::long(START..START + (1 << 30), PageSize::SIZE_4K);
    assert_eq!(format!("{gigabyte:?}"), "0x10000000000+512x2048K+smaller");
    assert!(!gigabyte.page_count_within(Extent::MAX_PAGES) && gigabyte.page_count_within(8191));
    let exact = Extent::pages(START, 512, PageSize::SIZE_2M);
    assert!(gigabyte.contains(exact) && !exact.contains(gigabyte), "it has smaller pages");
    assert_eq!((gigabyte.joined_with(exact), exact.joined_with(gigabyte)), (None, None));
    let next = Extent::long(START + (1 << 30)..START + (2 << 30), PageSize::SIZE_4K);
    let both = Extent::long(START..START + (2 << 30), PageSize::SIZE_4K);
    assert_eq!(gigabyte.joined_with(next), Some(both));
    let tables = gigabyte.freeing_tables();
    assert_eq!(tables.without_long(), Extent::whole().freeing_tables());
    assert_eq!(exact.without_long(), exact);
}

#[test]
fn range_without_addresses_is_empty() {
    for start in [0, 0x1000, 0x1800, u64::MAX] {
        let extent = Extent::range(start..start, PageSize::SIZE_4K);
        assert!(extent.is_empty() && !extent.is_whole() && !extent.covers(start));
        assert_eq!(extent.addresses().count(), 0);
        assert!(!extent.page_count_within(33));
    }
    assert!(Extent::pages(0x1000, 0, PageSize::SIZE_2M).is_empty());
    // An extent covers too much rather than too little.
    let tables = Extent::empty().freeing_tables();
    assert!(tables.is_whole() && tables.frees_tables());
    let reversed = Range { start: 0x5000, end: 0x1000 };
    assert!(Extent::range(reversed, PageSize::SIZE_4K).is_whole());
    assert_eq!(Extent::range(0x1800..0x1801, PageSize::SIZE_4K).page_count(), 1);
    let longest = Extent::range(0x1000..0x1000 + (4095 << 12), PageSize::SIZE_4K);
    assert_eq!(longest.page_count(), 4095);
}

#[test]
fn debug_prints_start_count_size_and_tables() {
    let pages = Extent::pages(0x4000_0000, 3, PageSize::SIZE_2M);
    assert_eq!(format!("{pages:?}"), "0x40000000+3x2048K");
    assert_eq!(format!("{:?}", pages.freeing_tables()), "0x40000000+3x2048K+tables");
    assert_eq!(format!("{:?}", Extent::whole()), "whole");
    assert_eq!(format!("{:?}", Extent::empty()), "empty");
    assert_eq!(pages.freeing_tables().freeing_tables(), pages.freeing_tables());
}

#[test]
fn address_of_57_bits_is_kept() {
    for top in [1 << 55, u64::MAX << 56] {
        assert_eq!(Extent::page(top).start(), top);
    }
}

/// Metadata in the upper byte must never select another page (Arm's TBI, x86's LAM).
#[test]
fn address_with_metadata_is_the_whole_space() {
    let address = 0x0000_7fff_1234_5000_u64;
    for metadata in [1 << 56, 1 << 57, 0x5a << 56, 1 << 63] {
        assert!(Extent::page(address | metadata).is_whole(), "{metadata:#x}");
    }
    assert_eq!(Extent::page(address).start(), address);
}

#[test]
fn page_count_within_excludes_the_whole_space() {
    assert!(!Extent::whole().page_count_within(usize::MAX));
    assert!(Extent::page(0).page_count_within(1));
    assert!(!Extent::page(0).page_count_within(0));
    assert!(!Extent::pages(0, 2, PageSize::SIZE_4K).page_count_within(1));
}

/// Linux's Hyper-V back end once looped forever when it counted past the top of the address
/// space (4030b4c585c4).
#[test]
fn extent_at_the_top_does_not_wrap() {
    let end = 0;
    let top = Extent::range(u64::MAX - 0x1fff..end, PageSize::SIZE_4K);
    assert_eq!((top.start(), top.page_count()), (u64::MAX - 0x1fff, 2));
    assert_eq!(top.addresses().last(), Some(u64::MAX - 0xfff));
    assert!(top.covers(u64::MAX) && !top.covers(0));
    assert_eq!(Extent::pages(u64::MAX, 3, PageSize::SIZE_4K).addresses().count(), 1);
}

proptest! {
    #[test]
    #[cfg_attr(miri, ignore = "takes seconds, and there is no unsafe code in this module")]
    fn range_covers_each_of_its_addresses(
        start in any::<i64>(), length in 1u64..(5000 << 12), shift in 12u8..=30,
        probe in any::<u64>()
    ) {
        let start = (start >> 7).cast_unsigned();
        let end = start.saturating_add(length);
        let extent = Extent::range(start..end, PageSize::from_shift(shift));
        prop_assert!(extent.covers(start + probe % length.min(end - start).max(1)));
        prop_assert_eq!(Extent::from_bits(extent.to_bits()), extent);
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes seconds, and there is no unsafe code in this module")]
    fn contained_extent_has_all_pages_covered(
        first in 0u64..8, count in 1usize..8, other in 0u64..8, other_count in 1usize..8,
        tables in any::<(bool, bool)>()
    ) {
        let extent = |first: u64, count, tables| {
            let extent = Extent::pages(first << 12, count, PageSize::SIZE_4K);
            if tables { extent.freeing_tables() } else { extent }
        };
        let (one, two) = (extent(first, count, tables.0), extent(other, other_count, tables.1));
        let covers_all = two.addresses().all(|address| one.covers(address));
        prop_assert_eq!(one.contains(two), covers_all && (tables.0 || !tables.1));
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes seconds, and there is no unsafe code in this module")]
    fn pages_outside_are_not_covered(page in 1u64..1 << 35, count in 1usize..=4095) {
        let extent = Extent::pages(page << 12, count, PageSize::SIZE_4K).freeing_tables();
        prop_assert!(!extent.covers((page << 12) - 1));
        prop_assert!(!extent.covers((page + count as u64) << 12));
        prop_assert_eq!(extent.addresses().count(), count);
        prop_assert!(extent.frees_tables());
    }
}
