//! The operands of `INVLPGB`, AMD's instruction that also drops translations on other CPUs.
//!
//! See AMD's manual, volume 3, "INVLPGB". The instruction starts the invalidation. `TLBSYNC`, on
//! the same CPU, waits until all CPUs have done it. (Linux: `arch/x86/include/asm/tlb.h`.)

use shootdown::{Extent, Tag};

/// Bits 5:0 of RAX select the fields that are compared. The other fields may have any value.
const VALID_ADDRESS: u64 = 1 << 0;
const VALID_PCID: u64 = 1 << 1;
/// Compares the ASID of a guest, which is 0 outside of guests. Always set: without it, a host would
/// also empty the TLBs of its guests. In a guest, the processor uses the guest's own ASID, whatever
/// EDX holds.
const VALID_ASID: u64 = 1 << 2;
const INCLUDE_GLOBAL: u64 = 1 << 3;
/// Entries of upper levels may stay cached.
const FINAL_ONLY: u64 = 1 << 4;

/// Position of the tag in EDX.
const PCID_SHIFT: u32 = 16;
/// Bit of ECX: pages are 2 MiB apart.
const STRIDE_2M: u32 = 1 << 31;

const SHIFT_4K: u8 = 12;
const SHIFT_2M: u8 = 21;

/// The operands of one instruction, by register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operands {
    /// An address, and the fields that are compared.
    pub rax: u64,
    /// The number of pages minus 1, and their size.
    pub ecx: u32,
    /// The tag, and the ASID of a guest.
    pub edx: u32,
}

/// The instructions that drop an extent of a space under its tag, except global pages. One
/// instruction can name `pages_per_operation` pages.
///
/// Entries of upper levels stay cached, unless the extent is [whole](Extent::is_whole) or [frees
/// tables](Extent::frees_tables).
///
/// # Panics
///
/// With debug assertions, if the tag is not a PCID.
#[must_use]
pub const fn in_space(tag: Tag, extent: Extent, pages_per_operation: u32) -> Instructions {
    Instructions::new(extent, pages_per_operation, VALID_PCID, edx(tag))
}

/// The instructions that drop an extent under every tag, global pages included.
#[must_use]
pub const fn everywhere(extent: Extent, pages_per_operation: u32) -> Instructions {
    Instructions::new(extent, pages_per_operation, INCLUDE_GLOBAL, 0)
}

const fn edx(tag: Tag) -> u32 {
    debug_assert!((tag.0 as usize) < crate::x86_64::cr3::PCID_COUNT, "not a PCID");
    (tag.0 as u32) << PCID_SHIFT
}

/// Largest number of instructions for a long extent. With more, everything is dropped.
const LONG_MAX: u64 = 8;

/// An iterator over the instructions that drop an extent, in order.
#[derive(Clone, Debug)]
pub struct Instructions {
    address: u64,
    /// Number of pages that are left, of the stride's size.
    left: u64,
    stride_shift: u8,
    /// Largest number of pages that one instruction names.
    pages_max: u64,
    compared: u64,
    edx: u32,
}

impl Instructions {
    const fn new(extent: Extent, pages_per_operation: u32, compared: u64, edx: u32) -> Self {
        let size_shift = extent.page_size().shift();
        let small_pages = (extent.page_count() as u64) << (size_shift - SHIFT_4K);
        let is_too_long = extent.is_long() && small_pages > LONG_MAX * pages_per_operation as u64;
        if extent.is_whole() || is_too_long {
            // Without an address, one instruction drops everything that is compared.
            let compared = compared | VALID_ASID;
            return Self {
                address: 0,
                left: 1,
                stride_shift: SHIFT_4K,
                pages_max: 1,
                compared,
                edx,
            };
        }
        let count = extent.page_count() as u64;
        let (stride_shift, left, pages_max) = if size_shift < SHIFT_2M || extent.is_long() {
            // An instruction may begin and end within a page that is larger than 4 KiB.
            (SHIFT_4K, small_pages, pages_per_operation as u64)
        } else if size_shift == SHIFT_2M {
            (SHIFT_2M, count, pages_per_operation as u64)
        } else {
            // Larger pages are named one by one, by any address in the page.
            (size_shift, count, 1)
        };
        let levels = if extent.frees_tables() { 0 } else { FINAL_ONLY };
        let compared = compared | VALID_ASID | VALID_ADDRESS | levels;
        Self { address: extent.start(), left, stride_shift, pages_max, compared, edx }
    }
}

impl Iterator for Instructions {
    type Item = Operands;

