//! The tree of page tables of one space: finds, makes, visits and unhooks its parts.
//!
//! Nothing here takes a lock. A table hung into the tree is found by all; it leaves the tree only
//! when no area can need it ([`unhook`](PageTables::unhook)), or when a large page takes its place,
//! for which the lock is held for writing. So who holds the space's lock, for reading or writing,
//! and looks for an address of an area, walks tables that stay.
//!
//! An entry above level 0 goes through these states. Who empties it has that flushed, and whoever
//! puts something else there under the lock for writing waits for that flush first:
//!
//! ```text
//!            fault                collapse (writer)
//!    empty ---------> table ---------> empty ---------> large leaf
//!      ^                ^                                |     |
//!      |                +-------- empty <----------------+     |
//!      |                   split (writer)                      |
//!      +-------------------------------------------------------+
//!                 cleared, by whoever takes all of it
//! ```
//!
//! So a large leaf comes only while the lock is held for writing, but may go while others hold it
//! for reading, and a table be there a moment later.

mod entries;
mod unhook;

use core::marker::PhantomData;
use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use shootdown::Root;

use crate::PAGE_BYTES;
use crate::format::{EMPTY, Format, Leaf};
use crate::platform::{EntryAt, Frame, OutOfMemory, Platform};
use entries::Entries;
use unhook::{State, Unhooking};

/// The page tables of a space.
pub(crate) struct PageTables<F> {
    root: Frame,
    /// How many tables hang below the root, and how many did when they were last unhooked.
    count: AtomicU64,
    count_at_unhook: AtomicU64,
    /// How many large leaves there are: where there are none, nobody need look for them. Changed
    /// and read under the areas' lock, which orders it: who makes a leaf holds it for writing.
    large_count: AtomicU64,
    format: PhantomData<fn() -> F>,
}

/// An entry, and the level of its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) at: EntryAt,
    pub(crate) level: usize,
}

/// An entry that was not empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// The first address that it is for.
    pub(crate) address: u64,
    pub(crate) slot: Slot,
    /// What it held.
    pub(crate) entry: u64,
}

/// Where the way to an address ends.
enum WalkEnd {
    /// At a table of level 0, and the entry that points to it.
    Table(EntryAt, Frame),
    /// At a large leaf.
    Large(Found),
    /// At an entry of this level, in which there is nothing.
    Nothing(usize),
}

impl<F: Format> PageTables<F> {
    pub(crate) const fn new(root: Frame) -> Self {
        let (count, count_at_unhook) = (AtomicU64::new(0), AtomicU64::new(0));
        let large_count = AtomicU64::new(0);
        Self { root, count, count_at_unhook, large_count, format: PhantomData }
    }

    pub(crate) const fn root(&self) -> Root {
        Root(self.root.address())
    }

    /// The entry for the page of `address`, below tables that are made where there are none; or the
    /// large leaf in the way.
    pub(crate) fn make(
        &self,
        platform: &impl Platform,
        address: u64,
        new_table: impl Fn() -> Result<Frame, OutOfMemory>,
    ) -> Result<Slot, OutOfMemory> {
        let mut table = self.root;
        for level in (1..F::LEVELS).rev() {
            let at = EntryAt { table, index: F::index(address, level) };
            let entry = platform.load(at);
            table = match F::as_table(entry) {
                Some(next) => next,
                None if F::as_large_leaf(entry, level).is_some() => return Ok(Slot { at, level }),
                None => self.link_new(platform, at, new_table()?),
            };
        }
        Ok(Slot { at: EntryAt { table, index: F::index(address, 0) }, level: 0 })
    }

    /// The entry at level 0 for the page of `address`, if there is a table for it.
    pub(crate) fn find(&self, platform: &impl Platform, address: u64) -> Option<EntryAt> {
        let (_, table) = self.leaf_table(platform, address)?;
        Some(EntryAt { table, index: F::index(address, 0) })
    }

