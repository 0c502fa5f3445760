//! Violations, and their descriptions.

use std::fmt;

use super::{PAGES, SLOTS};

/// Returns the name of a page.
pub(super) fn page_name(page: usize) -> String {
    match page.checked_sub(SLOTS * PAGES) {
        Some(slot) => format!("large page {slot}"),
        None => format!("page {page}"),
    }
}

/// A state that no correct kernel reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// A CPU in user mode can use a page whose frame has been reused.
    UsesReused {
        /// The CPU.
        cpu: usize,
        /// The page of its space.
        page: usize,
    },
    /// A CPU in user mode can use a translation although a flush of it is complete.
    UsesFlushed {
        /// The CPU.
        cpu: usize,
        /// The page of its space.
        page: usize,
    },
    /// A CPU in user mode can use a translation of another space, under the same tag.
    UsesForeign {
        /// The CPU.
        cpu: usize,
        /// The page of the other space.
        page: usize,
    },
    /// A CPU can walk a page table that was freed.
    WalksFreed {
        /// The CPU.
        cpu: usize,
    },
    /// A CPU can still write to a frame that was written out, or that was freed as clean.
    WritesLate {
        /// The CPU.
        cpu: usize,
        /// The page of its space.
        page: usize,
    },
    /// A CPU can use a kernel page whose frame has been reused.
    UsesReusedKernel {
        /// The CPU.
        cpu: usize,
        /// The kernel page.
        page: usize,
    },
    /// A CPU was interrupted for a space that it did not use.
    InterruptedForNothing {
        /// The interrupted CPU.
        cpu: usize,
    },
    /// A deadlock, or a run that does not end.
    Stuck,
    /// A litmus test reached the outcome that it asks for.
    OutcomeReached,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UsesReused { cpu, page } => {
                let page = page_name(*page);
                write!(f, "CPU {cpu} can use {page}, whose frame has been reused")
            }
            Self::UsesFlushed { cpu, page } => {
                write!(f, "CPU {cpu} can use {} after a flush of it was complete", page_name(*page))
            }
            Self::UsesForeign { cpu, page } => {
                let page = page_name(*page);
                write!(f, "CPU {cpu} can use {page} of a space that it does not run")
            }
            Self::WalksFreed { cpu } => write!(f, "CPU {cpu} can walk a page table that was freed"),
            Self::WritesLate { cpu, page } => {
                write!(f, "CPU {cpu} can write to page {page}, although it was written out")
            }
            Self::UsesReusedKernel { cpu, page } => {
                write!(f, "CPU {cpu} can use kernel page {page}, whose frame has been reused")
            }
            Self::InterruptedForNothing { cpu } => {
                write!(f, "CPU {cpu} is interrupted for a space that it does not use")
            }
            Self::Stuck => f.write_str("CPUs wait for each other for ever"),
            Self::OutcomeReached => f.write_str("The litmus test reached its outcome"),
        }
    }
}
