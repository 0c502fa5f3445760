//! Tags, by which the TLB distinguishes the translations of different spaces.
//!
//! There are four kinds of tagging ([`Tagging`]). For each kind, this module decides:
//!
//! - under which tag to load a space ([`PinnedCpu::choose_tag`]);
//! - how to drop all translations of a space, if no instruction invalidates a tag
//!   ([`PinnedCpu::rename_loaded`]);
//! - what to do when tags run out.

pub(crate) mod asids;
pub(crate) mod global;
mod pins;
pub(crate) mod rename;
mod recycling;
mod reserved;
pub(crate) mod slots;
pub(crate) mod stock;
mod taking;

use crate::base::ids::Tag;
use crate::state::machine::{Machine, Tagging};
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;
use slots::{TagSlot, find, named_by};

/// The tag under which this CPU loads a space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice<'e> {
    /// This CPU's slot for the space, with the tag.
    pub(crate) slot: &'e TagSlot,
    /// The generation up to which the TLB is clean under the tag; `None` if the TLB may hold
    /// translations of another space under the tag, or if the generation is unknown.
    pub(crate) generation: Option<u64>,
}

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// This CPU's slot for `space`. `None` if it has none, or if another CPU may have changed the
    /// tag of the space.
    #[inline]
    pub(crate) fn known_slot(&self, space: &Space<M>) -> Option<&'e TagSlot> {
        match self.machine().tagging() {
            Tagging::PerCpu | Tagging::Renamed => find(self.tags(), space.id()),
            Tagging::Global => None,
            Tagging::Assigned => self
                .assigned_slot(space)
                .filter(|slot| slot.is_of(space.id()) && slot.tag() == space.assigned_tag()),
        }
    }

    /// Returns `false` if tags would be this CPU's own, and there are none.
    #[inline]
    pub(crate) fn has_tags(&self) -> bool {
        self.machine().tagging() != Tagging::PerCpu || !self.tags().is_empty()
    }

    /// Chooses the tag for `space`, which is at `generation` and has this
    /// [known slot](Self::known_slot).
    pub(crate) fn choose_tag(
        &self,
        space: &Space<M>,
        known: Option<&'e TagSlot>,
        generation: u64,
    ) -> Choice<'e> {
        match (self.machine().tagging(), known) {
            (Tagging::Global, _) => self.choose_global_tag(space, generation),
            (_, Some(slot)) => Choice { slot, generation: Some(slot.generation()) },
            (Tagging::PerCpu, None) => self.choose_own_tag(space),
            (Tagging::Renamed, None) => self.choose_renamed_tag(space, generation),
            (Tagging::Assigned, None) => self.choose_assigned_tag(space),
        }
    }

    /// The slot of the space's assigned tag, which may be another space's. All spaces with one tag
    /// have one slot, so only the space that this CPU has loaded last under the tag is known.
    #[inline]
    fn assigned_slot(&self, space: &Space<M>) -> Option<&'e TagSlot> {
        named_by(self.tags(), space.assigned_tag())
    }

    /// Makes `space` the owner of its tag on this CPU, which may have loaded another space under
    /// the tag before.
    fn choose_assigned_tag(&self, space: &Space<M>) -> Choice<'e> {
        let tag = space.assigned_tag();
        let has_tags = !self.tags().is_empty();
        let is_tag = (1..=self.machine().tag_count()).contains(&usize::from(tag.0));
        assert!(!has_tags || is_tag, "the space has {tag:?}: call Space::assign_tag");
        self.counters().tags_taken.add_unshared(1);
        let slot = self.assigned_slot(space).unwrap_or(self.spare_slot().0);
        slot.give_to(space.id(), if has_tags { tag } else { Tag::KERNEL });
        Choice { slot, generation: None }
    }

    /// Gives a space without a tag one of this CPU's.
    fn choose_own_tag(&self, space: &Space<M>) -> Choice<'e> {
        let (local, counters) = (self.local(), self.counters());
        counters.tags_taken.add_unshared(1);
        // The switch that this is a part of is counted later.
        let now = counters.switches.read() + 1;
        let index = local.last_taken.take_over(self.tags(), counters.tags_taken.read(), now);
        Choice { slot: self.give_slot(index, space), generation: None }
    }

    /// Gives a slot to `space`, with the tag that belongs to the slot where tags are per CPU.
    fn give_slot(&self, index: Option<usize>, space: &Space<M>) -> &'e TagSlot {
        let own = index.and_then(|index| Some((self.tags().get(index)?, Tag(index as u16 + 1))));
        let (slot, tag) = own.unwrap_or(self.spare_slot());
        slot.give_to(space.id(), tag);
        slot
    }

    /// The slot for a space that has no tag of its own.
    pub(crate) fn spare_slot(&self) -> (&'e TagSlot, Tag) {
        (&self.local().spare, Tag::KERNEL)
    }
}
