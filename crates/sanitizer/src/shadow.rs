//! The shadow TLB of one CPU: all entries that the CPU may still hold. It grows, and forgets
//! nothing but what is invalidated.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::invalidation::{Invalidation, Pages, Pointers};
use crate::report::{Act, Change, Deed, Moment};
use crate::speculation::Removed;
use crate::translation::{Access, Kind, POINTERS_MAX, Slot, Tag, Translation};

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
    fn is_pending(&self, slot: &Slot) -> bool {
        let is_possible = slot.kind == Kind::Table || self.access.has(Access::USER);
        self.act.is_some() && !self.is_reported && is_possible
    }
}

/// The entries of one tag, and two indices: which entries name a frame, and which were read from a
/// page-table entry.
#[derive(Debug, Default)]
struct Held {
    entries: HashMap<Slot, Entry>,
    by_frame: HashMap<u64, SmallVec<[Slot; 1]>>,
    by_source: HashMap<u64, SmallVec<[Slot; 1]>>,
    /// Number of entries that were read from each page table, or by way of it.
    tables: HashMap<u64, u32>,
    /// Number of entries below each page-table entry with a pointer.
    below: HashMap<u64, u32>,
    /// Number of entries of each kind and number of address bits that there are.
    counts: BTreeMap<(usize, u8), u32>,
    /// Number of pages and of tables that are [pending](Entry::is_pending).
    pending: [usize; 2],
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
    fn insert(&mut self, slot: Slot, entry: Entry) {
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
        *self.counts.entry((slot.kind as usize, slot.shift)).or_default() += 1;
    }

