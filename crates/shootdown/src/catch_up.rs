//! *Catching up*: a CPU invalidates what flushes covered that it has not seen yet.
//!
//! It compares the generation of the space with the one that it remembers. If it has missed only a
//! few ranges, and the log still has all of them, it invalidates these; else the whole tag.

use crate::flush_log::{Ceiling, Missed};
use crate::ids::Tag;
use crate::machine::{Machine, Tagging};
use crate::pinned_cpu::PinnedCpu;
use crate::space::Space;

impl<M: Machine> PinnedCpu<'_, M> {
    /// How many pages are invalidated one by one by a CPU that is interrupted in its work. See
    /// [`Machine::batch_ceiling`].
    #[inline]
    pub(crate) fn ceiling_at_work(&self) -> Ceiling {
        let all = self.machine().flush_ceiling();
        Ceiling { explicit: all, reclaim: self.machine().batch_ceiling(), all }
    }

    /// And by one that comes back to a space. See [`Machine::catch_up_ceiling`].
    #[inline]
    pub(crate) fn ceiling_on_return(&self) -> Ceiling {
        let (all, explicit) = (self.machine().flush_ceiling(), self.machine().catch_up_ceiling());
        Ceiling { explicit, reclaim: all, all: all.max(explicit) }
    }

    /// Invalidates what the loaded space's flushes covered and this CPU has not yet seen.
    #[inline]
    pub(crate) fn catch_up(&self, space: &Space<M>) {
        let machine = self.machine();
        // Read before anything is invalidated: translations that are cached from then on are at
        // least as new.
        let generation = space.log.generation(machine);
        let seen = self.seen_of_loaded(space);
        if generation == seen {
            return;
        }
        // One missed range is what a CPU that was interrupted finds nearly always.
        if generation == seen + 1
            && let Some((extent, cause)) = space.log.read(machine, generation)
            && extent.page_count_within(self.ceiling_at_work().of(cause))
        {
            let slot = self.loaded_slot();
            machine.invalidate(slot.tag(), extent);
            slot.set_generation(generation);
            self.counters().pages_invalidated.add_alone(extent.page_count() as u64);
            self.counters().flushes_ranged.add_alone(1);
            return;
        }
        self.catch_up_to(space, generation, self.ceiling_at_work());
    }

    /// Catches up with the loaded space up to `generation`. Returns how many flushes that were
    /// caught up with range by range.
    #[inline(never)]
    pub(crate) fn catch_up_to(&self, space: &Space<M>, generation: u64, ceiling: Ceiling) -> u64 {
        let seen = self.seen_of_loaded(space);
        if seen >= generation {
            // Every CPU has been notified meanwhile.
            return 0;
        }
        let missed = space.log.missed(self.machine(), seen, generation, ceiling);
        self.invalidate_missed(space, self.loaded_slot().tag(), &missed);
        self.loaded_slot().set_generation(generation);
        if matches!(missed, Missed::Everything) { 0 } else { generation - seen }
    }

    /// Invalidates under this tag, or gives the loaded space another one.
    pub(crate) fn invalidate_missed(&self, space: &Space<M>, tag: Tag, missed: &Missed) {
        let (machine, counters) = (self.machine(), self.counters());
        let Missed::Ranges(ranges) = missed else {
            if machine.tagging() == Tagging::Renamed {
                self.rename_loaded(space);
            } else {
                machine.invalidate_tag(tag);
                counters.flushes_full.add_alone(1);
            }
            return;
        };
        for extent in ranges.iter() {
            machine.invalidate(tag, extent);
            counters.pages_invalidated.add_alone(extent.page_count() as u64);
        }
        counters.flushes_ranged.add_alone(ranges.count() as u64);
    }

    /// Invalidates what flushes of the kernel's translations covered and this CPU has not yet seen.
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
            counters.flushes_full.add_alone(1);
            return;
        };
        for extent in ranges.iter() {
            machine.invalidate_kernel(extent);
            counters.flushes_ranged.add_alone(1);
            counters.pages_invalidated.add_alone(extent.page_count() as u64);
        }
    }
}
