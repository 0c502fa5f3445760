//! What a CPU remembers of the spaces that it ran last: under which tag its TLB may hold their
//! translations, and up to which generation those are clean.
//!
//! Where tags are per CPU, as x86 has them, the slot *is* the tag: the kernel's root has tag 0,
//! slot *i* is tag *i* + 1, and a space that takes over the slot takes over the tag. Where all CPUs
//! share tags, the tag names the slot. Nothing here is shared: only the CPU itself reads and writes
//! its slots.

use core::cell::Cell;

use crate::ids::{SpaceId, Tag};
use crate::memory::sealed::Sealed;
use crate::phase::Phase;

/// One space that the CPU remembers.
#[derive(Debug)]
pub struct TagSlot {
    /// The space's id; 0 if the slot is vacant.
    space: Cell<u64>,
    /// The TLB holds nothing of the space that a flush up to this generation covered.
    generation: Cell<u64>,
    /// The phase of the space's cpumask in which this CPU was registered there. A set of CPUs is
    /// cleared only in a later phase, so for as long as the phase is the same, so is the bit.
    phase: Cell<Phase>,
    /// When the space was last loaded: the lower bits of the number of this CPU's switches. When
    /// they wrap around, the order is wrong for a while, which costs a few flushes.
    last_used: Cell<u32>,
    /// The tag that the space has on this CPU.
    tag: Cell<u16>,
}

/// Room for what a CPU remembers. Implemented for `[TagSlot; N]`, and for nothing else.
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
    /// A slot that belongs to no space, and stands for the kernel's own root.
    #[expect(clippy::declare_interior_mutable_const, reason = "a value to start from")]
    pub(crate) const VACANT: Self = Self {
        space: Cell::new(0),
        generation: Cell::new(0),
        phase: Cell::new(Phase::NONE),
        last_used: Cell::new(0),
        tag: Cell::new(Tag::KERNEL.0),
    };

    /// Whether the slot is this space's.
    #[inline]
    pub(crate) fn is_of(&self, space: SpaceId) -> bool {
        self.space.get() == space.number()
    }

    /// Gives the slot to a space, under this tag. Its generation is to be set when it is loaded.
    #[inline]
    pub(crate) fn give_to(&self, space: SpaceId, tag: Tag) {
        if !self.is_of(space) {
            self.space.set(space.number());
            self.phase.set(Phase::NONE);
        }
        self.tag.set(tag.0);
    }

    /// The tag that the space has here.
    #[inline]
    pub(crate) fn tag(&self) -> Tag {
        Tag(self.tag.get())
    }

    /// Up to which generation the TLB is clean of the space.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Notes up to which generation the TLB is clean of the space.
    #[inline]
    pub(crate) fn set_generation(&self, generation: u64) {
        self.generation.set(generation);
    }

    /// Whether this CPU was registered in the space's cpumask in this phase.
    #[inline]
    pub(crate) fn is_registered_in(&self, phase: Phase) -> bool {
        self.phase.get() == phase
    }

    /// Notes in which phase this CPU was registered in the space's cpumask.
    #[inline]
    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.set(phase);
    }

    /// Notes that the space is loaded now. `now` counts this CPU's switches.
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

/// The slot that was used least recently, and the tag that belongs to it where tags are per CPU.
///
/// Least recently used rather than round robin, so that six spaces that alternate with a crowd of
/// short-lived ones keep their translations.
pub(crate) fn least_recently_used(slots: &[TagSlot]) -> Option<(&TagSlot, Tag)> {
    let mut slots = (1..).map(Tag).zip(slots);
    let (mut tag, mut oldest) = slots.next()?;
    for (other_tag, other) in slots {
        if other.last_used.get() < oldest.last_used.get() {
            (tag, oldest) = (other_tag, other);
        }
    }
    Some((oldest, tag))
}

/// The slot that a tag names, where all CPUs share tags: as many spaces keep theirs as there are
/// slots, without a search.
#[inline]
pub(crate) fn named_by(slots: &[TagSlot], tag: Tag) -> Option<&TagSlot> {
    slots.get(usize::from(tag.0).checked_rem(slots.len())?)
}

