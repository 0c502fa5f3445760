//! The invalidation by which a flush covers its own CPU.

use crate::base::ids::CpuId;
use crate::base::rules::Rule;
use crate::parts::extent::Extent;
use crate::parts::flush_log::LOG_ENTRIES;
use crate::state::cpu_state::CpuState;
use crate::state::engine::Shootdown;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Invalidates on this CPU, for a flush of one extent.
    #[inline]
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
            slot.set_generation(generation);
            self.counters().flushes_ranged.add_unshared(1);
            self.counters().pages_invalidated.add_unshared(extent.weight() as u64);
        } else {
            Self::catch_up_after_flush(self.engine, self.cpu, self.id, space);
        }
    }

    /// Invalidates on this CPU, for a flush of several extents.
    pub(crate) fn flush_all_here(&self, space: &Space<M>, extents: &[Extent], generation: u64) {
        if !self.has_loaded(space) || self.machine().breaks(Rule::FlushLocally) {
            return;
        }
        let (machine, slot) = (self.machine(), self.loaded_slot());
        let weight: usize = extents.iter().map(|extent| extent.weight()).sum();
        if self.seen_of_loaded(space) + extents.len() as u64 == generation
            && !extents[0].is_unbounded()
            && weight <= machine.flush_ceiling()
        {
            for &extent in extents {
                machine.invalidate(slot.tag(), extent);
            }
            slot.set_generation(generation);
            self.counters().flushes_ranged.add_unshared(extents.len() as u64);
            self.counters().pages_invalidated.add_unshared(weight as u64);
        } else {
            Self::catch_up_after_flush(self.engine, self.cpu, self.id, space);
        }
    }

    /// Invalidates on this CPU, for a flush whose broadcast may reach only those other CPUs that
    /// are present: by firmware, or in their domains.
    ///
    /// Flushes of others, whose broadcasts have invalidated here, this CPU does not observe. So it
    /// is behind the generation. If the log does not reach back, it stays behind, and does not
    /// discard the tag for each flush.
    #[inline(never)]
    pub(super) fn flush_here_too(&self, space: &Space<M>, extents: &[Extent], generation: u64) {
        let machine = self.machine();
        let is_behind = || generation - self.seen_of_loaded(space) > LOG_ENTRIES as u64;
        let weight: usize = extents.iter().map(|extent| extent.weight()).sum();
        let is_small = !extents[0].is_unbounded() && weight <= machine.flush_ceiling();
        if is_small && self.presence_word().is_active_on(space.id()) && is_behind() {
            if !machine.breaks(Rule::FlushLocally) {
                let tag = self.loaded_slot().tag();
                extents.iter().for_each(|&extent| machine.invalidate(tag, extent));
                self.counters().flushes_ranged.add_unshared(extents.len() as u64);
                self.counters().pages_invalidated.add_unshared(weight as u64);
            }
        } else {
            self.flush_all_here(space, extents, generation);
        }
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
}
