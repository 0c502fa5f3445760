//! The MMU of the test machine. It walks, marks and caches, and invalidates only what a flush
//! names.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use shootdown::{Extent, Root};
use shootdown_vm::{Access, Change, EntryAt, Frame, Freed};

use super::decode::{Cached, Decoded};
use super::{Host, SkippedClaim};

/// A CPU's caches: of translations, and of the paths to tables of level 0.
#[derive(Default)]
pub(super) struct Tlb {
    pages: HashMap<Key, Cached>,
    paths: HashMap<(u64, u64), Frame>,
}

/// The key of a translation: the space's root, the first address, and the size as a power of two.
type Key = (u64, u64, u32);

/// The sizes of pages, as powers of two.
const SHIFTS: [u32; 3] = [12, 21, 30];

/// A page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFault;

impl Tlb {
    /// Invalidates the pages that the change names. A page is invalidated only if both the change's
    /// range and its extents name it, so each of the two must be complete.
    pub(super) fn invalidate(&mut self, root: Root, change: &Change) {
        let range = change.range.clone().unwrap_or(0..u64::MAX);
        let extents = change.extents.as_slice();
        let by_range = |page: &Range<u64>| {
            change.range.is_none() || covers(&range, change.page_size.bytes(), page)
        };
        let by_extents =
            |page: &Range<u64>| extents.iter().any(|extent| extent_covers(extent, page));
        self.pages.retain(|&(of, start, shift), _| {
            let page = start..start + (1 << shift);
            of != root.0 || !by_range(&page) || !by_extents(&page)
        });
        if change.freed == Freed::Tables {
            let by_extents = |region: &Range<u64>| {
                let mut freeing = extents.iter().filter(|extent| extent.frees_tables());
                freeing.any(|extent| extent_covers(extent, region))
            };
            self.paths.retain(|&(of, start), _| {
                let region = start..start + (2 << 20);
                let is_in_range = start < range.end && range.start < region.end;
                of != root.0 || !is_in_range || !by_extents(&region)
            });
        }
    }

    pub(super) fn invalidate_space(&mut self, root: Root) {
        self.pages.retain(|&(of, ..), _| of != root.0);
        self.paths.retain(|&(of, _), _| of != root.0);
    }

    /// Returns the translation for an address.
    fn find(&self, root: Root, address: u64) -> Option<(u64, Cached)> {
        SHIFTS.iter().find_map(|&shift| {
            let start = start_of(address, shift);
            Some((start, *self.pages.get(&(root.0, start, shift))?))
        })
    }

    /// Caches a translation. Panics if a translation of another size is cached for the same
    /// address, because a CPU could use either.
    fn insert(&mut self, root: Root, (start, shift): (u64, u32), cached: Cached) {
        let end = start + (1 << shift);
        for &(of, other, size) in self.pages.keys() {
            let overlaps = other < end && start < other + (1 << size);
            assert!(
                of != root.0 || size == shift || !overlaps,
                "{start:#x} is cached as a page of two sizes"
            );
        }
        self.pages.insert((root.0, start, shift), cached);
    }

    /// Drops all cached entries for an address, as a fault does.
    fn fault(&mut self, root: Root, address: u64) {
        for shift in SHIFTS {
            self.pages.remove(&(root.0, start_of(address, shift), shift));
        }
        self.paths.remove(&(root.0, start_of(address, 21)));
    }
}

/// Returns `true` if a flush of the pages of an extent, one by one, invalidates a part of `page`.
fn extent_covers(extent: &Extent, page: &Range<u64>) -> bool {
    let bytes = extent.page_size().bytes();
    let range = extent.start()..extent.start() + extent.page_count() as u64 * bytes;
    extent.is_whole() || covers(&range, bytes, page)
}

/// Returns `true` if one of the addresses from the start of `range`, `bytes` apart, is in `page`.
fn covers(range: &Range<u64>, bytes: u64, page: &Range<u64>) -> bool {
    let count = page.start.saturating_sub(range.start).div_ceil(bytes);
    range.start + count * bytes < range.end.min(page.end)
}

