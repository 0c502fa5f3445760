//! One CPU's translation caches: small pages, set-associative; large ones; and the entries of upper
//! page-table levels.
//!
//! Each entry remembers where it came from, for the oracle: from which space's tables, at which
//! moment in the order of flushes, and how often its frame had been given away by then.

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

/// A cached thing, under a tag, for as long as the tag has not been emptied.
#[derive(Clone, Copy, Debug)]
struct Slot<T> {
    what: T,
    tag: u16,
    epoch: u32,
    used_at: u64,
}

/// One CPU's caches.
#[derive(Debug)]
pub(crate) struct Tlb {
    /// What is loaded.
    pub(crate) space: SpaceKey,
    pub(crate) tag: u16,
    ways: usize,
    set_count: u64,
    small: Vec<Option<Slot<Translation>>>,
    large: Vec<Slot<Translation>>,
    large_entries: usize,
    upper: Vec<Slot<Upper>>,
    upper_entries: usize,
    /// Per tag, how often it was emptied: emptying one takes no time on the host.
    epochs: Vec<u32>,
    accesses: u64,
}

impl Tlb {
    pub(crate) fn new(size: &Size) -> Self {
        Self {
            space: SpaceKey::KERNEL,
            tag: 0,
            ways: size.ways,
            set_count: (size.entries / size.ways) as u64,
            small: vec![None; size.entries],
            large: Vec::new(),
            large_entries: size.large_entries,
            upper: Vec::new(),
            upper_entries: size.upper_entries,
            epochs: vec![0; size.tags + 1],
            accesses: 0,
        }
    }

    /// The translation of an address under the loaded tag.
    #[inline]
    pub(crate) fn find(&mut self, address: u64) -> Option<&mut Translation> {
        self.accesses += 1;
        let (tag, epoch, now) = (self.tag, self.epochs[self.tag as usize], self.accesses);
        let page = address & !0xfff;
        let set = self.set(page);
        let live = |slot: &Slot<Translation>| slot.tag == tag && slot.epoch == epoch;
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
    pub(crate) fn insert(&mut self, what: Translation) {
        let (tag, epoch) = (self.tag, self.epochs[self.tag as usize]);
        let new = Slot { what, tag, epoch, used_at: self.accesses };
        if what.shift > 12 {
            insert_lru(&mut self.large, self.large_entries, new);
            return;
        }
        let epochs = &self.epochs;
        let age = |slot: &Option<Slot<Translation>>| match slot {
            Some(slot) if slot.what.page == what.page && slot.tag == tag => 0,
            Some(slot) if slot.epoch == epochs[slot.tag as usize] => slot.used_at + 2,
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
        let (tag, epoch) = (self.tag, self.epochs[self.tag as usize]);
        let found = self
            .upper
            .iter_mut()
            .filter(|slot| slot.tag == tag && slot.epoch == epoch)
            .filter(|slot| address >> slot.what.shift == slot.what.prefix)
            .min_by_key(|slot| slot.what.shift)?;
        found.used_at = self.accesses;
        Some(found.what)
    }

    /// Keeps an upper-level entry.
    pub(crate) fn insert_upper(&mut self, what: Upper) {
        let (tag, epoch) = (self.tag, self.epochs[self.tag as usize]);
        let same = |slot: &Slot<Upper>| {
            (slot.tag, slot.what.shift, slot.what.prefix) == (tag, what.shift, what.prefix)
        };
        self.upper.retain(|slot| !same(slot));
        let new = Slot { what, tag, epoch, used_at: self.accesses };
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

    /// Forgets everything under a tag.
    pub(crate) fn invalidate_tag(&mut self, tag: u16) {
        let tag = usize::from(tag);
        if tag >= self.epochs.len() {
            self.epochs.resize(tag + 1, 0);
        }
        self.epochs[tag] += 1;
    }

    /// Forgets everything.
    pub(crate) fn invalidate_all(&mut self) {
        for epoch in &mut self.epochs {
            *epoch += 1;
        }
    }

    /// Loads a root under a tag.
    pub(crate) fn load(&mut self, space: SpaceKey, tag: u16) {
        if usize::from(tag) >= self.epochs.len() {
            self.epochs.resize(usize::from(tag) + 1, 0);
        }
        (self.space, self.tag) = (space, tag);
    }

    /// The cached upper-level entries under the loaded tag.
    pub(crate) fn uppers(&self) -> impl Iterator<Item = &Upper> {
        let (tag, epoch) = (self.tag, self.epochs[self.tag as usize]);
        let live = move |slot: &&Slot<Upper>| slot.tag == tag && slot.epoch == epoch;
        self.upper.iter().filter(live).map(|slot| &slot.what)
    }

    /// Whether a walk could come to `table` without reading an entry that points there.
    pub(crate) fn can_walk(&self, table: FrameNumber) -> bool {
        self.space != SpaceKey::KERNEL
            && (self.space.root() == table || self.uppers().any(|upper| upper.table == table))
    }

    /// Every translation that may still be used.
    pub(crate) fn translations(&mut self) -> impl Iterator<Item = &mut Translation> {
        let epochs = &self.epochs;
        let small = self.small.iter_mut().flatten();
        small
            .chain(&mut self.large)
            .filter(|slot| slot.epoch == epochs[slot.tag as usize])
            .map(|slot| &mut slot.what)
    }

    fn set(&self, page: u64) -> core::ops::Range<usize> {
        let first = (page >> 12) % self.set_count * self.ways as u64;
        first as usize..first as usize + self.ways
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
