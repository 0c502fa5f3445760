//! The translation caches of one CPU: small pages, set-associative; large pages; and the entries of
//! upper page-table levels.
//!
//! Each entry has its origin, which the oracle checks: the space whose tables it is from, its time
//! in the order of flushes, and the number of times that its frame had been freed by then.

use core::ops::Range;

use crate::clock::Flushed;
use crate::machine::Tlb as Size;
use crate::memory::FrameNumber;

/// Identity of an address space: the frame of its root, and the number of times that this frame had
/// been freed before. So a space never has the key of an earlier one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceKey(u64);

impl SpaceKey {
    /// The kernel's own root.
    pub const KERNEL: Self = Self(0);
    const ROOT_BITS: u32 = 36;

    #[inline]
    pub(crate) const fn new(root: FrameNumber, generation: u32) -> Self {
        Self((generation as u64) << Self::ROOT_BITS | root)
    }

    #[inline]
    pub(crate) const fn root_generation(self) -> u32 {
        (self.0 >> Self::ROOT_BITS) as u32
    }

    #[inline]
    pub(crate) const fn root(self) -> FrameNumber {
        self.0 & ((1 << Self::ROOT_BITS) - 1)
    }
}

/// A translation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Translation {
    /// The virtual address of the page.
    pub(crate) page: u64,
    /// The size of the page, as a power of two.
    pub(crate) shift: u8,
    pub(crate) writable: bool,
    /// The page-table entry had its dirty bit set.
    pub(crate) dirty: bool,
    pub(crate) frame: FrameNumber,
    /// Number of times that the frame had been freed.
    pub(crate) frame_generation: u32,
    pub(crate) space: SpaceKey,
    /// The oracle's time when the translation was read: flushes that began earlier do not make it
    /// stale. The oracle raises it when it drops the records of completed flushes.
    pub(crate) clean_since: u64,
}

/// A cached entry of an upper page-table level, which names the next table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upper {
    /// The level of the entry: it maps the addresses that agree in the bits from `shift` on.
    pub(crate) shift: u8,
    /// Those address bits.
    pub(crate) prefix: u64,
    pub(crate) table: FrameNumber,
    pub(crate) table_generation: u32,
}

/// The levels of the page tables whose entries are invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Levels {
    /// The entries that map pages.
    Last,
    /// The entries that map pages, and those of the levels above.
    All,
}

/// A cached entry under a tag. It is dead if it is older than the last flush of all of its tag.
#[derive(Clone, Copy, Debug)]
struct Slot<T> {
    entry: T,
    tag: u16,
    /// Sequence number of the last invalidation before the entry was cached.
    since: u64,
    used_at: u64,
}

/// The caches of one CPU.
#[derive(Debug, Default)]
pub(crate) struct Tlb {
    /// The space that is loaded.
    pub(crate) space: SpaceKey,
    /// The root that is loaded: the space's own, or that of a replica of its upper tables.
    pub(crate) root: SpaceKey,
    pub(crate) tag: u16,
    /// Number of times that other CPUs invalidated entries under the loaded tag. A walk in progress
    /// then starts again, because it may have read entries that were changed.
    pub(crate) invalidation_count: u64,
    ways: usize,
    set_count: u64,
    small: Vec<Option<Slot<Translation>>>,
    large: Vec<Slot<Translation>>,
    large_entries: usize,
    upper: Vec<Slot<Upper>>,
    upper_entries: usize,
    /// Per tag, the sequence number of the last invalidation of all its entries. Older entries are
    /// dead, so emptying a tag takes no time on the host. Tags beyond the end were never emptied.
    floors: Vec<u64>,
    /// Sequence number of the last invalidation of all entries of all tags.
    floor_of_all: u64,
    /// The larger of the two numbers for the loaded tag.
    floor: u64,
    accesses: u64,
}

impl Tlb {
    pub(crate) fn new(size: &Size) -> Self {
        Self {
            ways: size.ways,
            set_count: (size.entries / size.ways) as u64,
            small: vec![None; size.entries],
            large_entries: size.large_entries,
            upper_entries: size.upper_entries,
            ..Self::default()
        }
    }

    /// The translation of an address under the loaded tag.
    #[inline]
    pub(crate) fn find(&mut self, address: u64) -> Option<&mut Translation> {
        self.accesses += 1;
        let (tag, floor, now) = (self.tag, self.floor, self.accesses);
        let page = address & !0xfff;
        let set = self.set(page);
        let live = |slot: &Slot<Translation>| slot.tag == tag && slot.since >= floor;
        let small = self.small[set].iter_mut().flatten();
        if let Some(slot) = small.into_iter().find(|slot| slot.entry.page == page && live(slot)) {
            slot.used_at = now;
            return Some(&mut slot.entry);
        }
        let covers = |t: &Translation| address >> t.shift == t.page >> t.shift;
        let slot = self.large.iter_mut().find(|slot| covers(&slot.entry) && live(slot))?;
        slot.used_at = now;
        Some(&mut slot.entry)
    }