impl Host {
    /// Makes one access, with a cached translation or after a walk. The TLB's lock stands for the
    /// instruction, which a flush does not interrupt.
    pub fn touch(
        &self,
        cpu: usize,
        root: Root,
        address: u64,
        access: Access,
        value: u64,
    ) -> Result<u64, PageFault> {
        let mut tlb = self.0.tlbs[cpu].lock();
        let frame = |start, cached: Cached| Frame(cached.frame.0 + ((address - start) >> 12));
        if let Some((start, cached)) = tlb.find(root, address) {
            if !cached.allows(access) {
                tlb.fault(root, address);
                return Err(PageFault);
            }
            if access != Access::Write || cached.dirty {
                return Ok(self.use_page(frame(start, cached), access, value));
            }
        }
        let Some(((start, shift), cached)) = self.walk(&mut tlb, root, address, access) else {
            tlb.fault(root, address);
            return Err(PageFault);
        };
        tlb.insert(root, (start, shift), cached);
        Ok(self.use_page(frame(start, cached), access, value))
    }

    /// Walks to an address without using the result, and caches the path.
    pub fn speculate(&self, cpu: usize, root: Root, address: u64) {
        let mut tlb = self.0.tlbs[cpu].lock();
        self.walk(&mut tlb, root, address, Access::Read);
    }

    /// Returns `true` if a CPU has cached a translation that allows writes.
    pub(super) fn can_write(&self, root: Root, address: u64) -> bool {
        let cached = |tlb: &Tlb| tlb.find(root, address);
        self.0.tlbs.iter().any(|tlb| cached(&tlb.lock()).is_some_and(|(_, page)| page.writable))
    }

    /// Returns `true` if a page at this address of any space waits for the reuse of its frame.
    pub fn waits(&self, address: u64) -> bool {
        self.0.waiting.lock().iter().any(|(&(_, of), &batches)| of == address && batches != 0)
    }

    /// Returns the number of pages that wait.
    pub fn waiting_pages(&self) -> usize {
        self.0.waiting.lock().values().filter(|&&batches| batches != 0).count()
    }

    /// Checks that every CPU's caches agree with the page tables: no translation is cached that the
    /// tables no longer contain or allow. A page that no CPU can write may wait for its flush.
    pub fn check_caches(&self) {
        let waiting = self.0.waiting.lock();
        for tlb in &self.0.tlbs {
            let tlb = tlb.lock();
            for (&(root, page, shift), cached) in &tlb.pages {
                let (at, size) = self.last_entry(Root(root), page);
                let Decoded::Page(now) = (self.0.mmu.decode)(self.read_entry(at), size) else {
                    let waits = waiting.get(&(root, page)).is_some_and(|&batches| batches != 0);
                    let may_be_stale = !cached.writable && waits;
                    assert!(may_be_stale, "{page:#x} is cached and not mapped");
                    continue;
                };
                assert_eq!(shift, size, "{page:#x} is cached with another size");
                assert_eq!(cached.frame, now.frame, "{page:#x} is cached with another frame");
                assert!(now.writable || !cached.writable, "{page:#x} is still writable");
                assert!(now.executable || !cached.executable, "{page:#x} is still executable");
                assert!(now.dirty || !cached.dirty, "{page:#x} is cached as dirty and not marked");
            }
            for (&(root, start), &table) in &tlb.paths {
                let (at, shift) = self.last_entry(Root(root), start);
                assert_eq!((shift, at.table), (12, table), "a path to a freed table is cached");
            }
        }
    }

    /// Returns `true` if the entry for `address` is marked as dirty.
    pub fn is_dirty(&self, root: Root, address: u64) -> bool {
        self.page_at(root, address).1.dirty
    }

    /// Returns the frame that is mapped at an address.
    pub fn frame_of(&self, root: Root, address: u64) -> Frame {
        let (shift, page) = self.page_at(root, address);
        Frame(page.frame.0 + ((address - start_of(address, shift)) >> 12))
    }

    /// Skips a claim, or replaces the claim that was skipped by the entry that it should have
    /// replaced. Returns the value that the entry must have, and its new value.
    pub(super) fn skip_claim(&self, at: EntryAt, current: u64, new: u64) -> (u64, u64) {
        let mut skipped = self.0.skipped_claim.lock();
        let is_leaf = |entry| matches!((self.0.mmu.decode)(entry, 12), Decoded::Page(_));
        match *skipped {
            Some(SkippedClaim::Next) if is_leaf(current) && !is_leaf(new) && new != 0 => {
                *skipped = Some(SkippedClaim::At(at, new, current));
                (current, current)
            }
            Some(SkippedClaim::At(place, claim, entry)) if place == at && claim == current => {
                (entry, new)
            }
            _ => (current, new),
        }
    }

