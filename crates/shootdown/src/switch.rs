//! Changing what this CPU uses: to a space, to lazy and back, to nothing; and catching up.

#![expect(unsafe_code, reason = "a root is loaded, which no type can prove to be a page table")]

use crate::cpu::{Here, Loaded};
use crate::held::Held;
use crate::journal::{Ceiling, Missed};
use crate::machine::{Entries, Machine, Tag};
use crate::presence::{Presence, SpaceId};
use crate::retire::{Lifetime, give_stake_back, take_stake};
use crate::rules::Rule;
use crate::space::Space;
use crate::tag::slots::note_clean;
use crate::tag::{Choice, Tagging};

impl<M: Machine> Here<'_, M> {
    /// Makes `space` current on this CPU, whatever was before.
    ///
    /// Coming back to the space that is still loaded [lazily](Self::enter_lazy) costs one fence and
    /// a look at its generation; no shared line is written. Another space is loaded, under the tag
    /// that it still has here if it has one, and what its flushes covered meanwhile is invalidated:
    /// range by range if the log reaches back, the whole tag if not.
    ///
    /// # Safety
    ///
    /// This CPU must be [online](Self::online).
    ///
    /// The space must neither move nor be dropped, and its root must stay a valid page table, until
    /// no CPU has it loaded any more, lazily included. [`retire`](Self::retire) is how to find out:
    /// until the space is reclaimed, it must stay; after it was retired, nobody may switch to it.
    #[inline]
    pub unsafe fn switch(&self, space: &Space<M>) {
        if core::ptr::eq(self.local().loaded.get().space, space) {
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
        debug_assert!(self.local().online.get(), "an offline CPU is not rung");
        let (machine, before) = (self.machine(), self.presence());
        // From here on, flushes of the new space ring us, and those of the old one do not: its tag
        // stays behind, and we catch up when we come back. That we walk its tables until the new
        // root is loaded is what `held` says.
        self.set_presence_then_fence(Presence::Switching(space.id()), Rule::SwitchFence);
        space.roster.register(machine, self.id);
        // Pairs with FlushFence: a flush whose generation this is not, sees us in the roster, and
        // switching. Read before the load: translations that are cached from then on are at least
        // as new as this generation (BumpRelease).
        let generation = space.journal.generation(machine);

        // SAFETY: our caller promises what `load` asks for.
        unsafe { self.load(space, generation) };
        self.set_seen(generation);
        let held = self.let_go(Held::space(space), before);
        self.set_presence(Presence::Active(space.id()));
        if held.is_marked() {
            self.settle_held(held);
        }
    }

    /// Says that this CPU goes on with the space loaded, but without touching user memory: it
    /// idles, or runs a kernel thread.
    ///
    /// Two stores to this CPU's own line. Flushes sent from now on do not ring it, unless page
    /// tables are freed and not held back. Does nothing if no space is loaded.
    #[inline]
    pub fn enter_lazy(&self) {
        if let Presence::Active(id) = self.presence() {
            let loaded = self.local().loaded.get();
            // First, so that whoever sees the one sees the other; else it would know less.
            self.set_seen(loaded.generation);
            if M::LIFETIME == Lifetime::Counted
                && let Some(space) = loaded.space()
            {
                take_stake(space);
            }
            self.set_presence(Presence::Lazy(id));
        }
    }

    /// Loads the kernel's own page table: this CPU can then neither use nor walk any space.
    ///
    /// For a CPU that goes into a deep idle state, or that runs kernel threads for long: a space
    /// that [died](Self::retire) meanwhile is reclaimed, if this CPU is the last to let go of it.
    pub fn leave(&self) {
        if self.load_kernel() {
            let held = self.let_go(Held::NOTHING, self.presence());
            self.set_presence(Presence::Out);
            if held.is_marked() {
                self.settle_held(held);
            }
        } else if self.held() != Held::NOTHING {
            // We have left it in the handler, and could not reclaim it there.
            let held = self.hold(Held::NOTHING);
            if held.is_marked() {
                self.settle_held(held);
            }
        }
    }

    /// The same in the handler of the flush interrupt, which reclaims nothing.
    pub(crate) fn leave_in_handler(&self) {
        if self.load_kernel() {
            self.let_go_in_handler(self.presence());
            self.set_presence(Presence::Out);
        }
    }

    /// Loads the kernel's own page table, unless it is loaded. Until then, the old tables could be
    /// walked; so only then may the caller say what it holds, and where it is.
    fn load_kernel(&self) -> bool {
        let loaded = self.local().loaded.replace(Loaded::KERNEL);
        if loaded.space.is_null() {
            return false;
        }
        note_clean(self.tags(), loaded.slot, loaded.generation);
        self.machine().load_kernel();
        if loaded.tag == Tag::KERNEL && self.may_lack_tags() {
            self.machine().invalidate_tag(Tag::KERNEL);
        }
        true
    }

    /// Whether a space that is loaded under the kernel's tag just found none left: the machine does
    /// not know that, and keeps what is cached there when the kernel's root is loaded.
    fn may_lack_tags(&self) -> bool {
        self.machine().tagging() == Tagging::Global && self.machine().tag_count() != 0
    }

    /// Comes back to the space with this id, as [`switch`](Self::switch) would, if it is loaded.
    /// Returns whether it is.
    ///
    /// For who has no claim to the space, and so may not switch to it: a kernel thread that has
    /// borrowed it, perhaps after its [end](Self::retire). Who takes the flush interrupt meanwhile
    /// may find that it was made to let go.
    pub fn resume(&self, id: SpaceId) -> bool {
        let is_on_it =
            matches!(self.presence(), Presence::Lazy(on) | Presence::Active(on) if on == id);
        if is_on_it && let Some(space) = self.local().loaded.get().space() {
            self.come_back(space);
        }
        is_on_it
    }

    /// Comes back to the space that is loaded, if that was only lazily.
    #[inline]
    fn come_back(&self, space: &Space<M>) {
        if let Presence::Lazy(id) = self.presence() {
            // Pairs with FlushFence: a flush sees us active, or we see its generation.
            self.set_presence_then_fence(Presence::Active(id), Rule::ResumeFence);
            if !self.machine().breaks(Rule::CatchUpOnResume) {
                let behind = self.catch_up(space, self.ceiling_on_return());
                self.counters().caught_up_from_log.add_alone(behind);
            }
            if M::LIFETIME == Lifetime::Counted {
                give_stake_back(self.machine(), space);
            }
        }
    }

    /// Loads `space` under its tag, or under one that it takes over.
    ///
    /// # Safety
    ///
    /// As [`Machine::load`].
    #[inline]
    unsafe fn load(&self, space: &Space<M>, generation: u64) {
        let (machine, local, counters) = (self.machine(), self.local(), self.counters());
        let left = local.loaded.get();
        note_clean(self.tags(), left.slot, left.generation);
        if left.tag == Tag::KERNEL && !left.space.is_null() && self.may_lack_tags() {
            // Nobody tells us of its freed tables any more.
            machine.load_kernel();
            machine.invalidate_tag(Tag::KERNEL);
        }

        counters.switches.add_alone(1);
        let choice = self.choose_tag(space, generation, counters.switches.read());
        let mut tag = choice.tag;
        match choice.generation {
            Some(seen) if seen < generation && !machine.breaks(Rule::CatchUpOnSwitch) => {
                // SAFETY: our caller promises what `load` asks for.
                tag = unsafe { self.load_behind(space, choice, seen, generation) };
            }
            None if !machine.breaks(Rule::DiscardReusedTag) => {
                // SAFETY: as above.
                unsafe { machine.load(space.root(), choice.tag, Entries::Discard) };
                counters.flushes_full.add_alone(1);
            }
            _ => {
                // SAFETY: as above.
                unsafe { machine.load(space.root(), choice.tag, Entries::Keep) };
                counters.switches_without_flush.add_alone(1);
            }
        }
        local.loaded.set(Loaded { space, tag, slot: choice.slot, generation });
    }

    /// Loads `space` under a tag that is clean up to generation `seen`, and makes up for the rest.
    /// Returns the tag that it has then.
    ///
    /// # Safety
    ///
    /// As [`Machine::load`].
    #[inline(never)]
    unsafe fn load_behind(
        &self,
        space: &Space<M>,
        Choice { tag, slot, .. }: Choice,
        seen: u64,
        generation: u64,
    ) -> Tag {
        let (machine, counters) = (self.machine(), self.counters());
        let missed = space.journal.missed(machine, seen, generation, self.ceiling_on_return());
        let keep = match &missed {
            Missed::Everything => false,
            // Ranges are invalidated when the tag is loaded, and speculation may be faster than
            // that. A stale page does it no harm. A freed table does: it may hold anything by now.
            Missed::Ranges(ranges) => {
                !ranges.free_tables() || machine.breaks(Rule::DiscardFreedTables)
            }
        };
        if !keep && machine.tagging() == Tagging::Renamed {
            let renamed = self.rename(space, slot);
            // SAFETY: our caller promises what `load` asks for.
            unsafe { machine.load(space.root(), renamed, Entries::Keep) };
            return renamed;
        }
        let entries = if keep { Entries::Keep } else { Entries::Discard };
        // SAFETY: as above.
        unsafe { machine.load(space.root(), tag, entries) };
        if !keep {
            counters.flushes_full.add_alone(1);
        } else if self.invalidate(space, tag, &missed) == Invalidated::Ranges {
            counters.caught_up_from_log.add_alone(generation - seen);
        }
        tag
    }

    /// How much is made up for page by page by a CPU that is told in the middle of its work. See
    /// [`Machine::batch_ceiling`].
    pub(crate) fn ceiling_at_work(&self) -> Ceiling {
        let all = self.machine().flush_ceiling();
        Ceiling { asked: all, reclaimed: self.machine().batch_ceiling(), all }
    }

    /// And by one that comes back to a space. See [`Machine::catch_up_ceiling`].
    fn ceiling_on_return(&self) -> Ceiling {
        let (all, asked) = (self.machine().flush_ceiling(), self.machine().catch_up_ceiling());
        Ceiling { asked, reclaimed: all, all: all.max(asked) }
    }

    /// Invalidates what the loaded space's flushes covered and this CPU has not yet seen. Returns
    /// how many flushes that made up for range by range, which is done up to `ceiling`.
    #[inline]
    pub(crate) fn catch_up(&self, space: &Space<M>, ceiling: Ceiling) -> u64 {
        // Read before anything is invalidated: what is cached from then on is at least as new.
        let generation = space.journal.generation(self.machine());
        if generation == self.seen_of_loaded(space) {
            return 0;
        }
        self.catch_up_to(space, generation, ceiling)
    }

    #[inline(never)]
    fn catch_up_to(&self, space: &Space<M>, generation: u64, ceiling: Ceiling) -> u64 {
        let machine = self.machine();
        let seen = self.seen_of_loaded(space);
        if seen >= generation {
            // Everyone has been told meanwhile.
            return 0;
        }
        let missed = space.journal.missed(machine, seen, generation, ceiling);
        let invalidated = self.invalidate(space, self.local().loaded.get().tag, &missed);
        self.local().loaded.set(Loaded { generation, ..self.local().loaded.get() });
        match invalidated {
            Invalidated::Ranges => generation - seen,
            Invalidated::Everything => 0,
        }
    }

    /// Invalidates under the tag that is loaded, or gives the space another one.
    fn invalidate(&self, space: &Space<M>, tag: Tag, missed: &Missed) -> Invalidated {
        let (machine, counters) = (self.machine(), self.counters());
        let Missed::Ranges(ranges) = missed else {
            if machine.tagging() == Tagging::Renamed {
                self.rename_loaded(space);
            } else {
                machine.invalidate_tag(tag);
                counters.flushes_full.add_alone(1);
            }
            return Invalidated::Everything;
        };
        for extent in ranges.iter() {
            machine.invalidate(tag, extent);
            counters.pages_invalidated.add_alone(extent.page_count() as u64);
        }
        counters.flushes_ranged.add_alone(ranges.count() as u64);
        Invalidated::Ranges
    }
}

/// How a CPU has caught up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Invalidated {
    /// Range by range.
    Ranges,
    /// By dropping all of the tag.
    Everything,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Shootdown;
    use crate::machine::Root;
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
            let here = unsafe { engine.here() };
            here.online();
            for space in &spaces {
                // SAFETY: they outlive their use here.
                unsafe { here.switch(space) };
            }
            here.leave();
            let invalidations = engine.machine().invalidations.load(Relaxed);
            assert_eq!(invalidations, 0, "{tagging:?}, {tag_count} tags");
        }
    }
}
