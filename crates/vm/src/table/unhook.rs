//! Removal of tables from the tree, from the highest that is removed downwards.

use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::next_boundary;
use crate::format::{EMPTY, Format};
use crate::platform::{EntryAt, Frame, Platform};

/// The position of a visited table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Linked,
    Unhooked,
}

/// The arguments of [`PageTables::unhook`], for the descent.
pub(super) struct Unhooking<'t, P, U, F> {
    pub(super) platform: &'t P,
    pub(super) gap: &'t Range<u64>,
    pub(super) unhooked: U,
    pub(super) count: &'t AtomicU64,
    pub(super) format: PhantomData<F>,
}

impl<P: Platform, U: FnMut(Frame, Range<u64>, usize), F: Format> Unhooking<'_, P, U, F> {
    /// Visits the tables below `table`, which is at `level`. A table that is unhooked has no tables
    /// below it outside `ranges`: tables are only where an area was, and `ranges` contains the last
    /// areas of the gap, or, if tables were kept, all of them.
    pub(super) fn visit(
        &mut self,
        table: Frame,
        level: usize,
        ranges: &[Range<u64>],
        state: State,
    ) {
        let mut start = 0;
        let mut rest = ranges;
        while let Some(first) = rest.first() {
            start = first.start.max(start);
            let end = next_boundary(start, F::span(level));
            // The ranges that begin below the same entry. The last of them may reach beyond it.
            let count = rest.partition_point(|range| range.start < end);
            let at = EntryAt { table, index: F::index(start, level) };
            if let Some(below) = F::as_table(self.platform.load(at)) {
                let clipped = |range: &Range<u64>| range.start.max(start)..range.end.min(end);
                let ranges: Vec<_> = rest[..count].iter().map(clipped).collect();
                self.visit_below(at, below, level, &ranges, state);
            }
            let done = rest.partition_point(|range| range.end <= end);
            (start, rest) = (end, &rest[done..]);
        }
    }

    fn visit_below(
        &mut self,
        at: EntryAt,
        below: Frame,
        level: usize,
        ranges: &[Range<u64>],
        state: State,
    ) {
        let [.., last] = ranges else { return };
        let range = ranges[0].start..last.end;
        let first = range.start & !(F::span(level) - 1);
        let is_free =
            self.gap.start <= first && next_boundary(first, F::span(level)) <= self.gap.end;
        let state_below = if state == State::Unhooked || is_free {
            if state == State::Linked {
                // Clear only this entry: the tables below leave the tree with it, and a CPU in the
                // middle of a walk finds no page at its end.
                self.platform.swap(at, EMPTY);
            }
            State::Unhooked
        } else {
            State::Linked
        };
        if level > 1 {
            self.visit(below, level - 1, ranges, state_below);
        }
        if state_below == State::Unhooked {
            self.count.fetch_sub(1, Relaxed);
            (self.unhooked)(below, range, level);
        }
    }
}
