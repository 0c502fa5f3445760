//! Translations that the kernel puts into the TLB of a CPU, and the [holders](Holder) of entries.

use crate::holders::{Holder, Marking};
use crate::lines::{Access, LineId};
use crate::memory::FrameNumber;
use crate::mmu::{ACCESSED, LARGE, LEVEL_BITS, PAGE_SHIFT, PRESENT, TOP_SHIFT, entry_frame};
use crate::mmu::{ENTRIES_PER_TABLE, Touch};
use crate::sim::Sim;

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
    /// has changed and this CPU is about to flush. Marks the entry as
    /// [`Flushing`](Holder::Flushing) until [`holders_flushed`](Self::holders_flushed), on the same
    /// CPU. Costs the load of the entry.
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
