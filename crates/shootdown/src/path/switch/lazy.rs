//! *Lazy*: a CPU keeps a space loaded and uses no page of it, returns to it, or leaves it.

use crate::base::ids::{SpaceId, Tag};
use crate::base::rules::Rule;
use crate::parts::hazard::Hazard;
use crate::parts::presence::Presence;
use crate::state::machine::{Lifetime, Machine};
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::{Space, drop_lazy_ref, take_lazy_ref};

impl<M: Machine> PinnedCpu<'_, M> {
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
    pub(super) fn return_from_lazy(&self, space: &Space<M>) {
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
}
