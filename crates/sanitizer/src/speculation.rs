//! The page tables of spaces, as far as CPUs may have walked them without an access: a TLB may hold
//! everything that they allowed since the last invalidation.
//!
//! Only translations that the tables do not have any more matter. Each table below a root that a
//! CPU has loaded is copied, because a store is seen after it was executed: the copy has the old
//! entry.

use std::sync::{Mutex, PoisonError};

use hashbrown::HashMap;

use crate::arch::{Architecture, Context, Half, Step};
use crate::frames::Frames;
use crate::translation::{Access, Kind, Slot};

/// A translation of user mode that was removed or restricted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Removed {
    /// The root of the space.
    pub(crate) root: u64,
    pub(crate) slot: Slot,
    /// Physical address of the page or of the table.
    pub(crate) frame: u64,
    pub(crate) access: Access,
    /// Physical address of the page-table entry.
    pub(crate) source: u64,
    /// The time from which on the tables had the entry.
    pub(crate) since: u64,
}

/// An entry, and the time from which on it has its translation.
#[derive(Clone, Copy, Debug)]
struct Word {
    value: u64,
    since: u64,
}

/// The place of a table in its space. A table of several spaces has the place at which it was found
/// first.
#[derive(Clone, Copy, Debug)]
struct Place {
    half: Half,
    start: u64,
    /// Number of address bits that an entry covers.
    shift: u8,
    /// The accesses that entries of the levels above allow.
    limit: Access,
}

impl Place {
    fn slot(&self, kind: Kind, index: usize) -> Slot {
        Slot { kind, shift: self.shift, start: self.start + ((index as u64) << self.shift) }
    }
}

#[derive(Debug)]
struct Table {
    place: Place,
    words: Box<[Word]>,
}

/// The tables of user mode that are below a root.
#[derive(Debug, Default)]
pub(crate) struct Tables(Mutex<HashMap<u64, Table>>);

/// What reads the tables of a guest.
#[derive(Clone, Copy)]
pub(crate) struct Look<'a> {
    pub(crate) arch: &'static dyn Architecture,
    pub(crate) read: &'a dyn Fn(u64) -> Option<u64>,
    pub(crate) frames: &'a Frames,
    /// The time.
    pub(crate) now: u64,
}

/// The changes so far in one event.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) removed: Vec<Removed>,
    /// `true` if a frame is now known to be a table.
    pub(crate) is_new: bool,
}

