//! x86-64, four levels, as in Intel's manual, volume 3A, section 4.5.
//!
//! It is assumed that there are no shadow stacks (section 4.6): a CPU that has them takes a dirty
//! page that is not writable for a part of one. (Linux: `_PAGE_SAVED_DIRTY`.)

use super::{Format, Leaf, Marks, assert_large, bit_if, is_large_level};
use crate::area::Protection;
use crate::platform::Frame;

/// Page tables of x86-64 in long mode: four levels of 512 entries.
///
/// ```text
///  63  62      52 51                  12 11  9  8  7  6  5  4  3  2   1   0
/// ┌────┬─────────┬──────────────────────┬─────┬──┬──┬──┬──┬─────┬────┬────┬───┐
/// │ NX │         │ frame                │     │G │PS│D │A │     │ US │ RW │ P │
/// └────┴─────────┴──────────────────────┴─────┴──┴──┴──┴──┴─────┴────┴────┴───┘
/// ```
///
/// Where P is 0, the MMU looks at nothing else. A page to which no access is allowed then keeps
/// its frame and has G set, as Linux has it (`_PAGE_PROTNONE`); a claim has bit 9 set, and its
/// ticket above.
///
/// PS is set in large leaves, whether they are present or not, and only there: at level 1, of
/// 2 MiB, and at level 2, of 1 GiB, if the CPU knows them (CPUID 80000001H, EDX bit 26). Their
/// frame begins at bit 21 or 30. (Bit 12 is PAT there, as bit 7 is at level 0: always 0.)
#[derive(Clone, Copy, Debug)]
pub enum X86_64 {}

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// PS: a leaf above level 0.
const LARGE: u64 = 1 << 7;
/// The meaning of G where P is 0.
const NO_ACCESS: u64 = 1 << 8;
const CLAIM: u64 = 1 << 9;
const CLAIM_TICKET_SHIFT: u32 = 10;
const FRAME: u64 = 0x000f_ffff_ffff_f000;
const NO_EXECUTE: u64 = 1 << 63;

impl Format for X86_64 {
    const LEVELS: usize = 4;
    const INDEX_BITS: u32 = 9;
    const LEAF_LEVEL_MAX: usize = 2;

    #[inline]
    fn table(table: Frame) -> u64 {
        // Permissions are the leaf's alone; accessed, for we know that it will be.
        table.address() | PRESENT | WRITABLE | USER | ACCESSED
    }

    #[inline]
    fn as_table(entry: u64) -> Option<Frame> {
        (entry & (PRESENT | LARGE) == PRESENT).then_some(frame_of(entry))
    }

    #[inline]
    fn leaf(leaf: Leaf) -> u64 {
        let Leaf { frame, protection, marks } = leaf;
        frame.address()
            | bit_if(!protection.is_empty(), PRESENT | USER)
            | bit_if(protection.is_empty(), NO_ACCESS)
            | bit_if(protection.contains(Protection::WRITE), WRITABLE)
            | bit_if(!protection.contains(Protection::EXECUTE), NO_EXECUTE)
            | bit_if(marks.contains(Marks::ACCESSED), ACCESSED)
            | bit_if(marks.contains(Marks::DIRTY), DIRTY)
    }

    #[inline]
    fn as_leaf(entry: u64) -> Option<Leaf> {
        let mut protection = Protection::empty();
        if entry & PRESENT != 0 {
            protection |= Protection::READ;
            protection.set(Protection::WRITE, entry & WRITABLE != 0);
            protection.set(Protection::EXECUTE, entry & NO_EXECUTE == 0);
        } else if entry & (CLAIM | NO_ACCESS) != NO_ACCESS {
            return None;
        }
        let mut marks = Marks::empty();
        marks.set(Marks::ACCESSED, entry & ACCESSED != 0);
        marks.set(Marks::DIRTY, entry & DIRTY != 0);
        Some(Leaf { frame: frame_of(entry), protection, marks })
    }

    #[inline]
    fn large_leaf(leaf: Leaf, level: usize) -> u64 {
        assert_large::<Self>(leaf.frame, level);
        Self::leaf(leaf) | LARGE
    }

    #[inline]
    fn as_large_leaf(entry: u64, level: usize) -> Option<Leaf> {
        debug_assert!(level != 0, "bit 7 is another one there");
        if is_large_level::<Self>(level) && entry & LARGE != 0 {
            Self::as_leaf(entry)
        } else {
            None
        }
    }

    #[inline]
    fn claim(ticket: u64) -> u64 {
        (ticket << CLAIM_TICKET_SHIFT) | CLAIM
    }
}

const fn frame_of(entry: u64) -> Frame {
    Frame((entry & FRAME) >> 12)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::{Hardware, format_checks};

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
    fn entries_are_the_hardwares() {
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
    fn large_entries_are_the_hardwares() {
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

    #[test]
    fn a_walk_takes_nine_bits_at_each_level() {
        let address = (1 << 39) | (2 << 30) | (3 << 21) | (4 << 12) | 5;
        let indices = [3, 2, 1, 0].map(|level| X86_64::index(address, level));
        assert_eq!(indices, [1, 2, 3, 4]);
    }
}
