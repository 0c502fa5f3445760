//! Entries of one tag, with the indices that find them.

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::invalidation::{Invalidation, Pages, Pointers};
use crate::report::{Act, Change, Moment};
use crate::translation::{Access, Kind, POINTERS_MAX, Slot, Tag};

/// The bits of an entry's address that are its table's.
const TABLE_MASK: u64 = !0xfff;

/// An entry.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Physical address of the page or of the table.
    pub frame: u64,
    /// The allowed accesses; all for a table.
    pub access: Access,
    /// Physical address of the page-table entry that it was read from.
    pub source: u64,
    /// The root of the walk that read it, and the entries that were followed on the way to
    /// `source`; unused ones are 0.
    pub root: u64,
    /// See `root`.
    pub way: [u64; POINTERS_MAX],
    /// `true` if the CPU has not used it.
    pub is_unused: bool,
    /// When the CPU used it first.
    pub filled: Moment,
    /// The first change of the page-table entry since then.
    pub change: Option<Change>,
    /// The use of the frame by a new owner, if there was one. The CPU must not use the entry.
    pub act: Option<Act>,
    /// `true` if the fault was reported.
    pub is_reported: bool,
}

impl Entry {
    /// The page-table entries that it was read from, from the root on.
    fn sources(&self) -> impl Iterator<Item = u64> + use<> {
        let way = self.way.into_iter().take_while(|&source| source != 0);
        way.chain([self.source])
    }

    /// Returns `true` if the entry is a fault as soon as the CPU could use it. A page of the kernel
    /// is one only when it is used: kernels unmap their pages long before they flush them.
    pub(crate) fn is_pending(&self, slot: &Slot) -> bool {
        let is_possible = slot.kind == Kind::Table || self.access.has(Access::USER);
        self.act.is_some() && !self.is_reported && is_possible
    }
}

/// The entries of one tag, and two indices: which entries name a frame, and which were read from a
/// page-table entry.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) entries: HashMap<Slot, Entry>,
    pub(crate) by_frame: HashMap<u64, SmallVec<[Slot; 1]>>,
    pub(crate) by_source: HashMap<u64, SmallVec<[Slot; 1]>>,
    /// Number of entries that were read from each page table, or by way of it.
    pub(crate) tables: HashMap<u64, u32>,
    /// Number of entries below each page-table entry with a pointer.
    pub(crate) below: HashMap<u64, u32>,
    /// The sizes of pages and of tables.
    sizes: [Sizes; 2],
    /// Number of pages and of tables that are [pending](Entry::is_pending).
    pub(crate) pending: [usize; 2],
}

/// Number of entries with each number of address bits.
#[derive(Debug)]
struct Sizes {
    counts: [u32; 64],
    /// A bit for each count that is not 0.
    present: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { counts: [0; 64], present: 0 }
    }
}

impl Sizes {
    fn add(&mut self, shift: u8) {
        self.counts[usize::from(shift)] += 1;
        self.present |= 1 << shift;
    }

    fn remove(&mut self, shift: u8) {
        let count = &mut self.counts[usize::from(shift)];
        *count -= 1;
        self.present &= !(u64::from(*count == 0) << shift);
    }
}

fn release(counts: &mut HashMap<u64, u32>, key: u64) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

fn remove_from(index: &mut HashMap<u64, SmallVec<[Slot; 1]>>, key: u64, slot: &Slot) {
    if let Some(slots) = index.get_mut(&key) {
        slots.retain(|other| other != slot);
        if slots.is_empty() {
            index.remove(&key);
        }
    }
}

impl Held {
    pub(crate) fn insert(&mut self, slot: Slot, entry: Entry) {
        self.remove(&slot);
        self.entries.insert(slot, entry);
        self.by_frame.entry(entry.frame).or_default().push(slot);
        self.by_source.entry(entry.source).or_default().push(slot);
        for source in entry.sources() {
            *self.tables.entry(source & TABLE_MASK).or_default() += 1;
            if source != entry.source {
                *self.below.entry(source).or_default() += 1;
            }
        }
        self.sizes[slot.kind as usize].add(slot.shift);
    }

    pub(crate) fn remove(&mut self, slot: &Slot) -> bool {
        let Some(entry) = self.entries.remove(slot) else { return false };
        remove_from(&mut self.by_frame, entry.frame, slot);
        remove_from(&mut self.by_source, entry.source, slot);
        for source in entry.sources() {
            release(&mut self.tables, source & TABLE_MASK);
            if source != entry.source {
                release(&mut self.below, source);
            }
        }
        self.sizes[slot.kind as usize].remove(slot.shift);
        self.pending[slot.kind as usize] -= usize::from(entry.is_pending(slot));
        true
    }

    fn clear(&mut self) -> usize {
        let count = self.entries.len();
        self.entries.clear();
        self.by_frame.clear();
        self.by_source.clear();
        self.tables.clear();
        self.below.clear();
        self.sizes = Default::default();
        self.pending = [0; 2];
        count
    }

    /// Numbers of address bits of the entries, the smallest first.
    pub(crate) fn shifts(&self, kind: Kind) -> impl Iterator<Item = u8> + use<> {
        let mut present = self.sizes[kind as usize].present;
        std::iter::from_fn(move || {
            let shift = present.trailing_zeros() as u8;
            present &= present.wrapping_sub(1);
            (shift < 64).then_some(shift)
        })
    }

    /// Removes what the invalidation drops, and returns the number of these entries.
    pub(crate) fn invalidate(&mut self, tag: Tag, invalidation: &Invalidation) -> usize {
        let Pages::Range(first, last) = invalidation.pages else { return self.clear() };
        let all_pointers = invalidation.pointers == Pointers::All;
        let mut dropped: SmallVec<[Slot; 8]> = SmallVec::new();
        for kind in [Kind::Page, Kind::Table] {
            for shift in self.shifts(kind) {
                let count = (last >> shift) - (first >> shift) + 1;
                if count > self.entries.len() as u64 || kind == Kind::Table && all_pointers {
                    let of_kind = self.entries.keys().copied();
                    dropped.extend(of_kind.filter(|slot| slot.kind == kind && slot.shift == shift));
                } else {
                    let numbers = first >> shift..=last >> shift;
                    dropped.extend(numbers.map(|number| Slot {
                        kind,
                        shift,
                        start: number << shift,
                    }));
                }
            }
        }
        dropped.retain(|slot| invalidation.drops(tag, slot).is_ok());
        dropped.iter().filter(|slot| self.remove(slot)).count()
    }
}
