//! What instructions and CSRs are given, and what CSRs say: as numbers, on any host.

use shootdown::{Extent, Tag};

/// What `INVTLB` drops, by its first operand (manual, `INVTLB`, table of ops). All on the CPU that
/// executes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Invalidate {
    /// Everything.
    All = 0,
    /// What is global.
    Global = 2,
    /// What is not.
    NotGlobal = 3,
    /// What is of an ASID, and not global.
    Asid = 4,
    /// The pair of an address, of an ASID, if it is not global.
    AsidAndAddress = 5,
    /// The pair of an address, of an ASID or global.
    GlobalOrAsidAndAddress = 6,
}

/// CSR.ASID's number.
pub const ASID_CSR: u32 = 0x18;

const ASID_BITS_SHIFT: u32 = 16;
const ASID_BITS_MAX: u32 = 10;
const ASID_MAX: u16 = (1 << ASID_BITS_MAX) - 1;
/// CRMD.IE.
const INTERRUPTS: u64 = 1 << 2;

/// The ASID that CSR.ASID holds: bits 9 to 0.
#[must_use]
pub const fn asid_of(csr: u64) -> Tag {
    Tag(csr as u16 & ASID_MAX)
}

/// How many bits of an ASID there are, as CSR.ASID says: bits 23 to 16, of which the manual has 10.
#[must_use]
pub const fn asid_bits(csr: u64) -> u32 {
    let bits = (csr >> ASID_BITS_SHIFT) as u32 & 0xff;
    if bits < ASID_BITS_MAX { bits } else { ASID_BITS_MAX }
}

/// An ASID as CSR.ASID and `INVTLB` take it: in bits 9 to 0, the others 0.
///
/// # Panics
///
/// If the tag is above the last one: it was never given out.
#[must_use]
pub const fn asid_operand(tag: Tag) -> u64 {
    assert!(tag.0 <= ASID_MAX, "ASIDs have 10 bits");
    tag.0 as u64
}

/// Whether CSR.CRMD lets interrupts in.
#[must_use]
pub const fn interrupts_are_let_in(crmd: u64) -> bool {
    crmd & INTERRUPTS != 0
}

/// For which addresses `INVTLB` is to be executed so that it finds every page of an extent, which
/// is not whole.
///
/// Of pages of 4 KiB, the first and every even one: they lie in the TLB in pairs. A larger page may
/// be a pair of its own, of its halves, or one of a pair, where a kernel's pages are not of 4 KiB:
/// each is named, for all are even.
pub fn probes(extent: Extent) -> impl Iterator<Item = u64> {
    const PAIR_BYTES: u64 = 2 << 12;
    let start = extent.start();
    extent.addresses().filter(move |&address| address == start || address % PAIR_BYTES == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use shootdown::PageSize;
    use std::vec::Vec;

    /// Manual, "Address Space Identifier": ASID is bits 9:0, ASIDBITS bits 23:16.
    #[test]
    fn an_asid_is_ten_bits() {
        assert_eq!(asid_of(0x000a_03ff), Tag(0x3ff));
        assert_eq!(asid_of(0x000a_0400), Tag(0), "bit 10 is reserved");
        assert_eq!(asid_bits(0x000a_0000), 10);
        assert_eq!(asid_bits(0x0108_ffff), 8, "nothing but bits 23 to 16");
        assert_eq!(asid_bits(0x00ff_0000), 10, "no operand has room for more");
        assert_eq!(asid_operand(Tag(0)), 0);
        assert_eq!(asid_operand(Tag(1023)), 0x3ff);
    }

    /// Manual, `INVTLB`: "the remaining bits must be 0".
    #[test]
    #[should_panic(expected = "10 bits")]
    fn no_asid_reaches_into_the_rest_of_the_operand() {
        let _ = asid_operand(Tag(1024));
    }

    /// Manual, `INVTLB`, "Operations corresponding to each op". Op 1 does what op 0 does; 7 and
    /// above raise an exception.
    #[test]
    fn ops_are_the_manuals() {
        let ops = [
            (0x0, Invalidate::All),
            (0x2, Invalidate::Global),
            (0x3, Invalidate::NotGlobal),
            (0x4, Invalidate::Asid),
            (0x5, Invalidate::AsidAndAddress),
            (0x6, Invalidate::GlobalOrAsidAndAddress),
        ];
        for (op, what) in ops {
            assert_eq!(what as u32, op);
        }
    }

    /// Manual, "Current Mode Information": PLV is bits 1:0, IE bit 2, DA bit 3, PG bit 4.
    #[test]
    fn interrupts_are_bit_2() {
        assert!(interrupts_are_let_in(0b1_0100));
        assert!(!interrupts_are_let_in(!0b100));
    }

    fn probed(extent: Extent) -> Vec<u64> {
        probes(extent).collect()
    }

    /// Manual, "TLB Entry": "the lowest bit of the virtual page number does not need to be stored".
    #[test]
    fn a_pair_is_named_once() {
        let pages = |address, count| Extent::pages(address, count, PageSize::SIZE_4K);
        assert_eq!(probed(pages(0x4000, 2)), [0x4000]);
        assert_eq!(probed(pages(0x4000, 3)), [0x4000, 0x6000]);
        // From an odd one on: its pair, and those of the others.
        assert_eq!(probed(pages(0x5000, 1)), [0x5000]);
        assert_eq!(probed(pages(0x5000, 2)), [0x5000, 0x6000]);
        assert_eq!(probed(pages(0x5000, 4)), [0x5000, 0x6000, 0x8000]);
    }

    #[test]
    fn each_large_page_is_named() {
        let pages = Extent::pages(0x20_0000, 3, PageSize::SIZE_2M);
        assert_eq!(probed(pages), [0x20_0000, 0x40_0000, 0x60_0000]);
        let pages = Extent::pages(0x4000, 2, PageSize::SIZE_16K);
        assert_eq!(probed(pages), [0x4000, 0x8000]);
    }

    #[test]
    fn the_top_of_the_address_space_is_no_wrap() {
        assert_eq!(probed(Extent::page(u64::MAX)), [u64::MAX - 0xfff]);
        assert_eq!(probed(Extent::pages(u64::MAX, 3, PageSize::SIZE_4K)), [u64::MAX - 0xfff]);
    }

    proptest! {
        /// Each page's pair is named, and no pair twice, or beyond.
        #[test]
        fn pairs_are_those_of_the_pages(first in 0u64..1 << 35, count in 1usize..=4095) {
            let extent = Extent::pages(first << 12, count, PageSize::SIZE_4K);
            let pairs: Vec<u64> = probes(extent).map(|address| address >> 13).collect();
            let mut expected: Vec<u64> = extent.addresses().map(|page| page >> 13).collect();
            expected.dedup();
            prop_assert_eq!(pairs, expected);
        }
    }
}
