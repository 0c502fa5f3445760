//! The invalidation by which a flush covers its own CPU.

use crate::base::ids::CpuId;
use crate::base::rules::Rule;
use crate::parts::extent::Extent;
use crate::parts::flush_log::LOG_ENTRIES;
use crate::path::notify::NotifiedBy;
use crate::state::cpu_state::CpuState;
use crate::state::engine::Shootdown;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Invalidates on this CPU, for a flush of one extent. As a function of its own, it would take
    /// 25 instructions more of each flush.
    #[inline(always)]
    pub(super) fn flush_here(&self, space: &Space<M>, extent: Extent, generation: u64) {
        if !self.has_loaded(space) || self.machine().breaks(Rule::FlushLocally) {
            return;
        }
        let (machine, slot) = (self.machine(), self.loaded_slot());
        // The common case, without reading the log: this CPU has missed no other flush.
        if self.seen_of_loaded(space) + 1 == generation
            && extent.page_count_within(machine.flush_ceiling())
        {
            machine.invalidate(slot.tag(), extent);
            self.note_caught_up(slot, generation);
            self.counters().flushes_ranged.add_unshared(1);
            self.counters().pages_invalidated.add_unshared(extent.weight() as u64);
        } else if extent.is_unbounded() {
            Self::discard_after_flush(self.engine, self.cpu, self.id, space);
        } else {
            Self::catch_up_after_flush(self.engine, self.cpu, self.id, space);
        }
    }

    /// Invalidates on this CPU, for a flush of several extents of which other CPUs were notified.
    ///
    /// Do not call this after a broadcast to all, which reaches this CPU, under the ASID with which
    /// the CPU has loaded the space ([`Space::global_tag`]). If the CPU caught up as well, it would
    /// wait for the line of the generation, which all CPUs that flush write, and discard the tag
    /// because of flushes whose broadcasts have reached it.
    pub(crate) fn flush_all_here(
        &self,
        space: &Space<M>,
        extents: &[Extent],
        generation: u64,
        notified: NotifiedBy,
    ) {
        if !self.has_loaded(space) || self.machine().breaks(Rule::FlushLocally) {
            return;
        }
        let slot = self.loaded_slot();
        let weight: usize = extents.iter().map(|extent| extent.weight()).sum();
        let is_small = !extents[0].is_unbounded() && weight <= self.machine().flush_ceiling();
        if is_small && self.seen_of_loaded(space) + extents.len() as u64 == generation {
            self.invalidate_all(extents, weight);
            self.note_caught_up(slot, generation);
        } else if is_small
            && notified == NotifiedBy::BroadcastToPresent
            && self.stays_behind(space, generation)
        {
            self.invalidate_all(extents, weight);
        } else {
            Self::catch_up_after_flush(self.engine, self.cpu, self.id, space);
        }
    }

    /// Returns `true` if this CPU may invalidate for its own flush alone, of which a broadcast has
    /// notified the CPUs that are present.
    ///
    /// A CPU does not observe the flushes of others, whose broadcasts have reached it. So it is
    /// behind the generation. If the log does not reach back, it stays behind, and does not discard
    /// the tag for each flush.
    #[cold]
    #[inline(never)]
    fn stays_behind(&self, space: &Space<M>, generation: u64) -> bool {
        generation.saturating_sub(self.seen_of_loaded(space)) > LOG_ENTRIES as u64
            && self.presence_word().is_active_on(space.id())
    }

    #[inline]
    fn invalidate_all(&self, extents: &[Extent], weight: usize) {
        let (machine, tag) = (self.machine(), self.loaded_slot().tag());
        for &extent in extents {
            machine.invalidate(tag, extent);
        }
        self.counters().flushes_ranged.add_unshared(extents.len() as u64);
        self.counters().pages_invalidated.add_unshared(weight as u64);
    }

    #[cold]
    #[inline(never)]
    fn catch_up_after_flush(
        engine: &'e Shootdown<M>,
        cpu: &'e CpuState<M>,
        id: CpuId,
        space: &Space<M>,
    ) {
        Self::of(engine, cpu, id).catch_up(space);
    }

    /// As [`catch_up_after_flush`](Self::catch_up_after_flush) of a whole space, which needs no
    /// look into the log: 170 instructions less (with Linux, for each fork and each exit).
    #[cold]
    #[inline(never)]
    fn discard_after_flush(
        engine: &'e Shootdown<M>,
        cpu: &'e CpuState<M>,
        id: CpuId,
        space: &Space<M>,
    ) {
        Self::of(engine, cpu, id).catch_up_whole(space);
    }
}
