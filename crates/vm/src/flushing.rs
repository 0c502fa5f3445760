//! A flush of a space that was sent.

use alloc::sync::Arc;

use shootdown::Horizon;

use crate::coherence::{Change, Flush};
use crate::replicas::Replica;
use crate::system::{Pending, System};

/// A flush that was sent, and may not be complete.
#[must_use = "`wait` completes the flush"]
pub(crate) struct Flushing<S: System> {
    pending: Pending<S>,
    /// The replica of the CPU that has sent the flush, which is flushed by the wait: invalidating
    /// page by page takes time, in which no other CPU should wait for a lock.
    own: Option<(Arc<Replica<S>>, Change)>,
}

impl<S: System> Flushing<S> {
    pub(crate) const fn new(pending: Pending<S>) -> Self {
        Self { pending, own: None }
    }

    pub(crate) const fn with_own(
        pending: Pending<S>,
        own: Option<(Arc<Replica<S>>, Change)>,
    ) -> Self {
        Self { pending, own }
    }

    /// Waits until no CPU can use a translation that the flush covered.
    pub(crate) fn wait(self, coherence: &S::Coherence, platform: &S::Platform) -> Horizon {
        let Self { mut pending, own } = self;
        match own {
            Some((replica, _)) if replica.is_flushed_often() => replica.cut(coherence, platform),
            Some((replica, change)) => {
                coherence.flush_also(&mut pending, &replica.coherent, &change);
            }
            None => {}
        }
        coherence.wait(pending)
    }
}
