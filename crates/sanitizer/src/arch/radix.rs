//! A walk of page tables that are a tree, as those of all architectures here.

use super::Read;
use crate::translation::{Access, POINTERS_MAX, Pointer, Tag, Translation};

/// The tables of one half of the addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Half {
    /// Physical address of the root.
    pub root: u64,
    /// Number of address bits that the tables translate; 0 if there are no tables.
    pub bits: u8,
    /// Number of address bits within the smallest page.
    pub page_shift: u8,
}

impl Half {
    /// Number of address bits that an entry of the root covers.
    pub(crate) fn top_shift(&self) -> u8 {
        let per_level = self.page_shift - 3;
        let levels = (self.bits - self.page_shift).div_ceil(per_level);
        self.page_shift + (levels - 1) * per_level
    }
}

/// An entry of a page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// No translation.
    Nothing,
    /// A pointer to a table.
    Table {
        /// Physical address of the table.
        table: u64,
        /// The accesses that pages below may allow.
        limit: Access,
        /// `true` if pages below are global.
        is_global: bool,
    },
    /// A page.
    Page {
        /// Physical address of the page.
        frame: u64,
        /// The allowed accesses.
        access: Access,
        /// `true` if the page is global.
        is_global: bool,
    },
}

/// Walks the tables of `half` for `address`. The pointers on the way are written to `pointers`,
/// also if there is no translation.
pub(super) fn walk(
    half: &Half,
    tag: u32,
    address: u64,
    read: Read<'_>,
    pointers: &mut [Pointer; POINTERS_MAX],
    step: impl Fn(u64, u8) -> Step,
) -> Option<Translation> {
    if half.bits <= half.page_shift {
        return None;
    }
    let per_level = half.page_shift - 3;
    let address = address & (u64::MAX >> (64 - half.bits));
    let mut shift = half.top_shift();
    let (mut table, mut limit, mut all_global) = (half.root, Access::ALL, false);
    // The root may have more or fewer entries than other tables (Arm).
    let mut index = address >> shift;
    for level in 0..=POINTERS_MAX {
        let entry = table + index * 8;
        match step(read(entry)?, shift) {
            Step::Nothing => return None,
            Step::Table { table: next, limit: below, is_global } => {
                *pointers.get_mut(level)? = Pointer { shift, table: next, entry };
                (table, limit, all_global) = (next, limit & below, all_global | is_global);
            }
            Step::Page { frame, access, is_global } => {
                let tag = if all_global | is_global { Tag::Global } else { Tag::Space(tag) };
                let access = access & limit;
                return Some(Translation { shift, frame, access, tag, entry, pointers: *pointers });
            }
        }
        shift = shift.checked_sub(per_level).filter(|&shift| shift >= half.page_shift)?;
        index = (address >> shift) & ((1 << per_level) - 1);
    }
    None
}
