//! A translation as a walk of the page tables finds it, and its place in a TLB.

use std::ops::{BitAnd, BitOr};

/// The accesses that a translation allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(u8);

impl Access {
    /// No access.
    pub const NONE: Self = Self(0);
    /// Loads.
    pub const READ: Self = Self(1);
    /// Stores.
    pub const WRITE: Self = Self(2);
    /// Instruction fetches, of user mode or of the kernel.
    pub const EXECUTE: Self = Self(4);
    /// Accesses of user mode.
    pub const USER: Self = Self(8);
    /// All accesses.
    pub const ALL: Self = Self(15);

    /// Returns `true` if all accesses of `other` are allowed.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns these accesses without those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns `other` if the condition holds, and nothing otherwise.
    pub(crate) const fn when(self, condition: bool) -> Self {
        if condition { self } else { Self::NONE }
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Access {
    type Output = Self;
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// The name under which a TLB keeps an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// Under every tag: a global page.
    Global,
    /// A PCID or an ASID; 0 where the machine has none.
    Space(u32),
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A page: the whole translation.
    Page,
    /// A pointer to a page table, in a cache of upper levels.
    Table,
}

/// The place of an entry among those of one tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// The kind.
    pub kind: Kind,
    /// The number of address bits that the entry covers.
    pub shift: u8,
    /// The first address that the entry covers.
    pub start: u64,
}

impl Slot {
    /// The slot of an entry that covers `address`.
    pub const fn covering(kind: Kind, shift: u8, address: u64) -> Self {
        Self { kind, shift, start: address >> shift << shift }
    }

    /// Number of bytes that the entry covers.
    pub const fn bytes(&self) -> u64 {
        1 << self.shift
    }
}

/// A pointer from an entry of one level to the table of the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pointer {
    /// The number of address bits that the table covers.
    pub shift: u8,
    /// Physical address of the table.
    pub table: u64,
    /// Physical address of the entry with the pointer.
    pub entry: u64,
}

/// The largest number of pointers on the way to a page: five levels.
pub const POINTERS_MAX: usize = 4;

/// A translation as a walk found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The number of address bits that the page covers.
    pub shift: u8,
    /// Physical address of the page.
    pub frame: u64,
    /// The allowed accesses.
    pub access: Access,
    /// Under which tag a TLB keeps the page.
    pub tag: Tag,
    /// Physical address of the page-table entry.
    pub entry: u64,
    /// The pointers on the way, from the root on; unused ones have shift 0.
    pub pointers: [Pointer; POINTERS_MAX],
}

impl Translation {
    /// The pointers on the way, from the root on.
    pub fn pointers(&self) -> impl Iterator<Item = &Pointer> {
        self.pointers.iter().take_while(|pointer| pointer.shift != 0)
    }
}
