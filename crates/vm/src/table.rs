//! The tree of page tables of one space: finds, makes, visits and unhooks its parts.
//!
//! Nothing here takes a lock. A table hung into the tree is found by all; it leaves the tree only
//! when no area can need it ([`unhook`](PageTables::unhook)). So who holds the space's lock, for
//! reading or writing, and looks for an address of an area, walks tables that stay.

use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use shootdown::Root;

use crate::PAGE_BYTES;
use crate::format::{EMPTY, Format};
use crate::platform::{EntryAt, Frame, FrameUse, OutOfMemory, Platform, Work};

/// The page tables of a space.
pub(crate) struct PageTables<F> {
    root: Frame,
    /// How many tables hang below the root, and how many did when they were last unhooked.
    count: AtomicU64,
    count_at_unhook: AtomicU64,
    format: PhantomData<fn() -> F>,
}

impl<F: Format> PageTables<F> {
    pub(crate) fn new(platform: &impl Platform) -> Result<Self, OutOfMemory> {
        let root = platform.allocate(FrameUse::Table)?;
        let (count, count_at_unhook) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self { root, count, count_at_unhook, format: PhantomData })
    }

    pub(crate) const fn root(&self) -> Root {
        Root(self.root.address())
    }

    /// The entry for the page of `address`, below tables that are made where there are none.
    pub(crate) fn make(
        &self,
        platform: &impl Platform,
        address: u64,
    ) -> Result<EntryAt, OutOfMemory> {
        let table = self.make_last(platform, address)?;
        Ok(EntryAt { table, index: F::index(address, 0) })
    }

    /// The table of level 0 for `address`, made with those above it where there are none.
    pub(crate) fn make_last(
        &self,
        platform: &impl Platform,
        address: u64,
    ) -> Result<Frame, OutOfMemory> {
        let mut table = self.root;
        for level in (1..F::LEVELS).rev() {
            let at = EntryAt { table, index: F::index(address, level) };
            table = match F::as_table(platform.load(at)) {
                Some(next) => next,
                None => self.hang_new_table(platform, at)?,
            };
        }
        Ok(table)
    }

    /// The entries for pages of `range` that are not [`EMPTY`], as they are found, in order: the
    /// address, the entry, and what it held.
    pub(crate) fn entries<'t, P: Platform>(
        &'t self,
        platform: &'t P,
        range: Range<u64>,
    ) -> Entries<'t, P, F> {
        Entries { tables: self, platform, range, table: None, looked_at: 0 }
    }

    /// Takes out of the tree every table that `range` overlaps and that covers nothing outside of
    /// `gap`, and hands each to `unhooked`, after those below it, with the addresses of `range`
    /// that it covers.
    ///
    /// No area may be in `gap`, and none may come there, until this returns. (Linux:
    /// `free_pgtables`, with its floor and ceiling.)
    pub(crate) fn unhook<P: Platform>(
        &self,
        platform: &P,
        range: &Range<u64>,
        gap: &Range<u64>,
        unhooked: impl FnMut(Frame, Range<u64>),
    ) {
        let count = &self.count;
        let mut unhooking = Unhooking { platform, gap, unhooked, count, format: PhantomData::<F> };
        unhooking.visit(self.root, F::LEVELS - 1, range, State::Hung);
        self.count_at_unhook.store(self.count.load(Relaxed), Relaxed);
    }

    /// Whether there are so many tables that it is time to look for those that nobody needs.
    pub(crate) fn are_many(&self) -> bool {
        let needed_then = self.count_at_unhook.load(Relaxed);
        self.count.load(Relaxed) > (2 * needed_then).max(KEPT_MAX)
    }

    /// Frees the root, when nothing else is left.
    pub(crate) fn free_root(&self, platform: &impl Platform) {
        platform.free_table(self.root);
    }

    /// Hangs a new table into an entry that was empty, or finds what another CPU hung there.
    fn hang_new_table(&self, platform: &impl Platform, at: EntryAt) -> Result<Frame, OutOfMemory> {
        let new = platform.allocate(FrameUse::Table)?;
        match platform.compare_exchange(at, EMPTY, F::table(new)) {
            Ok(_) => {
                self.count.fetch_add(1, Relaxed);
                Ok(new)
            }
            Err(found) => {
                platform.free_table(new);
                Ok(F::as_table(found).expect("above level 0 there are tables only"))
            }
        }
    }

    /// The table of level 0 for `address`, or the level at which the way to it ends.
    fn find_last(&self, platform: &impl Platform, address: u64) -> Result<Frame, usize> {
        let mut table = self.root;
        for level in (1..F::LEVELS).rev() {
            let at = EntryAt { table, index: F::index(address, level) };
            table = F::as_table(platform.load(at)).ok_or(level)?;
        }
        Ok(table)
    }
}

