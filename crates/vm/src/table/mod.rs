//! The tree of page tables of one space: finds, makes, visits and unhooks its parts.
//!
//! Nothing here takes a lock. A table that is linked into the tree is visible to all CPUs. It
//! leaves the tree only when no area can need it ([`unhook`](PageTables::unhook)), or when a large
//! page replaces it, for which the lock is held for writing. So a caller that holds the space's
//! lock, or the area's, and walks to an address of an area, walks tables that stay.
//!
//! An entry above level 0 goes through the states below. The call that empties an entry also
//! flushes it. A call that writes another value to it, with the lock held for writing, waits for
//! that flush first.
//!
//! ```text
//!            fault                collapse (writer)
//!    empty ---------> table ---------> empty ---------> large leaf
//!     ^ |               ^                                |  |  ^
//!     | |               +-------- empty <----------------+  |  |
//!     | |                  split (writer)                   |  |
//!     +-|---------------------------------------------------+  |
//!       |  cleared by an operation on all of the large page    |
//!       +------------------------------------------------------+
//!             fault at a folio of a file, or first write
//! ```
//!
//! A large anonymous page replaces small ones only while the lock is held for writing. A fault maps
//! a folio, or a large page at its first write, at any time that the entry is empty. A large leaf
//! may be cleared while other CPUs hold the lock for reading, and a table or a large leaf may be
//! there a moment later.

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
    /// Number of tables below the root.
    count: AtomicU64,
    /// The same number when tables were last unhooked.
    count_at_unhook: AtomicU64,
    /// Number of large leaves: if it is 0, there is no need to look for them. Changed and read
    /// under the areas' lock, which orders the accesses: an operation that holds the lock for
    /// reading leaves alone a large page that a fault maps at the same time.
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
    /// The first address that the entry covers.
    pub(crate) address: u64,
    pub(crate) slot: Slot,
    /// The value of the entry.
    pub(crate) entry: u64,
}

/// The end of a walk to an address.
enum WalkEnd {
    /// A table of level 0, and the entry that points to it.
    Table(EntryAt, Frame),
    /// A large leaf.
    Large(Found),
    /// An entry of this level, which is empty.
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

    /// Returns the entry of a level for `address`, in tables that are made if there are none; or
    /// the entry of a higher level that held a large leaf for `address`.
    pub(crate) fn make_at(
        &self,
        platform: &impl Platform,
        address: u64,
        lowest: usize,
        new_table: impl Fn() -> Result<Frame, OutOfMemory>,
    ) -> Result<Slot, OutOfMemory> {
        let mut table = self.root;
        for level in (lowest + 1..F::LEVELS).rev() {
            let at = EntryAt { table, index: F::index(address, level) };
            let entry = platform.load(at);
            let next = match F::as_table(entry) {
                Some(next) => Some(next),
                None if F::as_large_leaf(entry, level).is_some() => None,
                None => self.link_new(platform, at, new_table()?),
            };
            let Some(next) = next else { return Ok(Slot { at, level }) };
            table = next;
        }
        Ok(Slot { at: EntryAt { table, index: F::index(address, lowest) }, level: lowest })
    }

    /// Returns the entry at level 0 for the page of `address`, if there is a table for it.
    pub(crate) fn find(&self, platform: &impl Platform, address: u64) -> Option<EntryAt> {
        let (_, table) = self.leaf_table(platform, address)?;
        Some(EntryAt { table, index: F::index(address, 0) })
    }

    /// Returns the leaf that maps `address`, at any level.
    pub(crate) fn leaf(&self, platform: &impl Platform, address: u64) -> Option<Leaf> {
        match self.walk(platform, address) {
            WalkEnd::Table(_, table) => {
                F::as_leaf(platform.load(EntryAt { table, index: F::index(address, 0) }))
            }
            WalkEnd::Large(found) => found.leaf::<F>(),
            WalkEnd::Nothing(_) => None,
        }
    }

    /// Returns the table of level 0 for `address`, and the entry that points to it.
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

