//! `AArch64`, four levels, as in chapter D8, on virtual memory, of Arm's manual (DDI 0487): stage 1
//! of the EL1&0 regime, 4 KiB granule, addresses of 48 bits.
//!
//! Arm counts levels from the root down, from 0 to 3. Level 0 here is Arm's level 3.
//!
//! # Dirty pages
//!
//! There is no dirty bit. With `FEAT_HAFDBS` ("Hardware updates to the translation tables") the bit
//! DBM turns `AP[2]` into one. A page with both bits set is *writable-clean*; the first write
//! clears `AP[2]`, and the page is *writable-dirty*. Without DBM, `AP[2]` forbids writes. Linux
//! names the bits by their effect: DBM is `PTE_WRITE`, `AP[2]` is `PTE_RDONLY`, and a page that is
//! writable and not read-only is dirty (`pte_hw_dirty`). The encoding here is the same:
//!
//! |                  | DBM | `AP[2]` | bit 55 |
//! |------------------|-----|---------|--------|
//! | writable, clean  | 1   | 1       | 0      |
//! | writable, dirty  | 1   | 0       | 0      |
//! | read-only, clean | 0   | 1       | 0      |
//! | read-only, dirty | 0   | 1       | 1      |
//!
//! The hardware never makes the last line. When software removes the permission to write, it must
//! set `AP[2]`, and therefore keeps the dirty mark in bit 55 (`PTE_DIRTY`). Linux also sets this
//! bit in writable pages that it has found dirty. This crate does not, so an entry that the MMU
//! marks equals the entry that software would write.
//!
//! # Requirements on the kernel
//!
//! - `TCR_EL1`: set HA and HD, so that the MMU sets AF and clears `AP[2]`. Otherwise an access that
//!   only needs a mark faults repeatedly, because [`fault`](crate::AddressSpace::fault) finds
//!   nothing to change. IRGN0 and ORGN0 must be write-back, and SH0 inner shareable, because the
//!   MMU marks entries only in such memory. T0SZ must be 16, TG0 4 KiB, and DS 0.
//! - `MAIR_EL1`: normal memory, write-back, at [`Aarch64::ATTRIBUTES`].
//! - `TCR2_EL1.PIE` must be 0: with permission indirection (`FEAT_S1PIE`) the permission bits are
//!   an index.
//!
//! A CPU may keep a translation that has refused a write ("TLB maintenance"). The handler of a
//! permission fault must therefore invalidate the page on this CPU (`TLBI VAE1`) before the access
//! is retried, whether the entry was changed or not. (Linux: `flush_tlb_fix_spurious_fault`.) A CPU
//! caches nothing of invalid entries.

use super::{Bits, Format};

/// Page tables of `AArch64` with pages of 4 KiB: four levels of 512 entries.
///
/// ```text
///  63 56  55   54    53  52   51  50 48 47     12  11   10  9  8 7       6 5  4    2   1     0
/// ┌─────┬───┬─────┬─────┬──┬─────┬─────┬─────────┬────┬────┬────┬─────────┬──┬──────┬──────┬───┐
/// │     │ D │ UXN │ PXN │  │ DBM │     │ frame   │ nG │ AF │ SH │ AP[2:1] │  │ Attr │ type │ V │
/// └─────┴───┴─────┴─────┴──┴─────┴─────┴─────────┴────┴────┴────┴─────────┴──┴──────┴──────┴───┘
/// ```
///
/// The diagram shows a page or a block; bit 55, D, is reserved for software. The type is 1 in a
/// page, and 0 in a block, which is a large leaf: of 2 MiB at level 1, of 1 GiB at level 2. A table
/// has type 1, its frame, and AF, which the MMU would set if `FEAT_HAFT` were enabled. All leaves
/// are accessible to user code (`AP[1]`), inner shareable (SH is 3), tagged with the ASID (nG), and
/// not executable by the kernel (PXN).
///
/// If V, the valid bit, is 0, the MMU ignores all other bits. A page to which no access is allowed
/// then keeps its other bits, and is recognised by nG, as in Linux (`PTE_PRESENT_INVALID`). A claim
/// has nG clear and bit 2 set, and its ticket from bit 12 on.
#[derive(Clone, Copy, Debug)]
pub enum Aarch64 {}

impl Aarch64 {
    /// Index of the attribute in `MAIR_EL1` that all pages have, from 0 to 7. The kernel must set
    /// that attribute to `0xff`: normal memory, inner and outer write-back. (Linux: `MT_NORMAL`.)
    pub const ATTRIBUTES: u64 = 0;
}

const VALID: u64 = 1 << 0;
/// The type of a table, and, at level 0, of a page.
const NOT_BLOCK: u64 = 1 << 1;
const ATTRIBUTES_SHIFT: u32 = 2;
/// `AP[1]`: EL0 has access also.
const USER: u64 = 1 << 6;
const INNER_SHAREABLE: u64 = 3 << 8;
const ACCESSED: u64 = 1 << 10;
const NOT_GLOBAL: u64 = 1 << 11;
/// PXN.
const KERNEL_NO_EXECUTE: u64 = 1 << 53;

