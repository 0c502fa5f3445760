//! x86-64, four levels, as in Intel's manual, volume 3A, section 4.5.

use super::{Format, Leaf, Marks};
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
#[derive(Clone, Copy, Debug)]
pub enum X86_64 {}

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// The meaning of G where P is 0.
const NO_ACCESS: u64 = 1 << 8;
const CLAIM: u64 = 1 << 9;
const CLAIM_TICKET_SHIFT: u32 = 10;
const FRAME: u64 = 0x000f_ffff_ffff_f000;
const NO_EXECUTE: u64 = 1 << 63;

impl Format for X86_64 {
    const LEVELS: usize = 4;
    const INDEX_BITS: u32 = 9;

    fn table(table: Frame) -> u64 {
        // Permissions are the leaf's alone; accessed, for we know that it will be.
        table.address() | PRESENT | WRITABLE | USER | ACCESSED
    }

    fn as_table(entry: u64) -> Option<Frame> {
        (entry & PRESENT != 0).then_some(frame_of(entry))
    }

    fn leaf(leaf: Leaf) -> u64 {
        let bit = |bit, is_set| if is_set { bit } else { 0 };
        leaf.frame.address()
            | bit(PRESENT | USER, !leaf.protection.is_empty())
            | bit(NO_ACCESS, leaf.protection.is_empty())
            | bit(WRITABLE, leaf.protection.contains(Protection::WRITE))
            | bit(NO_EXECUTE, !leaf.protection.contains(Protection::EXECUTE))
            | bit(ACCESSED, leaf.marks.contains(Marks::ACCESSED))
            | bit(DIRTY, leaf.marks.contains(Marks::DIRTY))
    }

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
    use crate::EMPTY;

    #[test]
    fn entries_are_the_hardwares() {
        let leaf = Leaf {
            frame: Frame(0x12345),
            protection: Protection::READ | Protection::WRITE,
            marks: Marks::ACCESSED | Marks::DIRTY,
        };
        assert_eq!(X86_64::leaf(leaf), 0x8000_0000_1234_5067);
        let code = Protection::READ | Protection::EXECUTE;
        let leaf = Leaf { protection: code, marks: Marks::empty(), ..leaf };
        assert_eq!(X86_64::leaf(leaf), 0x1234_5005);
        assert_eq!(X86_64::table(Frame(2)), 0x2027);
    }

    #[test]
    fn every_leaf_is_read_as_it_was_written() {
        for protection in (0..8).map(Protection::from_bits_truncate).map(Protection::as_enforced) {
            for marks in (0..4).map(Marks::from_bits_truncate) {
                let leaf = Leaf { frame: Frame(0xff_ffff_ffff), protection, marks };
                let entry = X86_64::leaf(leaf);
                assert_eq!(X86_64::as_leaf(entry), Some(leaf));
                assert_eq!(entry & PRESENT != 0, !protection.is_empty());
            }
        }
        assert_eq!(X86_64::as_leaf(EMPTY), None);
    }

    #[test]
    fn a_claim_holds_nothing_whatever_its_ticket() {
        for ticket in [0, 1, 0x5555_5555, u64::MAX >> CLAIM_TICKET_SHIFT] {
            let entry = X86_64::claim(ticket);
            assert!(entry != EMPTY && entry & PRESENT == 0);
            assert_eq!(X86_64::as_leaf(entry), None);
        }
    }

    #[test]
    fn a_walk_takes_nine_bits_at_each_level() {
        let address = (1 << 39) | (2 << 30) | (3 << 21) | (4 << 12) | 5;
        let indices = [3, 2, 1, 0].map(|level| X86_64::index(address, level));
        assert_eq!(indices, [1, 2, 3, 4]);
        assert_eq!(X86_64::span(1), 2 << 20);
    }
}
