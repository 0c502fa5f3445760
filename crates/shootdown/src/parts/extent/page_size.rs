//! The size of a page.

/// The size of a page, or of the block that one leaf entry maps, as a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSize {
    pub(super) shift: u8,
}

impl PageSize {
    /// 4 KiB.
    pub const SIZE_4K: Self = Self { shift: 12 };
    /// 16 KiB (Arm, 16 K granule).
    pub const SIZE_16K: Self = Self { shift: 14 };
    /// 64 KiB (Arm, 64 K granule).
    pub const SIZE_64K: Self = Self { shift: 16 };
    /// 2 MiB.
    pub const SIZE_2M: Self = Self { shift: 21 };
    /// 1 GiB.
    pub const SIZE_1G: Self = Self { shift: 30 };

    /// A page of `2^shift` bytes.
    ///
    /// # Panics
    ///
    /// If `shift` is not within 12 to 43.
    #[must_use]
    #[inline]
    pub const fn from_shift(shift: u8) -> Self {
        assert!(shift >= 12 && shift <= 43, "page sizes from 4 KiB to 8 TiB");
        Self { shift }
    }

    /// The base-2 logarithm of the size in bytes.
    #[must_use]
    #[inline]
    pub const fn shift(self) -> u8 {
        self.shift
    }

    /// The size in bytes.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> u64 {
        1 << self.shift
    }
}