    /// Caches a translation in place of the least recently used one.
    pub(crate) fn insert(&mut self, entry: Translation, since: u64) {
        let tag = self.tag;
        let new = Slot { entry, tag, since, used_at: self.accesses };
        if entry.shift > 12 {
            // Otherwise `find` would return the older translation of the same page.
            let same = |slot: &Slot<Translation>| slot.tag == tag && slot.entry.page == entry.page;
            self.large.retain(|slot| !same(slot));
            insert_lru(&mut self.large, self.large_entries, new);
            return;
        }
        let floors = Floors { of_tags: &self.floors, of_all: self.floor_of_all };
        let age = |slot: &Option<Slot<Translation>>| match slot {
            Some(slot) if slot.entry.page == entry.page && slot.tag == tag => 0,
            Some(slot) if slot.since >= floors.of(slot.tag) => slot.used_at + 2,
            _ => 1,
        };
        let set = self.small.len() / self.ways;
        debug_assert_eq!(set as u64, self.set_count);
        let range = self.set(entry.page);
        if let Some(oldest) = self.small[range].iter_mut().min_by_key(|slot| age(slot)) {
            *oldest = Some(new);
        }
    }

    /// The cached upper-level entry for an address that is nearest to the page.
    pub(crate) fn find_upper(&mut self, address: u64) -> Option<Upper> {
        self.accesses += 1;
        let (tag, floor) = (self.tag, self.floor);
        let found = self
            .upper
            .iter_mut()
            .filter(|slot| slot.tag == tag && slot.since >= floor)
            .filter(|slot| address >> slot.entry.shift == slot.entry.prefix)
            .min_by_key(|slot| slot.entry.shift)?;
        found.used_at = self.accesses;
        Some(found.entry)
    }

    /// Caches an upper-level entry.
    pub(crate) fn insert_upper(&mut self, entry: Upper, since: u64) {
        let tag = self.tag;
        let same = |slot: &Slot<Upper>| {
            (slot.tag, slot.entry.shift, slot.entry.prefix) == (tag, entry.shift, entry.prefix)
        };
        self.upper.retain(|slot| !same(slot));
        let new = Slot { entry, tag, since, used_at: self.accesses };
        insert_lru(&mut self.upper, self.upper_entries, new);
    }

    /// Drops a page under the loaded tag and all upper-level entries under that tag, as `INVLPG`
    /// does.
    pub(crate) fn invalidate(&mut self, address: u64) {
        let tag = self.tag;
        let set = self.set(address & !0xfff);
        for slot in &mut self.small[set] {
            if slot.is_some_and(|slot| slot.tag == tag && slot.entry.page == address & !0xfff) {
                *slot = None;
            }
        }
        let covers = |t: &Translation| address >> t.shift == t.page >> t.shift;
        self.large.retain(|slot| slot.tag != tag || !covers(&slot.entry));
        self.upper.retain(|slot| slot.tag != tag);
    }

    /// Drops the entries under a tag that were cached before invalidation `number`, for pages in a
    /// range, and with [`Levels::All`] for the upper levels above them.
    pub(crate) fn invalidate_range(
        &mut self,
        tag: u16,
        range: &Range<u64>,
        levels: Levels,
        number: u64,
    ) {
        let (first, end) = (range.start & !0xfff, range.end);
        let overlaps = |page: u64, shift: u8| page < end && first >> shift <= page >> shift;
        let dies = |slot: &Slot<Translation>| {
            slot.tag == tag && slot.since < number && overlaps(slot.entry.page, slot.entry.shift)
        };
        let drop_dead = |slots: &mut [Option<Slot<Translation>>]| {
            for slot in slots {
                if slot.as_ref().is_some_and(dies) {
                    *slot = None;
                }
            }
        };
        // As many pages as there are sets reach every set.
        let sets = (end.saturating_sub(first).div_ceil(4096)).min(self.set_count);
        for page in 0..sets {
            let set = self.set(first + (page << 12));
            drop_dead(&mut self.small[set]);
        }
        self.large.retain(|slot| !dies(slot));
        if levels == Levels::All {
            let above = |upper: &Upper| overlaps(upper.prefix << upper.shift, upper.shift);
            self.upper
                .retain(|slot| slot.tag != tag || slot.since >= number || !above(&slot.entry));
        }
    }

