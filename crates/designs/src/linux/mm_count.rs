//! The reference count of a space (`mm_count`): one for all its users, and one for each CPU that is
//! lazy on it.

use core::sync::atomic::Ordering::Relaxed;

use shootdown::{Root, Word};
use shootdown_sim::SimWord;
use shootdown_vm::Retired;

use super::CachePadded;

/// Number of references to a space, in which all its users count as one (`mm_count`).
///
/// It has its own line, as in `mm_struct` since 6.5 (c1753fd02a00). When the `powerpc-shoot-lazies`
/// study's patch was measured, in 2020, it shared one with `pgd`, which every switch reads. So the
/// model favours designs that count.
#[derive(Debug)]
pub(crate) struct MmCount {
    count: CachePadded<SimWord>,
    root: Root,
}

impl MmCount {
    /// The count of a space that has users, and whose page tables have this root.
    pub(crate) fn new(root: Root) -> Self {
        Self { count: CachePadded(SimWord::with(1)), root }
    }

    /// Adds references (`mmgrab`). The caller must have one.
    pub(crate) fn grab(&self, references: u64) {
        self.count.0.fetch_add(references, Relaxed);
    }

    /// Drops references (`mmdrop`). If they were the last, returns the root, which the caller must
    /// free.
    pub(crate) fn drop(&self, references: u64) -> Option<Root> {
        let before = self.count.0.fetch_add(references.wrapping_neg(), Relaxed);
        (before == references).then_some(self.root)
    }
}

/// The result of [`retire`](shootdown_vm::Lifetimes::retire), if dropping the reference of the
/// users returned `root`.
pub(crate) fn retired(root: Option<Root>) -> Retired {
    root.map_or(Retired::Loaded, |_| Retired::Free)
}
