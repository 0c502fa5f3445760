//! A flush that is broadcast to every CPU, and not counted.
//!
//! The generation tells CPUs that come later what they have missed. A broadcast to every CPU leaves
//! nothing to miss, whatever space a CPU is on: it drops the translations that are cached, and
//! after [`publish`](Machine::publish) no walk caches an old entry again. So where all CPUs flush
//! pages of one space at the same time, none of them writes a word that another one uses. To count
//! as well costs each of them a transfer of the generation's line: with 128 CPUs, more than four
//! fifths of the time of such a loop. Linux on arm64 counts no flush.
//!
//! These flushes are counted nevertheless:
//!
//! - one that finds no other CPU present, because it is not broadcast;
//! - one that frees page tables, because its [`Horizon`](crate::Horizon) is a generation, and a CPU
//!   on its way out may walk the tables under an ASID that the broadcast does not name;
//! - one of the whole space, which is rare;
//! - one that reaches the CPUs of domains, or that devices must be told of by commands.

use crate::base::memory::fence;
use crate::base::rules::Rule;
use crate::parts::cpu_set::CpuSet;
use crate::parts::cpumask::Others;
use crate::parts::extent::Extent;
use crate::parts::flush_log::Cause;
use crate::path::notify::{Flush, WalkerPolicy};
use crate::path::pending::Pending;
use crate::state::broadcaster::{Broadcaster, Reach};
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Returns `true` if a flush of pages of this space is likely to be broadcast, so that
    /// [`broadcast_uncounted`](Self::broadcast_uncounted) is worth its barriers.
    #[inline]
    pub(crate) fn expects_broadcast(&self, space: &Space<M>) -> bool {
        self.local().expects_broadcast.get()
            // Lets the compiler remove all of this on a machine without a broadcaster.
            && self.machine().broadcaster().is_some()
            // A hint, which spares a CPU that is alone the barriers.
            && space.cpumask.others(self.machine(), self.id) == Others::PerhapsCpus
    }

    /// Broadcasts the flush of these pages to every CPU, without counting it, if that is the
    /// method for it. Returns `true` if it did. If not, nothing has been invalidated that the
    /// caller could rely on, and the caller flushes as usual.
    ///
    /// `pending` must have nothing to wait for yet.
    #[inline(never)]
    pub(crate) fn broadcast_uncounted(
        &self,
        space: &Space<M>,
        extents: &[Extent],
        pending: &mut Pending<'e, M>,
    ) -> bool {
        assert!(self.engine.owns(space), "the space is another engine's");
        let (machine, policy) = (self.machine(), &self.local().policy);
        let Some(broadcaster) = self.engine.broadcaster() else { return false };
        let broadcast = broadcaster.capabilities();
        let Some(operations) = broadcast.operations(extents) else { return false };
        let frees_tables = extents.iter().any(|extent| extent.frees_tables());
        // Whether the space is pinned is read again after the barrier.
        if broadcast.reach != Reach::Everyone || frees_tables || self.is_pinned(space) {
            return false;
        }
        self.publish_tables();
        // Pairs with NewAsidFence: either this flush names the space's new ASID, or the CPUs that
        // use it walk page tables at least as new as this flush. See `current_asid`. Pairs with
        // AttachFence: either this flush finds a device that is attached, or the device's walks are
        // at least as new.
        fence(machine, Rule::UncountedFence);
        let tag = self.broadcast_tag(space);
        let mut present = CpuSet::new();
        if self.read_others(space, &mut present) || self.is_pinned(space) {
            return false;
        }
        // The scan decides only whether a broadcast is worth it. A CPU that it misses is reached.
        let (walkers, cause) = (WalkerPolicy::Ignore, Cause::Explicit);
        let scan =
            self.scan(space, &Flush { extents, generation: 0, walkers, cause }, &mut present);
        let (cpus, count) = (present.len() as u64, operations as u64);
        let is_due = cpus != 0 && policy.broadcasts(&broadcaster.costs(), cpus, count);
        self.local().expects_broadcast.set(is_due);
        if !is_due {
            return false;
        }
        let issued =
            extents.iter().try_for_each(|&extent| broadcaster.broadcast(&present, tag, extent));
        if !self.note_issued(count, issued) {
            self.local().expects_broadcast.set(false);
            return false;
        }
        self.await_broadcast(pending);
        self.note_skipped(space, &scan, 0);
        true
    }
}