    /// Checks a change of an entry. (Bits of large entries have the same places.)
    pub(super) fn check_change(&self, from: u64, to: u64) {
        if !self.0.breaks_executable.load(Relaxed) {
            return;
        }
        if let [Decoded::Page(from), Decoded::Page(to)] =
            [from, to].map(|entry| (self.0.mmu.decode)(entry, 12))
        {
            assert!(
                !from.executable || to.executable,
                "a page loses its permission to execute in one step"
            );
        }
    }

    /// Returns `true` if user code has any access to an address.
    pub fn is_mapped(&self, root: Root, address: u64) -> bool {
        let (at, shift) = self.last_entry(root, address);
        matches!((self.0.mmu.decode)(self.read_entry(at), shift), Decoded::Page(_))
    }

    /// Returns `true` if an address is in a large page.
    pub fn is_large(&self, root: Root, address: u64) -> bool {
        let (at, shift) = self.last_entry(root, address);
        shift > 12 && matches!((self.0.mmu.decode)(self.read_entry(at), shift), Decoded::Page(_))
    }

    fn page_at(&self, root: Root, address: u64) -> (u32, Cached) {
        let (at, shift) = self.last_entry(root, address);
        match (self.0.mmu.decode)(self.read_entry(at), shift) {
            Decoded::Page(page) => (shift, page),
            _ => panic!("{address:#x} is not mapped"),
        }
    }

    /// Returns the addresses that each table of a space covers, except the root.
    pub fn tables_of(&self, root: Root) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        self.tables_below(Frame(root.0 >> 12), self.0.mmu.root_shift, 0, &mut found);
        found
    }

    fn tables_below(&self, table: Frame, shift: u32, start: u64, found: &mut Vec<Range<u64>>) {
        for index in 0..512 {
            let entry = self.read_entry(EntryAt { table, index });
            if let Decoded::Table(below) = (self.0.mmu.decode)(entry, shift) {
                let start = start + ((index as u64) << shift);
                found.push(start..start + (1 << shift));
                if shift > 21 {
                    self.tables_below(below, shift - 9, start, found);
                }
            }
        }
    }

    fn read_entry(&self, at: EntryAt) -> u64 {
        self.entry(at).load(Acquire)
    }

    fn use_page(&self, page: Frame, access: Access, value: u64) -> u64 {
        let word = self.word(page);
        if access == Access::Write {
            word.store(value, Relaxed);
            return value;
        }
        word.load(Relaxed)
    }

    /// Walks, caches the path, and marks the entry. Returns the first address and the size of the
    /// page.
    fn walk(
        &self,
        tlb: &mut Tlb,
        root: Root,
        address: u64,
        access: Access,
    ) -> Option<((u64, u32), Cached)> {
        let mmu = self.0.mmu;
        let region = (root.0, start_of(address, 21));
        let (mut table, mut shift) = match tlb.paths.get(&region) {
            Some(&table) => (table, 12),
            None => (Frame(root.0 >> 12), mmu.root_shift),
        };
        loop {
            let at = entry_at(table, address, shift);
            let entry = self.read_entry(at);
            match (mmu.decode)(entry, shift) {
                Decoded::Nothing => return None,
                Decoded::Table(next) => {
                    (table, shift) = (next, shift - 9);
                    if shift == 12 {
                        tlb.paths.insert(region, table);
                    }
                }
                Decoded::Page(cached) if !cached.allows(access) => return None,
                Decoded::Page(cached) => {
                    let marked = (mmu.marked)(entry, access);
                    if self.entry(at).compare_exchange(entry, marked, AcqRel, Acquire).is_ok() {
                        let dirty = cached.dirty || access == Access::Write;
                        return Some((
                            (start_of(address, shift), shift),
                            Cached { dirty, ..cached },
                        ));
                    }
                }
            }
        }
    }

    /// Returns the last entry of a walk to an address, and the number of address bits that it
    /// covers.
    fn last_entry(&self, root: Root, address: u64) -> (EntryAt, u32) {
        let (mut table, mut shift) = (Frame(root.0 >> 12), self.0.mmu.root_shift);
        loop {
            let at = entry_at(table, address, shift);
            match (self.0.mmu.decode)(self.read_entry(at), shift) {
                Decoded::Table(next) => (table, shift) = (next, shift - 9),
                _ => return (at, shift),
            }
        }
    }
}

fn entry_at(table: Frame, address: u64, shift: u32) -> EntryAt {
    EntryAt { table, index: (address >> shift) as usize & 511 }
}

const fn start_of(address: u64, shift: u32) -> u64 {
    address & !((1 << shift) - 1)
}
