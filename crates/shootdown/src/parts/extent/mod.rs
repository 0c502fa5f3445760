//! The extent of a flush: a few pages of one size, or the whole address space.

use core::fmt;
use core::ops::Range;

/// The size of a page, or of the block that one leaf entry maps, as a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSize {
    shift: u8,
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

/// The extent of a flush: up to [`MAX_PAGES`](Extent::MAX_PAGES) consecutive pages of one size, or
/// the whole space. A flag records that page tables above it are about to be freed. Another one
/// records that the extent is [long](Extent::long): its pages may consist of smaller ones.
///
/// An extent fits in one word. So a [`Space`](crate::Space) can keep a log of its last flushes,
/// which other CPUs read without a lock:
///
/// ```text
///  63                  19 18      14    13      12   11       0
/// ┌──────────────────────┬──────────┬────────┬──────┬──────────┐
/// │ first address / 4 KiB│ shift-12 │ tables │ long │ pages    │   pages = 0: the whole space,
/// └──────────────────────┴──────────┴────────┴──────┴──────────┘   or nothing if shift-12 = 31
/// ```
///
/// The address field holds bits 12 to 56 of the address, and the highest of them is the sign. No
/// machine has more address bits (x86 has 57 with five levels of tables). Bits 56 to 63 of an
/// address must therefore be equal. If they are not, the address carries metadata that the caller
/// has not masked off (Arm's TBI and MTE, x86's LAM). Such an extent is the whole space, because a
/// flush may cover too much, but never too little. Metadata in lower bits (`LAM_U48`) cannot be
/// distinguished from an address: mask it off.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent(u64);

impl Extent {
    /// Largest number of pages in an extent; with more, it is the whole space, or
    /// [long](Self::long). That is 16 MiB of small pages. No CPU would invalidate as many one by
    /// one, but a CPU with range operations can cover them (`TLBI RVAE1`). Without range
    /// operations, Linux on arm64 still invalidates up to 511 pages one by one.
    pub const MAX_PAGES: usize = 4095;

    const PAGES: u64 = 0xfff;
    const LONG: u64 = 1 << 12;
    const TABLES: u64 = 1 << 13;
    const SIZE: u64 = 0x1f << Self::SIZE_SHIFT;
    const SIZE_SHIFT: u32 = 14;
    const ADDRESS_SHIFT: u32 = 19;

    /// A long extent counts in pages of 2^9 times the size: the next level of 4 KiB tables.
    const LONG_STEP: u8 = 9;

    /// The page of 4 KiB that contains `address`.
    #[must_use]
    #[inline]
    pub const fn page(address: u64) -> Self {
        Self::pages(address, 1, PageSize::SIZE_4K)
    }

    /// `count` pages of `size`, beginning with the page that contains `address`.
    ///
    /// `size` must be the size of the *smallest* page that may be cached for these addresses. If
    /// small pages are collapsed into a large one, name the small size, or use the whole space: a
    /// machine that invalidates one large page does not have to invalidate the small ones.
    ///
    /// The result is [empty](Self::empty) if `count` is 0. It is the whole space if `count` is
    /// above [`MAX_PAGES`](Self::MAX_PAGES), or if `address` carries metadata in its upper byte: a
    /// flush may cover too much, but never too little.
    #[must_use]
    #[inline]
    pub const fn pages(address: u64, count: usize, size: PageSize) -> Self {
        if count == 0 {
            return Self::empty();
        }
        let upper = address >> 56;
        if count > Self::MAX_PAGES || (upper != 0 && upper != 0xff) {
            return Self::whole();
        }
        let first = address & !(size.bytes() - 1);
        let bits = (first >> 12) << Self::ADDRESS_SHIFT;
        Self(bits | ((size.shift() as u64 - 12) << Self::SIZE_SHIFT) | count as u64)
    }

