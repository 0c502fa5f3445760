//! What is freed when a flush is done.

use std::array;
use std::iter::Flatten;

/// A page, or a page table.
#[derive(Clone, Copy, Debug)]
pub(super) enum Freed {
    /// The frame that a page of a space was in.
    Page { space: usize, number: usize, frame: usize },
    /// A table, by its number.
    Table(usize),
}

/// As many as one operation takes away, or two: nothing is allocated that a run given up would
/// lose.
const FREED_MAX: usize = 4;

/// A few of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bag([Option<Freed>; FREED_MAX]);

impl Extend<Freed> for Bag {
    fn extend<I: IntoIterator<Item = Freed>>(&mut self, more: I) {
        for freed in more {
            let room = self.0.iter_mut().find(|it| it.is_none());
            *room.expect("no operation takes more") = Some(freed);
        }
    }
}

impl IntoIterator for Bag {
    type Item = Freed;
    type IntoIter = Flatten<array::IntoIter<Option<Freed>, FREED_MAX>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().flatten()
    }
}