/// An iterator over entries that are not empty. See [`PageTables::entries`].
pub(crate) struct Entries<'t, P: Platform, F: Format> {
    tables: &'t PageTables<F>,
    platform: &'t P,
    /// What is still to be looked at.
    range: Range<u64>,
    /// The table for the start of the range, when it is known.
    table: Option<Frame>,
    /// How many entries of the table have been looked at, and not yet been reported.
    looked_at: usize,
}

impl<P: Platform, F: Format> Iterator for Entries<'_, P, F> {
    type Item = (u64, EntryAt, u64);

    fn next(&mut self) -> Option<Self::Item> {
        while !self.range.is_empty() {
            let address = self.range.start;
            let table = match self.table {
                Some(table) => table,
                None => match self.tables.find_last(self.platform, address) {
                    Ok(table) => *self.table.insert(table),
                    Err(level) => {
                        self.range.start = next_boundary(address, F::span(level));
                        continue;
                    }
                },
            };
            let at = EntryAt { table, index: F::index(address, 0) };
            let entry = self.platform.load(at);
            self.looked_at += 1;
            self.range.start += PAGE_BYTES;
            if self.range.start.is_multiple_of(F::span(1)) {
                self.table = None;
                self.report();
            }
            if entry != EMPTY {
                return Some((address, at, entry));
            }
        }
        None
    }
}

impl<P: Platform, F: Format> Entries<'_, P, F> {
    fn report(&mut self) {
        if self.looked_at != 0 {
            self.platform.work(Work::Entry, self.looked_at);
            self.looked_at = 0;
        }
    }
}

impl<P: Platform, F: Format> Drop for Entries<'_, P, F> {
    fn drop(&mut self) {
        self.report();
    }
}

/// Whether the table that is looked at is still in the tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Hung,
    Unhooked,
}

/// What [`PageTables::unhook`] takes along as it descends.
struct Unhooking<'t, P, U, F> {
    platform: &'t P,
    gap: &'t Range<u64>,
    unhooked: U,
    count: &'t AtomicU64,
    format: PhantomData<F>,
}

impl<P: Platform, U: FnMut(Frame, Range<u64>), F: Format> Unhooking<'_, P, U, F> {
    /// Visits the tables below `table`, which is at `level`. Outside of `range` there are none
    /// below a table that is unhooked: either `range` is all of the gap; or empty tables are freed
    /// at once, so that a table exists only where an area was, and `range` holds the last ones of
    /// the gap.
    fn visit(&mut self, table: Frame, level: usize, range: &Range<u64>, state: State) {
        let mut start = range.start;
        while start < range.end {
            let end = next_boundary(start, F::span(level)).min(range.end);
            let at = EntryAt { table, index: F::index(start, level) };
            if let Some(below) = F::as_table(self.platform.load(at)) {
                self.visit_below(at, below, level, &(start..end), state);
            }
            start = end;
        }
    }

    fn visit_below(
        &mut self,
        at: EntryAt,
        below: Frame,
        level: usize,
        range: &Range<u64>,
        state: State,
    ) {
        let first = range.start & !(F::span(level) - 1);
        let is_free =
            self.gap.start <= first && next_boundary(first, F::span(level)) <= self.gap.end;
        let state_below = if state == State::Unhooked || is_free {
            if state == State::Hung {
                // Only here: what hangs below goes with it, and a CPU in the middle of a walk
                // finds no page at its end.
                self.platform.swap(at, EMPTY);
            }
            State::Unhooked
        } else {
            State::Hung
        };
        if level > 1 {
            self.visit(below, level - 1, range, state_below);
        }
        if state_below == State::Unhooked {
            self.count.fetch_sub(1, Relaxed);
            (self.unhooked)(below, range.clone());
        }
    }
}

/// The first multiple of `span` above `address`.
const fn next_boundary(address: u64, span: u64) -> u64 {
    (address & !(span - 1)).saturating_add(span)
}

/// Up to how many empty tables are kept, whatever else a space has: 2 MiB. To look for them costs
/// about a miss each, and to free them one flush that also tells lazy CPUs.
const KEPT_MAX: u64 = 512;
