//! The shadow TLB of one CPU: all entries that the CPU may still hold. It grows, and forgets
//! nothing but what is invalidated.

use hashbrown::HashMap;

pub use crate::held::Entry;
use crate::held::Held;
use crate::invalidation::Invalidation;
use crate::report::{Act, Change, Deed, Moment};
use crate::speculation::Removed;
use crate::translation::{Access, Kind, POINTERS_MAX, Slot, Tag, Translation};

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
                        entry.act.is_some_and(|act| !matches!(act.deed, Deed::Settled(_)));
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