    fn next(&mut self) -> Option<Operands> {
        let count = self.left.min(self.pages_max);
        let more = u32::try_from(count.checked_sub(1)?).ok()?;
        let stride = if self.stride_shift == SHIFT_2M { STRIDE_2M } else { 0 };
        let operands =
            Operands { rax: self.address | self.compared, ecx: more | stride, edx: self.edx };
        self.left -= count;
        // There are no pages above the top of the address space.
        match self.address.checked_add(count << self.stride_shift) {
            Some(address) => self.address = address,
            None => self.left = 0,
        }
        Some(operands)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shootdown::PageSize;
    use std::vec::Vec;

    const UPTO: u32 = 8;

    /// APM 3, INVLPGB: RAX bit 1 valid PCID, bit 2 valid ASID, bit 3 include global, bit 4 final
    /// translation only; EDX bits 15:0 ASID, 27:16 PCID.
    #[test]
    fn operands_without_address_match_manual() {
        let whole = Extent::whole();
        let tag = Operands { rax: 0b00_0110, ecx: 0, edx: 0x0abc_0000 };
        assert!(in_space(Tag(0xabc), whole, UPTO).eq([tag]));
        let everything = Operands { rax: 0b00_1100, ecx: 0, edx: 0 };
        assert!(everywhere(whole, UPTO).eq([everything]));
    }

    /// APM 3, INVLPGB: RAX bits 63:12 are the address; ECX bits 15:0 the number of pages minus 1,
    /// bit 31 the stride, 4 KiB or 2 MiB.
    #[test]
    fn small_pages_are_counted_from_address() {
        let extent = Extent::pages(0x7fff_1234_5000, 3, PageSize::SIZE_4K);
        let one = |operands: Instructions| operands.collect::<Vec<_>>();
        assert_eq!(
            one(in_space(Tag(1), extent, UPTO)),
            [Operands { rax: 0x7fff_1234_5017, ecx: 2, edx: 1 << 16 }],
        );
        // Without bit 4, upper levels are also dropped.
        assert_eq!(
            one(in_space(Tag(1), extent.freeing_tables(), UPTO)),
            [Operands { rax: 0x7fff_1234_5007, ecx: 2, edx: 1 << 16 }],
        );
        // Kernel pages are dropped under any tag, global or not.
        let extent = Extent::page(0xffff_8000_0000_1000);
        assert_eq!(
            one(everywhere(extent, UPTO)),
            [Operands { rax: 0xffff_8000_0000_101d, ecx: 0, edx: 0 }],
        );
        assert_eq!(
            one(everywhere(extent.freeing_tables(), UPTO)),
            [Operands { rax: 0xffff_8000_0000_100d, ecx: 0, edx: 0 }],
        );
    }

    /// APM 3, INVLPGB: the count is at most what CPUID 8000_0008, EDX bits 15:0, says.
    #[test]
    fn long_extent_needs_several_instructions() {
        let steps = |extent, upto| {
            in_space(Tag(0), extent, upto)
                .map(|Operands { rax, ecx, .. }| (rax & !0xfff, ecx))
                .collect::<Vec<_>>()
        };
        let extent = Extent::pages(0x10_0000, 20, PageSize::SIZE_4K);
        assert_eq!(steps(extent, 8), [(0x10_0000, 7), (0x10_8000, 7), (0x11_0000, 3)]);
        assert_eq!(steps(extent, 20), [(0x10_0000, 19)]);
        assert_eq!(steps(Extent::page(0x1000), 1), [(0x1000, 0)]);
        let extent = Extent::pages(0x4000_0000, 5, PageSize::SIZE_2M);
        let stride = 1 << 31;
        assert_eq!(steps(extent, 4), [(0x4000_0000, 3 | stride), (0x4080_0000, stride)]);
        let extent = Extent::pages(0x4000_0000, 2, PageSize::SIZE_1G);
        assert_eq!(steps(extent, 8), [(0x4000_0000, 0), (0x8000_0000, 0)]);
        // Pages of a size that the hardware does not have are named by pages of 4 KiB.
        let extent = Extent::pages(0x4_0000, 3, PageSize::SIZE_16K);
        assert_eq!(steps(extent, 8), [(0x4_0000, 7), (0x4_8000, 3)]);
    }

    /// The pages of a long extent may be small ones.
    #[test]
    fn long_range_is_named_by_small_pages() {
        let extent = Extent::long(0..1 << 30, PageSize::SIZE_4K);
        let steps = |upto| in_space(Tag(1), extent, upto).collect::<Vec<_>>();
        let counts = |upto| steps(upto).iter().map(|it| it.ecx + 1).collect::<Vec<_>>();
        assert_eq!(counts(0x1_0000), [0x1_0000; 4]);
        assert_eq!(steps(0x1_0000)[1].rax & !0xfff, 1 << 28);
        // The most, and one more.
        assert_eq!(counts(0x8000), [0x8000; 8]);
        assert!(in_space(Tag(1), extent, 0x7fff).eq(in_space(Tag(1), Extent::whole(), 0x7fff)));
    }

    #[test]
    fn every_page_is_named_once() {
        for size in [PageSize::SIZE_4K, PageSize::SIZE_2M, PageSize::SIZE_1G] {
            for (count, upto) in [(1, 1), (1, 8), (7, 8), (8, 8), (9, 8), (4095, 8), (4095, 65536)]
            {
                let extent = Extent::pages(0x40_0000_0000, count, size);
                let named: Vec<u64> = in_space(Tag(9), extent, upto)
                    .flat_map(|Operands { rax, ecx, .. }| {
                        let stride = if ecx >> 31 == 1 { 1 << 21 } else { 1 << 12 };
                        assert!(ecx & 0xffff < upto);
                        (0..=u64::from(ecx & 0xffff))
                            .map(move |page| (rax & !0xfff) + page * stride)
                    })
                    .collect();
                assert!(named.iter().copied().eq(extent.addresses()), "{extent:?} by {upto}");
            }
        }
    }

    #[test]
    fn extent_at_top_does_not_wrap() {
        let extent = Extent::pages(u64::MAX << 12, 2, PageSize::SIZE_4K);
        assert_eq!(in_space(Tag(0), extent, 1).count(), 1);
    }
}
