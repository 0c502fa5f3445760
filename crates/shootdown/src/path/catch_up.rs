//! *Catching up*: a CPU invalidates the translations of the flushes that it has missed.
//!
//! The CPU compares the generation of the space with the generation that it remembers. If it has
//! missed only a few ranges, and the log still has all of them, it invalidates these ranges;
//! otherwise it discards the whole tag.

use crate::base::ids::Tag;
use crate::parts::extent::Extent;
use crate::parts::flush_log::{Ceiling, Missed};
use crate::state::machine::{Machine, Tagging};
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;
use crate::state::tag::slots::TagSlot;

impl<M: Machine> PinnedCpu<'_, M> {
    /// Number of pages that a CPU invalidates one by one when it is interrupted in its work. See
    /// [`Machine::flush_ceiling`] and [`Machine::batch_ceiling`].
    #[inline]
    pub(crate) fn ceiling_at_work(&self) -> Ceiling {
        let all = self.machine().flush_ceiling();
        Ceiling { explicit: all, reclaim: self.machine().batch_ceiling(), all }
    }

    /// Number of pages that a CPU invalidates one by one when it is interrupted in its work, and
    /// has missed several flushes. The senders wait for it, as the sender of a batch does: see
    /// [`Machine::batch_ceiling`].
    #[inline]
    fn ceiling_of_several(&self) -> Ceiling {
        Ceiling::of_all(self.machine().batch_ceiling())
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
        if generation == seen + 1 {
            if let Some((extent, cause)) = space.log.read(machine, generation) {
                if extent.page_count_within(self.ceiling_at_work().of(cause)) {
                    return self.invalidate_one(extent, generation);
                }
            }
        }
        self.catch_up_to(space, generation, self.ceiling_of_several());
    }

    /// Catches up with all flushes of the loaded space, by discarding the whole tag.
    #[inline]
    pub(crate) fn catch_up_whole(&self, space: &Space<M>) {
        // Read before the invalidation, as in `catch_up`.
        let generation = space.log.generation(self.machine());
        if self.seen_of_loaded(space) < generation {
            self.invalidate_missed(space, self.loaded_slot().tag(), &Missed::Everything);
            self.note_caught_up(self.loaded_slot(), generation);
        }
    }

    /// Catches up with the only flush of the loaded space that this CPU has missed.
    #[inline(always)]
    pub(crate) fn invalidate_one(&self, extent: Extent, generation: u64) {
        let slot = self.loaded_slot();
        self.machine().invalidate(slot.tag(), extent);
        self.note_caught_up(slot, generation);
        self.counters().pages_invalidated.add_unshared(extent.weight() as u64);
        self.counters().flushes_ranged.add_unshared(1);
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
        self.note_caught_up(self.loaded_slot(), generation);
        if matches!(missed, Missed::Everything) { 0 } else { generation - seen }
    }

    /// Records that this CPU has caught up with the loaded space, which is in `slot`. With [flush
    /// at reuse](Machine::FLUSHES_AT_REUSE), also publishes it: see [`Rule::SeenRelease`].
    #[inline(always)]
    pub(crate) fn note_caught_up(&self, slot: &TagSlot, generation: u64) {
        slot.set_generation(generation);
        if M::FLUSHES_AT_REUSE {
            self.set_seen(generation);
        }
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
            counters.pages_invalidated.add_unshared(extent.weight() as u64);
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
            counters.pages_invalidated.add_unshared(extent.weight() as u64);
        }
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use crate::base::ids::{CpuId, Root};
    use crate::parts::extent::{Extent, PageSize};
    use crate::soft::{Config, Host, Soft};
    use crate::state::engine::Shootdown;

    /// An engine with two CPUs online.
    fn engine() -> Shootdown<Soft<Host>> {
        let engine = Soft::engine(Config { cpus: 2, ..Config::default() });
        (0..2).for_each(|cpu| engine.enter(CpuId(cpu)).pin().online());
        engine
    }

    #[test]
    fn interrupted_cpu_sums_pages_of_missed_flushes() {
        // The ceiling of one flush is 33 pages, and that of several is 17.
        for (each, ranged, full) in [(8, 2, 0), (9, 0, 1), (33, 0, 1)] {
            let engine = engine();
            let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
            let space = engine.space(Root(0));
            for entered in [&zero, &one] {
                #[expect(unsafe_code, reason = "the space outlives its CPUs' use of it")]
                // SAFETY: the space outlives the CPUs' use of it, and does not move.
                unsafe {
                    entered.pin().switch(&space);
                }
            }
            let before = engine.cpu(CpuId(1)).stats();
            let extent = |start| Extent::pages(start, each, PageSize::SIZE_4K);
            let mut pending = zero.pin().flush(&space, extent(0));
            pending.join(zero.pin().flush(&space, extent(1 << 20)));
            one.pin().handle_flush_ipi();
            assert!(pending.poll());
            let after = engine.cpu(CpuId(1)).stats();
            assert_eq!(after.flushes_ranged - before.flushes_ranged, ranged, "{each} pages");
            assert_eq!(after.flushes_full - before.flushes_full, full, "{each} pages");
        }
    }
}
