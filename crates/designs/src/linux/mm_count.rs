//! How many hold a space (`mm_count`): all its users together, and each CPU that is lazy on it.

use core::sync::atomic::Ordering::Relaxed;

use shootdown::Word;
use shootdown_sim::SimWord;

use super::CachePadded;

/// How many hold a space, all its users together as one (`mm_count`).
///
/// It has a line to itself, as in `mm_struct` since 6.5 (c1753fd02a00). When seed 001 was measured,
/// in 2020, it shared one with `pgd`, which every switch reads; so this favours who counts.
#[derive(Debug)]
pub(crate) struct MmCount(CachePadded<SimWord>);

impl MmCount {
    /// Of a space that has users.
    pub(crate) fn new() -> Self {
        Self(CachePadded(SimWord::with(1)))
    }

    /// So many references more (`mmgrab`). Who calls it has one.
    pub(crate) fn grab(&self, references: u64) {
        self.0.0.fetch_add(references, Relaxed);
    }

    /// So many less (`mmdrop`).
    pub(crate) fn drop(&self, references: u64) -> Left {
        let before = self.0.0.fetch_add(references.wrapping_neg(), Relaxed);
        if before == references { Left::Nobody } else { Left::Others }
    }
}

/// Who is left to hold a space after references were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nobody: who dropped the last of them frees the space.
    Nobody,
    Others,
}
