//! What is written to CR3: a root, its tag, and whether what is cached under the tag stays.
//!
//! Intel's manual, volume 3A, sections 4.5 and 4.10.4.1; AMD's, volume 2, section 5.5.1.

use shootdown::{Entries, Root, Tag};

/// How many PCIDs there are: 0 is the kernel's, the others are for spaces.
pub const PCID_COUNT: usize = 1 << 12;

/// In CR3 where it is written, and never where it is read: what is cached under the PCID stays.
const NO_FLUSH: u64 = 1 << 63;

/// What to load where `CR4.PCIDE` is set.
///
/// The processor drops all that is cached under the tag, but for global pages, unless it is to
/// [keep](Entries::Keep) it.
///
/// # Panics
///
/// If the root is not the address of a page, or the tag is none: both only with debug assertions.
#[must_use]
pub const fn with_pcid(root: Root, tag: Tag, entries: Entries) -> u64 {
    debug_assert!(is_page(root), "the lower bits are the tag's");
    debug_assert!((tag.0 as usize) < PCID_COUNT, "no such PCID");
    let loaded = root.0 | tag.0 as u64;
    match entries {
        Entries::Discard => loaded,
        Entries::Keep => loaded | NO_FLUSH,
    }
}

/// What to load where `CR4.PCIDE` is clear: all but global pages is dropped, whatever is asked for.
///
/// Bit 63 is reserved then, and faults; bits 3 and 4 say how the table itself is cached.
///
/// # Panics
///
/// If the root is not the address of a page: only with debug assertions.
#[must_use]
pub const fn without_pcid(root: Root) -> u64 {
    debug_assert!(is_page(root), "the lower bits are flags");
    root.0
}

/// Of a page, below the 52 bits that a physical address may have.
const fn is_page(root: Root) -> bool {
    root.0 & !0x000f_ffff_ffff_f000 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SDM 3A, table 4-12: bits 11:0 are the PCID, bits M-1:12 the PML4 table. Section 4.10.4.1:
    /// bit 63 of the source operand keeps what is cached.
    #[test]
    fn tag_and_root_are_where_the_manual_has_them() {
        let root = Root(0x000f_ffff_ffff_f000);
        assert_eq!(with_pcid(root, Tag(0xabc), Entries::Discard), 0x000f_ffff_ffff_fabc);
        assert_eq!(with_pcid(root, Tag(0xabc), Entries::Keep), 0x800f_ffff_ffff_fabc);
        assert_eq!(with_pcid(Root(0x1000), Tag(4095), Entries::Discard), 0x1fff);
        assert_eq!(with_pcid(Root(0x1000), Tag::KERNEL, Entries::Keep), 0x8000_0000_0000_1000);
    }

    /// SDM 3A, section 2.5 and table 4-12: without PCIDs, bit 63 is reserved, and bits 3 and 4 are
    /// PWT and PCD.
    #[test]
    fn without_pcids_there_is_a_root_and_no_flag() {
        assert_eq!(without_pcid(Root(0x1234_5000)), 0x1234_5000);
    }

    #[test]
    #[should_panic(expected = "no such PCID")]
    fn a_tag_does_not_run_into_the_root() {
        let _ = with_pcid(Root(0x1000), Tag(4096), Entries::Keep);
    }

    #[test]
    #[should_panic(expected = "the lower bits are the tag's")]
    fn a_root_does_not_run_into_the_tag() {
        let _ = with_pcid(Root(0x1008), Tag(1), Entries::Keep);
    }
}
