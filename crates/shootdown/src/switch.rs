//! Changing what this CPU uses: to a space, to lazy and back, to nothing.

#![expect(unsafe_code, reason = "a root is loaded, which no type can prove to be a page table")]

use crate::flush_log::Missed;
use crate::hazard::Hazard;
use crate::ids::{SpaceId, Tag};
use crate::machine::{Entries, Lifetime, Machine, Tagging};
use crate::pinned_cpu::PinnedCpu;
use crate::presence::Presence;
use crate::rules::Rule;
use crate::space::{Space, drop_lazy_ref, take_lazy_ref};
use crate::tag::slots::TagSlot;

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Makes `space` current on this CPU, whatever was before.
    ///
    /// To come back to the space that is still loaded [lazily](Self::enter_lazy) costs one fence
    /// and a look at its generation; no shared line is written. Another space is loaded, under the
    /// tag that it still has here if it has one, and what its flushes covered meanwhile is
    /// invalidated: range by range if the log reaches back, the whole tag if not.
    ///
    /// # Safety
    ///
    /// This CPU must be [online](Self::online), and the space one of this engine's.
    ///
    /// The space must neither move nor be dropped, no `&mut` to it may be made, and its root must
    /// stay a valid page table, until no CPU has it loaded any more, lazily included.
    /// [`retire`](Self::retire) is how to find out: until the space is reclaimed, it must stay;
    /// after it was retired, nobody may switch to it.
    #[inline]
    pub unsafe fn switch(&self, space: &Space<M>) {
        if self.has_loaded(space) {
            self.come_back(space);
        } else {
            // SAFETY: as our caller promises.
            unsafe { self.switch_to(space) };
        }
    }

    /// Loads a space that is not loaded.
    ///
    /// # Safety
    ///
    /// As [`switch`](Self::switch).
    #[inline(never)]
    unsafe fn switch_to(&self, space: &Space<M>) {
        debug_assert!(self.local().online.get(), "an offline CPU is not notified of flushes");
        debug_assert!(self.engine.owns(space), "the space is another engine's");
        let machine = self.machine();
        let before = match M::LIFETIME {
            Lifetime::Counted => self.presence(),
            _ => Presence::Out,
        };
        // From here on, flushes of the new space interrupt us, and those of the old one do not: its
        // tag stays behind, and we catch up when we come back. That we walk its tables until the
        // new root is loaded is what `held` says.
        self.set_presence_then_fence(Presence::Switching(space.id()).into(), Rule::SwitchFence);
        if let Some(slot) = self.known_slot(space)
            && slot.is_registered_in(space.cpumask.phase(machine))
        {
            // Pairs with FlushFence: a flush whose generation this is not, sees us in the cpumask,
            // and switching. Read before the load: translations that are cached from then on are
            // at least as new as this generation (BumpRelease).
            let generation = space.log.generation(machine);
            if slot.generation() == generation {
                // SAFETY: our caller promises what `load` asks for.
                unsafe { machine.load(space.root(), slot.tag(), Entries::Keep) };
                return self.finish_switch(space, slot, generation, before);
            }
        }
        // SAFETY: as our caller promises.
        unsafe { self.switch_slowly(space, before) };
    }

    /// Loads a space in whose cpumask this CPU may have to register, or of which it has missed
    /// something, or whose tag is to be chosen.
    ///
    /// # Safety
    ///
    /// As [`switch`](Self::switch).
    #[inline(never)]
    unsafe fn switch_slowly(&self, space: &Space<M>, before: Presence) {
        let machine = self.machine();
        let phase = space.cpumask.register(machine, self.id);
        // As in `switch_to`.
        let generation = space.log.generation(machine);
        self.leave_kernel_tag();
        let choice = self.choose_tag(space, generation);
        choice.slot.set_phase(phase);
        let (slot, flushed) = (choice.slot, &self.counters().switches_flushed);
        match choice.generation {
            Some(seen) if seen < generation && !machine.breaks(Rule::CatchUpOnSwitch) => {
                flushed.add_alone(1);
                // SAFETY: our caller promises what `load` asks for.
                unsafe { self.load_behind(space, slot, seen, generation) };
            }
            None if !machine.breaks(Rule::DiscardReusedTag) => {
                flushed.add_alone(1);
                // SAFETY: as above.
                unsafe { machine.load(space.root(), slot.tag(), Entries::Discard) };
                self.counters().flushes_full.add_alone(1);
            }
            // SAFETY: as above.
            _ => unsafe { machine.load(space.root(), slot.tag(), Entries::Keep) },
        }
        slot.set_generation(generation);
        self.finish_switch(space, slot, generation, before);
    }

    /// The space is loaded: says so.
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

    /// Says that this CPU goes on with the space loaded, but without touching user memory: it
    /// idles, or runs a kernel thread.
    ///
    /// Two stores to this CPU's own line. Flushes sent from now on do not interrupt it, unless page
    /// tables are freed and not held back. Does nothing if no space is in use.
    #[inline]
    pub fn enter_lazy(&self) {
        let active = self.presence_word();
        if active.is_active() {
            // First, so that whoever sees the one sees the other; else it would know less.
            self.set_seen(self.loaded_slot().generation());
            if M::LIFETIME == Lifetime::Counted
                && let Some(space) = self.loaded()
            {
                take_lazy_ref(space);
            }
            self.set_presence(active.active_to_lazy());
        }
    }

    /// Loads the kernel's own page table: this CPU can then neither use nor walk any space.
    ///
    /// For a CPU that goes into a deep idle state, or that runs kernel threads for long: a space
    /// that [died](Self::retire) meanwhile is reclaimed, if this CPU is the last to let go of it.
    pub fn leave_space(&self) {
        let before = self.presence();
        if self.load_kernel() {
            let hazard = self.replace_hazard(Hazard::NOTHING, before);
            self.set_presence(Presence::Out.into());
            if hazard.is_dead() {
                self.release_hazard(hazard);
            }
        } else if self.hazard() != Hazard::NOTHING {
            // We have left it in the handler, and could not reclaim it there.
            let hazard = self.set_hazard(Hazard::NOTHING);
            if hazard.is_dead() {
                self.release_hazard(hazard);
            }
        }
    }

    /// The same in the handler of the flush interrupt, which reclaims nothing.
    pub(crate) fn leave_in_handler(&self) {
        let before = self.presence();
        if self.load_kernel() {
            self.drop_hazard_in_handler(before);
            self.set_presence(Presence::Out.into());
        }
    }

    /// Loads the kernel's own page table, unless it is loaded. Until then, the old tables could be
    /// walked; so only then may the caller say what it holds, and where it is.
    fn load_kernel(&self) -> bool {
        if let Presence::Active(id) = self.presence() {
            // What asks in between whether it may touch user memory must not find that it may:
            // the space is about to be gone. Whoever flushes it finds us Switching, and waits.
            self.set_presence(Presence::Switching(id).into());
        }
        let Some(slot) = self.unload() else { return false };
        self.machine().load_kernel();
        if slot.tag() == Tag::KERNEL && self.may_lack_tags() {
            self.machine().invalidate_tag(Tag::KERNEL);
        }
        true
    }

    /// Whether a space that is loaded under the kernel's tag just found none left: the machine does
    /// not know that, and keeps what is cached there when the kernel's root is loaded.
    fn may_lack_tags(&self) -> bool {
        self.machine().tagging() == Tagging::Global && self.machine().tag_count() != 0
    }

    /// Before another space is loaded: drops what is cached under the kernel's tag of a space that
    /// found no tag left. Nobody notifies us of its freed tables any more.
    fn leave_kernel_tag(&self) {
        if self.may_lack_tags()
            && self.loaded().is_some()
            && self.loaded_slot().tag() == Tag::KERNEL
        {
            self.machine().load_kernel();
            self.machine().invalidate_tag(Tag::KERNEL);
        }
    }

    /// Comes back to the space with this id, as [`switch`](Self::switch) would, if it is loaded and
    /// not [retired](Self::retire). Returns whether that is so.
    ///
    /// For a kernel thread that has borrowed the space and has no claim to it, so that it must not
    /// switch to it: if the CPU took the flush interrupt meanwhile, it may have been made to leave.
    pub fn resume(&self, id: SpaceId) -> bool {
        let is_on_it =
            matches!(self.presence(), Presence::Lazy(on) | Presence::Active(on) if on == id);
        // The pages of a dead space are freed without a flush.
        if !is_on_it || self.hazard().is_dead() {
            return false;
        }
        if let Some(space) = self.loaded() {
            self.come_back(space);
        }
        true
    }

    /// Comes back to the space that is loaded, if that was only lazily.
    #[inline]
    fn come_back(&self, space: &Space<M>) {
        let lazy = self.presence_word();
        if lazy.is_lazy() {
            // Pairs with FlushFence: a flush sees us, or we see its generation. Not yet Active: an
            // NMI in between must not find that it may touch user memory.
            self.set_presence_then_fence(lazy.lazy_to_switching(), Rule::ResumeFence);
            // Read before anything is invalidated: translations that are cached from then on are at
            // least as new.
            let generation = space.log.generation(self.machine());
            if generation != self.seen_of_loaded(space)
                && !self.machine().breaks(Rule::CatchUpOnResume)
            {
                return self.catch_up_and_go_on(space, generation);
            }
            self.set_presence(lazy.lazy_to_active());
            if M::LIFETIME == Lifetime::Counted {
                drop_lazy_ref(self.machine(), space);
            }
        }
    }

    /// The rest of coming back to a space of which this CPU has missed something.
    #[inline(never)]
    fn catch_up_and_go_on(&self, space: &Space<M>, generation: u64) {
        let ranges = self.catch_up_to(space, generation, self.ceiling_on_return());
        self.counters().caught_up_from_log.add_alone(ranges);
        self.set_presence(Presence::Active(space.id()).into());
        if M::LIFETIME == Lifetime::Counted {
            drop_lazy_ref(self.machine(), space);
        }
    }

    /// Loads `space` under its tag, which is clean up to generation `seen`, and catches up with the
    /// rest. The space may have another tag then.
    ///
    /// # Safety
    ///
    /// As [`Machine::load`].
    unsafe fn load_behind(&self, space: &Space<M>, slot: &TagSlot, seen: u64, generation: u64) {
        let (machine, counters) = (self.machine(), self.counters());
        let missed = space.log.missed(machine, seen, generation, self.ceiling_on_return());
        let keeps = match &missed {
            Missed::Everything => false,
            // Ranges are invalidated when the tag is loaded, and speculation may be faster than
            // that. A stale page does it no harm. A freed table does: it may hold anything by now.
            Missed::Ranges(ranges) => {
                !ranges.free_tables() || machine.breaks(Rule::DiscardFreedTables)
            }
        };
        if !keeps && machine.tagging() == Tagging::Renamed {
            let renamed = self.rename(space, slot);
            // SAFETY: our caller promises what `load` asks for.
            return unsafe { machine.load(space.root(), renamed, Entries::Keep) };
        }
        if !keeps {
            counters.flushes_full.add_alone(1);
            // SAFETY: as above.
            return unsafe { machine.load(space.root(), slot.tag(), Entries::Discard) };
        }
        // SAFETY: as above.
        unsafe { machine.load(space.root(), slot.tag(), Entries::Keep) };
        self.invalidate_missed(space, slot.tag(), &missed);
        counters.caught_up_from_log.add_alone(generation - seen);
    }
}
#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Shootdown;
    use crate::ids::Root;
    use crate::machine::tests::Plain;
    use core::sync::atomic::Ordering::Relaxed;

    /// What is cached under the kernel's tag, a machine drops by itself, unless it does not know
    /// that a space is there: then there are tags, and none was left for it (`tests/tags/leaving`).
    #[test]
    fn who_leaves_drops_only_what_the_machine_does_not() {
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
            // SAFETY: this is the only CPU, and there are no interrupts.
            let pin = unsafe { engine.pin() };
            pin.online();
            for space in &spaces {
                // SAFETY: they outlive their use here.
                unsafe { pin.switch(space) };
            }
            pin.leave_space();
            let invalidations = engine.machine().invalidations.load(Relaxed);
            assert_eq!(invalidations, 0, "{tagging:?}, {tag_count} tags");
        }
    }
}
