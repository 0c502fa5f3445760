//! RISC-V with 64 bits, three or four levels, as in its manual, volume II, chapter
//! "Supervisor-Level ISA", sections "Sv39" and "Sv48": the entries are the same.
//!
//! # Requirements on the hardware and the kernel
//!
//! - The MMU must set A and D (Svadu, with `menvcfg.ADUE` set). If it does not (Svade), an access
//!   that only needs a mark faults repeatedly, because [`fault`](crate::AddressSpace::fault) finds
//!   nothing to change.
//! - A CPU may cache that an entry was invalid, or keep a translation that has refused a write. The
//!   handler of a page fault must therefore execute `SFENCE.VMA` for the page, on this CPU, before
//!   the access is retried, whether the entry was changed or not. (Linux: `update_mmu_cache`.) With
//!   Svvptc this is unnecessary if the entry was invalid.

use super::{Bits, Format};

/// Page tables of RISC-V with 39 bits of address: three levels of 512 entries.
///
/// User code has the lower half, which ends at 2^38: see [`RiscV`].
pub type Sv39 = RiscV<3>;

/// Page tables of RISC-V with 48 bits of address: four levels of 512 entries.
///
/// User code has the lower half, which ends at 2^47: see [`RiscV`].
pub type Sv48 = RiscV<4>;

/// Page tables of RISC-V: [`Sv39`] with 3 levels, [`Sv48`] with 4.
///
/// ```text
///   63 62  61 60 54 53                  10 9   8  7   6   5   4   3   2   1   0
/// ┌───┬──────┬─────┬──────────────────────┬─────┬───┬───┬───┬───┬───┬───┬───┬───┐
/// │ N │ PBMT │     │ frame                │ RSW │ D │ A │ G │ U │ X │ W │ R │ V │
/// └───┴──────┴─────┴──────────────────────┴─────┴───┴───┴───┴───┴───┴───┴───┴───┘
/// ```
///
/// N and PBMT, of Svnapot and Svpbmt, are always 0, and so are the reserved bits below them. If V
/// is 1 and one of R, W and X is 1, the entry is a leaf, at any level: of 2 MiB at level 1, of 1
/// GiB at level 2. If V is 1 and R, W and X are 0, the entry points to a table, and D, A and U must
/// be 0.
///
/// If V is 0, the MMU ignores all other bits. A page to which no access is allowed then keeps its
/// frame and marks and has G set, as in Linux (`_PAGE_PROT_NONE`). A claim has bit 8 set, the lower
/// bit of RSW, and its ticket above RSW.
#[derive(Clone, Copy, Debug)]
pub enum RiscV<const LEVELS: usize> {}

const VALID: u64 = 1 << 0;
const READABLE: u64 = 1 << 1;
const WRITABLE: u64 = 1 << 2;
const EXECUTABLE: u64 = 1 << 3;
const USER: u64 = 1 << 4;
const ACCESSED: u64 = 1 << 6;
const DIRTY: u64 = 1 << 7;

impl<const LEVELS: usize> Format for RiscV<LEVELS> {
    const LEVELS: usize = {
        assert!(LEVELS == 3 || LEVELS == 4, "Sv39 or Sv48");
        LEVELS
    };
    const BITS: Bits = Bits {
        frame: 0x003f_ffff_ffff_fc00,
        frame_shift: 10,
        table: VALID,
        table_mask: VALID | READABLE | WRITABLE | EXECUTABLE,
        leaf: 0,
        // A leaf has the same bits at every level.
        page: 0,
        large: 0,
        // Every accessible leaf is readable: W without R is reserved.
        accessible: VALID | READABLE | USER,
        // G.
        inaccessible: 1 << 5,
        writable: WRITABLE,
        executable: EXECUTABLE,
        not_executable: 0,
        accessed: ACCESSED,
        inaccessible_accessed: ACCESSED,
        dirty: DIRTY,
        not_writable_dirty: DIRTY,
        clean: 0,
        claim: 1 << 8,
        ticket_shift: 10,
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::Protection;
    use crate::format::tests::{Hardware, format_checks};
    use crate::format::{Leaf, Marks};
    use crate::platform::Frame;

    impl<const LEVELS: usize> Hardware for RiscV<LEVELS> {
        // Bits 53 to 10.
        const FRAME_BITS: u32 = 44;

        fn is_valid(entry: u64) -> bool {
            entry & 1 != 0
        }

        fn read(entry: u64) -> u64 {
            entry | 0x40
        }

        fn written(entry: u64) -> Option<u64> {
            (entry & 4 != 0).then_some(entry | 0xc0)
        }
    }

    mod sv39 {
        use super::*;
        format_checks!(Sv39);
    }

    mod sv48 {
        use super::*;
        format_checks!(Sv48);
    }

    #[test]
    fn entries_match_the_manual() {
        assert_eq!((Sv39::LEVELS, Sv48::LEVELS), (3, 4));
        let leaf = Leaf {
            frame: Frame(0x12345),
            protection: Protection::READ | Protection::WRITE,
            marks: Marks::ACCESSED | Marks::DIRTY,
        };
        // The frame, times 2^10, is 0x048d_1400. D (7), A (6), U (4), W (2), R (1), V (0): 0x80 +
        // 0x40 + 0x10 + 4 + 2 + 1.
        assert_eq!(Sv39::leaf(leaf), 0x048d_14d7);
        // U, X (3), R, V: 0x10 + 8 + 2 + 1.
        let code = Protection::READ | Protection::EXECUTE;
        let leaf = Leaf { protection: code, marks: Marks::empty(), ..leaf };
        assert_eq!(Sv39::leaf(leaf), 0x048d_141b);
        // V alone.
        assert_eq!(Sv39::table(Frame(2)), 0x801);
        // D, G (5): 0x80 + 0x20.
        let leaf = Leaf { protection: Protection::empty(), marks: Marks::DIRTY, ..leaf };
        assert_eq!(Sv39::leaf(leaf), 0x048d_14a0);
        // Bit 8, and the ticket from bit 10 on: 0x100 + 5 * 0x400.
        assert_eq!(Sv39::claim(5), 0x1500);
    }

    #[test]
    fn large_entries_match_the_manual() {
        // The same bits as for a page: only the level makes an entry large.
        let leaf = Leaf {
            frame: Frame(0x12200),
            protection: Protection::READ | Protection::WRITE,
            marks: Marks::ACCESSED,
        };
        // 0x12200 times 2^10; A, U, W, R, V: 0x40 + 0x10 + 4 + 2 + 1.
        assert_eq!(Sv39::large_leaf(leaf, 1), 0x0488_0057);
        let leaf = Leaf { frame: Frame(0x80000), ..leaf };
        assert_eq!(Sv39::large_leaf(leaf, 2), 0x2000_0057);
        // A, G: 0x40 + 0x20.
        let leaf = Leaf { protection: Protection::empty(), ..leaf };
        assert_eq!(Sv39::large_leaf(leaf, 2), 0x2000_0060);
    }

    #[test]
    fn writable_page_is_always_readable() {
        let leaf = Leaf { frame: Frame(1), protection: Protection::WRITE, marks: Marks::empty() };
        // 1 times 2^10; U, W, R, V: 0x10 + 4 + 2 + 1.
        assert_eq!(Sv39::leaf(leaf), 0x417);
    }
}
