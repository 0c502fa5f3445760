//! What must not be, in words.

use std::fmt;

use super::{PAGES, SLOTS};

/// The name of a page, in words.
pub(super) fn page_name(page: usize) -> String {
    match page.checked_sub(SLOTS * PAGES) {
        Some(slot) => format!("large page {slot}"),
        None => format!("page {page}"),
    }
}

/// What must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wrong {
    /// A CPU in user mode can use a page whose frame is somebody else's by now.
    UsesReused {
        /// Which.
        cpu: usize,
        /// Of its space.
        page: usize,
    },
    /// A CPU in user mode can use a translation that was flushed, and waited for.
    UsesFlushed {
        /// Which.
        cpu: usize,
        /// Of its space.
        page: usize,
    },
    /// A CPU in user mode can use a translation of another space, under the same tag.
    UsesForeign {
        /// Which.
        cpu: usize,
        /// Of the other space.
        page: usize,
    },
    /// A CPU can walk a page table that was freed.
    WalksFreed {
        /// Which.
        cpu: usize,
    },
    /// A frame was written out, or given away as clean, and a CPU can still write to it.
    WritesLate {
        /// Which.
        cpu: usize,
        /// Of its space.
        page: usize,
    },
    /// A CPU can use a page of the kernel's whose frame is somebody else's by now.
    UsesReusedKernel {
        /// Which.
        cpu: usize,
        /// Of the kernel.
        page: usize,
    },
    /// A CPU was interrupted for a space that it did not use.
    InterruptedForNothing {
        /// Which.
        cpu: usize,
    },
    /// CPUs wait for each other for ever.
    Stuck,
    /// What a litmus test asks for was seen.
    Seen,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UsesReused { cpu, page } => {
                let page = page_name(*page);
                write!(f, "CPU {cpu} can use {page}, whose frame is somebody else's by now")
            }
            Self::UsesFlushed { cpu, page } => write!(
                f,
                "CPU {cpu} can use {} as it was before a flush that is said to be done",
                page_name(*page)
            ),
            Self::UsesForeign { cpu, page } => {
                let page = page_name(*page);
                write!(f, "CPU {cpu} can use {page} of a space that it does not run")
            }
            Self::WalksFreed { cpu } => write!(f, "CPU {cpu} can walk a page table that was freed"),
            Self::WritesLate { cpu, page } => {
                write!(f, "CPU {cpu} can write to page {page}, which was written out already")
            }
            Self::UsesReusedKernel { cpu, page } => write!(
                f,
                "CPU {cpu} can use kernel page {page}, whose frame is somebody else's by now"
            ),
            Self::InterruptedForNothing { cpu } => {
                write!(f, "CPU {cpu} is interrupted for a space that it does not use")
            }
            Self::Stuck => f.write_str("CPUs wait for each other for ever"),
            Self::Seen => f.write_str("The outcome that was asked for is seen"),
        }
    }
}
