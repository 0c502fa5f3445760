//! Encodings of operands and registers. All functions run on any host.

use shootdown::{Extent, Tag};

/// Operations of `INVTLB`, by the value of its first operand (manual, `INVTLB`, table of ops). They
/// affect only the CPU that executes the instruction. Op 6, which also drops a global pair, is not
/// needed: see `LoongArch64::invalidate_kernel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum InvtlbOp {
    /// Drops all pairs.
    All = 0,
    /// Drops the pairs of an ASID that are not global.
    Asid = 4,
    /// Drops the pair at an address, of an ASID, if it is not global.
    AsidAndAddress = 5,
}

/// The number of CSR.ASID.
pub const ASID_CSR: u32 = 0x18;

const ASID_BITS_SHIFT: u32 = 16;
const ASID_BITS_MAX: u32 = 10;
const ASID_MAX: u16 = (1 << ASID_BITS_MAX) - 1;
/// CRMD.IE: interrupts are enabled.
const INTERRUPTS: u64 = 1 << 2;

/// The ASID in a value of CSR.ASID: bits 9 to 0.
#[must_use]
pub const fn asid_of(csr: u64) -> Tag {
    Tag(csr as u16 & ASID_MAX)
}

/// The number of bits of an ASID, from a value of CSR.ASID: bits 23 to 16. The manual has 10.
#[must_use]
pub const fn asid_bits(csr: u64) -> u32 {
    let bits = (csr >> ASID_BITS_SHIFT) as u32 & 0xff;
    if bits < ASID_BITS_MAX { bits } else { ASID_BITS_MAX }
}

/// An ASID as an operand of CSR.ASID and of `INVTLB`: in bits 9 to 0, with the other bits 0.
///
/// # Panics
///
/// If the tag has more than 10 bits. The engine never assigns such a tag.
#[must_use]
pub const fn asid_operand(tag: Tag) -> u64 {
    assert!(tag.0 <= ASID_MAX, "ASIDs have 10 bits");
    tag.0 as u64
}

/// Returns `true` if interrupts are enabled, from a value of CSR.CRMD.
#[must_use]
pub const fn interrupts_enabled(crmd: u64) -> bool {
    crmd & INTERRUPTS != 0
}

/// The addresses for which `INVTLB` must be executed to drop every page of an extent. The extent
/// must not be whole.
///
/// For pages of 4 KiB, these are the first address and every even page, because the TLB holds pages
/// in pairs. A larger page may be a pair by itself, of its two halves, or one page of a pair if the
/// kernel's pages are larger than 4 KiB. Each larger page is named, because the addresses of all
/// are even.
pub fn pair_addresses(extent: Extent) -> impl Iterator<Item = u64> {
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
    fn asid_has_ten_bits() {
        assert_eq!(asid_of(0x000a_03ff), Tag(0x3ff));
        assert_eq!(asid_of(0x000a_0400), Tag(0), "bit 10 is reserved");
        assert_eq!(asid_bits(0x000a_0000), 10);
        assert_eq!(asid_bits(0x0108_ffff), 8, "only bits 23 to 16 count");
        assert_eq!(asid_bits(0x00ff_0000), 10, "operands have room for 10 bits");
        assert_eq!(asid_operand(Tag(0)), 0);
        assert_eq!(asid_operand(Tag(1023)), 0x3ff);
    }

    /// Manual, `INVTLB`: "the remaining bits must be 0".
    #[test]
    #[should_panic(expected = "10 bits")]
    fn oversized_asid_panics() {
        let _ = asid_operand(Tag(1024));
    }

    /// Manual, `INVTLB`, "Operations corresponding to each op".
    #[test]
    fn invtlb_ops_match_manual() {
        let ops = [InvtlbOp::All, InvtlbOp::Asid, InvtlbOp::AsidAndAddress];
        assert_eq!(ops.map(|op| op as u32), [0, 4, 5]);
    }

    /// Manual, "Current Mode Information": PLV is bits 1:0, IE bit 2, DA bit 3, PG bit 4.
    #[test]
    fn interrupt_enable_is_bit_2() {
        assert!(interrupts_enabled(0b1_0100));
        assert!(!interrupts_enabled(!0b100));
    }

    fn addresses(extent: Extent) -> Vec<u64> {
        pair_addresses(extent).collect()
    }

    /// Manual, "TLB Entry": "the lowest bit of the virtual page number does not need to be stored".
    #[test]
    fn pair_is_named_once() {
        let pages = |address, count| Extent::pages(address, count, PageSize::SIZE_4K);
        assert_eq!(addresses(pages(0x4000, 2)), [0x4000]);
        assert_eq!(addresses(pages(0x4000, 3)), [0x4000, 0x6000]);
        // An odd first page names its pair, and the following pairs are named.
        assert_eq!(addresses(pages(0x5000, 1)), [0x5000]);
        assert_eq!(addresses(pages(0x5000, 2)), [0x5000, 0x6000]);
        assert_eq!(addresses(pages(0x5000, 4)), [0x5000, 0x6000, 0x8000]);
    }

    #[test]
    fn each_large_page_is_named() {
        let pages = Extent::pages(0x20_0000, 3, PageSize::SIZE_2M);
        assert_eq!(addresses(pages), [0x20_0000, 0x40_0000, 0x60_0000]);
        let pages = Extent::pages(0x4000, 2, PageSize::SIZE_16K);
        assert_eq!(addresses(pages), [0x4000, 0x8000]);
    }

    #[test]
    fn extent_at_top_does_not_wrap() {
        assert_eq!(addresses(Extent::page(u64::MAX)), [u64::MAX - 0xfff]);
        assert_eq!(addresses(Extent::pages(u64::MAX, 3, PageSize::SIZE_4K)), [u64::MAX - 0xfff]);
    }

    proptest! {
        /// The pair of each page is named once, and no other pair.
        #[test]
        fn named_pairs_are_those_of_extent(first in 0u64..1 << 35, count in 1usize..=4095) {
            let extent = Extent::pages(first << 12, count, PageSize::SIZE_4K);
            let pairs: Vec<u64> = pair_addresses(extent).map(|address| address >> 13).collect();
            let mut expected: Vec<u64> = extent.addresses().map(|page| page >> 13).collect();
            expected.dedup();
            prop_assert_eq!(pairs, expected);
        }
    }
}
