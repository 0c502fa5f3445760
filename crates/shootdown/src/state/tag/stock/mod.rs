//! The ASIDs that a CPU has taken in advance.
//!
//! A CPU takes a block of ASIDs at a time, and gives them to the spaces that it runs first. So in
//! most cases, a new space gets its ASID without a write to memory that other CPUs write.
//!
//! If a space dies that only this CPU has run, no other TLB holds a translation under its ASID. So
//! the CPU takes this ASID back (`recycling.rs`). CPUs on which short programs start and end
//! therefore do not run out of ASIDs.

use core::cell::Cell;

/// ASIDs of one word of the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// The epoch in which they may be used.
    pub(crate) epoch: u64,
    /// The word's index.
    pub(crate) word: usize,
    /// The ASIDs, as a mask of the word.
    pub(crate) asids: u64,
}

/// A CPU's stock of ASIDs: what is left of a block, and ASIDs of dead spaces that only this CPU has
/// run. All are of one epoch, and of one word. Only the CPU itself accesses it.
pub(crate) struct Stock {
    /// From the low bits: the word's index, of 16 bits; the epoch, of 40 bits; the
    /// [undiscarded](Self::needs_discard) ASID, as 1 plus its number in the word, or 0; and
    /// [`RECYCLED`](Self::RECYCLED).
    place: Cell<u64>,
    asids: Cell<u64>,
}

const EPOCH_SHIFT: u32 = 16;
const UNDISCARDED_SHIFT: u32 = 56;

impl Stock {
    /// Some ASIDs of the stock are those of dead spaces. Which ones is not recorded: a mask of 64
    /// bits would cost each CPU a cache line, and a discard too many costs some 100 ns.
    const RECYCLED: u64 = 1 << 63;

    pub(crate) const fn new() -> Self {
        Self { place: Cell::new(0), asids: Cell::new(0) }
    }

    fn word(&self) -> u64 {
        self.place.get() & ((1 << EPOCH_SHIFT) - 1)
    }

    fn epoch(&self) -> u64 {
        self.place.get() << (64 - UNDISCARDED_SHIFT) >> (64 - UNDISCARDED_SHIFT + EPOCH_SHIFT)
    }

    /// Takes an ASID for a space; `None` if there is none for this epoch.
    pub(crate) fn pop(&self, epoch: u64) -> Option<u64> {
        let asids = self.asids.get();
        if self.epoch() != epoch || asids == 0 {
            return None;
        }
        self.asids.set(asids & (asids - 1));
        let number = u64::from(asids.trailing_zeros());
        if self.place.get() & Self::RECYCLED != 0 {
            self.forget_undiscarded();
            self.place.set(self.place.get() | (number + 1) << UNDISCARDED_SHIFT);
        }
        Some(self.word() * 64 + number)
    }

    /// Puts an ASID back that no space has got.
    pub(crate) fn put_back(&self, asid: u64) {
        self.asids.set(self.asids.get() | 1 << (asid % 64));
    }

    /// Returns `true` if this CPU's TLB may hold translations of a dead space under the ASID that
    /// was taken last. The caller discards them.
    pub(crate) fn needs_discard(&self, asid: u64) -> bool {
        let undiscarded = (self.place.get() & !Self::RECYCLED) >> UNDISCARDED_SHIFT;
        let is_this = undiscarded != 0 && self.word() * 64 + undiscarded - 1 == asid;
        if is_this {
            self.forget_undiscarded();
        }
        is_this
    }

    fn forget_undiscarded(&self) {
        let kept = Self::RECYCLED | ((1 << UNDISCARDED_SHIFT) - 1);
        self.place.set(self.place.get() & kept);
    }

    /// Adds the ASID of a dead space. Does nothing if the epoch is over, or if the stock has ASIDs
    /// of another word: then the ASID is out of use until the next epoch.
    pub(crate) fn recycle(&self, epoch: u64, asid: u64) {
        let has_room = self.asids.get() == 0 || self.word() == asid / 64;
        if self.epoch() == epoch && has_room {
            self.place.set(Self::RECYCLED | epoch << EPOCH_SHIFT | (asid / 64));
            self.put_back(asid);
        }
    }

    /// Fills the stock, which is empty, or of an earlier epoch.
    pub(crate) fn fill(&self, block: Block) {
        self.place.set(block.epoch << EPOCH_SHIFT | block.word as u64);
        self.asids.set(block.asids);
    }
}

#[cfg(test)]
mod tests;
