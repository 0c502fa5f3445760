//! The value of CR3: a root, its tag, and whether the entries under the tag stay cached.
//!
//! Intel's manual, volume 3A, sections 4.5 and 4.10.4.1; AMD's, volume 2, section 5.5.1.

use shootdown::{Entries, Root, Tag};

/// Number of PCIDs. PCID 0 is the kernel's, the others are for spaces.
pub const PCID_COUNT: usize = 1 << 12;

/// The bit of a PCID that selects the half of user mode: see [`kpti`](super::kpti).
#[cfg_attr(not(any(target_arch = "x86_64", test)), expect(dead_code, reason = "for the processor"))]
pub(super) const USER_PCID: u16 = 1 << 11;

/// A bit that is set only in writes of CR3: the entries under the PCID stay cached.
const NO_FLUSH: u64 = 1 << 63;

/// The value to load if `CR4.PCIDE` is set.
///
/// The processor drops all entries under the tag except global pages, unless `entries` is
/// [`Keep`](Entries::Keep).
///
/// # Panics
///
/// With debug assertions, if the root is not the address of a page, or the tag is not a PCID.
#[must_use]
pub const fn with_pcid(root: Root, tag: Tag, entries: Entries) -> u64 {
    debug_assert!(is_page(root), "the lower bits are the tag's");
    debug_assert!((tag.0 as usize) < PCID_COUNT, "not a PCID");
    let loaded = root.0 | tag.0 as u64;
    match entries {
        Entries::Discard => loaded,
        Entries::Keep => loaded | NO_FLUSH,
    }
}

/// The value to load if `CR4.PCIDE` is clear. The processor always drops all but global pages.
///
/// In this mode, bit 63 is reserved, and setting it faults. Bits 3 and 4 select how the table
/// itself is cached.
///
/// # Panics
///
/// With debug assertions, if the root is not the address of a page.
#[must_use]
pub const fn without_pcid(root: Root) -> u64 {
    debug_assert!(is_page(root), "the lower bits are flags");
    root.0
}

/// The root and the tag of a value that was read from CR3, if `CR4.PCIDE` is set.
#[must_use]
pub const fn parts(value: u64) -> (Root, Tag) {
    let tag = value & (PCID_COUNT as u64 - 1);
    (Root(value & !NO_FLUSH & !(PCID_COUNT as u64 - 1)), Tag(tag as u16))
}

/// The bits of linear-address masking: `LAM_U57` and `LAM_U48` (SDM 3A, section 4.4).
const LAM: u64 = 0b11 << 61;

/// Returns `true` if the root is the address of a page, in the 52 bits of a physical address, with
/// or without address masking.
const fn is_page(root: Root) -> bool {
    root.0 & !LAM & !0x000f_ffff_ffff_f000 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SDM 3A, table 4-12: bits 11:0 are the PCID, bits M-1:12 the PML4 table. Section 4.10.4.1:
    /// with bit 63 of the source operand, cached entries stay.
    #[test]
    fn cr3_fields_match_manual() {
        let root = Root(0x000f_ffff_ffff_f000);
        assert_eq!(with_pcid(root, Tag(0xabc), Entries::Discard), 0x000f_ffff_ffff_fabc);
        assert_eq!(with_pcid(root, Tag(0xabc), Entries::Keep), 0x800f_ffff_ffff_fabc);
        assert_eq!(parts(0x000f_ffff_ffff_fabc), (root, Tag(0xabc)));
        assert_eq!(with_pcid(Root(0x1000), Tag(4095), Entries::Discard), 0x1fff);
        assert_eq!(with_pcid(Root(1 << 61 | 0x1000), Tag(1), Entries::Keep), 0xa000_0000_0000_1001);
        assert_eq!(with_pcid(Root(0x1000), Tag::KERNEL, Entries::Keep), 0x8000_0000_0000_1000);
    }

    /// SDM 3A, section 2.5 and table 4-12: without PCIDs, bit 63 is reserved, and bits 3 and 4 are
    /// PWT and PCD.
    #[test]
    fn cr3_without_pcids_is_the_root() {
        assert_eq!(without_pcid(Root(0x1234_5000)), 0x1234_5000);
    }

    #[test]
    #[should_panic(expected = "not a PCID")]
    fn oversized_tag_panics() {
        let _ = with_pcid(Root(0x1000), Tag(4096), Entries::Keep);
    }

    #[test]
    #[should_panic(expected = "the lower bits are the tag's")]
    fn unaligned_root_panics() {
        let _ = with_pcid(Root(0x1008), Tag(1), Entries::Keep);
    }
}
