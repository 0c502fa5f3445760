//! *Catching up*: a CPU invalidates the translations of the flushes that it has missed.
//!
//! The CPU compares the generation of the space with the generation that it remembers. If it has
//! missed only a few ranges, and the log still has all of them, it invalidates these ranges;
//! otherwise it discards the whole tag.

use crate::flush_log::{Ceiling, Missed};
use crate::ids::Tag;
use crate::machine::{Machine, Tagging};
use crate::pinned_cpu::PinnedCpu;
use crate::space::Space;

impl<M: Machine> PinnedCpu<'_, M> {
    /// Number of pages that a CPU invalidates one by one when it is interrupted in its work. See
    /// [`Machine::flush_ceiling`] and [`Machine::batch_ceiling`].
    #[inline]
    pub(crate) fn ceiling_at_work(&self) -> Ceiling {
        let all = self.machine().flush_ceiling();
        Ceiling { explicit: all, reclaim: self.machine().batch_ceiling(), all }
    }

    /// Number of pages that a CPU invalidates one by one when it returns to a space. See
    /// [`Machine::catch_up_ceiling`].
    #[inline]
    pub(crate) fn ceiling_on_return(&self) -> Ceiling {
        let (all, explicit) = (self.machine().flush_ceiling(), self.machine().catch_up_ceiling());
        Ceiling { explicit, reclaim: all, all: all.max(explicit) }
    }

    /// Catches up with all flushes of the loaded space.
    #[inline]
    pub(crate) fn catch_up(&self, space: &Space<M>) {
        let machine = self.machine();
        // Read before the invalidation, so that translations cached from then on are at least as
        // new as this generation.
        let generation = space.log.generation(machine);
        let seen = self.seen_of_loaded(space);
        if generation == seen {
            return;
        }
        // An interrupted CPU has nearly always missed exactly one range.
        if generation == seen + 1
            && let Some((extent, cause)) = space.log.read(machine, generation)
            && extent.page_count_within(self.ceiling_at_work().of(cause))
        {
            let slot = self.loaded_slot();
            machine.invalidate(slot.tag(), extent);
            slot.set_generation(generation);
            self.counters().pages_invalidated.add_unshared(extent.page_count() as u64);
            self.counters().flushes_ranged.add_unshared(1);
            return;
        }
        self.catch_up_to(space, generation, self.ceiling_at_work());
    }

    /// Catches up with the loaded space up to `generation`. Returns the number of
    /// flushes that it caught up with range by range; 0 if it discarded the whole tag.
    #[inline(never)]
    pub(crate) fn catch_up_to(&self, space: &Space<M>, generation: u64, ceiling: Ceiling) -> u64 {
        let seen = self.seen_of_loaded(space);
        if seen >= generation {
            // A broadcast has covered these flushes on all CPUs since `generation` was compared.
            return 0;
        }
        let missed = space.log.missed(self.machine(), seen, generation, ceiling);
        self.invalidate_missed(space, self.loaded_slot().tag(), &missed);
        self.loaded_slot().set_generation(generation);
        if matches!(missed, Missed::Everything) { 0 } else { generation - seen }
    }

    /// Invalidates the missed extents under `tag`, or all translations of the loaded space: with
    /// [renamed](Tagging::Renamed) tags by giving it another tag.
    pub(crate) fn invalidate_missed(&self, space: &Space<M>, tag: Tag, missed: &Missed) {
        let (machine, counters) = (self.machine(), self.counters());
        let Missed::Ranges(ranges) = missed else {
            if machine.tagging() == Tagging::Renamed {
                self.rename_loaded(space);
            } else {
                machine.invalidate_tag(tag);
                counters.flushes_full.add_unshared(1);
            }
            return;
        };
        for extent in ranges.iter() {
            machine.invalidate(tag, extent);
            counters.pages_invalidated.add_unshared(extent.page_count() as u64);
        }
        counters.flushes_ranged.add_unshared(ranges.count() as u64);
    }

    /// Catches up with all flushes of the kernel's translations.
    #[inline]
    pub(crate) fn catch_up_with_kernel(&self) {
        let generation = self.engine.kernel().generation(self.machine());
        if generation != self.local().kernel_generation.get() {
            self.catch_up_with_kernel_to(generation);
        }
    }

    #[inline(never)]
    fn catch_up_with_kernel_to(&self, generation: u64) {
        let (machine, local, kernel) = (self.machine(), self.local(), self.engine.kernel());
        let seen = local.kernel_generation.get();
        let missed = kernel.missed(machine, seen, generation, self.ceiling_at_work());
        self.invalidate_kernel(&missed);
        local.kernel_generation.set(generation);
    }

    fn invalidate_kernel(&self, missed: &Missed) {
        let (machine, counters) = (self.machine(), self.counters());
        let Missed::Ranges(ranges) = missed else {
            machine.invalidate_all();
            counters.flushes_full.add_unshared(1);
            return;
        };
        for extent in ranges.iter() {
            machine.invalidate_kernel(extent);
            counters.flushes_ranged.add_unshared(1);
            counters.pages_invalidated.add_unshared(extent.page_count() as u64);
        }
    }
}