/// Forgets every space, for the TLB has been emptied.
pub(crate) fn vacate(slots: &[TagSlot]) {
    for slot in slots {
        slot.space.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Takes a slot for a space, as a machine does whose tags are per CPU. Returns its tag, and the
    /// generation that was noted.
    fn take(slots: &[TagSlot], space: u64, now: u64) -> (Tag, Option<u64>) {
        let space = SpaceId(space);
        let known = find(slots, space).map(TagSlot::generation);
        let slot = find(slots, space).unwrap_or_else(|| {
            let (slot, tag) = least_recently_used(slots).expect("there are slots");
            slot.give_to(space, tag);
            slot
        });
        slot.set_last_used(now);
        (slot.tag(), known)
    }

    #[test]
    fn spaces_in_use_keep_their_tags() {
        let slots: [TagSlot; 3] = TagSlots::VACANT;
        let mut now = 0;
        let mut choose = |space| {
            now += 1;
            take(&slots, space, now)
        };
        let (a, b) = (choose(1).0, choose(2).0);
        for stranger in 10..20 {
            assert_eq!(choose(stranger).1, None);
            assert_eq!(choose(1), (a, Some(0)));
            assert_eq!(choose(2), (b, Some(0)));
        }
    }

    #[test]
    fn least_recently_used_slot_is_taken() {
        let slots: [TagSlot; 3] = TagSlots::VACANT;
        let tag = |space, now| take(&slots, space, now).0.0;
        assert_eq!([tag(1, 1), tag(2, 2), tag(3, 3), tag(1, 4)], [1, 2, 3, 1]);
        assert_eq!([tag(4, 5), tag(5, 6), tag(6, 7)], [2, 3, 1]);
    }

    #[test]
    fn slot_that_changes_hands_forgets_its_phase() {
        let slots: [TagSlot; 1] = TagSlots::VACANT;
        let slot = &slots[0];
        slot.give_to(SpaceId(1), Tag(77));
        slot.set_phase(Phase::FIRST);
        slot.give_to(SpaceId(1), Tag(78));
        assert!(slot.is_registered_in(Phase::FIRST), "another tag of the same space");
        slot.give_to(SpaceId(2), Tag(78));
        assert!(!slot.is_registered_in(Phase::FIRST));
        slot.set_phase(Phase::FIRST);
        vacate(&slots);
        assert!(find(&slots, SpaceId(2)).is_none());
        slot.give_to(SpaceId(2), Tag(78));
        assert!(!slot.is_registered_in(Phase::FIRST));
    }

    #[test]
    fn tags_that_all_cpus_share_name_slots() {
        let slots: [TagSlot; 4] = TagSlots::VACANT;
        for tag in 1..=4 {
            named_by(&slots, Tag(tag)).unwrap().give_to(SpaceId(u64::from(tag)), Tag(tag));
        }
        let tags: std::vec::Vec<u16> = slots.iter().map(|slot| slot.tag().0).collect();
        assert_eq!(tags, [4, 1, 2, 3]);
        assert!(named_by(&slots, Tag(5)).unwrap().is_of(SpaceId(1)));
    }

    #[test]
    fn machine_without_slots_has_none() {
        let slots: [TagSlot; 0] = TagSlots::VACANT;
        assert!(find(&slots, SpaceId(1)).is_none());
        assert!(least_recently_used(&slots).is_none());
        assert!(named_by(&slots, Tag(1)).is_none());
    }

    proptest! {
        /// Two spaces never share a tag, and a slot holds what was last noted of its space.
        #[test]
        fn tag_has_one_space(spaces in prop::collection::vec(1u64..9, 1..200)) {
            let slots: [TagSlot; 4] = TagSlots::VACANT;
            let mut owner = [0; 5];
            let mut noted = [0; 9];
            for (now, &space) in (1u64..).zip(&spaces) {
                let (tag, generation) = take(&slots, space, now);
                let tag = usize::from(tag.0);
                if let Some(generation) = generation {
                    prop_assert_eq!(owner[tag], space);
                    prop_assert_eq!(generation, noted[space as usize]);
                } else {
                    prop_assert_ne!(owner[tag], space);
                }
                owner[tag] = space;
                noted[space as usize] = now;
                find(&slots, SpaceId(space)).unwrap().set_generation(now);
            }
        }
    }
}