impl Tables {
    fn with<R>(&self, act: impl FnOnce(&mut HashMap<u64, Table>) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A CPU loads the root. Returns `true` if frames are now known to be tables.
    pub(crate) fn enter(&self, look: Look<'_>, context: &Context) -> bool {
        let half = context.halves[0];
        if !context.is_on || half.bits <= half.page_shift {
            return false;
        }
        let place = Place { half, start: 0, shift: half.top_shift(), limit: Access::ALL };
        // One root for both halves: the upper half is the kernel's.
        let is_shared = context.halves[1].root == half.root;
        let count = 1 << (half.bits - place.shift - u8::from(is_shared));
        let mut changes = Changes::default();
        self.with(|tables| add(tables, look, (half.root, count, place), &mut changes));
        changes.is_new
    }

    /// Returns `true` if the frame is a table.
    pub(crate) fn has(&self, frame: u64) -> bool {
        self.with(|tables| tables.contains_key(&frame))
    }

    /// An entry may have changed.
    pub(crate) fn store(&self, look: Look<'_>, source: u64, changes: &mut Changes) {
        self.with(|tables| {
            let (frame, index) = (source & !0xfff, (source & 0xfff) as usize / 8);
            let Some(Table { place, words }) = tables.get_mut(&frame) else { return };
            let (place, Some(word)) = (*place, words.get_mut(index)) else { return };
            let Some(value) = (look.read)(source) else { return };
            let slot = place.slot(Kind::Page, index);
            let step = |value| look.arch.step(value, slot.start, slot.shift, &place.half);
            let old = std::mem::replace(&mut word.value, value);
            let (before, after) = (step(old), step(value));
            if is_kept(before, after) {
                return;
            }
            let old = Word { value: old, since: std::mem::replace(&mut word.since, look.now) };
            remove(tables, look, (frame, index, place, old), changes);
            link(tables, look, after, (place, index), changes);
        });
    }

    /// The frame has a new owner. If it was a table, all its entries are removed.
    pub(crate) fn free(&self, look: Look<'_>, frame: u64, changes: &mut Changes) {
        self.with(|tables| unlink(tables, look, frame, changes));
    }
}

/// Returns `true` if the new entry allows all that the old one allows.
fn is_kept(before: Step, after: Step) -> bool {
    match (before, after) {
        (Step::Nothing, Step::Nothing) => true,
        (Step::Page { frame, access, .. }, Step::Page { frame: new, access: allowed, .. })
        | (
            Step::Table { table: frame, limit: access, .. },
            Step::Table { table: new, limit: allowed, .. },
        ) => frame == new && allowed.has(access),
        _ => false,
    }
}

fn add(
    tables: &mut HashMap<u64, Table>,
    look: Look<'_>,
    (frame, count, place): (u64, usize, Place),
    changes: &mut Changes,
) {
    if tables.contains_key(&frame) {
        return;
    }
    changes.is_new |= look.frames.becomes_table(frame);
    let word = |index| (look.read)(frame + index as u64 * 8).unwrap_or(0);
    let words: Box<[Word]> =
        (0..count).map(|index| Word { value: word(index), since: look.now }).collect();
    let values: Vec<u64> = words.iter().map(|word| word.value).collect();
    tables.insert(frame, Table { place, words });
    for (index, value) in values.into_iter().enumerate().filter(|(_, value)| *value != 0) {
        let slot = place.slot(Kind::Table, index);
        let step = look.arch.step(value, slot.start, slot.shift, &place.half);
        link(tables, look, step, (place, index), changes);
    }
}

/// Adds the table to which an entry points, if it points to one.
fn link(
    tables: &mut HashMap<u64, Table>,
    look: Look<'_>,
    step: Step,
    (above, index): (Place, usize),
    changes: &mut Changes,
) {
    let per_level = above.half.page_shift - 3;
    if let Step::Table { table, limit, .. } = step
        && let Some(shift) = above.shift.checked_sub(per_level)
        && shift >= above.half.page_shift
    {
        let start = above.slot(Kind::Table, index).start;
        let place = Place { start, shift, limit: above.limit & limit, ..above };
        add(tables, look, (table, 1 << per_level, place), changes);
    }
}

/// An entry is not there any more, and neither is all below it.
fn remove(
    tables: &mut HashMap<u64, Table>,
    look: Look<'_>,
    (frame, index, place, word): (u64, usize, Place, Word),
    changes: &mut Changes,
) {
    let mut removed = |kind, to, access| {
        let (root, slot) = (place.half.root, place.slot(kind, index));
        let source = frame + index as u64 * 8;
        changes.removed.push(Removed { root, slot, frame: to, access, source, since: word.since });
    };
    let start = place.slot(Kind::Page, index).start;
    match look.arch.step(word.value, start, place.shift, &place.half) {
        Step::Page { frame, access, .. } if (access & place.limit).has(Access::USER) => {
            removed(Kind::Page, frame, access & place.limit);
        }
        Step::Table { table, .. } => {
            removed(Kind::Table, table, Access::ALL);
            unlink(tables, look, table, changes);
        }
        _ => {}
    }
}

fn unlink(tables: &mut HashMap<u64, Table>, look: Look<'_>, frame: u64, changes: &mut Changes) {
    let Some(Table { place, words }) = tables.remove(&frame) else { return };
    for (index, word) in words.iter().enumerate().filter(|(_, word)| word.value != 0) {
        remove(tables, look, (frame, index, place, *word), changes);
    }
    look.frames.is_no_table(frame);
}
