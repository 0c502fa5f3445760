//! One CPU's translation caches: small pages, set-associative; large ones; and the entries of upper
//! page-table levels.
//!
//! Each entry remembers where it came from, for the oracle: from which space's tables, at which
//! moment in the order of flushes, and how often its frame had been given away by then.

use core::ops::Range;

use crate::machine::Tlb as Size;
use crate::memory::FrameNumber;

/// Which address space's tables: the frame of the root, and how often that had been given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpaceKey(u64);

impl SpaceKey {
    /// The kernel's own root.
    pub const KERNEL: Self = Self(0);
    const ROOT_BITS: u32 = 36;

    pub(crate) const fn new(root: FrameNumber, generation: u32) -> Self {
        Self((generation as u64) << Self::ROOT_BITS | root)
    }

    pub(crate) const fn root_generation(self) -> u32 {
        (self.0 >> Self::ROOT_BITS) as u32
    }

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
    /// The page-table entry says that the page has been written.
    pub(crate) dirty: bool,
    pub(crate) frame: FrameNumber,
    /// How often the frame had been given away.
    pub(crate) frame_generation: u32,
    pub(crate) space: SpaceKey,
    /// No flush that began before this covers it, or had not yet ended when that was looked at.
    pub(crate) clean_since: u64,
}

/// An entry of an upper page-table level: which table is next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upper {
    /// Which level's entry: the address bits above this are those that it maps.
    pub(crate) shift: u8,
    /// The address bits.
    pub(crate) prefix: u64,
    pub(crate) table: FrameNumber,
    pub(crate) table_generation: u32,
}

/// Which entries of the page tables are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Levels {
    /// Those that map pages.
    Last,
    /// And those that lead there.
    All,
}

/// A cached thing, under a tag, for as long as the tag has not been emptied.
#[derive(Clone, Copy, Debug)]
struct Slot<T> {
    what: T,
    tag: u16,
    /// The moment in the order of invalidations.
    since: u64,
    used_at: u64,
}

/// One CPU's caches.
#[derive(Debug)]
pub(crate) struct Tlb {
    /// What is loaded.
    pub(crate) space: SpaceKey,
    pub(crate) tag: u16,
    /// How often others made it forget something under the loaded tag: a walk that is under way
    /// then starts again, for it may hold what is no longer so.
    pub(crate) invalidation_count: u64,
    ways: usize,
    set_count: u64,
    small: Vec<Option<Slot<Translation>>>,
    large: Vec<Slot<Translation>>,
    large_entries: usize,
    upper: Vec<Slot<Upper>>,
    upper_entries: usize,
    /// Per tag, the moment before which all is forgotten: emptying one takes no time on the host.
    /// A tag that is not in here was never emptied.
    floors: Vec<u64>,
    /// The same for all tags.
    floor_of_all: u64,
    /// The later of the two for the loaded tag.
    floor: u64,
    accesses: u64,
}

