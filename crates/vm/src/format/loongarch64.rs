//! `LoongArch64`, four levels, as in its manual, volume 1, sections "TLB Entry" and "Multi-level
//! Page Table Structure Supported by page walking": pages of 4 KiB, addresses of 48 bits.
//!
//! # Table walks
//!
//! Tables are walked by software, with the instructions `LDDIR` and `LDPTE` in the handler of TLB
//! refills, or by a hardware walker (HPTW, from the 3A6000 on). The format is the same for both.
//! The TLB holds pages in pairs, an even page and the next one; a large page is a pair of its
//! halves.
//!
//! # Accessed and dirty pages
//!
//! The TLB examines V and D, and changes neither. A page with V clear refuses every access (PIL,
//! PIS, PIF), and one with D clear refuses writes (PME). The TLB ignores the walker's bits, which
//! give the reason of a refusal. If P is set, V is clear only because no CPU has used the page. If
//! W is set, D is clear only because no CPU has written to it. In these cases the entry is marked
//! in memory and the access is retried, by HPTW, or by the kernel's handler of those exceptions,
//! which has the role of the MMU for [`fault`](crate::AddressSpace::fault). So V is the accessed
//! bit and D the dirty bit, and a page without the mark does not allow the access:
//!
//! |                  | W | D | bit 9 |
//! |------------------|---|---|-------|
//! | writable, clean  | 1 | 0 | 0     |
//! | writable, dirty  | 1 | 1 | 0     |
//! | read-only, clean | 0 | 0 | 0     |
//! | read-only, dirty | 0 | 0 | 1     |
//!
//! The hardware never makes the last line. D alone would allow writes, so if writes are forbidden,
//! software keeps the dirty mark in bit 9. Linux calls bit 0 `_PAGE_ACCESSED`, D `_PAGE_DIRTY`, and
//! bit 9 `_PAGE_MODIFIED`; it also sets bit 9 in writable pages. This crate does not, so an entry
//! that HPTW marks equals the entry that software would write.
//!
//! # Requirements on the kernel
//!
//! - CSR.PWCL and CSR.PWCH: [`LoongArch64::PWCL`] and [`LoongArch64::PWCH`]. CSR.STLBPS must be 12.
//! - **The first page of physical memory must be zeros permanently.** `LDDIR` has no notion of an
//!   empty entry: an entry that is 0 points to a table at address 0, whose entries are 0, down to a
//!   page that is not valid. (Linux writes the address of an `invalid_pte_table` instead of 0.)
//! - The handler of PIL, PIS, PIF and PME must mark entries as described above: by an atomic
//!   operation on the entry that it found, provided that the entry still allows the access.
//!   Interrupts must be masked from the exception on: the tables stay until this CPU has handled
//!   the interrupt of the CPU that wants to free them. If the access needs more than marks, the
//!   handler must call [`fault`](crate::AddressSpace::fault). Without that handler, an access that
//!   only needs a mark faults repeatedly, because `fault` finds nothing to change.
//! - The same exceptions leave their pair in the TLB, valid or not, because a refill loads every
//!   entry. Their handler must therefore invalidate the page on this CPU (`INVTLB`) before the
//!   access is retried, whether the entry was changed or not. (Linux: `update_mmu_cache`, which
//!   overwrites the pair.)

use super::{Bits, Format};

/// Page tables of `LoongArch64` with pages of 4 KiB: four levels of 512 entries.
///
/// ```text
///  63   62   61   60    59   58 48 47     12  11    10   9   8   7   6   5   4 3   2  1   0
/// ┌────┬────┬────┬─────┬────┬─────┬─────────┬─────┬────┬───┬───┬───┬───┬─────┬─────┬───┬───┐
/// │RPLV│ NX │ NR │table│ A' │     │ frame   │claim│none│ M │ W │ P │G/H│ MAT │ PLV │ D │ V │
/// └────┴────┴────┴─────┴────┴─────┴─────────┴─────┴────┴───┴───┴───┴───┴─────┴─────┴───┴───┘
/// ```
///
/// Bits 9 to 11, 59 and 60 are reserved for software: walkers ignore them. All leaves are
/// accessible to user code (PLV is 3), coherent and cached (MAT is 1), and of one space (G is 0).
/// Bit 6 is G in a page, and H in entries above level 0. There H distinguishes a large leaf, of 2
/// MiB at level 1, of 1 GiB at level 2, from a table, and G is bit 12. A table is an address;
/// `LDDIR` defines no bit that marks it, so this format uses bit 60.
///
/// A page to which no access is allowed has P and V clear, and bit 10 set (`_PAGE_PROTNONE`). Its
/// accessed mark is bit 59, because V would make the page valid. A claim has bit 11 set, its ticket
/// above bit 11, and bit 6 clear: a pair in the TLB with G set is valid in every space, for both
/// pages of the pair.
#[derive(Clone, Copy, Debug)]
pub enum LoongArch64 {}

