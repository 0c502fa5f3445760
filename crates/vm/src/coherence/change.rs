//! The changes of an operation to a space's page tables.

use core::ops::Range;

use shootdown::{Extent, ExtentSet, FlushCause, Machine, PageSize, Pending, PinnedCpu, Space};

/// Translations that no CPU may use any more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Change {
    /// The addresses from the first to the last; `None` for the whole space.
    pub range: Option<Range<u64>>,
    /// The changed addresses among them, as the engine expects them.
    pub extents: ExtentSet,
    /// The size of the smallest page that was changed.
    pub page_size: PageSize,
    /// The memory that is freed after the flush.
    pub freed: Freed,
    /// `true` if an entry of another size may be written next at an address that was mapped: a
    /// large page was removed, or small pages and their table.
    pub resizes: bool,
    /// The operation, for statistics.
    pub cause: Cause,
}

/// The operation that changed page tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// `munmap`, a new mapping in place of another, or the truncation of a file.
    Unmap,
    /// `madvise`.
    Advise,
    /// `mprotect`.
    Protect,
    /// `mremap`.
    Move,
    /// `fork`.
    Fork,
    /// A write to a page that is shared, or to the shared page of zeros.
    CopyOnWrite,
    /// Small pages replaced by a large one.
    Collapse,
    /// A large page split into small ones, so that an operation can change some of them.
    Split,
    /// Reclaim.
    Reclaim,
    /// The end of the space.
    Exit,
}

/// The memory that is freed after a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// At most pages.
    Pages,
    /// Page tables: CPUs that could walk them must be notified, even if they use no page.
    Tables,
}

impl From<Cause> for FlushCause {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Unmap => Self::Unmap,
            Cause::Advise => Self::Advise,
            Cause::Protect => Self::Protect,
            Cause::Move => Self::Move,
            Cause::Fork => Self::Fork,
            Cause::CopyOnWrite => Self::CopyOnWrite,
            Cause::Collapse => Self::Collapse,
            Cause::Split => Self::Split,
            Cause::Reclaim => Self::Reclaim,
            Cause::Exit => Self::Exit,
        }
    }
}

impl Change {
    /// Returns the change of an operation that removed every small page of a range, such as
    /// `munmap`.
    pub fn range(range: Range<u64>, freed: Freed) -> Self {
        let extent = Extent::range(range.clone(), PageSize::SIZE_4K);
        Self::of(Some(range), extent, freed, Cause::Unmap)
    }

    /// Returns the change for one page that reclaim has unmapped.
    pub fn reclaimed(address: u64) -> Self {
        Self::reclaimed_range(address..address + crate::PAGE_BYTES)
    }

    /// Returns the change for pages that reclaim may have unmapped from a range.
    pub(crate) fn reclaimed_range(range: Range<u64>) -> Self {
        Self { cause: Cause::Reclaim, ..Self::range(range, Freed::Pages) }
    }

    /// Returns the change that removed pages that were discarded in place. The addresses must be in
    /// order. `None` if there are none.
    pub(crate) fn discarded(pages: impl Iterator<Item = u64>) -> Option<Self> {
        Self::of_pages(pages, Cause::Advise)
    }

    /// Returns the change that took the permission to write from pages, which are being written
    /// out. The addresses must be in order. `None` if there are none.
    pub(crate) fn write_back(pages: impl Iterator<Item = u64>) -> Option<Self> {
        Self::of_pages(pages, Cause::Reclaim)
    }

    /// Returns the change that removed pages of a mapping because its file was truncated. The
    /// addresses must be in order. `None` if there are none.
    pub(crate) fn truncated(pages: impl Iterator<Item = u64>) -> Option<Self> {
        Self::of_pages(pages, Cause::Unmap)
    }

    fn of_pages(pages: impl Iterator<Item = u64>, cause: Cause) -> Option<Self> {
        let (mut extents, mut range) = (ExtentSet::new(), None);
        for page in pages {
            extents.add(Extent::page(page));
            range.get_or_insert(page..page).end = page + crate::PAGE_BYTES;
        }
        Some(Self {
            range: Some(range?),
            extents,
            page_size: PageSize::SIZE_4K,
            freed: Freed::Pages,
            resizes: false,
            cause,
        })
    }

    /// Returns the change for the whole space, as at its end.
    pub fn whole(freed: Freed) -> Self {
        Self::of(None, Extent::whole(), freed, Cause::Exit)
    }

    fn of(range: Option<Range<u64>>, extent: Extent, freed: Freed, cause: Cause) -> Self {
        let mut extents = ExtentSet::new();
        extents.add(if freed == Freed::Tables { extent.freeing_tables() } else { extent });
        Self { range, extents, page_size: PageSize::SIZE_4K, freed, resizes: false, cause }
    }

    /// Flushes the change with the engine: with [`PinnedCpu::flush_for_resize`] if the change
    /// [resizes](Self::resizes) and the machine does not [tolerate both
    /// sizes](Machine::tolerates_mixed_sizes), and with [`PinnedCpu::flush_gathered`] otherwise.
    pub fn flush_by_engine<'e, M: Machine>(
        &self,
        machine: &M,
        pin: &PinnedCpu<'e, M>,
        space: &Space<M>,
    ) -> Pending<'e, M> {
        let cause = self.cause.into();
        pin.because(cause);
        let [first, rest @ ..] = self.extents.as_slice() else {
            return pin.flush_gathered(space, &self.extents);
        };
        if !self.resizes || machine.tolerates_mixed_sizes() {
            return pin.flush_gathered(space, &self.extents);
        }
        let mut pending = pin.flush_for_resize(space, *first);
        for &extent in rest {
            pending.join(pin.because(cause).flush_for_resize(space, extent));
        }
        pending
    }
}