    /// What maps `address`, at whatever level.
    pub(crate) fn leaf(&self, platform: &impl Platform, address: u64) -> Option<Leaf> {
        match self.walk(platform, address) {
            WalkEnd::Table(_, table) => {
                F::as_leaf(platform.load(EntryAt { table, index: F::index(address, 0) }))
            }
            WalkEnd::Large(found) => found.leaf::<F>(),
            WalkEnd::Nothing(_) => None,
        }
    }

    /// The table of level 0 for `address`, and the entry that points to it.
    pub(crate) fn leaf_table(
        &self,
        platform: &impl Platform,
        address: u64,
    ) -> Option<(EntryAt, Frame)> {
        match self.walk(platform, address) {
            WalkEnd::Table(at, table) => Some((at, table)),
            WalkEnd::Large(_) | WalkEnd::Nothing(_) => None,
        }
    }

    /// The entries for `range` that are not [`EMPTY`], as they are found, in order: of pages, and
    /// of large pages that lie in it, if only in part.
    pub(crate) fn entries<'t, P: Platform>(
        &'t self,
        platform: &'t P,
        range: Range<u64>,
    ) -> Entries<'t, P, F> {
        Entries { tables: self, platform, range, table: None, looked_at: 0 }
    }

    /// The first address of each table of level 0 that `range` overlaps.
    pub(crate) fn leaf_tables<P: Platform>(
        &self,
        platform: &P,
        range: &Range<u64>,
    ) -> impl Iterator<Item = u64> {
        let (mut address, end) = (range.start, range.end);
        core::iter::from_fn(move || {
            while address < end {
                let start = address;
                let end = self.walk(platform, address);
                address = next_boundary(address, F::span(end.level()));
                if let WalkEnd::Table(..) = end {
                    return Some(start & !(F::span(1) - 1));
                }
            }
            None
        })
    }

    /// The large leaves that overlap `range`, in order.
    pub(crate) fn large_leaves<P: Platform>(
        &self,
        platform: &P,
        range: &Range<u64>,
    ) -> impl Iterator<Item = Found> {
        let (mut address, end) = (range.start, range.end);
        if self.large_count.load(Relaxed) == 0 {
            address = end;
        }
        core::iter::from_fn(move || {
            while address < end {
                let end = self.walk(platform, address);
                address = next_boundary(address, F::span(end.level()));
                if let WalkEnd::Large(found) = end {
                    return Some(found);
                }
            }
            None
        })
    }

    /// Puts a large leaf where nothing is. Nobody else may put anything there meanwhile.
    pub(crate) fn set_large(&self, platform: &impl Platform, Slot { at, level }: Slot, leaf: Leaf) {
        self.large_count.fetch_add(1, Relaxed);
        let held = platform.swap(at, F::large_leaf(leaf, level));
        debug_assert_eq!(held, EMPTY);
    }

    /// Takes a large leaf away. `None` if another call has done so: there may be a table by now.
    pub(crate) fn clear_large(&self, platform: &impl Platform, found: &Found) -> Option<Leaf> {
        let Slot { at, level } = found.slot;
        let mut entry = found.entry;
        loop {
            let leaf = F::as_large_leaf(entry, level)?;
            match platform.compare_exchange(at, entry, EMPTY) {
                Ok(_) => {
                    self.large_count.fetch_sub(1, Relaxed);
                    return Some(leaf);
                }
                // The MMU has marked it.
                Err(held) => entry = held,
            }
        }
    }

    /// Hangs a table where nothing is. Nobody else may put anything there meanwhile.
    pub(crate) fn link(&self, platform: &impl Platform, at: EntryAt, table: Frame) {
        self.count.fetch_add(1, Relaxed);
        let held = platform.swap(at, F::table(table));
        debug_assert_eq!(held, EMPTY);
    }

    /// Takes the table of level 0 out of the tree that `at` points to. All its entries must be
    /// empty, and stay so: a CPU may be in the middle of a walk.
    pub(crate) fn unlink(&self, platform: &impl Platform, at: EntryAt) {
        self.count.fetch_sub(1, Relaxed);
        platform.swap(at, EMPTY);
    }

    /// How many bytes a table of level 0 maps.
    pub(crate) fn leaf_table_bytes() -> u64 {
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
        unhooking.visit(self.root, F::LEVELS - 1, ranges, State::Linked);
        self.count_at_unhook.store(self.count.load(Relaxed), Relaxed);
    }

    /// Whether there are so many tables that it is time to look for those that nobody needs.
    pub(crate) fn has_many(&self) -> bool {
        let needed_then = self.count_at_unhook.load(Relaxed);
        self.count.load(Relaxed) > (2 * needed_then).max(KEPT_MAX)
    }

    /// The table of the highest level.
    pub(crate) const fn root_frame(&self) -> Frame {
        self.root
    }

    /// Hangs a new table into an entry that was empty, or finds what another CPU hung there.
    fn link_new(&self, platform: &impl Platform, at: EntryAt, new: Frame) -> Frame {
        match platform.compare_exchange(at, EMPTY, F::table(new)) {
            Ok(_) => {
                self.count.fetch_add(1, Relaxed);
                new
            }
            Err(found) => {
                platform.free_table(new);
                let table = F::as_table(found);
                table.expect("a large leaf comes only from who holds the lock for writing")
            }
        }
    }

    fn walk(&self, platform: &impl Platform, address: u64) -> WalkEnd {
        let (mut table, mut level) = (self.root, F::LEVELS - 1);
        loop {
            let at = EntryAt { table, index: F::index(address, level) };
            let entry = platform.load(at);
            match F::as_table(entry) {
                Some(last) if level == 1 => return WalkEnd::Table(at, last),
                Some(next) => (table, level) = (next, level - 1),
                None => {
                    let address = address & !(F::span(level) - 1);
                    let found = Found { address, slot: Slot { at, level }, entry };
                    let is_leaf = found.leaf::<F>().is_some();
                    return if is_leaf { WalkEnd::Large(found) } else { WalkEnd::Nothing(level) };
                }
            }
        }
    }
}

