//! The MMU of the test machine: walks, marks, caches, and forgets only what it is told to.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use shootdown::Root;
use shootdown_vm::{Access, Change, EntryAt, Frame, Freed};

use super::{Host, TABLE};

/// A CPU's caches: of translations, and of the ways to last tables.
#[derive(Default)]
pub(super) struct Tlb {
    pages: HashMap<(u64, u64), Cached>,
    ways: HashMap<(u64, u64), Frame>,
}

#[derive(Clone, Copy, Debug)]
struct Cached {
    frame: Frame,
    writable: bool,
    executable: bool,
    dirty: bool,
}

/// A page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

impl Tlb {
    pub(super) fn forget(&mut self, root: Root, change: &Change) {
        let range = change.range.clone().unwrap_or(0..u64::MAX);
        self.pages.retain(|&(of, page), _| of != root.0 || !range.contains(&page));
        if change.freed == Freed::Tables {
            self.ways.retain(|&(of, start), _| {
                of != root.0 || start + (2 << 20) <= range.start || range.end <= start
            });
        }
    }

    pub(super) fn forget_space(&mut self, root: Root) {
        self.pages.retain(|&(of, _), _| of != root.0);
        self.ways.retain(|&(of, _), _| of != root.0);
    }
}

impl Cached {
    fn of(entry: u64) -> Option<Self> {
        let bit = |bit: u32| entry >> bit & 1 != 0;
        let is_user_page = bit(0) && bit(2);
        is_user_page.then_some(Self {
            frame: Frame(entry >> 12 & 0xff_ffff_ffff),
            writable: bit(1),
            executable: !bit(63),
            dirty: bit(6),
        })
    }

    fn allows(self, access: Access) -> bool {
        match access {
            Access::Read => true,
            Access::Write => self.writable,
            Access::Execute => self.executable,
        }
    }
}

impl Host {
    /// One access: by a cached translation, or by a walk. The TLB's lock stands for the
    /// instruction, which a flush does not interrupt.
    pub fn touch(
        &self,
        cpu: usize,
        root: Root,
        address: u64,
        access: Access,
        value: u64,
    ) -> Result<u64, Refused> {
        let page = address & !0xfff;
        let mut tlb = self.0.tlbs[cpu].lock();
        if let Some(&cached) = tlb.pages.get(&(root.0, page)) {
            if !cached.allows(access) {
                tlb.fault(root, page);
                return Err(Refused);
            }
            if access != Access::Write || cached.dirty {
                return Ok(self.use_page(cached.frame, access, value));
            }
        }
        let walked = self.walk(&mut tlb, root, page, access);
        let Some(cached) = walked else {
            tlb.fault(root, page);
            return Err(Refused);
        };
        tlb.pages.insert((root.0, page), cached);
        Ok(self.use_page(cached.frame, access, value))
    }

    /// A walk that nobody asked for, and whose result nobody uses. The way is remembered.
    pub fn speculate(&self, cpu: usize, root: Root, address: u64) {
        let mut tlb = self.0.tlbs[cpu].lock();
        self.walk(&mut tlb, root, address & !0xfff, Access::Read);
    }

    /// That every CPU's caches agree with the page tables: nothing is remembered that is not there,
    /// or not allowed, any more.
    pub fn check_caches(&self) {
        for tlb in &self.0.tlbs {
            let tlb = tlb.lock();
            for (&(root, page), cached) in &tlb.pages {
                let at = self.last_table(Root(root), page).map(|table| entry_at(table, page, 12));
                let now = at.and_then(|at| Cached::of(self.read_entry(at)));
                let now = now.unwrap_or_else(|| panic!("{page:#x} is cached, and not mapped"));
                assert_eq!(cached.frame, now.frame, "{page:#x} is cached, and elsewhere now");
                assert!(now.writable || !cached.writable, "{page:#x} is still writable");
                assert!(now.executable || !cached.executable, "{page:#x} is still executable");
                assert!(now.dirty || !cached.dirty, "{page:#x} is not marked when written");
            }
            for (&(root, start), &table) in &tlb.ways {
                assert_eq!(self.last_table(Root(root), start), Some(table), "a freed way");
            }
        }
    }

    /// Whether the entry for `address` is marked as written through.
    pub fn is_dirty(&self, root: Root, address: u64) -> bool {
        let table = self.last_table(root, address).expect("there is a table for it");
        self.read_entry(entry_at(table, address, 12)) & 0x40 != 0
    }

    /// The frame that an entry holds.
    pub fn frame_of(&self, root: Root, address: u64) -> Frame {
        let table = self.last_table(root, address).expect("there is a table for it");
        Frame(self.read_entry(entry_at(table, address, 12)) >> 12 & 0xff_ffff_ffff)
    }

    /// The addresses that each table of a space covers, but for the root's.
    pub fn tables_of(&self, root: Root) -> Vec<std::ops::Range<u64>> {
        let mut found = Vec::new();
        self.tables_below(Frame(root.0 >> 12), 39, 0, &mut found);
        found
    }

    fn tables_below(
        &self,
        table: Frame,
        shift: u32,
        start: u64,
        found: &mut Vec<std::ops::Range<u64>>,
    ) {
        for index in 0..512 {
            let entry = self.read_entry(EntryAt { table, index });
            if entry & 1 != 0 {
                let start = start + ((index as u64) << shift);
                found.push(start..start + (1 << shift));
                if shift > 21 {
                    self.tables_below(Frame(entry >> 12 & 0xff_ffff_ffff), shift - 9, start, found);
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

    fn walk(&self, tlb: &mut Tlb, root: Root, page: u64, access: Access) -> Option<Cached> {
        let region = page & !((2 << 20) - 1);
        let table = match tlb.ways.get(&(root.0, region)) {
            Some(&table) => table,
            None => self.last_table(root, page)?,
        };
        tlb.ways.insert((root.0, region), table);
        let at = entry_at(table, page, 12);
        loop {
            let entry = self.read_entry(at);
            let cached = Cached::of(entry).filter(|cached| cached.allows(access))?;
            let marks = if access == Access::Write { 0x60 } else { 0x20 };
            let marked = self.entry(at).compare_exchange(entry, entry | marks, AcqRel, Acquire);
            if marked.is_ok() {
                return Some(Cached { dirty: cached.dirty || access == Access::Write, ..cached });
            }
        }
    }

    fn last_table(&self, root: Root, address: u64) -> Option<Frame> {
        let mut table = Frame(root.0 >> 12);
        for shift in [39, 30, 21] {
            self.state(table, TABLE);
            let entry = self.read_entry(entry_at(table, address, shift));
            if entry & 1 == 0 {
                return None;
            }
            table = Frame(entry >> 12 & 0xff_ffff_ffff);
        }
        Some(table)
    }
}

impl Tlb {
    /// A fault drops what is cached for its address.
    fn fault(&mut self, root: Root, page: u64) {
        self.pages.remove(&(root.0, page));
        self.ways.remove(&(root.0, page & !((2 << 20) - 1)));
    }
}

fn entry_at(table: Frame, address: u64, shift: u32) -> EntryAt {
    EntryAt { table, index: (address >> shift) as usize & 511 }
}