    /// Returns the entries for `range` that are not [`EMPTY`], in order, each as it is when the
    /// iterator comes to it: entries of pages, and entries of large pages that overlap the range.
    pub(crate) fn entries<'t, P: Platform>(
        &'t self,
        platform: &'t P,
        range: Range<u64>,
    ) -> Entries<'t, P, F> {
        Entries { tables: self, platform, range, table: None, examined: 0, ahead: None }
    }

    /// Returns the first address of each table of level 0 that `range` overlaps.
    pub(crate) fn leaf_tables<P: Platform>(
        &self,
        platform: &P,
        range: &Range<u64>,
    ) -> impl Iterator<Item = u64> {
        self.walks(platform, range.clone()).filter_map(|(address, end)| match end {
            WalkEnd::Table(..) => Some(address & !(F::span(1) - 1)),
            WalkEnd::Large(_) | WalkEnd::Nothing(_) => None,
        })
    }

    /// Calls `each` with each table of level 0 that `range` overlaps.
    pub(crate) fn each_leaf_table<P: Platform>(
        &self,
        platform: &P,
        range: &Range<u64>,
        mut each: impl FnMut(Frame),
    ) {
        for (_, end) in self.walks(platform, range.clone()) {
            if let WalkEnd::Table(_, table) = end {
                each(table);
            }
        }
    }

    /// Returns the large leaves that overlap `range`, in order.
    pub(crate) fn large_leaves<P: Platform>(
        &self,
        platform: &P,
        range: Range<u64>,
    ) -> impl Iterator<Item = Found> {
        let has_large = self.large_count.load(Relaxed) != 0;
        let range = if has_large { range } else { 0..0 };
        self.walks(platform, range).filter_map(|(_, end)| match end {
            WalkEnd::Large(found) => Some(found),
            WalkEnd::Table(..) | WalkEnd::Nothing(_) => None,
        })
    }

    /// Writes a large leaf to an empty entry. No other call may write to the entry at the same
    /// time.
    pub(crate) fn set_large(&self, platform: &impl Platform, Slot { at, level }: Slot, leaf: Leaf) {
        self.large_count.fetch_add(1, Relaxed);
        let old = platform.swap(at, F::large_leaf(leaf, level));
        debug_assert_eq!(old, EMPTY);
    }

    /// Writes a large leaf to an entry if the entry is empty. Returns whether it was.
    pub(crate) fn set_large_if_empty(
        &self,
        platform: &impl Platform,
        Slot { at, level }: Slot,
        leaf: Leaf,
    ) -> bool {
        // Count the leaf before another CPU can find it.
        self.large_count.fetch_add(1, Relaxed);
        let is_set = platform.compare_exchange(at, EMPTY, F::large_leaf(leaf, level)).is_ok();
        if !is_set {
            self.large_count.fetch_sub(1, Relaxed);
        }
        is_set
    }

    /// Clears a large leaf, and returns it. `None` if another call has cleared it: there may be a
    /// table by now.
    pub(crate) fn clear_large(&self, platform: &impl Platform, found: &Found) -> Option<Leaf> {
        let cleared = change_leaf::<F>(platform, found.slot, found.entry, |_| Some(EMPTY))?;
        self.large_count.fetch_sub(1, Relaxed);
        Some(cleared)
    }

    /// Links a table into an empty entry. No other call may write to the entry at the same time.
    pub(crate) fn link(&self, platform: &impl Platform, at: EntryAt, table: Frame) {
        self.count.fetch_add(1, Relaxed);
        let old = platform.swap(at, F::table(table));
        debug_assert_eq!(old, EMPTY);
    }

    /// Removes from the tree the table of level 0 that `at` points to. All its entries must be
    /// empty, and stay empty, because a CPU may be in the middle of a walk.
    pub(crate) fn unlink(&self, platform: &impl Platform, at: EntryAt) {
        self.count.fetch_sub(1, Relaxed);
        platform.swap(at, EMPTY);
    }

    /// Removes from the tree every table that one of `ranges` overlaps and that covers nothing
    /// outside `gap`. The ranges must be in order. Calls `unhooked` with each table, after the
    /// tables below it, with the smallest range that contains the parts of `ranges` that the table
    /// covers, and with the level of the entry that held it.
    ///
    /// No area may be in `gap`, and none may be added there, until this returns. (Linux:
    /// `free_pgtables`, with its floor and ceiling.)
    pub(crate) fn unhook<P: Platform>(
        &self,
        platform: &P,
        ranges: &[Range<u64>],
        gap: &Range<u64>,
        unhooked: impl FnMut(Frame, Range<u64>, usize),
    ) {
        let count = &self.count;
        let mut unhooking = Unhooking { platform, gap, unhooked, count, format: PhantomData::<F> };
        unhooking.visit(self.root, F::LEVELS - 1, ranges, State::Linked);
        self.count_at_unhook.store(self.count.load(Relaxed), Relaxed);
    }

    /// Returns `true` if there are enough tables to make a search for unneeded ones worthwhile.
    pub(crate) fn has_many(&self) -> bool {
        let needed_then = self.count_at_unhook.load(Relaxed);
        self.count.load(Relaxed) > (2 * needed_then).max(KEPT_MAX)
    }

    /// The table of the highest level.
    pub(crate) const fn root_frame(&self) -> Frame {
        self.root
    }

    /// Links a new table into an entry that was empty, or finds the table that another CPU has
    /// linked there, and frees the new one. Returns the linked table; `None` if another CPU has
    /// mapped a folio there.
    fn link_new(&self, platform: &impl Platform, at: EntryAt, new: Frame) -> Option<Frame> {
        match platform.compare_exchange(at, EMPTY, F::table(new)) {
            Ok(_) => {
                self.count.fetch_add(1, Relaxed);
                Some(new)
            }
            Err(found) => {
                platform.free_table(new);
                F::as_table(found)
            }
        }
    }

    /// Walks to each part of `range`. Returns the first address of each part and the end of its
    /// walk.
    fn walks<P: Platform>(
        &self,
        platform: &P,
        mut range: Range<u64>,
    ) -> impl Iterator<Item = (u64, WalkEnd)> {
        core::iter::from_fn(move || {
            let address = range.start;
            (!range.is_empty()).then(|| {
                let end = self.walk(platform, address);
                range.start = next_boundary(address, F::span(end.level()));
                (address, end)
            })
        })
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
    /// Decodes the entry, if it was a leaf.
    pub(crate) fn leaf<F: Format>(&self) -> Option<Leaf> {
        F::as_leaf_at(self.entry, self.slot.level)
    }

    /// The addresses that the entry covers.
    pub(crate) fn range<F: Format>(&self) -> Range<u64> {
        self.address..self.address + F::span(self.slot.level)
    }

    /// Returns `true` if the entry covers addresses outside `range`.
    pub(crate) fn reaches_beyond<F: Format>(&self, range: &Range<u64>) -> bool {
        let pages = self.range::<F>();
        pages.start < range.start || range.end < pages.end
    }
}

