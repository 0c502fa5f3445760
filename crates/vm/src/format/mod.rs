//! The bits of a page-table entry, as an MMU defines them.
//!
//! Each architecture is a table of bit positions, [`Bits`]; the code that reads and writes entries
//! is shared.
//!
//! Three published crates contain such bits, and none of them fits:
//!
//! - `x86_64` (0.15) and `ax-page-table-multiarch` (0.8) change plain words through `&mut`. The
//!   entries here are also written by the hardware (accessed, dirty) and by faults on other CPUs.
//! - `ax-page-table-multiarch` also reaches its machine through functions without a `self`, so that
//!   a program can have only one machine; it flushes when its cursor is dropped, and keeps empty
//!   tables until the end.
//! - `aarch64-paging` (0.12) has atomic entries, but supports one architecture, and sends
//!   invalidations by itself.
//!
//! Only a table of constants could be taken from any of them.

pub(crate) mod aarch64;
pub(crate) mod loongarch64;
pub(crate) mod riscv;
pub(crate) mod x86_64;

#[cfg(test)]
mod tests;

use crate::area::Protection;
use crate::platform::Frame;

/// The value of an entry that was never written, at any level of any format.
pub const EMPTY: u64 = 0;

bitflags::bitflags! {
    /// The marks that the hardware sets in a leaf entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Marks: u8 {
        /// A CPU has used the translation.
        const ACCESSED = 1;
        /// A CPU has written through the translation.
        const DIRTY = 2;
    }
}

/// The contents of an entry that maps a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The page, or the first frame of a large page.
    pub frame: Frame,
    /// The accesses that the MMU allows user code. If it is empty, the entry is not present to the
    /// MMU, and still holds its page.
    pub protection: Protection,
    /// The marks that the MMU has set.
    pub marks: Marks,
}

/// The bits of an architecture's page-table entries.
///
/// A field is 0 if the architecture has no such bit. The fields for leaves do not share bits,
/// unless their documentation allows it.
#[derive(Clone, Copy, Debug)]
pub struct Bits {
    /// The field that holds the number of a frame.
    pub frame: u64,
    /// The lowest bit of that field.
    pub frame_shift: u32,
    /// All bits of an entry that points to a table, except the frame.
    pub table: u64,
    /// The bits that distinguish a table: under this mask, only an entry that points to a table
    /// equals [`table`](Self::table).
    pub table_mask: u64,
    /// Set in every leaf.
    pub leaf: u64,
    /// Set in a leaf at level 0, and clear in a large leaf.
    pub page: u64,
    /// Set in a large leaf, and clear in a leaf at level 0.
    pub large: u64,
    /// Set, all of them, in a leaf to which some access is allowed, and in no other leaf. The bit
    /// that makes an entry present to a table walker is among them.
    pub accessible: u64,
    /// Set in a leaf to which no access is allowed, and clear in tables and claims. It may be among
    /// [`leaf`](Self::leaf), because it is examined only in entries that are not accessible.
    pub inaccessible: u64,
    /// Set in a leaf that may be written.
    pub writable: u64,
    /// Set in a leaf that may be executed.
    pub executable: u64,
    /// Set in a leaf that may not be executed.
    pub not_executable: u64,
    /// Set in an accessible leaf that was accessed.
    pub accessed: u64,
    /// Set in an inaccessible leaf that was accessed. May equal [`accessed`](Self::accessed).
    pub inaccessible_accessed: u64,
    /// Set in a writable leaf that is dirty.
    pub dirty: u64,
    /// Set in a leaf that is dirty and not writable. May equal [`dirty`](Self::dirty).
    pub not_writable_dirty: u64,
    /// Set in every leaf, except one that is both writable and dirty.
    pub clean: u64,
    /// Set in a claim.
    pub claim: u64,
    /// The lowest bit of a claim's ticket.
    pub ticket_shift: u32,
}

