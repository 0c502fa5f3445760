//! *Flush of several extents*, of one space or of a batch of spaces.

use crate::base::ids::DeviceTicket;
use crate::parts::cpu_set::CpuSet;
use crate::parts::extent::Extent;
use crate::parts::extent_set::ExtentSet;
use crate::parts::flush_log::Cause;
use crate::path::notify::{Flush, NotifiedBy, NotifiedOthers, WalkerPolicy};
use crate::path::pending::Pending;
use crate::path::quarantine::Horizon;
use crate::state::broadcaster::Refused;
use crate::state::machine::{Machine, Tagging};
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Flushes several extents. `pending` must have nothing to wait for yet.
    #[inline(never)]
    pub(super) fn flush_several(
        &self,
        space: &Space<M>,
        extents: &ExtentSet,
        pending: &mut Pending<'e, M>,
    ) {
        let all = extents.as_slice();
        if self.expects_broadcast(space) && self.broadcast_uncounted(space, all, pending) {
            return;
        }
        let extents = extents.up_to(self.machine().flush_ceiling());
        let count = extents.len() as u64;
        let generation = self.begin_flush(space, extents[0].is_unbounded(), count);
        let flush =
            Flush { extents, generation, walkers: WalkerPolicy::Defer, cause: Cause::Explicit };
        let has_devices = self.read_others(space, &mut pending.waiting);
        let is_alone = self.is_alone(space, &pending.waiting);
        let mut others = NotifiedOthers { notified: NotifiedBy::Interrupts, cleared: generation };
        if is_alone {
            self.counters().flushes_local.add_unshared(1);
        } else {
            others = self.notify_others(space, &flush, pending);
        }
        if others.notified != NotifiedBy::BroadcastToAll {
            self.flush_all_here(space, extents, generation, others.notified);
        }
        if is_alone && self.machine().tagging() == Tagging::Global {
            self.note_flushed_alone(space, generation - count, generation);
        }
        if has_devices {
            // All extents, because the ceiling is that of CPUs.
            pending.add_devices(self.flush_devices(space, all));
        }
        pending.horizon = Horizon::of(space.id(), generation, others.cleared);
    }

    /// Does all parts of the flush of one of several spaces, except the interrupts. No tables may
    /// be freed. Adds the CPUs that must be interrupted to `present`. Raises `devices` to the
    /// ticket of commands to devices.
    ///
    /// This function does not invalidate on this CPU: the caller does so later if the CPU uses the
    /// space. Otherwise the CPU catches up when it returns to the space.
    pub(crate) fn flush_one_of_several(
        &self,
        space: &Space<M>,
        extents: &[Extent],
        present: &mut CpuSet<M::CpuBits>,
        devices: &mut DeviceTicket,
    ) -> (u64, NotifiedBy) {
        let generation = self.begin_flush(space, extents[0].is_unbounded(), extents.len() as u64);
        let mut others = CpuSet::new();
        if self.read_others(space, &mut others) {
            *devices = self.flush_devices(space, extents).max(*devices);
        }
        let is_alone = self.is_alone(space, &others);
        let (walkers, cause) = (WalkerPolicy::Ignore, Cause::Reclaim);
        let flush = Flush { extents, generation, walkers, cause };
        if !is_alone || self.presence_word().is_lazy_on(space.id()) {
            self.log_all(space, &flush);
        }
        if is_alone {
            self.counters().flushes_local.add_unshared(1);
            return (generation, NotifiedBy::Interrupts);
        }
        let scan = self.scan(space, &flush, &mut others);
        let notified = self
            .try_broadcast(space, scan.tag, &others, extents, generation)
            .unwrap_or_else(|Refused| self.notify_refused(space, extents, devices));
        if notified == NotifiedBy::Interrupts {
            self.count_if_local(&others);
            present.insert_all(&others);
        }
        self.note_skipped(space, &scan, 0);
        (generation, notified)
    }
}
