//! The slots of a CPU for the spaces that it ran last, with their tags and generations.
//!
//! A slot records under which tag the TLB may hold translations of a space, and up to which
//! generation these are clean. Only the CPU itself reads and writes its slots.
//!
//! Where tags are per CPU, as on x86, a slot *is* a tag. The kernel's root has tag 0, slot *i* is
//! tag *i* + 1, and a space that takes over the slot takes over the tag. Where all CPUs share tags,
//! the tag determines the slot.

use core::cell::Cell;

use crate::base::ids::{SpaceId, Tag};
use crate::base::memory::sealed::Sealed;
use crate::parts::phase::Phase;

/// A CPU's record of one space.
#[derive(Debug)]
pub struct TagSlot {
    /// Id of the space; 0 if the slot is vacant.
    space: Cell<u64>,
    /// The TLB has no translation of the space that a flush up to this generation covered.
    generation: Cell<u64>,
    /// Phase of the space's cpumask in which this CPU was registered in the mask. A set of CPUs is
    /// cleared only in a later phase. So while the phase is the same, the CPU's bit is still set.
    phase: Cell<Phase>,
    /// Time at which the space was last loaded, as the lower bits of the number of this CPU's
    /// switches. When these bits wrap around, the order is wrong for a while, which costs a few
    /// flushes.
    last_used: Cell<u32>,
    /// The tag that the space has on this CPU.
    tag: Cell<u16>,
    /// Time at which the space took over the slot, as the lower bits of `last_used`. Only where
    /// tags are per CPU.
    taken: Cell<u16>,
}

/// Room for a CPU's slots. Implemented for `[TagSlot; N]` only.
pub trait TagSlots: Sealed {
    /// Slots that belong to no space.
    const VACANT: Self;
    /// The slots.
    fn slots(&self) -> &[TagSlot];
}

impl<const N: usize> Sealed for [TagSlot; N] {}
impl<const N: usize> TagSlots for [TagSlot; N] {
    const VACANT: Self = {
        assert!(N < 1 << 16, "tags are 16 bits wide");
        [const { TagSlot::VACANT }; N]
    };
    #[inline]
    fn slots(&self) -> &[TagSlot] {
        self
    }
}

impl TagSlot {
    /// A slot that belongs to no space. It also represents the kernel's own root.
    #[expect(clippy::declare_interior_mutable_const, reason = "a value to start from")]
    pub(crate) const VACANT: Self = Self {
        space: Cell::new(0),
        generation: Cell::new(0),
        phase: Cell::new(Phase::NONE),
        last_used: Cell::new(0),
        tag: Cell::new(Tag::KERNEL.0),
        taken: Cell::new(0),
    };

    /// Returns `true` if the slot belongs to this space.
    #[inline]
    pub(crate) fn is_of(&self, space: SpaceId) -> bool {
        self.space.get() == space.number()
    }

    /// Returns `true` if the space was loaded only once since it took over the slot.
    #[inline]
    fn was_loaded_once(&self) -> bool {
        self.last_used.get() as u16 == self.taken.get()
    }

    /// Gives the slot to a space, with this tag. Set the generation when the space is loaded.
    #[inline]
    pub(crate) fn give_to(&self, space: SpaceId, tag: Tag) {
        if !self.is_of(space) {
            self.space.set(space.number());
            self.phase.set(Phase::NONE);
        }
        self.tag.set(tag.0);
    }

    /// The tag that the space has on this CPU.
    #[inline]
    pub(crate) fn tag(&self) -> Tag {
        Tag(self.tag.get())
    }

    /// The generation up to which the TLB is clean of the space.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Records the generation up to which the TLB is clean of the space.
    #[inline]
    pub(crate) fn set_generation(&self, generation: u64) {
        self.generation.set(generation);
    }

    /// Returns `true` if this CPU was registered in the space's cpumask in this phase.
    #[inline]
    pub(crate) fn is_registered_in(&self, phase: Phase) -> bool {
        self.phase.get() == phase
    }

    /// Records the phase in which this CPU was registered in the space's cpumask.
    #[inline]
    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.set(phase);
    }

    /// Records that the space is loaded now. `now` is the number of this CPU's switches.
    #[inline]
    pub(crate) fn set_last_used(&self, now: u64) {
        self.last_used.set(now as u32);
    }
}

/// The slot of a space, if it has one.
#[inline]
pub(crate) fn find(slots: &[TagSlot], space: SpaceId) -> Option<&TagSlot> {
    slots.iter().find(|slot| slot.is_of(space))
}

/// One of this number of spaces without a slot takes over the least recently used slot in any case.
/// A larger number keeps dead spaces longer, and a smaller one takes slots from more spaces that
/// will run again.
const TURN: u64 = 8;

/// The slot that a space took over last, where tags are per CPU.
#[derive(Debug)]
pub(crate) struct LastTaken {
    index: Cell<u16>,
    /// Number of slots that are vacant since the TLB was emptied: the last ones.
    vacant: Cell<u16>,
}

impl LastTaken {
    pub(crate) const fn new() -> Self {
        Self { index: Cell::new(0), vacant: Cell::new(0) }
    }

    /// Records that all of `slots` slots are vacant.
    pub(crate) fn reset(&self, slots: usize) {
        self.vacant.set(slots as u16);
    }

    /// Returns the index of the slot that a space without one takes over: a vacant one, if there is
    /// one. `takeovers` is the number of all, this one included, and `now` that of switches.
    ///
    /// Otherwise, the slot that was taken over last is taken over again, unless its space was
    /// loaded a second time. So where more spaces take turns than there are slots, all but one of
    /// the slots keep their spaces. The least recently used slot would always be that of the space
    /// that is loaded next; and with round robin, as in Linux, spaces that alternate with many
    /// short-lived ones would lose their translations. (In caches: the insertion policies LIP and
    /// BIP of Qureshi et al., ISCA 2007.)
    #[inline]
    pub(crate) fn take_over(&self, slots: &[TagSlot], takeovers: u64, now: u64) -> Option<usize> {
        let (last, vacant) = (usize::from(self.index.get()), self.vacant.get());
        let index = if vacant != 0 {
            self.vacant.set(vacant - 1);
            slots.len() - usize::from(vacant)
        } else if takeovers % TURN != 0 && slots.get(last)?.was_loaded_once() {
            last
        } else {
            least_recently_used(slots)?
        };
        self.index.set(index as u16);
        slots.get(index)?.taken.set(now as u16);
        Some(index)
    }
}

/// The index of the least recently used slot.
pub(crate) fn least_recently_used(slots: &[TagSlot]) -> Option<usize> {
    let mut slots = slots.iter().enumerate();
    let (mut index, mut oldest) = slots.next()?;
    for (other_index, other) in slots {
        if other.last_used.get() < oldest.last_used.get() {
            (index, oldest) = (other_index, other);
        }
    }
    Some(index)
}

/// The slot that a tag determines, where all CPUs share tags. This needs no search.
#[inline]
pub(crate) fn named_by(slots: &[TagSlot], tag: Tag) -> Option<&TagSlot> {
    slots.get(usize::from(tag.0).checked_rem(slots.len())?)
}

/// Vacates every slot, because the TLB has been emptied.
pub(crate) fn vacate(slots: &[TagSlot]) {
    for slot in slots {
        slot.space.set(0);
    }
}

#[cfg(test)]
mod tests;
