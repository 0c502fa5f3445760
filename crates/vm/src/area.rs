//! An area: a range of addresses that user space asked for at once, and what it asked for.

use alloc::sync::Arc;
use core::fmt;
use core::ops::Range;

use crate::PAGE_BYTES;
use crate::file::File;
use crate::platform::Platform;

bitflags::bitflags! {
    /// What user code may do with a page.
    ///
    /// An area that may be written or executed may be read, too: most MMUs cannot do otherwise.
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
    /// With what the hardware gives along with it.
    pub(crate) fn as_enforced(self) -> Self {
        if self.is_empty() { self } else { self | Self::READ }
    }
}

/// What user code tried to do.
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
    /// What must be allowed for it.
    #[must_use]
    pub const fn needs(self) -> Protection {
        match self {
            Self::Read => Protection::READ,
            Self::Write => Protection::WRITE,
            Self::Execute => Protection::EXECUTE,
        }
    }
}

/// Who sees what is written to an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// This space alone; others keep what they had (copy-on-write).
    Private,
    /// Everyone who maps the same file, or has inherited the same area.
    Shared,
}

/// Where an area's pages come from.
pub enum Backing<P: Platform> {
    /// Nowhere: they are zeros at first.
    Anonymous,
    /// A file.
    File {
        /// The file.
        file: Arc<File<P>>,
        /// Which of its pages is the area's first.
        first_page: u64,
    },
}

/// A range of addresses with one protection and one backing. (Linux: `vm_area_struct`.)
pub struct Area<P: Platform> {
    /// The addresses.
    pub range: Range<u64>,
    /// What may be done.
    pub protection: Protection,
    /// Who sees it.
    pub sharing: Sharing,
    /// Where its pages come from.
    pub backing: Backing<P>,
}

impl<P: Platform> Area<P> {
    /// Cuts off and returns what lies at `address` and above; it must be inside the area.
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

    /// Whether nobody but this space has its pages, and no file.
    pub(crate) fn is_private_anonymous(&self) -> bool {
        self.sharing == Sharing::Private && matches!(self.backing, Backing::Anonymous)
    }

    /// Whether the two, `above` beginning where this one ends, may as well be one.
    ///
    /// Areas of files are left alone: to compare them saves little, for few are mapped piecemeal.
    pub(crate) fn continues_in(&self, above: &Self) -> bool {
        self.range.end == above.range.start
            && self.protection == above.protection
            && self.sharing == above.sharing
            && matches!((&self.backing, &above.backing), (Backing::Anonymous, Backing::Anonymous))
    }
}

// Not derived: that would ask for a platform that can be cloned.
impl<P: Platform> Clone for Area<P> {
    fn clone(&self) -> Self {
        Self {
            range: self.range.clone(),
            protection: self.protection,
            sharing: self.sharing,
            backing: self.backing.clone(),
        }
    }
}

impl<P: Platform> Clone for Backing<P> {
    fn clone(&self) -> Self {
        match self {
            Self::Anonymous => Self::Anonymous,
            Self::File { file, first_page } => {
                Self::File { file: Arc::clone(file), first_page: *first_page }
            }
        }
    }
}

impl<P: Platform> fmt::Debug for Area<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Area")
            .field("range", &format_args!("{:#x}..{:#x}", self.range.start, self.range.end))
            .field("protection", &self.protection)
            .field("sharing", &self.sharing)
            .field("backing", &self.backing)
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
