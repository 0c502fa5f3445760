//! The fields of `satp`, and the addresses that an invalidation names.

use shootdown::{Extent, Root, Tag};

/// A format of page tables: `satp.MODE` (manual, "Supervisor Address Translation and Protection
/// Register").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Mode {
    /// Three levels, 39 bits of address.
    Sv39 = 8,
    /// Four levels, 48 bits of address.
    Sv48 = 9,
    /// Five levels, 57 bits of address.
    Sv57 = 10,
}

const MODE_SHIFT: u32 = 60;
const ASID_SHIFT: u32 = 44;
const ASID: u64 = 0xffff;
/// Number of a root's page.
const PAGE: u64 = (1 << ASID_SHIFT) - 1;
const PAGE_SHIFT: u32 = 12;

impl Mode {
    /// The mode in a value of `satp`; `None` if addresses are not translated, or in another way.
    #[must_use]
    pub const fn of(satp: u64) -> Option<Self> {
        match satp >> MODE_SHIFT {
            8 => Some(Self::Sv39),
            9 => Some(Self::Sv48),
            10 => Some(Self::Sv57),
            _ => None,
        }
    }

    /// The value of `satp` that loads `root` under `tag`.
    #[must_use]
    pub const fn satp(self, root: Root, tag: Tag) -> u64 {
        (self as u64) << MODE_SHIFT | (tag.0 as u64) << ASID_SHIFT | root.0 >> PAGE_SHIFT & PAGE
    }
}

const VMID: u64 = 0x3fff;

impl Mode {
    /// The value of `hgatp` that loads the table `root` of a guest under `tag`: the VMID is bits
    /// 57:44 (manual, "Hypervisor Guest Address Translation and Protection Register"). The root of
    /// each mode has 16 KiB.
    #[must_use]
    pub const fn hgatp(self, root: Root, tag: Tag) -> u64 {
        (self as u64) << MODE_SHIFT
            | (tag.0 as u64 & VMID) << ASID_SHIFT
            | root.0 >> PAGE_SHIFT & PAGE
    }
}

/// The VMID in a value of `hgatp`.
#[must_use]
pub const fn vmid_of(hgatp: u64) -> Tag {
    Tag((hgatp >> ASID_SHIFT & VMID) as u16)
}

/// The ASID in a value of `satp`.
#[must_use]
pub const fn asid_of(satp: u64) -> Tag {
    Tag((satp >> ASID_SHIFT & ASID) as u16)
}

/// A value of `satp` with all bits of the ASID set, to find out which of them the CPU keeps.
#[must_use]
pub const fn with_longest_asid(satp: u64) -> u64 {
    satp | ASID << ASID_SHIFT
}

/// The number of bits of an ASID, from `satp` as it is read after [`with_longest_asid`] was
/// written: "the least-significant bits of ASID are implemented first". 0 to 16.
#[must_use]
pub const fn asid_bits(satp: u64) -> u32 {
    asid_of(satp).0.trailing_ones()
}

/// The largest number of addresses that are named one by one. Linux: `tlb_flush_all_threshold`.
pub const ADDRESSES_MAX: usize = 64;

/// Bits of address that each level of tables translates.
const LEVEL_BITS: u32 = 9;