    /// The pages of `size` that overlap the addresses of `range`.
    ///
    /// The result is [empty](Self::empty) if the range is empty. It is the whole space if the range
    /// has more than [`MAX_PAGES`](Self::MAX_PAGES) pages, or ends before it begins. An `end` of 0
    /// means the end of the 64-bit address space, unless the range also begins at 0.
    #[must_use]
    #[inline]
    pub const fn range(range: Range<u64>, size: PageSize) -> Self {
        // In page numbers, so that nothing wraps at the top of the address space.
        let first = range.start >> size.shift();
        let last = range.end.wrapping_sub(1) >> size.shift();
        // Wraps to a large number if the range ends before it begins.
        let after_first = last.wrapping_sub(first);
        if range.start == range.end {
            return Self::empty();
        }
        if after_first >= Self::MAX_PAGES as u64 {
            return Self::whole();
        }
        Self::pages(range.start, (after_first + 1) as usize, size)
    }

    /// The pages of `size` that overlap the addresses of `range`, of which there may be more than
    /// [`MAX_PAGES`](Self::MAX_PAGES): then the extent counts larger pages, and covers up to one of
    /// these more at each end.
    ///
    /// A machine with range operations invalidates such a range (`TLBI RVAE1`; for a guest,
    /// `RIPAS2E1`). Any other machine treats it as the whole space: see
    /// [`Machine::flush_ceiling`](crate::Machine::flush_ceiling).
    #[must_use]
    pub const fn long(range: Range<u64>, size: PageSize) -> Self {
        let (start, end, mut shift) = (range.start, range.end, size.shift);
        let mut extent = Self::range(start..end, size);
        // A range that ends before it begins may be within one large page.
        let is_range = start <= end.wrapping_sub(1);
        while is_range && extent.is_whole() && shift + Self::LONG_STEP <= 43 {
            shift += Self::LONG_STEP;
            extent = Self::range(start..end, PageSize { shift });
        }
        if extent.is_whole() || shift == size.shift { extent } else { Self(extent.0 | Self::LONG) }
    }

    /// Returns `true` if the extent is [long](Self::long): its pages may consist of smaller ones,
    /// so that to invalidate one address of each is not enough.
    #[must_use]
    #[inline]
    pub const fn is_long(self) -> bool {
        self.0 & Self::LONG != 0
    }

    /// This extent, or the whole space if it is long.
    pub(crate) const fn without_long(self) -> Self {
        if self.is_long() { Self(self.0 & Self::TABLES) } else { self }
    }

    /// The whole address space.
    #[must_use]
    #[inline]
    pub const fn whole() -> Self {
        Self(0)
    }

    /// The empty extent: a flush of it does nothing.
    #[must_use]
    #[inline]
    pub const fn empty() -> Self {
        Self(Self::SIZE)
    }

