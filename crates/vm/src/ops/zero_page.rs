//! The first read of a page that nobody has written: does a write follow?
//!
//! If the page of zeros is mapped for the read, a write that follows has to take it away again, and
//! every CPU that runs the space must be told, though hardly ever has one of them read there. That
//! is what nearly all interrupts of a recorded compressor are for, and many of those of Go and Java
//! programs: they look at a page, and write to it microseconds later. A page of its own at the
//! first read makes the write free, and costs nothing but memory if no write comes.
//!
//! So whether it comes is guessed. A write to a page that had been read first teaches the space to
//! expect the same of the next [`GUESSES`] first reads; then one is mapped as ever, and so either
//! teaches it again, or does not. Guesses that are wrong cost at most so many pages for each page
//! that was written after it was read.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::area::{Access, Area, Backing, Protection, Sharing};
use crate::platform::Platform;

/// How often a write is expected after one that was not: 64 KiB are at stake, and 16 of 17
/// interrupts are saved.
const PREDICTIONS: u64 = 16;

/// What a space has learned.
#[derive(Debug, Default)]
pub(crate) struct ZeroPagePredictor {
    /// How many first reads are still to be taken for writes. A hint: no other access depends on
    /// what is read here.
    guesses: AtomicU64,
}

impl ZeroPagePredictor {
    /// A page that had been read first was written.
    pub(crate) fn was_written(&self) {
        self.guesses.store(PREDICTIONS, Relaxed);
    }

    /// What to map for the first access to a page of an area: what is asked for, or, where a write
    /// is expected to follow a read, what that needs.
    pub(crate) fn expected<P: Platform>(&self, area: &Area<P>, access: Access) -> Access {
        let is_candidate = access == Access::Read
            && area.sharing == Sharing::Private
            && area.protection.contains(Protection::WRITE)
            && matches!(area.backing, Backing::Anonymous);
        // Two faults may take the same guess for theirs: one page more.
        let left = self.guesses.load(Relaxed);
        if !is_candidate || left == 0 {
            return access;
        }
        self.guesses.store(left - 1, Relaxed);
        Access::Write
    }
}