/// The addresses that `SFENCE.VMA` must name to drop every page of an extent; `None` if it must
/// drop everything under the tag instead: because the extent is whole, frees tables, or has more
/// than [`ADDRESSES_MAX`] addresses.
///
/// A page of a size between two levels is one of Svnapot, and each of its parts is named, of the
/// size of the level below.
#[must_use]
pub fn addresses(extent: Extent) -> Option<impl ExactSizeIterator<Item = u64>> {
    let shift = u32::from(extent.page_size().shift());
    let part_shift = shift - (shift - PAGE_SHIFT) % LEVEL_BITS;
    let count = extent.page_count() << (shift - part_shift);
    if extent.is_whole() || extent.frees_tables() || count > ADDRESSES_MAX {
        return None;
    }
    // The page after the last of all addresses would be page 0. To name it twice costs nothing.
    let address = move |part: u32| extent.start().saturating_add(u64::from(part) << part_shift);
    Some((0..count as u32).map(address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use shootdown::PageSize;
    use std::vec::Vec;

    /// Manual, "satp": MODE is bits 63:60, ASID 59:44, PPN 43:0; Sv39, Sv48 and Sv57 are 8, 9, 10.
    #[test]
    fn satp_matches_the_manual() {
        let root = Root(0x8012_3000);
        assert_eq!(Mode::Sv39.satp(root, Tag(0)), 0x8000_0000_0008_0123);
        assert_eq!(Mode::Sv48.satp(root, Tag(5)), 0x9000_5000_0008_0123);
        assert_eq!(Mode::Sv57.satp(root, Tag(0xffff)), 0xafff_f000_0008_0123);
        assert_eq!(Mode::Sv39.satp(Root(0x00ff_ffff_ffff_f000), Tag(0)), 0x8000_0fff_ffff_ffff);
        for mode in [Mode::Sv39, Mode::Sv48, Mode::Sv57] {
            let satp = mode.satp(root, Tag(0x123));
            assert_eq!((Mode::of(satp), asid_of(satp)), (Some(mode), Tag(0x123)));
        }
        assert_eq!(Mode::of(0x0000_0000_0008_0123), None, "Bare");
        assert_eq!(Mode::of(0xb000_0000_0008_0123), None, "reserved");
    }

    /// Manual, "hgatp": MODE is bits 63:60, VMID 57:44, PPN 43:0; Sv39x4, Sv48x4 and Sv57x4 are 8,
    /// 9, 10.
    #[test]
    fn hgatp_matches_the_manual() {
        assert_eq!(Mode::Sv39.hgatp(Root(0x8012_4000), Tag(0)), 0x8000_0000_0008_0124);
        assert_eq!(Mode::Sv48.hgatp(Root(0x8012_4000), Tag(5)), 0x9000_5000_0008_0124);
        let longest = Mode::Sv57.hgatp(Root(0x4000), Tag(0x3fff));
        assert_eq!((longest, vmid_of(longest)), (0xa3ff_f000_0000_0004, Tag(0x3fff)));
    }

    /// Manual, "satp": "The number of ASID bits is UNSPECIFIED and may be zero".
    #[test]
    fn asid_bits_are_those_that_stay_set() {
        let satp = Mode::Sv39.satp(Root(0x1000), Tag(0));
        let probe = with_longest_asid(satp);
        assert_eq!(probe, 0x8fff_f000_0000_0001);
        assert_eq!(asid_bits(probe), 16);
        assert_eq!(asid_bits(satp), 0);
        assert_eq!(asid_bits(satp | 0x1ff << 44), 9);
        // Bits of the page number and of the mode do not count.
        assert_eq!(asid_bits(0xf000_1fff_ffff_ffff), 1);
    }

    fn named(extent: Extent) -> Option<Vec<u64>> {
        addresses(extent).map(Iterator::collect)
    }

    #[test]
    fn page_of_each_level_is_named_once() {
        let pages = |count, size| named(Extent::pages(0, count, size)).unwrap();
        assert_eq!(pages(3, PageSize::SIZE_4K), [0, 0x1000, 0x2000]);
        assert_eq!(pages(2, PageSize::SIZE_2M), [0, 0x20_0000]);
        assert_eq!(pages(2, PageSize::SIZE_1G), [0, 0x4000_0000]);
        assert_eq!(pages(1, PageSize::from_shift(39)), [0]);
    }

    /// Manual, "Svnapot": software covers "all 4 KiB regions within the range".
    #[test]
    fn each_part_of_svnapot_page_is_named() {
        let named = named(Extent::pages(0x1_2345, 2, PageSize::SIZE_64K)).unwrap();
        assert_eq!(named.len(), 32);
        assert_eq!((named[0], named[1], named[31]), (0x1_0000, 0x1_1000, 0x2_f000));
        // A page of 64 small pages is the largest that is not dropped with the tag.
        assert_eq!(addresses(Extent::pages(0, 1, PageSize::from_shift(18))).unwrap().len(), 64);
        assert!(addresses(Extent::pages(0, 1, PageSize::from_shift(19))).is_none());
    }

    #[test]
    fn long_whole_and_freeing_extents_drop_the_tag() {
        let pages = |count| Extent::pages(0, count, PageSize::SIZE_4K);
        assert_eq!(named(pages(64)).unwrap().len(), 64);
        for extent in [pages(65), Extent::whole(), pages(1).freeing_tables()] {
            assert_eq!(named(extent), None);
        }
    }

    proptest! {
        /// Every page of 4 KiB of the extent is in one of the parts that are named.
        #[test]
        fn named_addresses_cover_the_extent(
            page in any::<u32>(), count in 1usize..=64, shift in 12u8..=30
        ) {
            let extent = Extent::pages(u64::from(page) << 12, count, PageSize::from_shift(shift));
            let Some(parts) = addresses(extent) else { return Ok(()) };
            let parts: Vec<u64> = parts.collect();
            prop_assert!(parts.len() <= ADDRESSES_MAX);
            let part = [30, 21, 12].into_iter().find(|level| *level <= shift).unwrap();
            for address in extent.addresses() {
                let last = address + (1 << shift) - 1;
                for address in [address, address.midpoint(last), last] {
                    prop_assert!(parts.contains(&(address >> part << part)));
                }
            }
        }
    }
}
