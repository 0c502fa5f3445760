//! Violations, and their descriptions.

use super::{PAGES, SLOTS};

/// Returns the name of a page.
pub(super) fn page_name(page: usize) -> String {
    match page.checked_sub(SLOTS * PAGES) {
        Some(slot) => format!("large page {slot}"),
        None => format!("page {page}"),
    }
}

/// A state that no correct kernel reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A CPU in user mode can use a page whose frame has been reused.
    #[error("CPU {cpu} can use {}, whose frame has been reused", page_name(*page))]
    UsesReused {
        /// The CPU.
        cpu: usize,
        /// The page of its space.
        page: usize,
    },
    /// A CPU in user mode can use a translation although a flush of it is complete.
    #[error("CPU {cpu} can use {} after a flush of it was complete", page_name(*page))]
    UsesFlushed {
        /// The CPU.
        cpu: usize,
        /// The page of its space.
        page: usize,
    },
    /// A CPU in user mode can use a translation of another space, under the same tag.
    #[error("CPU {cpu} can use {} of a space that it does not run", page_name(*page))]
    UsesForeign {
        /// The CPU.
        cpu: usize,
        /// The page of the other space.
        page: usize,
    },
    /// A CPU can walk a page table that was freed.
    #[error("CPU {cpu} can walk a page table that was freed")]
    WalksFreed {
        /// The CPU.
        cpu: usize,
    },
    /// The device can walk a page table that was freed.
    #[error("The device can walk a page table that was freed")]
    DeviceWalksFreed,
    /// A CPU can still write to a frame that was written out, or that was freed as clean.
    #[error("CPU {cpu} can write to page {page}, although it was written out")]
    WritesLate {
        /// The CPU.
        cpu: usize,
        /// The page of its space.
        page: usize,
    },
    /// A guest can use a page of its hypervisor's table whose frame has been reused.
    #[error("A guest can use page {page}, whose frame has been reused")]
    GuestUsesReused {
        /// The page.
        page: usize,
    },
    /// A CPU can use a kernel page whose frame has been reused.
    #[error("CPU {cpu} can use kernel page {page}, whose frame has been reused")]
    UsesReusedKernel {
        /// The CPU.
        cpu: usize,
        /// The kernel page.
        page: usize,
    },
    /// A CPU may hold that a kernel page is not mapped, although it is.
    #[error("CPU {cpu} can fault on kernel page {page}, which is mapped")]
    FaultsOnMapped {
        /// The CPU.
        cpu: usize,
        /// The kernel page.
        page: usize,
    },
    /// A CPU was interrupted for a space that it did not use.
    #[error("CPU {cpu} is interrupted for a space that it does not use")]
    InterruptedForNothing {
        /// The interrupted CPU.
        cpu: usize,
    },
    /// A deadlock, or a run that does not end.
    #[error("CPUs wait for each other for ever")]
    Stuck,
    /// A litmus test reached the outcome that it asks for.
    #[error("The litmus test reached its outcome")]
    OutcomeReached,
}

impl Violation {
    /// Returns the violation of a walker, which is a CPU, or the device after the CPUs.
    pub(crate) const fn walks_freed(walker: usize, cpus: usize) -> Self {
        if walker == cpus { Self::DeviceWalksFreed } else { Self::WalksFreed { cpu: walker } }
    }
}
