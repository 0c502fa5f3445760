//! Iteration over entries, in order.

use core::ops::Range;

use super::{Found, PageTables, Slot, WalkEnd, next_boundary};
use crate::PAGE_BYTES;
use crate::coherence::PageRecords;
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
    pub(super) ahead: Option<Ahead>,
}

/// The requests for records of pages.
pub(super) struct Ahead {
    /// The address up to which the records were requested.
    requested_to: u64,
    /// The page of zeros, whose record is not written.
    zero_page: Frame,
}

/// The addresses whose entries share a cache line: 32 KiB.
const LINE_SPAN: u64 = 64 / 8 * PAGE_BYTES;

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
            self.request_records(table);
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
    /// [Requests](Platform::request_record) the records of pages ahead, if the policy says so: the
    /// caller is about to write them.
    pub(crate) fn with_records(mut self, page_records: PageRecords, zero_page: Frame) -> Self {
        let is_ahead = page_records == PageRecords::Ahead;
        self.ahead = is_ahead.then_some(Ahead { requested_to: 0, zero_page });
        self
    }

    /// Requests the records for this line of entries and the next one: the transfers overlap, and
    /// those of the next line overlap with the work on this one.
    fn request_records(&mut self, table: Frame) {
        let Some(ahead) = &mut self.ahead else { return };
        let start = self.range.start;
        let line_end = next_boundary(start, LINE_SPAN);
        if line_end < ahead.requested_to {
            return;
        }
        let end = (line_end + LINE_SPAN).min(next_boundary(start, F::span(1))).min(self.range.end);
        for address in (start.max(ahead.requested_to)..end).step_by(PAGE_BYTES as usize) {
            let at = EntryAt { table, index: F::index(address, 0) };
            let leaf = F::as_leaf(self.platform.load(at));
            if let Some(leaf) = leaf.filter(|leaf| leaf.frame != ahead.zero_page) {
                self.platform.request_record(leaf.frame);
            }
        }
        ahead.requested_to = end;
    }

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
