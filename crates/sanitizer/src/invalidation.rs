//! Invalidations, in terms that all architectures share, and the reasons for which they leave an
//! entry.

use serde::{Deserialize, Serialize};

use crate::translation::{Kind, Slot, Tag};

/// The tags whose entries are invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tags {
    /// All tags, and global entries.
    All,
    /// All tags, and no global entry.
    AllButGlobal,
    /// One tag, and no global entry.
    One(u32),
    /// One tag, and global entries.
    OneAndGlobal(u32),
}

impl Tags {
    /// Returns `true` if entries under `tag` are invalidated.
    pub fn include(self, tag: Tag) -> bool {
        match (self, tag) {
            (Self::All, _) | (Self::OneAndGlobal(_), Tag::Global) => true,
            (Self::AllButGlobal, tag) => tag != Tag::Global,
            (Self::One(_), Tag::Global) => false,
            (Self::One(one) | Self::OneAndGlobal(one), Tag::Space(tag)) => one == tag,
        }
    }
}

/// The pages that are invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// All pages.
    All,
    /// The pages with any of these bytes. The second field is the last address, which is included.
    Range(u64, u64),
}

/// The cached pointers to page tables that are invalidated with pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pointers {
    /// None.
    Kept,
    /// Those on the way to the pages.
    OnTheWay,
    /// All under the tags.
    All,
}

/// An invalidation on one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalidation {
    /// The tags.
    pub tags: Tags,
    /// The pages.
    pub pages: Pages,
    /// The cached pointers.
    pub pointers: Pointers,
    /// If set, only pages with this number of address bits are invalidated.
    pub only_shift: Option<u8>,
}

/// Why an invalidation left an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Left {
    /// The entry is global, and the invalidation leaves global entries.
    Global,
    /// The invalidation names another tag.
    OtherTag,
    /// The invalidation names other pages.
    OtherPages,
    /// The invalidation names another page size.
    OtherSize,
    /// The entry points to a page table, and the invalidation is for last levels only.
    LastLevelOnly,
}

impl Left {
    /// The reason in words.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Global => "the entry is global",
            Self::OtherTag => "another tag",
            Self::OtherPages => "other pages",
            Self::OtherSize => "another page size",
            Self::LastLevelOnly => "for last levels only",
        }
    }
}

impl Invalidation {
    /// Everything under `tags`.
    pub const fn whole(tags: Tags) -> Self {
        Self { tags, pages: Pages::All, pointers: Pointers::All, only_shift: None }
    }

    /// The page of any size that contains `address`.
    pub const fn page(tags: Tags, address: u64, pointers: Pointers) -> Self {
        Self { tags, pages: Pages::Range(address, address), pointers, only_shift: None }
    }

    /// Returns `Ok` if the invalidation drops the entry, and the reason if it does not.
    ///
    /// # Errors
    ///
    /// If the entry stays.
    pub fn drops(&self, tag: Tag, slot: &Slot) -> Result<(), Left> {
        if !self.tags.include(tag) {
            return Err(if tag == Tag::Global { Left::Global } else { Left::OtherTag });
        }
        let Pages::Range(first, last) = self.pages else { return Ok(()) };
        let overlaps = slot.start <= last && slot.start + (slot.bytes() - 1) >= first;
        match (slot.kind, self.pointers) {
            (Kind::Table, Pointers::All) => Ok(()),
            (Kind::Table, Pointers::Kept) => Err(Left::LastLevelOnly),
            _ if !overlaps => Err(Left::OtherPages),
            (Kind::Page, _) if self.only_shift.is_some_and(|shift| shift != slot.shift) => {
                Err(Left::OtherSize)
            }
            (Kind::Page, _) | (Kind::Table, Pointers::OnTheWay) => Ok(()),
        }
    }
}
