//! *Flush and wait* in one call, for a kernel that does nothing in between.
//!
//! A flush that concerns no other CPU has nothing to wait for, and makes no [`Pending`]. On such a
//! flush, to make it and to look at it would be a third of the work.

use crate::parts::cpumask::Others;
use crate::parts::extent::Extent;
use crate::parts::extent_set::ExtentSet;
use crate::path::notify::WalkerPolicy;
use crate::path::pending::Pending;
use crate::path::quarantine::Horizon;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

impl<M: Machine> PinnedCpu<'_, M> {
    /// Flushes `extent` of `space`, and waits: as [`flush`](Self::flush) with
    /// [`wait`](Pending::wait), in fewer instructions.
    ///
    /// The flush interrupt is masked during the wait. If the machine broadcasts or if other CPUs
    /// may spin for a lock that the caller holds, see [`Pending::wait`].
    ///
    /// # Panics
    ///
    /// If the space is another engine's.
    #[inline]
    pub fn flush_and_wait(&self, space: &Space<M>, extent: Extent) {
        if M::TRACES {
            return self.flush(space, extent).wait();
        }
        if !extent.is_empty() {
            self.flush_one_and_wait(space, extent, || WalkerPolicy::of(extent));
        }
    }

    /// Flushes all extents that an operation has unmapped, and waits: as
    /// [`flush_gathered`](Self::flush_gathered) with [`wait`](Pending::wait), in fewer
    /// instructions. Returns the [`Horizon`] of the flush.
    ///
    /// # Panics
    ///
    /// If the space is another engine's.
    #[inline]
    pub fn flush_gathered_and_wait(&self, space: &Space<M>, extents: &ExtentSet) -> Horizon {
        match *extents.as_slice() {
            [extent] if !M::TRACES => {
                let walkers = || WalkerPolicy::Defer;
                let (flush, cleared) = self.flush_one_and_wait(space, extent, walkers);
                Horizon::of(space.id(), flush, cleared)
            }
            _ => {
                let mut pending = self.flush_gathered(space, extents);
                pending.wait();
                pending.horizon
            }
        }
    }

    /// Flushes one extent, which is not empty, and waits. Returns the flush's generation, and the
    /// generation up to which no CPU can walk unhooked tables any more: both 0 if the flush was not
    /// counted. A flush that concerns no other CPU does not compute `walkers`.
    #[inline(always)]
    fn flush_one_and_wait(
        &self,
        space: &Space<M>,
        extent: Extent,
        walkers: impl Fn() -> WalkerPolicy,
    ) -> (u64, u64) {
        if self.expects_broadcast(space) {
            return Self::of(self.engine, self.cpu, self.id).flush_one_by_broadcast_and_wait(
                space,
                extent,
                walkers(),
            );
        }
        let operation = self.begin();
        let (generation, others) = self.begin_flush_of_one(space, extent);
        if others == Others::None {
            return (generation, self.flush_alone(space, extent, generation));
        }
        drop(operation);
        let cleared = Self::of(self.engine, self.cpu, self.id).flush_others_and_wait(
            space,
            extent,
            generation,
            others,
            walkers(),
        );
        (generation, cleared)
    }

    #[inline(never)]
    fn flush_one_by_broadcast_and_wait(
        &self,
        space: &Space<M>,
        extent: Extent,
        walkers: WalkerPolicy,
    ) -> (u64, u64) {
        let mut pending = Pending::done(self.engine);
        let operation = self.begin();
        let numbers = self.flush_extent_by_broadcast(space, extent, walkers, &mut pending);
        drop(operation);
        pending.wait();
        numbers
    }

    #[inline(never)]
    fn flush_others_and_wait(
        &self,
        space: &Space<M>,
        extent: Extent,
        generation: u64,
        others: Others,
        walkers: WalkerPolicy,
    ) -> u64 {
        let mut pending = Pending::done(self.engine);
        let operation = self.begin();
        let cleared = self.flush_others(space, extent, generation, others, walkers, &mut pending);
        drop(operation);
        pending.wait();
        cleared
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;
