//! The changes of memory contents that a host may observe.

use core::ops::Range;

/// The number of a file, as the host gave it.
pub type FileKey = u64;

/// A change of the contents of a process's memory. Ranges are of pages, counted from address 0.
#[derive(Clone, Debug)]
pub enum Change {
    /// A mapping replaces the mappings in a range.
    Map {
        /// The pages of the mapping.
        range: Range<u64>,
        /// The contents of the mapping.
        shown: Shown,
    },
    /// A mapping whose address the memory manager chooses, and [`Ended::At`] reports.
    MapAnywhere {
        /// Number of pages.
        pages: u64,
        /// The contents of the mapping, as if it began at address 0.
        shown: Shown,
    },
    /// The mappings in a range are removed.
    Unmap(Range<u64>),
    /// The private contents of a range are freed (`MADV_DONTNEED`).
    Discard(Range<u64>),
    /// The private contents of a range may be freed from now on (`MADV_FREE`).
    Offer(Range<u64>),
    /// The mapping below a range grows by it.
    Grow(Range<u64>),
    /// The mappings of a range move.
    Move {
        /// The pages before.
        from: Range<u64>,
        /// The pages after.
        to: Range<u64>,
    },
    /// The pages of a file are removed from page `first` on. This concerns all processes.
    Truncate {
        /// The file.
        file: FileKey,
        /// The first page that is removed.
        first: u64,
    },
    /// The process is copied.
    Fork,
}

/// The end of a [`Change`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The change is complete.
    Done,
    /// The change is a mapping, which is complete and covers these pages.
    At(Range<u64>),
    /// The change failed, and changed nothing.
    Failed,
}

/// The contents of a mapping. Page `n` of the process shows page `n + offset` of the file; the sum
/// wraps around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// No page: every access faults.
    Nothing,
    /// Zeros, private to the process.
    Anonymous,
    /// A file. Writes are private to the process.
    Private {
        /// The file.
        file: FileKey,
        /// Difference between page numbers of the file and of the process.
        offset: u64,
    },
    /// A file. All its mappings share the writes.
    Shared {
        /// The file.
        file: FileKey,
        /// Difference between page numbers of the file and of the process.
        offset: u64,
    },
}

impl Shown {
    /// Returns the contents of the same mapping, `by` pages higher in the process.
    #[must_use]
    pub const fn moved(self, by: u64) -> Self {
        match self {
            Self::Nothing | Self::Anonymous => self,
            Self::Private { file, offset } => {
                Self::Private { file, offset: offset.wrapping_sub(by) }
            }
            Self::Shared { file, offset } => Self::Shared { file, offset: offset.wrapping_sub(by) },
        }
    }
}