impl Found {
    /// What it said, if it was a leaf.
    pub(crate) fn leaf<F: Format>(&self) -> Option<Leaf> {
        F::as_leaf_at(self.entry, self.slot.level)
    }

    /// The addresses that it is for.
    pub(crate) fn range<F: Format>(&self) -> Range<u64> {
        self.address..self.address + F::span(self.slot.level)
    }

    /// Whether an end of `range` cuts it.
    pub(crate) fn reaches_beyond<F: Format>(&self, range: &Range<u64>) -> bool {
        let pages = self.range::<F>();
        pages.start < range.start || range.end < pages.end
    }
}

impl WalkEnd {
    /// The level of the last entry that was looked at.
    const fn level(&self) -> usize {
        match self {
            Self::Table(..) => 1,
            Self::Large(found) => found.slot.level,
            Self::Nothing(level) => *level,
        }
    }
}

/// The address and the frame of each small page that an entry at `level` maps from `address` on;
/// `frame` is the first.
pub(crate) fn pages_of<F: Format>(
    address: u64,
    frame: Frame,
    level: usize,
) -> impl Iterator<Item = (u64, Frame)> {
    let count = F::span(level) / PAGE_BYTES;
    (0..count).map(move |n| (address + n * PAGE_BYTES, Frame(frame.0 + n)))
}

/// The first multiple of `span` above `address`.
const fn next_boundary(address: u64, span: u64) -> u64 {
    (address & !(span - 1)).saturating_add(span)
}

/// Up to how many empty tables are kept, whatever else a space has: 2 MiB. To free them costs one
/// flush that also tells lazy CPUs.
const KEPT_MAX: u64 = 512;
