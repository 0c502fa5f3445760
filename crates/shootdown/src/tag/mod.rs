//! How the hardware tells one space's translations from another's.
//!
//! Hardware has tags in three ways, and the engine asks three things of each: under which tag a
//! space is to be loaded ([`PinnedCpu::choose_tag`]), how all of it is dropped
//! ([`PinnedCpu::rename_loaded`] where that is no invalidation), and what becomes of tags when they run
//! out.

pub(crate) mod asids;
pub(crate) mod global;
pub(crate) mod rename;
pub(crate) mod slots;

use crate::ids::Tag;
use crate::machine::{Machine, Tagging};
use crate::pinned_cpu::PinnedCpu;
use crate::space::Space;
use slots::{TagSlot, find, least_recently_used};

/// The tag under which a space is to be loaded here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice<'e> {
    /// Where this CPU remembers the space; it has the tag.
    pub(crate) slot: &'e TagSlot,
    /// The generation up to which what the TLB holds under the tag is clean; `None` if that belongs
    /// to another space, or is unknown.
    pub(crate) generation: Option<u64>,
}

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Where this CPU remembers `space`, if it does, and if the space's tag cannot have changed.
    #[inline]
    pub(crate) fn known_slot(&self, space: &Space<M>) -> Option<&'e TagSlot> {
        match self.machine().tagging() {
            Tagging::PerCpu | Tagging::Renamed => find(self.tags(), space.id()),
            Tagging::Global => None,
        }
    }

    /// The tag for `space`, which is at `generation`.
    pub(crate) fn choose_tag(&self, space: &Space<M>, generation: u64) -> Choice<'e> {
        match self.machine().tagging() {
            Tagging::PerCpu => self.choose_own_tag(space),
            Tagging::Global => self.choose_global_tag(space, generation),
            Tagging::Renamed => self.choose_renamed_tag(space, generation),
        }
    }

    /// The tag that `space` has on this CPU, or the one that was used least recently.
    fn choose_own_tag(&self, space: &Space<M>) -> Choice<'e> {
        if let Some(slot) = find(self.tags(), space.id()) {
            return Choice { slot, generation: Some(slot.generation()) };
        }
        self.counters().tags_taken.add_unshared(1);
        Choice { slot: self.take_over_slot(space), generation: None }
    }

    /// Gives `space` the slot that was used least recently, and the tag that belongs to it where
    /// tags are per CPU.
    fn take_over_slot(&self, space: &Space<M>) -> &'e TagSlot {
        let (slot, tag) = least_recently_used(self.tags()).unwrap_or(self.spare_slot());
        slot.give_to(space.id(), tag);
        slot
    }

    /// The slot of a space that has no tag of its own.
    pub(crate) fn spare_slot(&self) -> (&'e TagSlot, Tag) {
        (&self.local().spare, Tag::KERNEL)
    }
}
