//! The bits of a page-table entry, as an MMU defines them.
//!
//! Three crates know such bits. `x86_64` (0.15) and `page_table_multiarch` (0.6) change plain
//! words through `&mut`, but these entries are written by the hardware (accessed, dirty) and by
//! faults on other CPUs meanwhile; the latter also reaches its machine through functions without a
//! `self`, so that a program can have but one, flushes when its cursor is dropped, and keeps
//! emptied tables until the end. `aarch64-paging` (0.12) has atomic entries, but one architecture,
//! and invalidates by itself. What is left to take from any of them is a table of constants.

pub(crate) mod aarch64;
pub(crate) mod loongarch64;
pub(crate) mod riscv;
pub(crate) mod x86_64;

#[cfg(test)]
mod tests;

use crate::area::Protection;
use crate::platform::Frame;

/// What an entry holds that never was written, at any level of any format.
pub const EMPTY: u64 = 0;

bitflags::bitflags! {
    /// What the hardware notes in a leaf entry.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Marks: u8 {
        /// A CPU has used it.
        const ACCESSED = 1;
        /// A CPU has written through it.
        const DIRTY = 2;
    }
}

/// What an entry that maps a page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The page; of a large one, its first frame.
    pub frame: Frame,
    /// What the MMU lets user code do. With nothing allowed, the entry is not present to the MMU,
    /// and still holds its page.
    pub protection: Protection,
    /// What the MMU has noted.
    pub marks: Marks,
}

/// A format of page tables: of 4 KiB each, with entries of 64 bits.
///
/// Levels are counted from the leaves up: the entries at level 0 map pages, those at level
/// [`LEVELS`](Self::LEVELS) - 1 are in the root. An entry at levels 1 to
/// [`LEAF_LEVEL_MAX`](Self::LEAF_LEVEL_MAX) may be a leaf, too: it maps a large page.
///
/// What is read from an entry at a level is exactly one of these: [`EMPTY`], a table, a leaf, or a
/// claim, which is what is neither of the others. At another level it may be read as another one.
///
/// # From a table to a large leaf, and back
///
/// Neither may take the other's place in one step: the entry is emptied or claimed in between, and
/// flushed. Else a CPU may use both at once; Arm forbids it (*break-before-make*), and an Intel CPU
/// uses now the one, now the other (volume 3A, section 4.10.2).
pub trait Format {
    /// How many tables a walk visits.
    const LEVELS: usize;
    /// How many bits of the address are the index of an entry.
    const INDEX_BITS: u32;
    /// The highest level at which an entry may map a page.
    const LEAF_LEVEL_MAX: usize;

    /// An entry that points to a table of the level below.
    fn table(table: Frame) -> u64;

    /// The table that an entry above level 0 points to; `None` if it is empty, a claim or a large
    /// leaf.
    fn as_table(entry: u64) -> Option<Frame>;

    /// An entry at level 0.
    fn leaf(leaf: Leaf) -> u64;

    /// What an entry at level 0 says; `None` if it holds no page.
    fn as_leaf(entry: u64) -> Option<Leaf>;

    /// An entry at `level`, which is neither 0 nor above [`LEAF_LEVEL_MAX`](Self::LEAF_LEVEL_MAX),
    /// that maps all that it covers. The address of the frame must be a multiple of
    /// [`span`](Self::span): MMUs refuse others, or round them down. Both are debug assertions.
    fn large_leaf(leaf: Leaf, level: usize) -> u64;

    /// What an entry at `level`, which is not 0, says if it is a leaf; `None` if it is a table, or
    /// holds no page. Above [`LEAF_LEVEL_MAX`](Self::LEAF_LEVEL_MAX) there are none.
    fn as_large_leaf(entry: u64, level: usize) -> Option<Leaf>;

    /// An entry that holds no page, is not [`EMPTY`], and is another one for every ticket below
    /// 2^52. At level 0, where all claims are, it is not present to the MMU.
    fn claim(ticket: u64) -> u64;

    /// An entry at `level` that maps all that it covers, which may be a page or a large one.
    #[must_use]
    fn leaf_at(leaf: Leaf, level: usize) -> u64 {
        if level == 0 { Self::leaf(leaf) } else { Self::large_leaf(leaf, level) }
    }

    /// What an entry at `level` says if it is a leaf.
    #[must_use]
    fn as_leaf_at(entry: u64, level: usize) -> Option<Leaf> {
        if level == 0 { Self::as_leaf(entry) } else { Self::as_large_leaf(entry, level) }
    }

    /// How many bytes one entry at `level` covers.
    #[must_use]
    fn span(level: usize) -> u64 {
        crate::PAGE_BYTES << (Self::INDEX_BITS * level as u32)
    }

    /// Which entry of a table at `level` is on the way to `address`.
    #[must_use]
    fn index(address: u64, level: usize) -> usize {
        (address / Self::span(level)) as usize & ((1 << Self::INDEX_BITS) - 1)
    }
}

/// `bit`, or nothing.
const fn bit_if(is_set: bool, bit: u64) -> u64 {
    if is_set { bit } else { 0 }
}

/// Asserts what [`Format::large_leaf`] asks of its caller.
fn assert_large<F: Format>(frame: Frame, level: usize) {
    debug_assert!(is_large_level::<F>(level), "no leaf at level {level}");
    debug_assert!(
        frame.address().is_multiple_of(F::span(level)),
        "{frame:x?} is no first frame of a page at level {level}",
    );
}

/// Whether a large leaf may be at `level`.
fn is_large_level<F: Format>(level: usize) -> bool {
    (1..=F::LEAF_LEVEL_MAX).contains(&level)
}
