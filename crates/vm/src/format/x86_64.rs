//! x86-64, four levels, as in Intel's manual, volume 3A, section 4.5.
//!
//! Shadow stacks (section 4.6) must be disabled: a CPU with shadow stacks treats a page that is
//! dirty and not writable as part of one. (Linux: `_PAGE_SAVED_DIRTY`.)

use super::{Bits, Format};

/// Page tables of x86-64 in long mode: four levels of 512 entries.
///
/// ```text
///  63  62      52 51                  12 11  9  8  7  6  5  4  3  2   1   0
/// ┌────┬─────────┬──────────────────────┬─────┬──┬──┬──┬──┬─────┬────┬────┬───┐
/// │ NX │         │ frame                │     │G │PS│D │A │     │ US │ RW │ P │
/// └────┴─────────┴──────────────────────┴─────┴──┴──┴──┴──┴─────┴────┴────┴───┘
/// ```
///
/// If P is 0, the MMU ignores all other bits. A page to which no access is allowed then keeps its
/// frame and has G set, as in Linux (`_PAGE_PROTNONE`). A claim has bit 9 set, and its ticket above
/// bit 9.
///
/// PS is set only in large leaves, whether they are present or not: at level 1, of 2 MiB, and at
/// level 2, of 1 GiB, if the CPU supports them (CPUID 80000001H, EDX bit 26). Their frame begins at
/// bit 21 or 30. Bit 12 is PAT in a large leaf, as bit 7 is at level 0; PAT is always 0 here.
#[derive(Clone, Copy, Debug)]
pub enum X86_64 {}

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// PS.
const LARGE: u64 = 1 << 7;

impl Format for X86_64 {
    const LEVELS: usize = 4;
    const BITS: Bits = Bits {
        frame: 0x000f_ffff_ffff_f000,
        frame_shift: 12,
        // The leaf alone restricts permissions. A table is marked as accessed when it is written,
        // because the MMU would mark it at its first use.
        table: PRESENT | WRITABLE | USER | ACCESSED,
        table_mask: PRESENT | LARGE,
        leaf: 0,
        page: 0,
        large: LARGE,
        accessible: PRESENT | USER,
        // G.
        inaccessible: 1 << 8,
        writable: WRITABLE,
        executable: 0,
        // NX.
        not_executable: 1 << 63,
        accessed: ACCESSED,
        inaccessible_accessed: ACCESSED,
        dirty: DIRTY,
        not_writable_dirty: DIRTY,
        clean: 0,
        claim: 1 << 9,
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

    impl Hardware for X86_64 {
        // Bits 51 to 12.
        const FRAME_BITS: u32 = 40;

        fn is_valid(entry: u64) -> bool {
            entry & 1 != 0
        }

        fn read(entry: u64) -> u64 {
            entry | 0x20
        }

        fn written(entry: u64) -> Option<u64> {
            (entry & 2 != 0).then_some(entry | 0x60)
        }
    }

    format_checks!(X86_64);

    #[test]
    fn entries_match_the_manual() {
        let leaf = Leaf {
            frame: Frame(0x12345),
            protection: Protection::READ | Protection::WRITE,
            marks: Marks::ACCESSED | Marks::DIRTY,
        };
        // NX (63); D (6), A (5), US (2), RW (1), P (0): 0x40 + 0x20 + 4 + 2 + 1.
        assert_eq!(X86_64::leaf(leaf), 0x8000_0000_1234_5067);
        let code = Protection::READ | Protection::EXECUTE;
        // US, P.
        let leaf = Leaf { protection: code, marks: Marks::empty(), ..leaf };
        assert_eq!(X86_64::leaf(leaf), 0x1234_5005);
        // A, US, RW, P: 0x20 + 4 + 2 + 1.
        assert_eq!(X86_64::table(Frame(2)), 0x2027);
        // NX; G (8), D: 0x100 + 0x40.
        let protection = Protection::empty();
        let leaf = Leaf { protection, marks: Marks::DIRTY, ..leaf };
        assert_eq!(X86_64::leaf(leaf), 0x8000_0000_1234_5140);
        // Bit 9, and the ticket from bit 10 on: 0x200 + 5 * 0x400.
        assert_eq!(X86_64::claim(5), 0x1600);
    }

    #[test]
    fn large_entries_match_the_manual() {
        let leaf = Leaf {
            frame: Frame(0x12200),
            protection: Protection::READ | Protection::WRITE,
            marks: Marks::ACCESSED,
        };
        // NX; PS (7), A, US, RW, P: 0x80 + 0x20 + 4 + 2 + 1.
        assert_eq!(X86_64::large_leaf(leaf, 1), 0x8000_0000_1220_00a7);
        let leaf = Leaf { frame: Frame(0x80000), ..leaf };
        assert_eq!(X86_64::large_leaf(leaf, 2), 0x8000_0000_8000_00a7);
        // NX; G, PS, A: 0x100 + 0x80 + 0x20.
        let leaf = Leaf { protection: Protection::empty(), ..leaf };
        assert_eq!(X86_64::large_leaf(leaf, 2), 0x8000_0000_8000_01a0);
    }
}
