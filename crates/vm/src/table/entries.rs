//! Iteration over entries, in order.

use core::ops::Range;

use super::{Found, PageTables, Slot, WalkEnd, next_boundary};
use crate::PAGE_BYTES;
use crate::format::{EMPTY, Format};
use crate::platform::{EntryAt, Frame, Platform, Work};

/// An iterator over entries that are not empty. See [`PageTables::entries`].
pub(crate) struct Entries<'t, P: Platform, F: Format> {
    pub(super) tables: &'t PageTables<F>,
    pub(super) platform: &'t P,
    /// The addresses that are still to be examined.
    pub(super) range: Range<u64>,
    /// The table for the start of the range, if it is known.
    pub(super) table: Option<Frame>,
    /// Number of entries that were examined, and not yet accounted for.
    pub(super) examined: usize,
}

impl<P: Platform, F: Format> Iterator for Entries<'_, P, F> {
    type Item = Found;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.range.is_empty() {
            let address = self.range.start;
            let table = match self.table {
                Some(table) => table,
                None => match self.tables.walk(self.platform, address) {
                    WalkEnd::Table(_, table) => {
                        // Once for each table, and not held: the caller may take other locks.
                        self.platform.lock_table(table);
                        self.platform.unlock_table(table);
                        *self.table.insert(table)
                    }
                    WalkEnd::Nothing(level) => {
                        self.range.start = next_boundary(address, F::span(level));
                        continue;
                    }
                    WalkEnd::Large(found) => {
                        self.examined += 1;
                        self.range.start = next_boundary(address, F::span(found.slot.level));
                        return Some(found);
                    }
                },
            };
            let at = EntryAt { table, index: F::index(address, 0) };
            let entry = self.platform.load(at);
            self.examined += 1;
            self.range.start += PAGE_BYTES;
            if self.range.start.is_multiple_of(F::span(1)) {
                self.table = None;
                self.report();
            }
            if entry != EMPTY {
                return Some(Found { address, slot: Slot { at, level: 0 }, entry });
            }
        }
        None
    }
}

impl<P: Platform, F: Format> Entries<'_, P, F> {
    fn report(&mut self) {
        if self.examined != 0 {
            self.platform.work(Work::Entry, self.examined);
            self.examined = 0;
        }
    }
}

impl<P: Platform, F: Format> Drop for Entries<'_, P, F> {
    fn drop(&mut self) {
        self.report();
    }
}