impl WalkEnd {
    /// The level of the last entry of the walk.
    #[inline]
    const fn level(&self) -> usize {
        match self {
            Self::Table(..) => 1,
            Self::Large(found) => found.slot.level,
            Self::Nothing(level) => *level,
        }
    }
}

/// Changes the leaf in an entry that held `entry` to the value that `change` returns. If the MMU or
/// another call has changed the entry, tries again with its new value. Returns the old leaf; `None`
/// if the entry holds no leaf, or if `change` returns `None`.
pub(crate) fn change_leaf<F: Format>(
    platform: &impl Platform,
    Slot { at, level }: Slot,
    mut entry: u64,
    mut change: impl FnMut(Leaf) -> Option<u64>,
) -> Option<Leaf> {
    loop {
        let leaf = F::as_leaf_at(entry, level)?;
        match platform.compare_exchange(at, entry, change(leaf)?) {
            Ok(_) => return Some(leaf),
            Err(found) => entry = found,
        }
    }
}

/// Returns the address and the frame of each small page that an entry at `level` maps from
/// `address` on. `frame` is the first frame.
pub(crate) fn pages_of<F: Format>(
    address: u64,
    frame: Frame,
    level: usize,
) -> impl Iterator<Item = (u64, Frame)> {
    let count = F::span(level) / PAGE_BYTES;
    (0..count).map(move |n| (address + n * PAGE_BYTES, Frame(frame.0 + n)))
}

/// Returns the first multiple of `span` above `address`.
#[inline]
pub(crate) const fn next_boundary(address: u64, span: u64) -> u64 {
    (address & !(span - 1)).saturating_add(span)
}

/// Maximum number of empty tables that are kept, independently of the space's size: 2 MiB. Freeing
/// tables costs one flush that also interrupts lazy CPUs.
const KEPT_MAX: u64 = 512;