impl Format for Aarch64 {
    const LEVELS: usize = 4;
    const BITS: Bits = Bits {
        frame: 0x0000_ffff_ffff_f000,
        frame_shift: 12,
        // The leaf alone restricts permissions. A table is marked as accessed when it is written,
        // because the MMU would mark it at its first use.
        table: VALID | NOT_BLOCK | ACCESSED,
        table_mask: VALID | NOT_BLOCK,
        leaf: Self::ATTRIBUTES << ATTRIBUTES_SHIFT
            | USER
            | INNER_SHAREABLE
            | NOT_GLOBAL
            | KERNEL_NO_EXECUTE,
        // At level 0, VALID without NOT_BLOCK is reserved, and faults.
        page: NOT_BLOCK,
        large: 0,
        accessible: VALID,
        inaccessible: NOT_GLOBAL,
        // DBM.
        writable: 1 << 51,
        executable: 0,
        // UXN.
        not_executable: 1 << 54,
        accessed: ACCESSED,
        inaccessible_accessed: ACCESSED,
        dirty: 0,
        // Reserved for software.
        not_writable_dirty: 1 << 55,
        // `AP[2]`: read-only if DBM is 0, clean if DBM is 1.
        clean: 1 << 7,
        claim: 1 << 2,
        ticket_shift: 12,
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::Protection;
    use crate::format::tests::{Hardware, format_checks};
    use crate::format::{Leaf, Marks};
    use crate::platform::Frame;

    impl Hardware for Aarch64 {
        // Bits 47 to 12.
        const FRAME_BITS: u32 = 36;

        fn is_valid(entry: u64) -> bool {
            entry & 1 != 0
        }

        fn read(entry: u64) -> u64 {
            entry | 0x400
        }

        fn written(entry: u64) -> Option<u64> {
            // A write is allowed if AP[2] is 0, or if DBM lets the MMU clear AP[2].
            let may_write = entry & 0x80 == 0 || entry & 0x0008_0000_0000_0000 != 0;
            may_write.then_some((entry | 0x400) & !0x80)
        }
    }

    format_checks!(Aarch64);

    const READ_WRITE: Protection = Protection::READ.union(Protection::WRITE);

    #[test]
    fn entries_match_the_manual() {
        let leaf = Leaf { frame: Frame(0x12345), protection: READ_WRITE, marks: Marks::all() };
        // UXN (54), PXN (53), DBM (51): 0x40 + 0x20 + 8, times 2^48; nG (11), AF (10), SH (9, 8),
        // AP[1] (6), type (1), valid (0): 0x800 + 0x400 + 0x300 + 0x40 + 2 + 1.
        assert_eq!(Aarch64::leaf(leaf), 0x0068_0000_1234_5f43);
        // The same, and AP[2] (7): 0x80.
        let leaf = Leaf { marks: Marks::ACCESSED, ..leaf };
        assert_eq!(Aarch64::leaf(leaf), 0x0068_0000_1234_5fc3);
        // PXN, but not UXN and DBM; AP[2], but not AF.
        let code = Protection::READ | Protection::EXECUTE;
        let leaf = Leaf { protection: code, marks: Marks::empty(), ..leaf };
        assert_eq!(Aarch64::leaf(leaf), 0x0020_0000_1234_5bc3);
        // AF, type, valid: 0x400 + 2 + 1.
        assert_eq!(Aarch64::table(Frame(2)), 0x2403);
        // UXN, PXN; nG, SH, AP[2], AP[1], type: 0x800 + 0x300 + 0x80 + 0x40 + 2.
        let leaf = Leaf { protection: Protection::empty(), ..leaf };
        assert_eq!(Aarch64::leaf(leaf), 0x0060_0000_1234_5bc2);
        // Bit 2, and the ticket from bit 12 on.
        assert_eq!(Aarch64::claim(5), 0x5004);
    }

    #[test]
    fn large_entries_match_the_manual() {
        // The same bits as for a page, and type 0.
        let leaf = Leaf { frame: Frame(0x12200), protection: READ_WRITE, marks: Marks::ACCESSED };
        assert_eq!(Aarch64::large_leaf(leaf, 1), 0x0068_0000_1220_0fc1);
        let leaf = Leaf { frame: Frame(0x80000), ..leaf };
        assert_eq!(Aarch64::large_leaf(leaf, 2), 0x0068_0000_8000_0fc1);
        let leaf = Leaf { protection: Protection::empty(), ..leaf };
        assert_eq!(Aarch64::large_leaf(leaf, 2), 0x0060_0000_8000_0fc0);
    }

    #[test]
    fn dirty_mark_survives_loss_of_write_permission() {
        let dirty = Leaf { frame: Frame(1), protection: READ_WRITE, marks: Marks::DIRTY };
        // DBM and AP[2] encode the mark. Without the permission to write, bit 55 does, and AP[2]
        // forbids writes.
        assert_eq!(Aarch64::leaf(dirty) & 0x0088_0000_0000_0080, 0x0008_0000_0000_0000);
        for protection in [Protection::READ, Protection::empty()] {
            let entry = Aarch64::leaf(Leaf { protection, ..dirty });
            assert_eq!(entry & 0x0088_0000_0000_0080, 0x0080_0000_0000_0080);
        }
        // Linux also sets bit 55 in writable pages. Such an entry is decoded correctly.
        let as_linux = Aarch64::leaf(dirty) | 0x0080_0000_0000_0000;
        assert_eq!(Aarch64::as_leaf(as_linux), Some(dirty));
    }

    #[test]
    fn type_of_another_level_is_not_a_leaf() {
        let leaf = Leaf { frame: Frame(0), protection: READ_WRITE, marks: Marks::all() };
        assert_eq!(Aarch64::as_leaf(Aarch64::large_leaf(leaf, 1)), None);
        assert_eq!(Aarch64::as_large_leaf(Aarch64::leaf(leaf), 1), None);
    }
}