/// A format of page tables: of 4 KiB each, with entries of 64 bits.
///
/// Levels are counted from the leaves up: the entries at level 0 map pages, those at level
/// [`LEVELS`](Self::LEVELS) - 1 are in the root. An entry at levels 1 to
/// [`LEAF_LEVEL_MAX`](Self::LEAF_LEVEL_MAX) may be a leaf also: it maps a large page.
///
/// A value that is read from an entry at a level is exactly one of these: [`EMPTY`], a table, a
/// leaf, or a claim, which is any value that is none of the other three. The same value may be read
/// as another kind at another level.
///
/// # From a table to a large leaf, and back
///
/// Never replace a table by a large leaf, or a large leaf by a table, in one step: empty or claim
/// the entry in between, and flush. Otherwise a CPU may use both at the same time. Arm forbids this
/// (*break-before-make*), and an Intel CPU then uses either of the two at any access (volume 3A,
/// section 4.10.2).
pub trait Format {
    /// Number of tables that a walk visits.
    const LEVELS: usize;
    /// The positions of the bits.
    const BITS: Bits;
    /// Number of address bits that index an entry of a table.
    const INDEX_BITS: u32 = 9;
    /// The highest level at which an entry may map a page.
    const LEAF_LEVEL_MAX: usize = 2;

    /// Encodes an entry that points to a table of the level below.
    #[inline]
    #[must_use]
    fn table(table: Frame) -> u64 {
        frame_field::<Self>(table) | Self::BITS.table
    }

    /// Returns the table that an entry above level 0 points to; `None` if the entry is empty, a
    /// claim or a large leaf.
    #[inline]
    #[must_use]
    fn as_table(entry: u64) -> Option<Frame> {
        let is_table = (entry ^ Self::BITS.table) & Self::BITS.table_mask == 0;
        is_table.then_some(frame_of::<Self>(entry))
    }

    /// Encodes a leaf entry at level 0.
    #[inline]
    #[must_use]
    fn leaf(leaf: Leaf) -> u64 {
        encode::<Self>(leaf) | Self::BITS.page
    }

    /// Decodes an entry at level 0; `None` if it holds no page.
    #[inline]
    #[must_use]
    fn as_leaf(entry: u64) -> Option<Leaf> {
        let is_page = entry & (Self::BITS.page | Self::BITS.large) == Self::BITS.page;
        if is_page { decode::<Self>(entry) } else { None }
    }

    /// Encodes an entry at `level` that maps all that it covers. The level must be from 1 to
    /// [`LEAF_LEVEL_MAX`](Self::LEAF_LEVEL_MAX). The address of the frame must be a multiple of
    /// [`span`](Self::span), because MMUs refuse other addresses or round them down.
    ///
    /// # Panics
    ///
    /// If debug assertions are enabled, and one of the two conditions does not hold.
    #[inline]
    #[must_use]
    fn large_leaf(leaf: Leaf, level: usize) -> u64 {
        debug_assert!(
            (1..=Self::LEAF_LEVEL_MAX).contains(&level),
            "no large leaf at level {level}"
        );
        debug_assert!(
            leaf.frame.address().is_multiple_of(Self::span(level)),
            "{:x?} is not the first frame of a page at level {level}",
            leaf.frame,
        );
        encode::<Self>(leaf) | Self::BITS.large
    }

    /// Decodes an entry at `level`, which must not be 0, if it is a leaf; `None` if it is a table
    /// or holds no page. There are no leaves above [`LEAF_LEVEL_MAX`](Self::LEAF_LEVEL_MAX).
    #[inline]
    #[must_use]
    fn as_large_leaf(entry: u64, level: usize) -> Option<Leaf> {
        debug_assert!(level != 0, "the bit of a large leaf has another meaning at level 0");
        let is_large = entry & (Self::BITS.page | Self::BITS.large) == Self::BITS.large;
        if is_large && level <= Self::LEAF_LEVEL_MAX { decode::<Self>(entry) } else { None }
    }

    /// Encodes a claim: an entry that holds no page, is not [`EMPTY`], and differs for every ticket
    /// below 2^52. Claims are at level 0, where they are not present to the MMU.
    #[inline]
    #[must_use]
    fn claim(ticket: u64) -> u64 {
        (ticket << Self::BITS.ticket_shift) | Self::BITS.claim
    }

