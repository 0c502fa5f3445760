//! *Switch*: a CPU starts to use a space, goes lazy on it and returns, or leaves it.

#![expect(unsafe_code, reason = "loads a root, and no type can prove that it is a page table")]

use crate::base::ids::{CpuId, SpaceId, Tag};
use crate::base::rules::Rule;
use crate::parts::flush_log::Missed;
use crate::parts::hazard::Hazard;
use crate::parts::presence::Presence;
use crate::state::cpu_state::CpuState;
use crate::state::engine::Shootdown;
use crate::state::machine::{Entries, Lifetime, Machine, Tagging, is_checked};
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::{Space, drop_lazy_ref, take_lazy_ref};
use crate::state::tag::slots::TagSlot;

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Makes `space` active on this CPU, whichever space was loaded before.
    ///
    /// To return to a space that is still loaded [lazily](Self::enter_lazy) costs one fence and one
    /// load of its generation, and writes no shared line. Any other space is loaded, under its
    /// previous tag if it still has one on this CPU. The CPU then catches up with the space's
    /// flushes that it has missed: range by range if the log has all of them, otherwise by
    /// discarding the whole tag.
    ///
    /// # Safety
    ///
    /// - This CPU must be [online](Self::online).
    /// - This engine must have made the space, and the space must not be
    ///   [retired](Self::retire).
    /// - From now on, and as long as a CPU has the space loaded, lazily included, the space must
    ///   neither move nor be dropped, no `&mut` to it may be made, and its root must stay a valid
    ///   page table. To end this obligation, [retire](Self::retire) the space: it lasts until
    ///   [`Machine::reclaim`] returns the space.
    #[inline]
    pub unsafe fn switch(&self, space: &Space<M>) {
        let _operation = self.begin();
        if self.has_loaded(space) {
            self.return_from_lazy(space);
        } else {
            // SAFETY: the caller promises the same.
            unsafe { Self::switch_to(self.engine, self.cpu, self.id, space) };
        }
    }

    /// Loads a space that is not loaded.
    ///
    /// # Safety
    ///
    /// As [`switch`](Self::switch).
    #[inline(never)]
    unsafe fn switch_to(
        engine: &'e Shootdown<M>,
        cpu: &'e CpuState<M>,
        id: CpuId,
        space: &Space<M>,
    ) {
        // SAFETY: the caller promises the same.
        unsafe { Self::of(engine, cpu, id).load_other(space) };
    }

    /// The body of [`switch_to`](Self::switch_to).
    ///
    /// # Safety
    ///
    /// As [`switch`](Self::switch).
    #[inline(always)]
    unsafe fn load_other(&self, space: &Space<M>) {
        if is_checked::<M>() {
            assert!(self.local().online.get(), "an offline CPU is not notified of flushes");
            assert!(self.engine.owns(space), "the space is another engine's");
            assert!(!M::CHECKS || space.is_alive(), "the space is retired");
        }
        let machine = self.machine();
        let before = match M::LIFETIME {
            Lifetime::Counted => self.presence(),
            _ => Presence::Out,
        };
        // From here on, flushes of the new space interrupt this CPU, and flushes of the old space
        // do not: the old space's tag goes stale, and the CPU catches up when it switches back.
        // Until the new root is loaded, the CPU walks the old space's tables, as its hazard pointer
        // publishes.
        self.set_presence_then_fence(Presence::Switching(space.id()).into(), Rule::SwitchFence);
        if !self.has_tags() {
            // SAFETY: the caller promises the same.
            return unsafe { self.switch_without_tags(space, before) };
        }
        let known = self.known_slot(space);
        let registered = known.filter(|slot| slot.is_registered_in(space.cpumask.phase(machine)));
        if let Some(slot) = registered {
            // Pairs with FlushFence: a flush that is newer than this generation finds the CPU in
            // the cpumask, and Switching. The generation is read before the root is loaded, so that
            // translations cached from then on are at least as new (BumpRelease).
            let generation = space.log.generation(machine);
            if slot.generation() == generation {
                // SAFETY: the caller promises that the root is a valid page table.
                unsafe { machine.load(space.root(), slot.tag(), Entries::Keep) };
                return self.finish_switch(space, slot, generation, before);
            }
        }
        // SAFETY: the caller promises the same.
        unsafe { Self::switch_slow(self.engine, self.cpu, self.id, space, known, before) };
    }

    /// Loads a space on a machine without tags, whose TLB keeps no translation of it. The space is
    /// published as [`load_other`](Self::load_other) does.
    ///
    /// # Safety
    ///
    /// As [`switch`](Self::switch).
    #[inline(always)]
    unsafe fn switch_without_tags(&self, space: &Space<M>, before: Presence) {
        let (machine, counters) = (self.machine(), self.counters());
        space.cpumask.register(machine, self.id);
        // As in `load_other`.
        let generation = space.log.generation(machine);
        let (slot, tag) = self.spare_slot();
        slot.give_to(space.id(), tag);
        slot.set_generation(generation);
        // SAFETY: the caller promises that the root is a valid page table.
        unsafe { machine.load(space.root(), tag, Entries::Discard) };
        for counter in [&counters.tags_taken, &counters.switches_flushed, &counters.flushes_full] {
            counter.add_unshared(1);
        }
        self.finish_switch(space, slot, generation, before);
    }

    /// Loads a space if one of these may be necessary: to register in its cpumask, to catch up with
    /// its flushes, to choose a tag for it.
    ///
    /// # Safety
    ///
    /// As [`switch`](Self::switch).
    #[inline(never)]
    unsafe fn switch_slow(
        engine: &'e Shootdown<M>,
        cpu: &'e CpuState<M>,
        id: CpuId,
        space: &Space<M>,
        known: Option<&'e TagSlot>,
        before: Presence,
    ) {
        let (this, machine) = (Self::of(engine, cpu, id), &engine.machine);
        let phase = space.cpumask.register(machine, id);
        // As in `load_other`.
        let generation = space.log.generation(machine);
        this.flush_kernel_tag();
        let choice = this.choose_tag(space, known, generation);
        choice.slot.set_phase(phase);
        let (slot, flushed) = (choice.slot, &this.counters().switches_flushed);
        match choice.generation {
            Some(seen) if seen < generation && !machine.breaks(Rule::CatchUpOnSwitch) => {
                flushed.add_unshared(1);
                // SAFETY: the caller promises that the root is a valid page table.
                unsafe { this.load_stale(space, slot, seen, generation) };
            }
            None if !machine.breaks(Rule::DiscardReusedTag) => {
                flushed.add_unshared(1);
                // SAFETY: as above.
                unsafe { machine.load(space.root(), slot.tag(), Entries::Discard) };
                this.counters().flushes_full.add_unshared(1);
            }
            // SAFETY: as above.
            _ => unsafe { machine.load(space.root(), slot.tag(), Entries::Keep) },
        }
        slot.set_generation(generation);
        this.finish_switch(space, slot, generation, before);
    }

    /// Publishes that the space is loaded and active.
    #[inline]
    fn finish_switch(
        &self,
        space: &Space<M>,
        slot: &'e TagSlot,
        generation: u64,
        before: Presence,
    ) {
        let switches = self.counters().switches.read() + 1;
        self.counters().switches.set(switches);
        slot.set_last_used(switches);
        self.set_loaded(space, slot);
        self.set_seen(generation);
        let hazard = self.replace_hazard(Hazard::space(space), before);
        self.set_presence(Presence::Active(space.id()).into());
        if hazard.is_dead() {
            self.release_hazard(hazard);
        }
    }

    /// Publishes that this CPU keeps the space loaded but accesses no user memory: it idles, or
    /// runs a kernel thread.
    ///
    /// This costs two stores to the CPU's own line. From now on, flushes do not interrupt the CPU,
    /// except those that free page tables without [quarantine](crate::Quarantine). To return, call
    /// [`switch`](Self::switch) or [`resume`](Self::resume). Does nothing if no space is active.
    #[inline]
    pub fn enter_lazy(&self) {
        let _operation = self.begin();
        self.become_lazy();
    }

    /// Enters lazy, within an operation.
    #[inline]
    pub(crate) fn become_lazy(&self) {
        let active = self.presence_word();
        if active.is_active() {
            // Before the presence: a CPU that observes `Lazy` then observes this generation, or a
            // later one. With an older one, it would keep freed tables longer than necessary.
            self.set_seen(self.loaded_slot().generation());
            if M::LIFETIME == Lifetime::Counted {
                if let Some(space) = self.loaded() {
                    take_lazy_ref(space);
                }
            }
            self.set_presence(active.active_to_lazy());
        }
    }

    /// Loads the kernel's own page table: this CPU can then neither use nor walk any space. (Linux:
    /// `leave_mm`.)
    ///
    /// Call this on a CPU that enters a deep idle state, or that runs kernel threads for a long
    /// time. If the space was [retired](Self::retire), and this CPU is the last one that had it
    /// loaded, the CPU reclaims it here.
    pub fn leave_space(&self) {
        let _operation = self.begin();
        self.leave();
    }

    /// Leaves the space, within an operation.
    pub(crate) fn leave(&self) {
        let before = self.presence();
        if self.load_kernel() {
            let hazard = self.replace_hazard(Hazard::NOTHING, before);
            self.set_presence(Presence::Out.into());
            if hazard.is_dead() {
                self.release_hazard(hazard);
            }
        } else if self.hazard() != Hazard::NOTHING {
            // The CPU has left the space in the handler, and could not reclaim it there.
            let hazard = self.set_hazard(Hazard::NOTHING);
            if hazard.is_dead() {
                self.release_hazard(hazard);
            }
        }
    }

    /// Loads the kernel's own page table in the flush interrupt's handler, where no space is
    /// reclaimed.
    pub(crate) fn leave_space_in_handler(&self) {
        let before = self.presence();
        if self.load_kernel() {
            self.drop_hazard_in_handler(before);
            self.set_presence(Presence::Out.into());
        }
    }

    /// Loads the kernel's own page table. Returns `false` if it was loaded already.
    ///
    /// Until it is loaded, this CPU can walk the old tables. So the caller must publish its new
    /// hazard pointer and presence after this call.
    fn load_kernel(&self) -> bool {
        if let Presence::Active(id) = self.presence() {
            // Not Active until the root is loaded: an NMI in between must not conclude that it may
            // access user memory. A flush finds this CPU Switching, and waits for it.
            self.set_presence(Presence::Switching(id).into());
        }
        let Some(slot) = self.unload() else { return false };
        self.machine().load_kernel();
        if slot.tag() == Tag::KERNEL && self.may_run_out_of_tags() {
            self.machine().invalidate_tag(Tag::KERNEL);
        }
        true
    }

    /// Returns `true` if a space may be loaded under the kernel's tag because no other tag was
    /// left. The machine cannot detect that case, and keeps the space's translations when the
    /// kernel's root is loaded.
    fn may_run_out_of_tags(&self) -> bool {
        self.machine().tagging() == Tagging::Global && self.machine().tag_count() != 0
    }

    /// Drops the translations under the kernel's tag if the loaded space is under it. Call this
    /// before another space is loaded: from then on, no CPU notifies this one of the old space's
    /// freed tables.
    fn flush_kernel_tag(&self) {
        if self.may_run_out_of_tags()
            && self.loaded().is_some()
            && self.loaded_slot().tag() == Tag::KERNEL
        {
            self.machine().load_kernel();
            self.machine().invalidate_tag(Tag::KERNEL);
        }
    }

    /// Returns to the space with this id, as [`switch`](Self::switch) would, if the space is still
    /// loaded and not [retired](Self::retire). Returns `true` if that is the case.
    ///
    /// For a kernel thread that borrows the loaded space. Such a thread must not call `switch`,
    /// because the space may be dead, and a flush interrupt may have made the CPU leave it.
    pub fn resume(&self, id: SpaceId) -> bool {
        let _operation = self.begin();
        let is_loaded =
            matches!(self.presence(), Presence::Lazy(on) | Presence::Active(on) if on == id);
        // The pages of a dead space are freed without a flush.
        if !is_loaded || self.hazard().is_dead() {
            return false;
        }
        if let Some(space) = self.loaded() {
            self.return_from_lazy(space);
        }
        true
    }

    /// Returns to the space that is loaded lazily, whichever it is, and returns its id. Returns
    /// `None` if no space is loaded, or if it is [retired](Self::retire). If it is active already,
    /// only returns its id.
    ///
    /// For a kernel that enters lazy where it does not have the space at hand: around the idle
    /// loop's halt, for instance.
    pub fn resume_loaded(&self) -> Option<SpaceId> {
        match self.presence() {
            Presence::Lazy(id) | Presence::Active(id) => self.resume(id).then_some(id),
            Presence::Switching(_) | Presence::Out => None,
        }
    }

    /// Makes the loaded space active if it was lazy.
    #[inline]
    fn return_from_lazy(&self, space: &Space<M>) {
        let lazy = self.presence_word();
        if lazy.is_lazy() {
            assert!(!M::CHECKS || !self.hazard().is_dead(), "the space is retired");
            // Pairs with FlushFence: the flush observes Switching, or this CPU reads the flush's
            // generation. Without: the CPU continues with translations that the flush covered. Not
            // yet Active: an NMI in between must not conclude that it may access user memory.
            self.set_presence_then_fence(lazy.lazy_to_switching(), Rule::ResumeFence);
            // Read before the invalidation, so that translations cached from then on are at least
            // as new as this generation.
            let generation = space.log.generation(self.machine());
            if generation != self.seen_of_loaded(space)
                && !self.machine().breaks(Rule::CatchUpOnResume)
            {
                return self.catch_up_and_activate(space, generation);
            }
            self.set_presence(lazy.lazy_to_active());
            if M::LIFETIME == Lifetime::Counted {
                drop_lazy_ref(self.machine(), space);
            }
        }
    }

    /// Catches up with the flushes of the loaded space that this CPU has missed, and makes the
    /// space active.
    #[inline(never)]
    fn catch_up_and_activate(&self, space: &Space<M>, generation: u64) {
        let ranges = self.catch_up_to(space, generation, self.ceiling_on_return());
        self.counters().caught_up_from_log.add_unshared(ranges);
        self.set_presence(Presence::Active(space.id()).into());
        if M::LIFETIME == Lifetime::Counted {
            drop_lazy_ref(self.machine(), space);
        }
    }

    /// Loads `space` under its tag, which is clean up to generation `seen`, and catches up to
    /// `generation`. The space may get another tag.
    ///
    /// # Safety
    ///
    /// As [`Machine::load`].
    #[inline(never)]
    unsafe fn load_stale(&self, space: &Space<M>, slot: &TagSlot, seen: u64, generation: u64) {
        let (machine, counters) = (self.machine(), self.counters());
        let missed = space.log.missed(machine, seen, generation, self.ceiling_on_return());
        let keeps = match &missed {
            Missed::Everything => false,
            // Ranges are invalidated after the tag is loaded, so the CPU may speculate in between.
            // A stale page translation does no harm to speculation. A freed table does, because
            // its memory may contain anything by now.
            Missed::Ranges(ranges) => {
                !ranges.free_tables() || machine.breaks(Rule::DiscardFreedTables)
            }
        };
        if !keeps && machine.tagging() == Tagging::Renamed {
            let renamed = self.rename(space, slot);
            // SAFETY: the caller promises the same.
            return unsafe { machine.load(space.root(), renamed, Entries::Keep) };
        }
        if !keeps {
            counters.flushes_full.add_unshared(1);
            // SAFETY: as above.
            return unsafe { machine.load(space.root(), slot.tag(), Entries::Discard) };
        }
        // SAFETY: as above.
        unsafe { machine.load(space.root(), slot.tag(), Entries::Keep) };
        self.invalidate_missed(space, slot.tag(), &missed);
        counters.caught_up_from_log.add_unshared(generation - seen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::Root;
    use crate::state::engine::Shootdown;
    use crate::state::machine::tests::Plain;
    use core::sync::atomic::Ordering::Relaxed;

    /// The machine itself drops the translations under the kernel's tag when it loads the kernel's
    /// root. The exception is a space under the kernel's tag for which no other tag was left
    /// (`tests/tags/leaving`).
    #[test]
    fn leave_space_invalidates_nothing_by_itself() {
        let machines = [
            (Tagging::PerCpu, 0),
            (Tagging::PerCpu, 6),
            (Tagging::Global, 0),
            (Tagging::Global, 200),
        ];
        for (tagging, tag_count) in machines {
            let mut machine = Plain::<8>::with_tags(tag_count);
            machine.tagging = tagging;
            let engine = Shootdown::new(machine);
            let spaces = [0, 1].map(|root| engine.space(Root(root)));
            // SAFETY: there is one CPU, one thread, and no interrupt.
            let pin = unsafe { engine.pin() };
            pin.online();
            for space in &spaces {
                // SAFETY: the spaces outlive their use, and do not move.
                unsafe { pin.switch(space) };
            }
            pin.leave_space();
            let invalidations = engine.machine().invalidations.load(Relaxed);
            assert_eq!(invalidations, 0, "{tagging:?}, {tag_count} tags");
        }
    }
}