impl LoongArch64 {
    /// Value of CSR.PWCL: the position in an address of the index into a table of level 0
    /// (`PTbase`, `PTwidth`), and of those into tables of levels 1 and 2 (`Dir1`, `Dir2`).
    pub const PWCL: u64 = walk_of(0, 5) | walk_of(1, 5) << 10 | walk_of(2, 5) << 20;
    /// Value of CSR.PWCH, without HPTW, which is bit 24: the position of the index into a table of
    /// level 3 (`Dir3`). There is no level 4.
    pub const PWCH: u64 = walk_of(3, 6);
}

/// Returns the position of the index of a level in an address, and above it the width of the index,
/// in fields of `field_bits` bits.
const fn walk_of(level: u32, field_bits: u32) -> u64 {
    (12 + LoongArch64::INDEX_BITS * level) as u64 | (LoongArch64::INDEX_BITS as u64) << field_bits
}

const LARGE: u64 = 1 << 6;
/// Reserved for software.
const CLAIM: u64 = 1 << 11;
/// Reserved for software.
const TABLE: u64 = 1 << 60;
/// PLV.
const USER: u64 = 3 << 2;
/// MAT: coherent cached.
const CACHED: u64 = 1 << 4;

impl Format for LoongArch64 {
    const LEVELS: usize = 4;
    const BITS: Bits = Bits {
        frame: 0x0000_ffff_ffff_f000,
        frame_shift: 12,
        table: TABLE,
        // The ticket of a claim may contain bit 60.
        table_mask: TABLE | LARGE | CLAIM,
        leaf: USER | CACHED,
        page: 0,
        // H.
        large: LARGE,
        // P.
        accessible: 1 << 7,
        // Reserved for software, as are the other bits from 9 to 11, and bit 59.
        inaccessible: 1 << 10,
        // W.
        writable: 1 << 8,
        executable: 0,
        // NX.
        not_executable: 1 << 62,
        // V.
        accessed: 1 << 0,
        inaccessible_accessed: 1 << 59,
        // D.
        dirty: 1 << 1,
        not_writable_dirty: 1 << 9,
        clean: 0,
        claim: CLAIM,
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

    impl Hardware for LoongArch64 {
        // Bits 47 to 12.
        const FRAME_BITS: u32 = 36;

        fn is_valid(entry: u64) -> bool {
            // The TLB examines V, and walkers examine P. Above level 0, walkers treat every entry
            // without H as a table, so such an entry must be a table of this format.
            entry & 0x81 != 0 || entry & 0x1000_0000_0000_0840 == 0x1000_0000_0000_0000
        }

        fn read(entry: u64) -> u64 {
            entry | 1
        }

        fn written(entry: u64) -> Option<u64> {
            (entry & 0x100 != 0).then_some(entry | 3)
        }
    }

    format_checks!(LoongArch64);

    const READ_WRITE: Protection = Protection::READ.union(Protection::WRITE);

    #[test]
    fn entries_match_the_manual() {
        let leaf = Leaf { frame: Frame(0x12345), protection: READ_WRITE, marks: Marks::all() };
        // NX (62); W (8), P (7), MAT = 1 (5, 4), PLV = 3 (3, 2), D (1), V (0): 0x100 + 0x80 + 0x10
        // + 0xc + 2 + 1.
        assert_eq!(LoongArch64::leaf(leaf), 0x4000_0000_1234_519f);
        let leaf = Leaf { marks: Marks::ACCESSED, ..leaf };
        assert_eq!(LoongArch64::leaf(leaf), 0x4000_0000_1234_519d);
        // P, MAT, PLV: 0x80 + 0x10 + 0xc.
        let code = Protection::READ | Protection::EXECUTE;
        let leaf = Leaf { protection: code, marks: Marks::empty(), ..leaf };
        assert_eq!(LoongArch64::leaf(leaf), 0x0000_0000_1234_509c);
        // Bit 60, which LDDIR ignores. Bits below 12 must be 0.
        assert_eq!(LoongArch64::table(Frame(2)), 0x1000_0000_0000_2000);
        // NX, bit 59; bit 10, bit 9, MAT, PLV: 0x400 + 0x200 + 0x10 + 0xc.
        let leaf = Leaf { protection: Protection::empty(), marks: Marks::all(), ..leaf };
        assert_eq!(LoongArch64::leaf(leaf), 0x4800_0000_1234_561c);
        // Bit 11, and the ticket from bit 12 on.
        assert_eq!(LoongArch64::claim(5), 0x5800);
    }

    #[test]
    fn large_entries_match_the_manual() {
        // The same bits as for a page, and bit 6. Bit 12, which is G, is clear, and so are bits 13
        // and 14, in which LDDIR stores the level.
        let leaf = Leaf { frame: Frame(0x12200), protection: READ_WRITE, marks: Marks::ACCESSED };
        assert_eq!(LoongArch64::large_leaf(leaf, 1), 0x4000_0000_1220_01dd);
        let leaf = Leaf { frame: Frame(0x80000), ..leaf };
        assert_eq!(LoongArch64::large_leaf(leaf, 2), 0x4000_0000_8000_01dd);
        let leaf = Leaf { protection: Protection::empty(), ..leaf };
        assert_eq!(LoongArch64::large_leaf(leaf, 2), 0x4800_0000_8000_045c);
    }

    #[test]
    fn dirty_mark_survives_loss_of_write_permission() {
        let dirty = Leaf { frame: Frame(1), protection: READ_WRITE, marks: Marks::DIRTY };
        // W and D encode the mark. Without the permission to write, bit 9 does, and D forbids
        // writes.
        assert_eq!(LoongArch64::leaf(dirty) & 0x302, 0x102);
        for protection in [Protection::READ, Protection::empty()] {
            let entry = LoongArch64::leaf(Leaf { protection, ..dirty });
            assert_eq!(entry & 0x302, 0x200);
        }
        // Linux also sets bit 9 in writable pages. Such an entry is decoded correctly.
        let as_linux = LoongArch64::leaf(dirty) | 0x200;
        assert_eq!(LoongArch64::as_leaf(as_linux), Some(dirty));
    }

    /// A pair in the TLB with G set is valid in every space, and V alone makes it valid.
    #[test]
    fn no_page_entry_is_global() {
        for bits in [0, 1, u64::MAX >> 12] {
            assert_eq!(LoongArch64::claim(bits) & 0x41, 0);
        }
        let all = Leaf {
            frame: Frame(LoongArch64::BITS.frame >> 12),
            protection: READ_WRITE,
            marks: Marks::all(),
        };
        assert_eq!(LoongArch64::leaf(all) & 0x40, 0);
        let last = Frame(0xf_ffff_fe00);
        assert_eq!(LoongArch64::large_leaf(Leaf { frame: last, ..all }, 1) & 0x7000, 0);
    }

    #[test]
    fn walker_registers_match_the_levels() {
        // "Page walk controller for lower half address space": five fields of five bits each.
        let lower = [0, 5, 10, 15, 20, 25].map(|shift| (LoongArch64::PWCL >> shift) & 0x1f);
        assert_eq!(lower, [12, 9, 21, 9, 30, 9]);
        // PTEWidth is 0: entries of 64 bits.
        assert_eq!(LoongArch64::PWCL >> 30, 0);
        // "... for higher half address space": four fields of six bits.
        let upper = [0, 6, 12, 18].map(|shift| (LoongArch64::PWCH >> shift) & 0x3f);
        assert_eq!(upper, [39, 9, 0, 0]);
        for (level, shift) in [12, 21, 30, 39].into_iter().enumerate() {
            assert_eq!(LoongArch64::span(level), 1 << shift);
        }
    }
}