impl Tlb {
    pub(crate) fn new(size: &Size) -> Self {
        Self {
            space: SpaceKey::KERNEL,
            tag: 0,
            invalidation_count: 0,
            ways: size.ways,
            set_count: (size.entries / size.ways) as u64,
            small: vec![None; size.entries],
            large: Vec::new(),
            large_entries: size.large_entries,
            upper: Vec::new(),
            upper_entries: size.upper_entries,
            floors: Vec::new(),
            floor_of_all: 0,
            floor: 0,
            accesses: 0,
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
        if let Some(slot) = small.into_iter().find(|slot| slot.what.page == page && live(slot)) {
            slot.used_at = now;
            return Some(&mut slot.what);
        }
        let covers = |t: &Translation| address >> t.shift == t.page >> t.shift;
        let slot = self.large.iter_mut().find(|slot| covers(&slot.what) && live(slot))?;
        slot.used_at = now;
        Some(&mut slot.what)
    }

    /// Keeps a translation, in the place of the one that was used least recently.
    pub(crate) fn insert(&mut self, what: Translation, since: u64) {
        let tag = self.tag;
        let new = Slot { what, tag, since, used_at: self.accesses };
        if what.shift > 12 {
            // Else the older one would be found first.
            let same = |slot: &Slot<Translation>| slot.tag == tag && slot.what.page == what.page;
            self.large.retain(|slot| !same(slot));
            insert_lru(&mut self.large, self.large_entries, new);
            return;
        }
        let floors = Floors { of_tags: &self.floors, of_all: self.floor_of_all };
        let age = |slot: &Option<Slot<Translation>>| match slot {
            Some(slot) if slot.what.page == what.page && slot.tag == tag => 0,
            Some(slot) if slot.since >= floors.of(slot.tag) => slot.used_at + 2,
            _ => 1,
        };
        let set = self.small.len() / self.ways;
        debug_assert_eq!(set as u64, self.set_count);
        let range = self.set(what.page);
        if let Some(oldest) = self.small[range].iter_mut().min_by_key(|slot| age(slot)) {
            *oldest = Some(new);
        }
    }

    /// The lowest cached upper-level entry above an address, not above `shift_max`.
    pub(crate) fn find_upper(&mut self, address: u64) -> Option<Upper> {
        self.accesses += 1;
        let (tag, floor) = (self.tag, self.floor);
        let found = self
            .upper
            .iter_mut()
            .filter(|slot| slot.tag == tag && slot.since >= floor)
            .filter(|slot| address >> slot.what.shift == slot.what.prefix)
            .min_by_key(|slot| slot.what.shift)?;
        found.used_at = self.accesses;
        Some(found.what)
    }

    /// Keeps an upper-level entry.
    pub(crate) fn insert_upper(&mut self, what: Upper, since: u64) {
        let tag = self.tag;
        let same = |slot: &Slot<Upper>| {
            (slot.tag, slot.what.shift, slot.what.prefix) == (tag, what.shift, what.prefix)
        };
        self.upper.retain(|slot| !same(slot));
        let new = Slot { what, tag, since, used_at: self.accesses };
        insert_lru(&mut self.upper, self.upper_entries, new);
    }

    /// Forgets a page under the loaded tag, and what is cached of upper levels under it, as
    /// `INVLPG` does.
    pub(crate) fn invalidate(&mut self, address: u64) {
        let tag = self.tag;
        let set = self.set(address & !0xfff);
        for slot in &mut self.small[set] {
            if slot.is_some_and(|slot| slot.tag == tag && slot.what.page == address & !0xfff) {
                *slot = None;
            }
        }
        let covers = |t: &Translation| address >> t.shift == t.page >> t.shift;
        self.large.retain(|slot| slot.tag != tag || !covers(&slot.what));
        self.upper.retain(|slot| slot.tag != tag);
    }

    /// Forgets what was cached under a tag before a moment of the pages in a range, and of the
    /// upper levels above them.
    pub(crate) fn forget_older(
        &mut self,
        tag: u16,
        range: &Range<u64>,
        levels: Levels,
        moment: u64,
    ) {
        let (first, end) = (range.start & !0xfff, range.end);
        let overlaps = |page: u64, shift: u8| page < end && first >> shift <= page >> shift;
        let dies = |slot: &Slot<Translation>| {
            slot.tag == tag && slot.since < moment && overlaps(slot.what.page, slot.what.shift)
        };
        let forget = |slots: &mut [Option<Slot<Translation>>]| {
            for slot in slots {
                if slot.as_ref().is_some_and(dies) {
                    *slot = None;
                }
            }
        };
        // Once around, it has looked at every set.
        let sets = (end.saturating_sub(first).div_ceil(4096)).min(self.set_count);
        for page in 0..sets {
            let set = self.set(first + (page << 12));
            forget(&mut self.small[set]);
        }
        self.large.retain(|slot| !dies(slot));
        if levels == Levels::All {
            let above = |upper: &Upper| overlaps(upper.prefix << upper.shift, upper.shift);
            self.upper.retain(|slot| slot.tag != tag || slot.since >= moment || !above(&slot.what));
        }
    }

    /// Forgets everything that was cached under a tag before a moment.
    pub(crate) fn invalidate_tag(&mut self, tag: u16, moment: u64) {
        let index = usize::from(tag);
        if index >= self.floors.len() {
            self.floors.resize(index + 1, 0);
        }
        self.floors[index] = moment.max(self.floors[index]);
        self.floor = self.floors().of(self.tag);
    }

    /// Forgets everything that was cached before a moment.
    pub(crate) fn invalidate_all(&mut self, moment: u64) {
        self.floor_of_all = moment.max(self.floor_of_all);
        self.floor = self.floors().of(self.tag);
    }

    /// Loads a root under a tag.
    pub(crate) fn load(&mut self, space: SpaceKey, tag: u16) {
        (self.space, self.tag) = (space, tag);
        self.floor = self.floors().of(tag);
    }

    /// The cached upper-level entries under the loaded tag.
    pub(crate) fn uppers(&self) -> impl Iterator<Item = &Upper> {
        let (tag, floor) = (self.tag, self.floor);
        let live = move |slot: &&Slot<Upper>| slot.tag == tag && slot.since >= floor;
        self.upper.iter().filter(live).map(|slot| &slot.what)
    }

    /// Whether a walk could come to `table` without reading an entry that points there.
    pub(crate) fn can_walk(&self, table: FrameNumber) -> bool {
        self.space != SpaceKey::KERNEL
            && (self.space.root() == table || self.uppers().any(|upper| upper.table == table))
    }

    /// Every translation that may still be used.
    pub(crate) fn translations(&mut self) -> impl Iterator<Item = &mut Translation> {
        let floors = Floors { of_tags: &self.floors, of_all: self.floor_of_all };
        let small = self.small.iter_mut().flatten();
        small
            .chain(&mut self.large)
            .filter(move |slot| slot.since >= floors.of(slot.tag))
            .map(|slot| &mut slot.what)
    }

    fn floors(&self) -> Floors<'_> {
        Floors { of_tags: &self.floors, of_all: self.floor_of_all }
    }