    fn remove(&mut self, slot: &Slot) -> bool {
        let Some(entry) = self.entries.remove(slot) else { return false };
        remove_from(&mut self.by_frame, entry.frame, slot);
        remove_from(&mut self.by_source, entry.source, slot);
        for source in entry.sources() {
            release(&mut self.tables, source & TABLE_MASK);
            if source != entry.source {
                release(&mut self.below, source);
            }
        }
        let key = (slot.kind as usize, slot.shift);
        if let Some(count) = self.counts.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&key);
            }
        }
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
        self.counts.clear();
        self.pending = [0; 2];
        count
    }

    fn shifts(&self, kind: Kind) -> impl Iterator<Item = u8> {
        let kind = kind as usize;
        self.counts.range((kind, 0)..=(kind, 63)).map(|(&(_, shift), _)| shift)
    }

    /// Removes what the invalidation drops, and returns the number of these entries.
    fn invalidate(&mut self, tag: Tag, invalidation: &Invalidation) -> usize {
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

/// The shadow TLB of one CPU.
#[derive(Debug, Default)]
pub struct Tlb {
    spaces: HashMap<Tag, Held>,
}

impl Tlb {
    /// Returns the page that translates `address` under the tag, or a global one.
    pub fn find(&self, tag: u32, address: u64) -> Option<(Tag, Slot, Entry)> {
        [Tag::Space(tag), Tag::Global].into_iter().find_map(|tag| {
            let held = self.spaces.get(&tag)?;
            held.shifts(Kind::Page).find_map(|shift| {
                let slot = Slot::covering(Kind::Page, shift, address);
                Some((tag, slot, *held.entries.get(&slot)?))
            })
        })
    }

    /// Keeps a page that the CPU has used at `address`, and the pointers to page tables on the way
    /// to it. A pointer that is already there stays as it is.
    pub fn fill(
        &mut self,
        (tag, root): (u32, u64),
        address: u64,
        found: &Translation,
        filled: Moment,
    ) {
        let entry = |frame, access, source, way| Entry {
            frame,
            access,
            source,
            root,
            way,
            is_unused: false,
            filled,
            change: None,
            act: None,
            is_reported: false,
        };
        let slot = Slot::covering(Kind::Page, found.shift, address);
        let way = found.pointers.map(|pointer| pointer.entry);
        let page = entry(found.frame, found.access, found.entry, way);
        self.spaces.entry(found.tag).or_default().insert(slot, page);
        let held = self.spaces.entry(Tag::Space(tag)).or_default();
        for (level, pointer) in found.pointers().enumerate() {
            let slot = Slot::covering(Kind::Table, pointer.shift, address);
            if !held.entries.contains_key(&slot) {
                let mut above = way;
                above[level..].fill(0);
                held.insert(slot, entry(pointer.table, Access::ALL, pointer.entry, above));
            }
        }
    }

    /// Keeps an entry that the CPU may hold without a use, unless the slot has an entry. Returns
    /// `true` if it is kept.
    pub(crate) fn add_unused(&mut self, tag: u32, removed: &Removed, change: Change) -> bool {
        let held = self.spaces.entry(Tag::Space(tag)).or_default();
        let is_free = !held.entries.contains_key(&removed.slot);
        if is_free {
            let entry = Entry {
                frame: removed.frame,
                access: removed.access,
                source: removed.source,
                root: removed.root,
                way: [0; POINTERS_MAX],
                is_unused: true,
                filled: Moment { time: removed.since, pc: 0 },
                change: Some(change),
                act: None,
                is_reported: false,
            };
            held.insert(removed.slot, entry);
        }
        is_free
    }

    /// Returns `true` if the CPU has used this entry.
    pub(crate) fn has(&self, tag: u32, removed: &Removed) -> bool {
        let held = [Tag::Space(tag), Tag::Global].map(|tag| self.spaces.get(&tag));
        let mut found =
            held.into_iter().flatten().filter_map(|held| held.entries.get(&removed.slot));
        found.any(|entry| entry.frame == removed.frame)
    }

    /// Executes an invalidation, and returns the number of entries that it dropped.
    pub fn invalidate(&mut self, invalidation: &Invalidation) -> usize {
        let mut dropped = 0;
        self.spaces.retain(|tag, held| {
            if invalidation.tags.include(*tag) {
                dropped += held.invalidate(*tag, invalidation);
            }
            // Tag 0 is the only one of a machine without tags, which empties it at each switch.
            !held.entries.is_empty() || *tag == Tag::Space(0)
        });
        dropped
    }

    /// Removes one entry.
    pub fn remove(&mut self, tag: Tag, slot: &Slot) {
        if let Some(held) = self.spaces.get_mut(&tag) {
            held.remove(slot);
        }
    }

    /// Records that the fault of a marked entry was reported.
    pub fn set_reported(&mut self, tag: Tag, slot: &Slot) {
        if let Some(held) = self.spaces.get_mut(&tag)
            && let Some(entry) = held.entries.get_mut(slot)
        {
            held.pending[slot.kind as usize] -= usize::from(entry.is_pending(slot));
            entry.is_reported = true;
        }
    }

    /// Calls `act` for each entry that names the frame, and marks those for which it returns an
    /// act. Returns the number of marked entries, or `None` if no entry names the frame.
    pub fn mark_frame(
        &mut self,
        frame: u64,
        mut act: impl FnMut(Tag, &Slot, &Entry) -> Option<Act>,
    ) -> Option<usize> {
        let (mut marked, mut is_named) = (0, false);
        for (&tag, Held { entries, by_frame, pending, .. }) in &mut self.spaces {
            // A large page is listed under its first frame.
            for first in [frame, frame >> 21 << 21, frame >> 30 << 30] {
                for slot in by_frame.get(&first).into_iter().flatten() {
                    let Some(entry) = entries.get_mut(slot) else { continue };
                    let is_within = match slot.kind {
                        Kind::Page => frame - first < slot.bytes(),
                        Kind::Table => frame == first,
                    };
                    if !is_within {
                        continue;
                    }
                    is_named = true;
                    let is_reused =
                        entry.act.is_some_and(|act| matches!(act.deed, Deed::Reused(_)));
                    if !is_reused
                        && !entry.is_reported
                        && let Some(act) = act(tag, slot, entry)
                    {
                        pending[slot.kind as usize] -= usize::from(entry.is_pending(slot));
                        entry.act = Some(act);
                        pending[slot.kind as usize] += usize::from(entry.is_pending(slot));
                        marked += 1;
                    }
                }
                if first == 0 {
                    break;
                }
            }
        }
        is_named.then_some(marked)
    }

    /// Calls `change` for each entry that was read from the page-table entry at `source`, or by way
    /// of it.
    pub fn change_source(&mut self, source: u64, mut change: impl FnMut(Tag, &Slot, &mut Entry)) {
        for (&tag, Held { entries, by_source, below, .. }) in &mut self.spaces {
            for slot in by_source.get(&source).into_iter().flatten() {
                if let Some(entry) = entries.get_mut(slot) {
                    change(tag, slot, entry);
                }
            }
            if below.contains_key(&source) {
                let found = entries.iter_mut().filter(|(_, entry)| entry.way.contains(&source));
                found.for_each(|(slot, entry)| change(tag, slot, entry));
            }
        }
    }

    /// Returns `true` if an entry was read from this table, by way of it, or points to it.
    pub fn uses_table(&self, table: u64) -> bool {
        self.spaces.values().any(|held| {
            let mut named = held.by_frame.get(&table).into_iter().flatten();
            held.tables.contains_key(&table) || named.any(|slot| slot.kind == Kind::Table)
        })
    }

    /// Marks one entry, if it is still held and was changed at `change`.
    pub fn mark(&mut self, tag: Tag, slot: &Slot, change: &Change, act: Act) -> bool {
        let Some(held) = self.spaces.get_mut(&tag) else { return false };
        let Some(entry) = held.entries.get_mut(slot) else { return false };
        let is_it = entry.change == Some(*change) && entry.act.is_none();
        if is_it {
            entry.act = Some(act);
            held.pending[slot.kind as usize] += usize::from(entry.is_pending(slot));
        }
        is_it
    }

    /// Calls `report` for each pending entry of these kinds that the CPU could use under the tag.
    /// Each entry is reported once.
    pub fn report_pending(
        &mut self,
        tag: u32,
        kinds: &[Kind],
        mut report: impl FnMut(Tag, &Slot, &Entry),
    ) {
        for tag in [Tag::Space(tag), Tag::Global] {
            let Some(held) = self.spaces.get_mut(&tag) else { continue };
            for &kind in kinds {
                if held.pending[kind as usize] == 0 {
                    continue;
                }
                for (slot, entry) in &mut held.entries {
                    if slot.kind == kind && entry.is_pending(slot) {
                        report(tag, slot, entry);
                        entry.is_reported = true;
                    }
                }
                held.pending[kind as usize] = 0;
            }
        }
    }

    /// Number of pending entries under any tag.
    pub fn pending(&self) -> usize {
        self.spaces.values().map(|held| held.pending.iter().sum::<usize>()).sum()
    }

    /// Returns `true` if there is a page of more than 4 KiB.
    pub fn has_large_pages(&self) -> bool {
        self.spaces.values().any(|held| held.shifts(Kind::Page).any(|shift| shift > 12))
    }

    /// Number of entries.
    pub fn held(&self) -> usize {
        self.spaces.values().map(|held| held.entries.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invalidation::Tags;

    #[test]
    fn space_without_entries_is_removed() {
        let mut tlb = Tlb::default();
        let mut found = Translation {
            shift: 12,
            frame: 0x9000,
            access: Access::ALL,
            tag: Tag::Space(0),
            entry: 0x1000,
            pointers: [crate::translation::Pointer::default(); POINTERS_MAX],
        };
        for tag in 1..=9 {
            found.tag = Tag::Space(tag);
            tlb.fill((tag, 0), 0, &found, Moment::default());
        }
        assert_eq!(tlb.invalidate(&Invalidation::whole(Tags::One(3))), 1);
        assert_eq!(tlb.spaces.len(), 8);
        assert_eq!(tlb.invalidate(&Invalidation::whole(Tags::All)), 8);
        assert_eq!(tlb.spaces.len(), 0);
    }
}