    /// Encodes an entry at `level` that maps all that it covers: a page, or a large page.
    #[inline]
    #[must_use]
    fn leaf_at(leaf: Leaf, level: usize) -> u64 {
        if level == 0 { Self::leaf(leaf) } else { Self::large_leaf(leaf, level) }
    }

    /// Decodes an entry at `level` if it is a leaf.
    #[inline]
    #[must_use]
    fn as_leaf_at(entry: u64, level: usize) -> Option<Leaf> {
        if level == 0 { Self::as_leaf(entry) } else { Self::as_large_leaf(entry, level) }
    }

    /// Number of bytes that one entry at `level` covers.
    #[inline]
    #[must_use]
    fn span(level: usize) -> u64 {
        crate::PAGE_BYTES << (Self::INDEX_BITS * level as u32)
    }

    /// Index of the entry for `address` in a table at `level`.
    #[inline]
    #[must_use]
    fn index(address: u64, level: usize) -> usize {
        (address / Self::span(level)) as usize & ((1 << Self::INDEX_BITS) - 1)
    }
}

/// Encodes a leaf without the bits for its level.
#[inline]
fn encode<F: Format + ?Sized>(leaf: Leaf) -> u64 {
    let bits = F::BITS;
    let Leaf { frame, protection, marks } = leaf;
    let is_accessible = !protection.is_empty();
    let is_writable = protection.contains(Protection::WRITE);
    let is_executable = protection.contains(Protection::EXECUTE);
    let is_dirty = marks.contains(Marks::DIRTY);
    frame_field::<F>(frame)
        | bits.leaf
        | if is_accessible { bits.accessible } else { bits.inaccessible }
        | if is_executable { bits.executable } else { bits.not_executable }
        | bit_if(is_writable, bits.writable)
        | bit_if(is_dirty, if is_writable { bits.dirty } else { bits.not_writable_dirty })
        | bit_if(!(is_writable && is_dirty), bits.clean)
        | bit_if(
            marks.contains(Marks::ACCESSED),
            if is_accessible { bits.accessed } else { bits.inaccessible_accessed },
        )
}

/// Decodes a leaf whose bits for the level are right; `None` if the entry holds no page.
#[inline]
fn decode<F: Format + ?Sized>(entry: u64) -> Option<Leaf> {
    let bits = F::BITS;
    let is_writable = entry & bits.writable != 0;
    let mut protection = Protection::empty();
    if entry & bits.accessible == bits.accessible {
        let is_executable = entry & (bits.executable | bits.not_executable) == bits.executable;
        protection |= Protection::READ;
        protection.set(Protection::WRITE, is_writable);
        protection.set(Protection::EXECUTE, is_executable);
    } else if entry & bits.inaccessible == 0 {
        return None;
    }
    let is_accessed = entry & (bits.accessed | bits.inaccessible_accessed) != 0;
    let is_dirty = entry & (bits.dirty | bits.not_writable_dirty) != 0
        || bits.clean != 0 && is_writable && entry & bits.clean == 0;
    let mut marks = Marks::empty();
    marks.set(Marks::ACCESSED, is_accessed);
    marks.set(Marks::DIRTY, is_dirty);
    Some(Leaf { frame: frame_of::<F>(entry), protection, marks })
}

#[inline]
fn frame_field<F: Format + ?Sized>(frame: Frame) -> u64 {
    debug_assert!(
        frame.0 <= F::BITS.frame >> F::BITS.frame_shift,
        "{frame:x?} does not fit into an entry"
    );
    frame.0 << F::BITS.frame_shift
}

#[inline]
fn frame_of<F: Format + ?Sized>(entry: u64) -> Frame {
    Frame((entry & F::BITS.frame) >> F::BITS.frame_shift)
}

/// Returns `bit` if `is_set`, and 0 otherwise.
#[inline]
const fn bit_if(is_set: bool, bit: u64) -> u64 {
    if is_set { bit } else { 0 }
}