    fn set(&self, page: u64) -> Range<usize> {
        let first = (page >> 12) % self.set_count * self.ways as u64;
        first as usize..first as usize + self.ways
    }
}

/// The moments before which all is forgotten.
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

    /// What is cached, by tag, page and moment.
    fn cached(tlb: &Tlb) -> Vec<(u16, u64, u64)> {
        let small = tlb.small.iter().flatten();
        let key = |slot: &Slot<Translation>| (slot.tag, slot.what.page, slot.since);
        small.chain(&tlb.large).map(key).collect()
    }

    #[test]
    fn exactly_what_is_older_and_in_the_range_is_forgotten() {
        let mut rng = Rng::new(6);
        for _ in 0..500 {
            let mut tlb = Tlb::new(&SIZE);
            for since in 0..20 {
                tlb.load(SpaceKey::KERNEL, 1 + rng.below(2) as u16);
                let page = rng.below(24) << 12;
                let is_large = rng.below(5) == 0;
                let large = translation(page & !0x3fff, 14);
                tlb.insert(if is_large { large } else { translation(page, 12) }, since);
            }
            let start = rng.below(24) << 12;
            let end = start + (rng.below(24) << 12);
            let (tag, moment) = (1 + rng.below(2) as u16, rng.below(20));
            let before = cached(&tlb);
            let small_count = before.len() - tlb.large.len();
            tlb.forget_older(tag, &(start..end), Levels::Last, moment);
            let dies = |&(its_tag, page, since): &(u16, u64, u64), bytes: u64| {
                its_tag == tag && since < moment && page < end && page + bytes > start
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
    fn upper_levels_go_with_the_pages_below_them_if_they_are_meant() {
        let upper = |prefix| Upper { shift: 21, prefix, table: 5, table_generation: 0 };
        let after = |levels, moment| {
            let mut tlb = Tlb::new(&SIZE);
            tlb.load(SpaceKey::KERNEL, 3);
            tlb.insert_upper(upper(0), 1);
            tlb.insert_upper(upper(1), 1);
            tlb.forget_older(3, &(0x1000..0x2000), levels, moment);
            tlb.uppers().map(|upper| upper.prefix).collect::<Vec<_>>()
        };
        assert_eq!(after(Levels::Last, 2), [0, 1]);
        assert_eq!(after(Levels::All, 2), [1]);
        assert_eq!(after(Levels::All, 1), [0, 1], "cached since");
    }

    #[test]
    fn tags_that_were_never_emptied_cost_nothing() {
        let mut tlb = Tlb::new(&SIZE);
        assert_eq!(tlb.floors.capacity(), 0);
        tlb.load(SpaceKey::KERNEL, u16::MAX);
        tlb.insert(translation(0x1000, 12), 0);
        assert!(tlb.find(0x1000).is_some());
        assert_eq!(tlb.floors.capacity(), 0);
        tlb.invalidate_tag(u16::MAX, 1);
        assert!(tlb.find(0x1000).is_none());
    }
}