    /// Returns `true` if this is the empty extent.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == Self::SIZE
    }

    /// This extent, with page tables above it unhooked and about to be freed. For the empty extent
    /// it is the whole space, because the addresses of the tables are not known.
    ///
    /// CPUs then also drop the upper levels that they cache. A CPU that has the space loaded
    /// without using it may still walk those tables speculatively. The flush interrupts such a CPU
    /// as well, or the tables are [quarantined](crate::PinnedCpu::flush_gathered) until the CPU
    /// cannot walk them.
    #[must_use]
    #[inline]
    pub const fn freeing_tables(self) -> Self {
        if self.is_empty() { Self(Self::TABLES) } else { Self(self.0 | Self::TABLES) }
    }

    /// Returns `true` if this is the whole address space.
    #[must_use]
    #[inline]
    pub const fn is_whole(self) -> bool {
        self.0 & Self::PAGES == 0 && !self.is_empty()
    }

    /// Returns `true` if this is the whole space. The extent must not be empty.
    #[inline]
    pub(crate) const fn is_unbounded(self) -> bool {
        self.0 & Self::PAGES == 0
    }

    /// The number of pages, for a comparison with a ceiling: a long extent has more than
    /// [`MAX_PAGES`](Self::MAX_PAGES), and at most twice as many.
    #[inline]
    pub(crate) const fn weight(self) -> usize {
        (self.0 & (Self::PAGES | Self::LONG)) as usize
    }

    /// Returns `true` if this has at least one and at most `page_count_max` pages by
    /// [weight](Self::weight), and so is neither empty nor the whole space.
    #[inline]
    pub(crate) const fn page_count_within(self, page_count_max: usize) -> bool {
        // A page count of 0 wraps around.
        (self.weight() as u64).wrapping_sub(1) < page_count_max as u64
    }

    /// Returns `true` if page tables are about to be freed.
    #[must_use]
    #[inline]
    pub const fn frees_tables(self) -> bool {
        self.0 & Self::TABLES != 0
    }

    /// Address of the first page; 0 for the whole space.
    #[must_use]
    #[expect(
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss,
        reason = "the functions for it are newer than Rust 1.85"
    )]
    #[inline]
    pub const fn start(self) -> u64 {
        // The shift extends the sign.
        ((self.0 as i64 >> Self::ADDRESS_SHIFT) << 12) as u64
    }

    /// Number of pages; 0 for the whole space and for the empty extent.
    #[must_use]
    #[inline]
    pub const fn page_count(self) -> usize {
        (self.0 & Self::PAGES) as usize
    }

    /// Size of the pages; 4 KiB for the whole space. In a long extent, they may consist of smaller
    /// ones.
    #[must_use]
    #[inline]
    pub const fn page_size(self) -> PageSize {
        PageSize { shift: (((self.0 >> Self::SIZE_SHIFT) & 0x1f) as u8) + 12 }
    }

    /// The address of each page, in order; none for the whole space.
    #[inline]
    pub fn addresses(self) -> impl Iterator<Item = u64> {
        let (start, bytes) = (self.start(), self.page_size().bytes());
        // Stop at the top of the address space, and do not wrap around to page 0.
        (0..self.page_count() as u64).map_while(move |n| start.checked_add(n * bytes))
    }

    /// Returns `true` if a flush of this extent covers the translation of `address`.
    #[must_use]
    pub fn covers(self, address: u64) -> bool {
        self.is_whole()
            || address
                .checked_sub(self.start())
                .is_some_and(|offset| offset >> self.page_size().shift() < self.page_count() as u64)
    }

    /// The shortest extent that covers `self` and `other`, neither of which may be whole. `None` if
    /// their page sizes differ, if only one is long, or if the result would be whole.
    pub(crate) fn joined_with(self, other: Self) -> Option<Self> {
        let size = self.page_size();
        if (self.0 ^ other.0) & (Self::SIZE | Self::LONG) != 0 {
            return None;
        }
        let first = self.start().min(other.start());
        let last = self.last_page().max(other.last_page());
        let count = usize::try_from(((last - first) >> size.shift()) + 1).ok()?;
        let flags = (self.0 | other.0) & (Self::TABLES | Self::LONG);
        let joined = Self(Self::pages(first, count, size).0 | flags);
        (!joined.is_unbounded()).then_some(joined)
    }

    /// Address of the last page. The extent must not be whole.
    fn last_page(self) -> u64 {
        let after_first = (self.page_count() as u64 - 1) << self.page_size().shift();
        self.start().saturating_add(after_first) & !(self.page_size().bytes() - 1)
    }

    /// Returns `true` if invalidating `self` also invalidates all of `other`. `self` must not be
    /// whole.
    pub(crate) const fn contains(self, other: Self) -> bool {
        let shift = self.page_size().shift();
        if shift != other.page_size().shift() || other.start() < self.start() {
            return false;
        }
        let skipped = (other.start() - self.start()) >> shift;
        skipped + other.page_count() as u64 <= self.page_count() as u64
            && other.0 & !self.0 & (Self::TABLES | Self::LONG) == 0
            && !other.is_whole()
    }

    /// The word that encodes this extent, for the flush log and for interfaces to other languages.
    #[must_use]
    #[inline]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The extent that [`to_bits`](Self::to_bits) has encoded. Every word encodes one.
    #[must_use]
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            f.write_str("empty")?;
        } else if self.is_whole() {
            f.write_str("whole")?;
        } else {
            write!(
                f,
                "{:#x}+{}x{}K",
                self.start(),
                self.page_count(),
                self.page_size().bytes() >> 10
            )?;
        }
        if self.is_long() {
            f.write_str("+smaller")?;
        }
        if self.frees_tables() { f.write_str("+tables") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
