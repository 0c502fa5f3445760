//! An area: a range of addresses that user space mapped by one call, and its attributes.

use alloc::sync::Arc;
use core::fmt;
use core::ops::Range;

use crate::PAGE_BYTES;
use crate::file::File;
use crate::platform::Platform;

bitflags::bitflags! {
    /// The accesses that user code may make to a page.
    ///
    /// An area that may be written or executed may also be read, because most MMUs cannot forbid
    /// it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Protection: u8 {
        /// Loads.
        const READ = 1;
        /// Stores.
        const WRITE = 2;
        /// Instruction fetches.
        const EXECUTE = 4;
    }
}

impl Protection {
    /// Adds the accesses that the hardware allows along with these.
    #[inline]
    pub(crate) fn as_enforced(self) -> Self {
        if self.is_empty() { self } else { self | Self::READ }
    }
}

/// An access that user code tried to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Execute,
}

impl Access {
    /// The protection that allows this access.
    #[inline]
    #[must_use]
    pub const fn needs(self) -> Protection {
        match self {
            Self::Read => Protection::READ,
            Self::Write => Protection::WRITE,
            Self::Execute => Protection::EXECUTE,
        }
    }
}

/// The spaces that observe a write to an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// This space alone. Other spaces keep the old contents (copy-on-write).
    Private,
    /// Every space that maps the same file, or has inherited the same area.
    Shared,
}

/// The pages of a file that one entry of an area may map. (Linux: the orders of the folios in the
/// page cache.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Folios {
    /// A page of 4 KiB.
    #[default]
    Small,
    /// A large page. The entry allows all that the area allows. (Linux: tmpfs.)
    Large,
    /// A large page. An entry that a read has made does not allow writes, because the file system
    /// tracks the first write. (Linux: `page_mkwrite`, as ext4 has it.)
    LargeTracked,
}

/// The source of an area's pages.
#[derive(Clone)]
pub enum Backing<P: Platform> {
    /// No file: pages are zeros at first.
    Anonymous,
    /// A file.
    File {
        /// The file.
        file: Arc<File<P>>,
        /// Number of the file's page at the start of the area.
        first_page: u64,
    },
}

/// A range of addresses with one protection and one backing. (Linux: `vm_area_struct`.)
#[derive(Clone)]
pub struct Area<P: Platform> {
    /// The addresses, in whole pages.
    pub range: Range<u64>,
    /// The accesses that user code may make.
    pub protection: Protection,
    /// The spaces that observe writes.
    pub sharing: Sharing,
    /// The source of the pages.
    pub backing: Backing<P>,
    /// The pages that one entry may map. In an anonymous area, `Large` makes the first write map a
    /// large page.
    pub(crate) folios: Folios,
    /// `true` if a page of the area, which is private, may have been written. The first write may
    /// need a lock that others do not: see [`FaultLock::Area`](crate::FaultLock::Area).
    pub(crate) is_written: bool,
}

/// The kind of the large pages in an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LargePages {
    /// Anonymous ones. The entry is a user of each small page in it.
    Own,
    /// Folios of a file. The entry is a user of the first small page, and the file keeps the rest.
    Folios,
}

impl<P: Platform> Area<P> {
    /// Cuts off and returns the part from `address` upwards. The address must be inside the area.
    pub(crate) fn split_off(&mut self, address: u64) -> Self {
        debug_assert!(self.range.start < address && address < self.range.end);
        let mut above = self.clone();
        if let Backing::File { first_page, .. } = &mut above.backing {
            *first_page += (address - self.range.start) / PAGE_BYTES;
        }
        above.range.start = address;
        self.range.end = address;
        above
    }

    /// The part of the area that lies in `range`. The two must overlap.
    #[inline]
    pub(crate) fn part_in(&self, range: &Range<u64>) -> Range<u64> {
        self.range.start.max(range.start)..self.range.end.min(range.end)
    }

    /// The file, and the number of its page that belongs at `address`, which must be in the area or
    /// at its end; `None` if the area is anonymous.
    #[inline]
    pub(crate) fn file_page(&self, address: u64) -> Option<(&Arc<File<P>>, u64)> {
        let Backing::File { file, first_page } = &self.backing else { return None };
        Some((file, first_page + (address - self.range.start) / PAGE_BYTES))
    }

    /// Returns `true` if the area's pages belong to no file and to no other space, apart from pages
    /// that a fork shares until they are written.
    pub(crate) fn is_private_anonymous(&self) -> bool {
        self.sharing == Sharing::Private && matches!(self.backing, Backing::Anonymous)
    }

    /// The kind of the large pages that may be in the area.
    pub(crate) const fn large_pages(&self) -> LargePages {
        match self.backing {
            Backing::Anonymous => LargePages::Own,
            Backing::File { .. } => LargePages::Folios,
        }
    }

    /// Returns `true` if `above`, which begins where this area ends, can be merged with it.
    ///
    /// Areas of files are not merged: few are mapped piecemeal, so the comparison would save
    /// little.
    pub(crate) fn continues_in(&self, above: &Self) -> bool {
        self.range.end == above.range.start
            && self.protection == above.protection
            && self.folios == above.folios
            && self.sharing == above.sharing
            && matches!((&self.backing, &above.backing), (Backing::Anonymous, Backing::Anonymous))
    }
}

impl<P: Platform> fmt::Debug for Area<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Area")
            .field("range", &format_args!("{:#x}..{:#x}", self.range.start, self.range.end))
            .field("protection", &self.protection)
            .field("sharing", &self.sharing)
            .field("backing", &self.backing)
            .field("folios", &self.folios)
            .field("is_written", &self.is_written)
            .finish()
    }
}

impl<P: Platform> fmt::Debug for Backing<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("Anonymous"),
            Self::File { first_page, .. } => {
                f.debug_struct("File").field("first_page", first_page).finish_non_exhaustive()
            }
        }
    }
}