    /// Drops all entries under a tag that were cached before invalidation `number`.
    pub(crate) fn invalidate_tag(&mut self, tag: u16, number: u64) {
        let index = usize::from(tag);
        if index >= self.floors.len() {
            self.floors.resize(index + 1, 0);
        }
        self.floors[index] = number.max(self.floors[index]);
        self.floor = self.floors().of(self.tag);
    }

    /// Drops all entries that were cached before invalidation `number`.
    pub(crate) fn invalidate_all(&mut self, number: u64) {
        self.floor_of_all = number.max(self.floor_of_all);
        self.floor = self.floors().of(self.tag);
    }

    /// Loads a root under a tag.
    pub(crate) fn load(&mut self, space: SpaceKey, root: SpaceKey, tag: u16) {
        (self.space, self.root, self.tag) = (space, root, tag);
        self.floor = self.floors().of(tag);
    }

    /// The cached upper-level entries under the loaded tag.
    pub(crate) fn uppers(&self) -> impl Iterator<Item = &Upper> {
        let (tag, floor) = (self.tag, self.floor);
        let live = move |slot: &&Slot<Upper>| slot.tag == tag && slot.since >= floor;
        self.upper.iter().filter(live).map(|slot| &slot.entry)
    }

    /// Returns `true` if a walk can reach `table` without reading an entry that points to it.
    pub(crate) fn can_walk(&self, table: FrameNumber) -> bool {
        self.space != SpaceKey::KERNEL
            && (self.root.root() == table || self.uppers().any(|upper| upper.table == table))
    }

    /// Returns `true` if an entry that was cached under `tag` after invalidation `since` is not
    /// dead.
    pub(crate) fn is_live(&self, tag: u16, since: u64) -> bool {
        since >= self.floors().of(tag)
    }

    /// Passes the translations under any tag that a flush makes stale to `found`, as pages and
    /// sizes, until it returns `false`.
    pub(crate) fn held(&self, flushed: &Flushed, mut found: impl FnMut(u64, u8) -> bool) {
        let floors = self.floors();
        let (first, end) = match &flushed.range {
            Some(range) => (range.start & !0xfff, range.end),
            None => (0, u64::MAX),
        };
        let mut stale = |slot: &Slot<Translation>| {
            let Slot { entry, tag, since, .. } = slot;
            let is_stale = entry.space == flushed.space
                && entry.clean_since < flushed.began
                && *since >= floors.of(*tag)
                && entry.page < end
                && first >> entry.shift <= entry.page >> entry.shift;
            !is_stale || found(entry.page, entry.shift)
        };
        // As many pages as there are sets reach every set.
        let sets = end.saturating_sub(first).div_ceil(4096).min(self.set_count);
        let sets = (0..sets).map(|page| self.set(first + (page << 12)));
        let small = sets.flat_map(|set| &self.small[set]).flatten();
        let _ = small.chain(&self.large).all(&mut stale);
    }

    /// Returns `true` if a walk under the loaded root could use an entry of the upper levels above
    /// the range of a flush; for a flush of a whole space, also if its root is loaded.
    pub(crate) fn holds_table_of(&self, flushed: &Flushed) -> bool {
        let above = |upper: &Upper| {
            flushed.range.as_ref().is_none_or(|range| {
                let parts = range.start >> upper.shift..=range.end.saturating_sub(1) >> upper.shift;
                parts.contains(&upper.prefix)
            })
        };
        self.space == flushed.space && (flushed.range.is_none() || self.uppers().any(above))
    }

    /// The oracle's time when the translation of an address under the loaded tag was read, which
    /// may have been dropped since. `None` if its place has another translation now.
    pub(crate) fn trace(&self, address: u64) -> Option<u64> {
        let page = address & !0xfff;
        let small = self.small[self.set(page)].iter().flatten();
        let is_own = |slot: &&Slot<Translation>| {
            let Translation { page, shift, .. } = slot.entry;
            slot.tag == self.tag && address >> shift == page >> shift
        };
        let newest = small.chain(&self.large).filter(is_own).max_by_key(|slot| slot.since)?;
        Some(newest.entry.clean_since)
    }

    /// All translations that are not dead, under any tag.
    pub(crate) fn translations(&mut self) -> impl Iterator<Item = &mut Translation> {
        let floors = Floors { of_tags: &self.floors, of_all: self.floor_of_all };
        let small = self.small.iter_mut().flatten();
        small
            .chain(&mut self.large)
            .filter(move |slot| slot.since >= floors.of(slot.tag))
            .map(|slot| &mut slot.entry)
    }

    fn floors(&self) -> Floors<'_> {
        Floors { of_tags: &self.floors, of_all: self.floor_of_all }
    }

    #[inline]
    fn set(&self, page: u64) -> Range<usize> {
        let first = (page >> 12) % self.set_count * self.ways as u64;
        first as usize..first as usize + self.ways
    }
}

