//! The tree of page tables of one space: finds, makes, visits and unhooks its parts.
//!
//! Nothing here takes a lock. A table hung into the tree is found by all; it leaves the tree only
//! when no area can need it ([`unhook`](PageTables::unhook)). So who holds the space's lock, for
//! reading or writing, and looks for an address of an area, walks tables that stay.

use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use shootdown::Root;

use crate::PAGE_BYTES;
use crate::coherence::Coherence;
use crate::format::{EMPTY, Format};
use crate::platform::{EntryAt, Frame, FrameUse, OutOfMemory, Platform, Work};
use crate::space::Vm;

/// The page tables of a space.
pub(crate) struct PageTables<F> {
    root: Frame,
    /// How many tables hang below the root, and how many did when they were last unhooked.
    count: AtomicU64,
    count_at_unhook: AtomicU64,
    format: PhantomData<fn() -> F>,
}

impl<F: Format> PageTables<F> {
    pub(crate) const fn new(root: Frame) -> Self {
        let (count, count_at_unhook) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { root, count, count_at_unhook, format: PhantomData }
    }

    pub(crate) const fn root(&self) -> Root {
        Root(self.root.address())
    }

    /// The entry for the page of `address`, below tables that are made where there are none.
    pub(crate) fn make<P: Platform, C: Coherence>(
        &self,
        vm: &Vm<P, C, F>,
        address: u64,
    ) -> Result<EntryAt, OutOfMemory> {
        let table = self.make_last(vm, address)?;
        Ok(EntryAt { table, index: F::index(address, 0) })
    }

    /// The table of level 0 for `address`, made with those above it where there are none.
    fn make_last<P: Platform, C: Coherence>(
        &self,
        vm: &Vm<P, C, F>,
        address: u64,
    ) -> Result<Frame, OutOfMemory> {
        let mut table = self.root;
        for level in (1..F::LEVELS).rev() {
            let at = EntryAt { table, index: F::index(address, level) };
            table = match F::as_table(vm.platform.load(at)) {
                Some(next) => next,
                None => self.hang_new_table(vm, at)?,
            };
        }
        Ok(table)
    }

    /// The entry for the page of `address`, if there is a table for it.
    pub(crate) fn find(&self, platform: &impl Platform, address: u64) -> Option<EntryAt> {
        let table = self.find_last(platform, address).ok()?;
        Some(EntryAt { table, index: F::index(address, 0) })
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

    /// The first address of each table of level 0 that `range` overlaps.
    pub(crate) fn last_tables<P: Platform>(
        &self,
        platform: &P,
        range: &Range<u64>,
    ) -> impl Iterator<Item = u64> {
        let (mut address, end) = (range.start, range.end);
        core::iter::from_fn(move || {
            while address < end {
                let start = address;
                let found = self.find_last(platform, address);
                let level = found.err().unwrap_or(1);
                address = next_boundary(address, F::span(level));
                if found.is_ok() {
                    return Some(start & !(F::span(1) - 1));
                }
            }
            None
        })
    }

    /// How many bytes a table of level 0 maps.
    pub(crate) fn last_table_bytes() -> u64 {
        F::span(1)
    }

    /// Takes out of the tree every table that one of `ranges`, which are in order, overlaps and
    /// that covers nothing outside of `gap`, and hands each to `unhooked`, after those below it,
    /// with the addresses from the first to the last of `ranges` that it covers.
    ///
    /// No area may be in `gap`, and none may come there, until this returns. (Linux:
    /// `free_pgtables`, with its floor and ceiling.)
    pub(crate) fn unhook<P: Platform>(
        &self,
        platform: &P,
        ranges: &[Range<u64>],
        gap: &Range<u64>,
        unhooked: impl FnMut(Frame, Range<u64>),
    ) {
        let count = &self.count;
        let mut unhooking = Unhooking { platform, gap, unhooked, count, format: PhantomData::<F> };
        unhooking.visit(self.root, F::LEVELS - 1, ranges, State::Hung);
        self.count_at_unhook.store(self.count.load(Relaxed), Relaxed);
    }

    /// Whether there are so many tables that it is time to look for those that nobody needs.
    pub(crate) fn are_many(&self) -> bool {
        let needed_then = self.count_at_unhook.load(Relaxed);
        self.count.load(Relaxed) > (2 * needed_then).max(KEPT_MAX)
    }

    /// The table of the highest level.
    pub(crate) const fn root_frame(&self) -> Frame {
        self.root
    }

    /// Hangs a new table into an entry that was empty, or finds what another CPU hung there.
    fn hang_new_table<P: Platform, C: Coherence>(
        &self,
        vm: &Vm<P, C, F>,
        at: EntryAt,
    ) -> Result<Frame, OutOfMemory> {
        let new = vm.allocate(FrameUse::Table)?;
        match vm.platform.compare_exchange(at, EMPTY, F::table(new)) {
            Ok(_) => {
                self.count.fetch_add(1, Relaxed);
                Ok(new)
            }
            Err(found) => {
                vm.platform.free_table(new);
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

/// The table that an entry was last made in: the next one most likely goes there, too.
#[derive(Default)]
pub(crate) struct LastTable {
    number_and_table: Option<(u64, Frame)>,
}

impl LastTable {
    /// As [`PageTables::make`], always for the same `tables`.
    pub(crate) fn make<P: Platform, C: Coherence, F: Format>(
        &mut self,
        tables: &PageTables<F>,
        vm: &Vm<P, C, F>,
        address: u64,
    ) -> Result<EntryAt, OutOfMemory> {
        let number = address / F::span(1);
        let table = match self.number_and_table {
            Some((last, table)) if last == number => table,
            _ => tables.make_last(vm, address)?,
        };
        self.number_and_table = Some((number, table));
        Ok(EntryAt { table, index: F::index(address, 0) })
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
    /// Visits the tables below `table`, which is at `level`. Outside of `ranges` there are none
    /// below a table that is unhooked: they are where an area was, and `ranges` holds the last ones
    /// of the gap, or all where tables were kept.
    fn visit(&mut self, table: Frame, level: usize, ranges: &[Range<u64>], state: State) {
        let mut start = 0;
        let mut rest = ranges;
        while let Some(first) = rest.first() {
            start = first.start.max(start);
            let end = next_boundary(start, F::span(level));
            // As many as begin below the same entry; the last of them may reach beyond it.
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
            self.visit(below, level - 1, ranges, state_below);
        }
        if state_below == State::Unhooked {
            self.count.fetch_sub(1, Relaxed);
            (self.unhooked)(below, range);
        }
    }
}

/// The first multiple of `span` above `address`.
const fn next_boundary(address: u64, span: u64) -> u64 {
    (address & !(span - 1)).saturating_add(span)
}

/// Up to how many empty tables are kept, whatever else a space has: 2 MiB. To free them costs one
/// flush that also tells lazy CPUs.
const KEPT_MAX: u64 = 512;
