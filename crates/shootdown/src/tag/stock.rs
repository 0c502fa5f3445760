//! The ASIDs that a CPU has taken in advance.
//!
//! A CPU takes a block of ASIDs at a time, and gives them to the spaces that it runs first. So in
//! most cases, a new space gets its ASID without a write to memory that other CPUs write.

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

/// A CPU's stock of ASIDs, which is what is left of a block. Only the CPU itself accesses it.
pub(crate) struct Stock {
    /// The epoch, of 40 bits, and the word's index, in the low 16 bits.
    place: Cell<u64>,
    asids: Cell<u64>,
}

/// Number of bits for the index of a word.
const WORD_BITS: u32 = 16;

impl Stock {
    pub(crate) const fn new() -> Self {
        Self { place: Cell::new(0), asids: Cell::new(0) }
    }

    /// Takes an ASID for a space; `None` if there is none for this epoch.
    pub(crate) fn pop(&self, epoch: u64) -> Option<u64> {
        let asids = self.asids.get();
        let place = self.place.get();
        if place >> WORD_BITS != epoch || asids == 0 {
            return None;
        }
        self.asids.set(asids & (asids - 1));
        let word = place & ((1 << WORD_BITS) - 1);
        Some(word * 64 + u64::from(asids.trailing_zeros()))
    }

    /// Puts an ASID back that no space has got.
    pub(crate) fn put_back(&self, asid: u64) {
        self.asids.set(self.asids.get() | 1 << (asid % 64));
    }

    /// Fills the stock, which is empty, or of an earlier epoch.
    pub(crate) fn fill(&self, block: Block) {
        self.place.set(block.epoch << WORD_BITS | block.word as u64);
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
}
