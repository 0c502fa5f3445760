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
mod tests {
    use super::*;

    #[test]
    fn stock_has_each_asid_once() {
        let stock = Stock::new();
        assert_eq!([stock.pop(0), stock.pop(2)], [None, None]);
        stock.fill(Block { epoch: 2, word: 1, asids: 1 << 63 | 0b101 });
        assert_eq!(stock.pop(2), Some(64));
        assert_eq!([stock.pop(4), stock.pop(2), stock.pop(2)], [None, Some(66), Some(127)]);
        stock.put_back(66);
        assert_eq!([stock.pop(2), stock.pop(2)], [Some(66), None]);
        let last = Block { epoch: (1 << 40) - 2, word: 1023, asids: 1 << 62 };
        stock.fill(last);
        assert_eq!([stock.pop(2), stock.pop(last.epoch)], [None, Some(65_534)]);
    }

    #[test]
    fn recycled_asid_is_kept_in_its_epoch() {
        let stock = Stock::new();
        stock.fill(Block { epoch: 4, word: 1, asids: 0b110 });
        // Of an earlier epoch, and of another word.
        stock.recycle(2, 64);
        stock.recycle(4, 63);
        assert_eq!([2, 4, 4, 4].map(|epoch| stock.pop(epoch)), [None, Some(65), Some(66), None]);
        // The stock is empty, so it can go to another word, in the same epoch only.
        stock.recycle(4, 130);
        stock.recycle(4, 66);
        stock.recycle(6, 131);
        assert_eq!([4, 4, 6].map(|epoch| stock.pop(epoch)), [Some(130), None, None]);
        stock.recycle(4, 130);
        stock.fill(Block { epoch: 6, word: 2, asids: 0 });
        assert_eq!(stock.pop(6), None);
    }

    #[test]
    fn recycled_asid_needs_discard_once() {
        let stock = Stock::new();
        stock.fill(Block { epoch: (1 << 40) - 2, word: 1023, asids: 0b11 << 62 });
        let pop = || stock.pop((1 << 40) - 2);
        let last = 1023 * 64 + 63;
        assert_eq!((pop(), stock.needs_discard(last - 1)), (Some(last - 1), false));
        stock.recycle((1 << 40) - 2, last - 1);
        for _ in 0..2 {
            assert_eq!((pop(), stock.needs_discard(last)), (Some(last - 1), false));
            assert_eq!([(); 2].map(|()| stock.needs_discard(last - 1)), [true, false]);
            // Also if no space has got it.
            stock.put_back(last - 1);
        }
        assert_eq!([pop(), pop(), pop()], [Some(last - 1), Some(last), None]);
        assert_eq!([last - 1, last].map(|asid| stock.needs_discard(asid)), [false, true]);
        assert!(!Stock::new().needs_discard(0));
    }
}
