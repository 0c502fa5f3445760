//! Entries of page tables.

use std::fmt;

/// An entry of a page table: the number of a frame or of a table, and its permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry(pub u64);

impl Entry {
    /// The entry that is not present.
    pub const EMPTY: Self = Self(0);
    /// An entry that is not present, with a mark that came after its removal.
    pub const STRAY_MARK: Self = Self(8);
    const PRESENT: u64 = 1;
    const WRITABLE: u64 = 2;
    const LARGE: u64 = 4;

    /// A pointer to a table, or a read-only mapping of a frame.
    pub const fn to(target: usize) -> Self {
        Self((target as u64) << 8 | Self::PRESENT)
    }

    /// Makes a mapping of a frame writable.
    pub const fn writable(self) -> Self {
        Self(self.0 | Self::WRITABLE)
    }

    /// Makes a mapping a large page, for an entry of a root.
    pub const fn large(self) -> Self {
        Self(self.0 | Self::LARGE)
    }

    /// Returns `true` if this maps a large page.
    pub const fn is_large(self) -> bool {
        self.0 & Self::LARGE != 0
    }

    /// Returns `true` if this entry of a root points to a table.
    pub const fn is_table(self) -> bool {
        self.is_present() && !self.is_large()
    }

    /// Returns `true` if the entry is present.
    pub const fn is_present(self) -> bool {
        self.0 & Self::PRESENT != 0
    }

    /// Returns `true` if the entry permits writes.
    pub const fn is_writable(self) -> bool {
        self.0 & Self::WRITABLE != 0
    }

    /// The number of the table or of the frame.
    pub const fn target(self) -> usize {
        (self.0 >> 8) as usize
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_present(), self.is_writable()) {
            (false, _) if *self == Self::STRAY_MARK => f.write_str("nothing, marked"),
            (false, _) => f.write_str("nothing"),
            (true, false) => write!(f, "→ {}", self.target()),
            (true, true) => write!(f, "→ {} (writable)", self.target()),
        }
    }
}
