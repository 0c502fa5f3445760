//! The decoding of entries by MMUs, from the manuals alone. Nothing here is shared with the memory
//! manager.

use shootdown_vm::{Access, Frame};

/// The decoding and marking of entries by a machine.
#[derive(Clone, Copy)]
pub struct Mmu {
    /// Number of address bits that an entry of the root covers.
    pub(super) root_shift: u32,
    /// Decodes an entry that covers this number of address bits.
    pub(super) decode: fn(u64, u32) -> Decoded,
    /// Returns the entry of a page after an access.
    pub(super) marked: fn(u64, Access) -> u64,
}

/// A decoded entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Decoded {
    Nothing,
    Table(Frame),
    Page(Cached),
}

/// A translation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cached {
    pub(super) frame: Frame,
    pub(super) writable: bool,
    pub(super) executable: bool,
    pub(super) dirty: bool,
}

impl Cached {
    pub(super) fn allows(self, access: Access) -> bool {
        match access {
            Access::Read => true,
            Access::Write => self.writable,
            Access::Execute => self.executable,
        }
    }
}

/// Intel, volume 3A, section 4.5.
pub const X86_64: Mmu = Mmu {
    root_shift: 39,
    decode: |entry, shift| {
        if !bit(entry, 0) {
            return Decoded::Nothing;
        }
        let frame = Frame(entry >> 12 & 0xff_ffff_ffff);
        if shift > 12 && !bit(entry, 7) {
            return Decoded::Table(frame);
        }
        check(frame, shift);
        let (writable, executable, dirty) = (bit(entry, 1), !bit(entry, 63), bit(entry, 6));
        // A page that user code cannot access is not a page for these tests.
        let page = Cached { frame, writable, executable, dirty };
        if bit(entry, 2) { Decoded::Page(page) } else { Decoded::Nothing }
    },
    marked: |entry, access| entry | if access == Access::Write { 0x60 } else { 0x20 },
};

/// Arm, chapter D8, with the dirty bit modifier.
pub const AARCH64: Mmu = Mmu {
    root_shift: 39,
    decode: |entry, shift| {
        if !bit(entry, 0) || shift == 12 && !bit(entry, 1) {
            return Decoded::Nothing;
        }
        let frame = Frame(entry >> 12 & 0xf_ffff_ffff);
        if shift > 12 && bit(entry, 1) {
            return Decoded::Table(frame);
        }
        check(frame, shift);
        let (dbm, read_only) = (bit(entry, 51), bit(entry, 7));
        let (writable, executable, dirty) = (dbm || !read_only, !bit(entry, 54), !read_only);
        Decoded::Page(Cached { frame, writable, executable, dirty })
    },
    marked: |entry, access| {
        let used = entry | 1 << 10;
        if access == Access::Write { used & !(1 << 7) } else { used }
    },
};

/// `LoongArch`, volume 1, section "Multi-level Page Table Structure Supported by page walking".
pub const LOONGARCH64: Mmu = Mmu {
    root_shift: 39,
    decode: |entry, shift| {
        let frame = Frame(entry >> 12 & 0xf_ffff_ffff);
        if shift > 12 && !bit(entry, 6) {
            assert_eq!(entry & 0xfff, 0, "a table entry has flags");
            // The table at address 0 contains zeros.
            return if frame == Frame(0) { Decoded::Nothing } else { Decoded::Table(frame) };
        }
        assert!(shift > 12 || !bit(entry, 6), "a global page");
        assert!(bit(entry, 7) || !bit(entry, 0), "V is set without P");
        if !bit(entry, 7) {
            return Decoded::Nothing;
        }
        check(frame, shift);
        let (writable, executable, dirty) = (bit(entry, 8), !bit(entry, 62), bit(entry, 1));
        assert!(writable || !dirty, "the TLB would allow writes to a dirty page");
        let page = Cached { frame, writable, executable, dirty };
        if entry & 0xc == 0xc { Decoded::Page(page) } else { Decoded::Nothing }
    },
    marked: |entry, access| entry | if access == Access::Write { 3 } else { 1 },
};

/// RISC-V, volume II, section "Sv39".
pub const SV39: Mmu = Mmu {
    root_shift: 30,
    decode: |entry, shift| {
        if !bit(entry, 0) {
            return Decoded::Nothing;
        }
        let frame = Frame(entry >> 10 & 0xfff_ffff_ffff);
        if entry & 0xe == 0 {
            assert!(shift > 12, "a table entry at level 0");
            return Decoded::Table(frame);
        }
        check(frame, shift);
        let (writable, executable, dirty) = (bit(entry, 2), bit(entry, 3), bit(entry, 7));
        Decoded::Page(Cached { frame, writable, executable, dirty })
    },
    marked: |entry, access| entry | if access == Access::Write { 0xc0 } else { 0x40 },
};

/// Checks that a large page begins at a multiple of its size.
fn check(frame: Frame, shift: u32) {
    assert_eq!(
        frame.0 & ((1 << (shift - 12)) - 1),
        0,
        "{frame:?} is misaligned for 2^{shift} bytes"
    );
}

const fn bit(entry: u64, number: u32) -> bool {
    entry >> number & 1 != 0
}
