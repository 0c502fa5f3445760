//! The bits of a page-table entry, as an MMU defines them.
//!
//! Three crates know such bits. `x86_64` (0.15) and `page_table_multiarch` (0.6) change plain
//! words through `&mut`, but these entries are written by the hardware (accessed, dirty) and by
//! faults on other CPUs meanwhile; the latter also reaches its machine through functions without a
//! `self`, so that a program can have but one, flushes when its cursor is dropped, and keeps
//! emptied tables until the end. `aarch64-paging` (0.12) has atomic entries, but one architecture,
//! and invalidates by itself. What is left to take from any of them is a table of constants.

pub(crate) mod x86_64;

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

/// What an entry of the last level says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The page.
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
/// [`LEVELS`](Self::LEVELS) - 1 are in the root.
pub trait Format {
    /// How many tables a walk visits.
    const LEVELS: usize;
    /// How many bits of the address are the index of an entry.
    const INDEX_BITS: u32;

    /// An entry that points to a table of the level below.
    fn table(table: Frame) -> u64;

    /// The table that an entry above level 0 points to.
    fn as_table(entry: u64) -> Option<Frame>;

    /// An entry at level 0.
    fn leaf(leaf: Leaf) -> u64;

    /// What an entry at level 0 says; `None` if it holds no page.
    fn as_leaf(entry: u64) -> Option<Leaf>;

    /// An entry at level 0 that is not present to the MMU, holds no page, is not [`EMPTY`], and is
    /// another one for every ticket.
    fn claim(ticket: u64) -> u64;

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
