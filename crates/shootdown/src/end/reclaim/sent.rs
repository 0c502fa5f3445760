//! A batch whose flush was sent.

use core::fmt;
use core::mem::{self, ManuallyDrop};
use core::ops::Deref;

use super::{BATCH_SPACES, Batch};
use crate::path::pending::Pending;
use crate::state::machine::Machine;
use crate::state::space::Space;

/// A batch whose flush was sent.
///
/// Dropping it waits for the flush, and then drops the pages.
#[must_use = "`wait` returns the pages, which can be freed then"]
pub struct SentBatch<'b, 'e, M, S, B, const SPACES: usize = BATCH_SPACES>
where
    M: Machine,
    S: Deref<Target = Space<M>>,
    B: Default,
{
    pub(super) pending: Pending<'e, M>,
    /// The spaces of the batch stay marked until the flush is done.
    pub(super) batch: &'b mut Batch<S, B, SPACES>,
}

impl<M: Machine, S, B: Default, const SPACES: usize> SentBatch<'_, '_, M, S, B, SPACES>
where
    S: Deref<Target = Space<M>>,
{
    /// Waits until no CPU can use the pages any more, and returns them. See [`Pending::wait`].
    pub fn wait(self) -> B {
        // A drop would find all of this done.
        ManuallyDrop::new(self).finish()
    }

    /// Returns `true` if no CPU can use the pages any more, without waiting. See [`Pending::poll`].
    pub fn poll(&mut self) -> bool {
        self.pending.poll()
    }

    fn finish(&mut self) -> B {
        self.pending.wait();
        let machine = &self.pending.engine.machine;
        let Batch { spaces, count, pages } = &mut *self.batch;
        for batched in spaces[..mem::take(count)].iter_mut().filter_map(Option::take) {
            batched.space.unmark_batched(machine);
        }
        mem::take(&mut **pages)
    }
}

impl<M: Machine, S, B: Default, const SPACES: usize> Drop for SentBatch<'_, '_, M, S, B, SPACES>
where
    S: Deref<Target = Space<M>>,
{
    fn drop(&mut self) {
        drop(self.finish());
    }
}

impl<M: Machine, S, B: Default, const SPACES: usize> fmt::Debug
    for SentBatch<'_, '_, M, S, B, SPACES>
where
    S: Deref<Target = Space<M>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SentBatch").field(&self.pending).finish()
    }
}