/// The sequence numbers below which entries are dead.
#[derive(Clone, Copy)]
struct Floors<'a> {
    of_tags: &'a [u64],
    of_all: u64,
}

impl Floors<'_> {
    #[inline]
    fn of(&self, tag: u16) -> u64 {
        self.of_tags.get(usize::from(tag)).map_or(self.of_all, |&floor| floor.max(self.of_all))
    }
}

fn insert_lru<T>(slots: &mut Vec<Slot<T>>, limit: usize, new: Slot<T>) {
    if limit == 0 {
        return;
    }
    if slots.len() < limit {
        slots.push(new);
    } else if let Some(oldest) = slots.iter_mut().min_by_key(|slot| slot.used_at) {
        *oldest = new;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use crate::time::Time;

    const SIZE: Size = Size {
        tags: u16::MAX as usize,
        entries: 16,
        ways: 4,
        large_entries: 4,
        upper_entries: 4,
        walk: Time::ZERO,
        load_root: Time::ZERO,
        load_root_and_discard: Time::ZERO,
        invalidate_page: Time::ZERO,
        pages_per_invalidation: 1,
        invalidate_all: Time::ZERO,
        flush_ceiling: 33,
    };

    fn translation(page: u64, shift: u8) -> Translation {
        Translation {
            page,
            shift,
            writable: true,
            dirty: true,
            frame: 1,
            frame_generation: 0,
            space: SpaceKey::KERNEL,
            clean_since: 1,
        }
    }

    /// The cached translations, as tag, page and sequence number.
    fn cached(tlb: &Tlb) -> Vec<(u16, u64, u64)> {
        let small = tlb.small.iter().flatten();
        let key = |slot: &Slot<Translation>| (slot.tag, slot.entry.page, slot.since);
        small.chain(&tlb.large).map(key).collect()
    }

    #[test]
    fn invalidate_range_drops_exactly_older_entries_in_range() {
        let mut rng = Rng::new(6);
        for _ in 0..500 {
            let mut tlb = Tlb::new(&SIZE);
            for since in 0..20 {
                tlb.load(SpaceKey::KERNEL, SpaceKey::KERNEL, 1 + rng.below(2) as u16);
                let page = rng.below(24) << 12;
                let is_large = rng.below(5) == 0;
                let large = translation(page & !0x3fff, 14);
                tlb.insert(if is_large { large } else { translation(page, 12) }, since);
            }
            let start = rng.below(24) << 12;
            let end = start + (rng.below(24) << 12);
            let (tag, number) = (1 + rng.below(2) as u16, rng.below(20));
            let before = cached(&tlb);
            let small_count = before.len() - tlb.large.len();
            tlb.invalidate_range(tag, &(start..end), Levels::Last, number);
            let dies = |&(its_tag, page, since): &(u16, u64, u64), bytes: u64| {
                its_tag == tag && since < number && page < end && page + bytes > start
            };
            let expected: Vec<_> = before
                .iter()
                .enumerate()
                .filter(|&(i, it)| !dies(it, if i < small_count { 1 << 12 } else { 1 << 14 }))
                .map(|(_, it)| *it)
                .collect();
            assert_eq!(cached(&tlb), expected);
        }
    }

    #[test]
    fn upper_levels_are_dropped_only_with_all_levels() {
        let upper = |prefix| Upper { shift: 21, prefix, table: 5, table_generation: 0 };
        let after = |levels, number| {
            let mut tlb = Tlb::new(&SIZE);
            tlb.load(SpaceKey::KERNEL, SpaceKey::KERNEL, 3);
            tlb.insert_upper(upper(0), 1);
            tlb.insert_upper(upper(1), 1);
            tlb.invalidate_range(3, &(0x1000..0x2000), levels, number);
            tlb.uppers().map(|upper| upper.prefix).collect::<Vec<_>>()
        };
        assert_eq!(after(Levels::Last, 2), [0, 1]);
        assert_eq!(after(Levels::All, 2), [1]);
        assert_eq!(after(Levels::All, 1), [0, 1], "cached after the invalidation");
    }

    #[test]
    fn tags_that_were_never_emptied_use_no_memory() {
        let mut tlb = Tlb::new(&SIZE);
        assert_eq!(tlb.floors.capacity(), 0);
        tlb.load(SpaceKey::KERNEL, SpaceKey::KERNEL, u16::MAX);
        tlb.insert(translation(0x1000, 12), 0);
        assert!(tlb.find(0x1000).is_some());
        assert_eq!(tlb.floors.capacity(), 0);
        tlb.invalidate_tag(u16::MAX, 1);
        assert!(tlb.find(0x1000).is_none());
    }
}
