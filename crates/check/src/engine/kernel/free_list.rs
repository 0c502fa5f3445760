//! Pages and page tables that an operation frees when its flush is complete.

use std::array;
use std::iter::Flatten;

/// A page or a page table.
#[derive(Clone, Copy, Debug)]
pub(super) enum Freed {
    /// The frame of a page of a space.
    Page { space: usize, number: usize, frame: usize },
    /// A table, by its number.
    Table(usize),
}

/// The maximum number that one operation frees. Nothing is allocated on the heap, because a run
/// that is given up would leak it.
const FREED_MAX: usize = 4;

/// Up to [`FREED_MAX`] pages and page tables.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FreeList([Option<Freed>; FREED_MAX]);

impl Extend<Freed> for FreeList {
    fn extend<I: IntoIterator<Item = Freed>>(&mut self, more: I) {
        for freed in more {
            let room = self.0.iter_mut().find(|it| it.is_none());
            *room.expect("no operation frees more") = Some(freed);
        }
    }
}

impl IntoIterator for FreeList {
    type Item = Freed;
    type IntoIter = Flatten<array::IntoIter<Option<Freed>, FREED_MAX>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().flatten()
    }
}
