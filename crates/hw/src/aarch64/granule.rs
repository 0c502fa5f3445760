//! Translation granules: the size of a page, and the level of a leaf of each size.

use shootdown::PageSize;

/// The translation granule: the size of the smallest page, and of a page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granule {
    /// 4 KiB: leaves of 4 KiB, 2 MiB, 1 GiB and, with 52-bit addresses, 512 GiB.
    Size4K,
    /// 16 KiB: leaves of 16 KiB, 32 MiB and, with 52-bit addresses, 64 GiB.
    Size16K,
    /// 64 KiB: leaves of 64 KiB, 512 MiB and, with 52-bit addresses, 4 TiB.
    Size64K,
}

impl Granule {
    /// Decodes `TCR_EL1.TG0`.
    #[must_use]
    pub const fn of_tg0(tg0: u64) -> Self {
        match tg0 & 3 {
            1 => Self::Size64K,
            2 => Self::Size16K,
            // 3 is reserved.
            _ => Self::Size4K,
        }
    }

    /// Decodes `TCR_EL1.TG1`, whose encoding differs from that of TG0.
    #[must_use]
    pub const fn of_tg1(tg1: u64) -> Self {
        match tg1 & 3 {
            1 => Self::Size16K,
            3 => Self::Size64K,
            // 0 is reserved.
            _ => Self::Size4K,
        }
    }

    /// The encoding in operands of `TLBI`: in TG, and in the upper half of TTL. It differs from
    /// that of `TCR_EL1`.
    #[must_use]
    pub const fn operand(self) -> u64 {
        match self {
            Self::Size4K => 1,
            Self::Size16K => 2,
            Self::Size64K => 3,
        }
    }

    /// The base-2 logarithm of the granule in bytes.
    #[must_use]
    pub const fn shift(self) -> u8 {
        10 + 2 * self.operand() as u8
    }

    /// The largest leaf, without 52-bit addresses.
    #[must_use]
    pub const fn largest_leaf(self) -> PageSize {
        PageSize::from_shift(match self {
            Self::Size4K => 30,
            Self::Size16K => 25,
            Self::Size64K => 29,
        })
    }

    /// The largest leaf with 52-bit addresses: one level above that of the others.
    #[must_use]
    pub const fn largest_leaf_of_long_addresses(self) -> PageSize {
        PageSize::from_shift(self.largest_leaf().shift() + self.index_bits())
    }

    /// The base-2 logarithm of the largest leaf that is not larger than `size`; of the smallest
    /// leaf if all are larger.
    ///
    /// Pages of a size between two leaf sizes consist of several entries (the contiguous bit). The
    /// MMU may have cached them as one entry or as several, so an operation must name each.
    #[must_use]
    pub const fn leaf_shift(self, size: PageSize) -> u8 {
        let (last, bits, size) = (self.shift(), self.index_bits(), size.shift());
        // Pages have less than 2^44 bytes, so no granule but that of 4 KiB has three such levels.
        let above = (size >= last + bits) as u8
            + (size >= last + 2 * bits) as u8
            + (size >= last + 3 * bits) as u8;
        last + above * bits
    }

    /// The level of a leaf of `2^shift` bytes, in Arm's numbering (3 is the last).
    #[must_use]
    pub const fn level_of_leaf(self, shift: u8) -> u64 {
        3 - ((shift - self.shift()) / self.index_bits()) as u64
    }

    /// Number of address bits that a table translates. A table is one granule, and an entry has 8
    /// bytes.
    const fn index_bits(self) -> u8 {
        self.shift() - 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Granule; 3] = [Granule::Size4K, Granule::Size16K, Granule::Size64K];

    /// `TCR_EL1`, field TG0: 0b00 is 4 KiB, 0b01 64 KiB, 0b10 16 KiB; TG1: 0b01 16 KiB, 0b10 4 KiB,
    /// 0b11 64 KiB. C5.5, "TLBI RVAE1", field TG: 0b01 is 4 KiB, 0b10 16 KiB, 0b11 64 KiB.
    #[test]
    fn granule_encodings_match_manual() {
        let coded = [0, 2, 1].map(|tg0| Granule::of_tg0(tg0).operand());
        assert_eq!(coded, [1, 2, 3]);
        let coded = [2, 1, 3].map(|tg1| Granule::of_tg1(tg1).operand());
        assert_eq!(coded, [1, 2, 3]);
        assert_eq!(ALL.map(Granule::shift), [12, 14, 16]);
    }

    /// Chapter D8, the translation table lookup levels of each granule: blocks are at levels 1 and
    /// 2 for 4 KiB, and at level 2 for the other granules; and one level above with `FEAT_LPA2`, or
    /// with `FEAT_LPA` for 64 KiB.
    #[test]
    fn leaf_levels_match_manual() {
        let leaves = |granule: Granule, shifts: &[u8]| {
            for (level, &shift) in (0..=3).rev().zip(shifts) {
                assert_eq!(granule.leaf_shift(PageSize::from_shift(shift)), shift);
                assert_eq!(granule.level_of_leaf(shift), level);
            }
            let [.., largest, longest] = shifts else { unreachable!("there are three or more") };
            assert_eq!(granule.largest_leaf().shift(), *largest);
            assert_eq!(granule.largest_leaf_of_long_addresses().shift(), *longest);
            assert_eq!(granule.leaf_shift(PageSize::from_shift(43)), *longest);
        };
        leaves(Granule::Size4K, &[12, 21, 30, 39]);
        leaves(Granule::Size16K, &[14, 25, 36]);
        leaves(Granule::Size64K, &[16, 29, 42]);
    }

    /// Chapter D8, "The Contiguous bit": 16 entries of 4 KiB, or 16 of 2 MiB.
    #[test]
    fn contiguous_pages_are_named_by_entry() {
        let leaf = |shift| Granule::Size4K.leaf_shift(PageSize::from_shift(shift));
        assert_eq!((leaf(16), leaf(25)), (12, 21));
        // `Extent::page` has 4 KiB for every granule.
        assert_eq!(Granule::Size64K.leaf_shift(PageSize::SIZE_4K), 16);
    }
}
