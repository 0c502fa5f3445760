//! The CPUs that may have cached a page-table entry, as far as a kernel can know that from the
//! entry's accessed bit (Amit, "Optimizing the TLB Shootdown Algorithm with Page Access Tracking",
//! USENIX ATC 2017).
//!
//! A CPU sets the accessed bit before it caches an entry. If the kernel puts the first translation
//! into the TLB of one CPU itself, and leaves the bit clear, then the bit stays clear as long as no
//! other CPU caches the entry. The kernel keeps the number of that CPU in free bits of the entry,
//! also when it clears the entry, until the flush.

use crate::lines::{Access, LineId};
use crate::memory::FrameNumber;
use crate::mmu::{ACCESSED, LARGE, LEVEL_BITS, PAGE_SHIFT, PRESENT, TOP_SHIFT, entry_frame};
use crate::mmu::{ENTRIES_PER_TABLE, Touch};
use crate::sim::Sim;
use std::collections::HashMap;

/// The CPUs that may have cached an entry since it was last flushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holder {
    /// No CPU.
    #[default]
    None,
    /// One CPU.
    One(usize),
    /// This CPU flushes the entry, which has not been used since the flush began.
    Flushing(usize),
    /// Any CPU: the entry was accessed.
    Any,
}

/// The holders of the entries of each table, if a design tracks them.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    is_tracked: bool,
    tables: HashMap<FrameNumber, Box<[Holder]>>,
}

impl Holders {
    fn of(&mut self, table: FrameNumber, index: usize) -> &mut Holder {
        let new = || vec![Holder::None; ENTRIES_PER_TABLE].into_boxed_slice();
        &mut self.tables.entry(table).or_insert_with(new)[index]
    }
}

impl Sim {
    /// Tracks the holders of entries from now on.
    pub fn track_holders(&self) {
        self.holders.borrow_mut().is_tracked = true;
    }

    /// Puts the translation of `address`, which a fault has just mapped in an entry of this table,
    /// into the TLB of this CPU, and leaves the accessed bit clear. Does nothing if the CPU has not
    /// loaded the space of the table.
    ///
    /// Costs two loads of a root and a walk: the CPU loads a second hierarchy of page tables with
    /// the same tag, whose entry for the page has the bit set, accesses the page, and returns.
    pub fn insert_translation(&self, table: FrameNumber, address: u64) {
        self.masked(|| {
            self.spend(self.machine.tlb.load_root * 2);
            self.insert_walked(table, address);
        });
    }

    /// Records that a CPU has cached an entry, with the accessed bit set.
    pub(crate) fn entry_accessed(&self, table: FrameNumber, index: usize) {
        let mut holders = self.holders.borrow_mut();
        if holders.is_tracked {
            *holders.of(table, index) = Holder::Any;
        }
    }

    /// Records that this CPU has cached an entry, with the accessed bit clear.
    pub(crate) fn entry_inserted(&self, table: FrameNumber, index: usize) {
        let me = Holder::One(self.cpu());
        let mut holders = self.holders.borrow_mut();
        let holder = holders.of(table, index);
        // An earlier translation may not be flushed yet.
        *holder = if matches!(*holder, Holder::None) || *holder == me { me } else { Holder::Any };
    }

    /// Records that the kernel has written an entry.
    pub(crate) fn entry_written(&self, table: FrameNumber, index: usize, entry: u64) {
        if entry & (PRESENT | ACCESSED) == PRESENT | ACCESSED {
            self.entry_accessed(table, index);
        }
    }

    pub(crate) fn forget_holders(&self, table: FrameNumber) {
        self.holders.borrow_mut().tables.remove(&table);
    }

    /// Returns the CPUs that may have cached the entry for `address` below `root`, which the kernel
    /// has changed and this CPU is about to flush, and marks the entry as [`Flushing`](Holder::Flushing)
    /// until [`holders_flushed`](Self::holders_flushed), on the same CPU. Costs the load of the
    /// entry.
    #[must_use]
    pub fn begin_holder_flush(&self, root: FrameNumber, address: u64) -> Holder {
        let Some((table, index)) = self.leaf(root, address) else { return Holder::Any };
        self.access(LineId::of_physical((table << 12) | (index as u64 * 8)), Access::Load, None);
        let entry = self.memory.borrow().entry(table, index);
        if entry & (PRESENT | ACCESSED) == PRESENT | ACCESSED {
            return Holder::Any;
        }
        let mut holders = self.holders.borrow_mut();
        let holder = holders.of(table, index);
        let before = *holder;
        if !matches!(before, Holder::Flushing(_)) {
            *holder = Holder::Flushing(self.cpu());
        }
        before
    }

    /// Records that a flush of the entry for `address` is complete: no CPU has cached it, unless it
    /// has been used since. Costs a store to the entry.
    pub fn holders_flushed(&self, root: FrameNumber, address: u64) {
        let Some((table, index)) = self.leaf(root, address) else { return };
        self.access(LineId::of_physical((table << 12) | (index as u64 * 8)), Access::Store, None);
        let mut holders = self.holders.borrow_mut();
        let holder = holders.of(table, index);
        if *holder == Holder::Flushing(self.cpu()) {
            *holder = Holder::None;
        }
    }

    /// The entry of the last level for `address`; `None` if there is none.
    fn leaf(&self, root: FrameNumber, address: u64) -> Option<(FrameNumber, usize)> {
        let memory = self.memory.borrow();
        let (mut table, mut shift) = (root, TOP_SHIFT);
        loop {
            let index = (address >> shift) as usize & (ENTRIES_PER_TABLE - 1);
            if shift == PAGE_SHIFT {
                return Some((table, index));
            }
            let entry = memory.entry(table, index);
            if entry & PRESENT == 0 || entry & LARGE != 0 {
                return None;
            }
            (table, shift) = (entry_frame(entry), shift - LEVEL_BITS);
        }
    }

    fn insert_walked(&self, table: FrameNumber, address: u64) {
        let root = self.tlbs.borrow()[self.cpu()].root.root();
        if self.leaf(root, address).is_some_and(|(found, _)| found == table) {
            // A walk that another CPU's invalidation has interrupted inserts nothing.
            let _ = self.walk_once(address, Touch::Read, Marking::Clear);
        }
    }
}

/// The accessed bit of an entry whose translation is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marking {
    /// The MMU sets it.
    Set,
    /// It stays clear, because the translation comes from other tables.
    Clear,
}
