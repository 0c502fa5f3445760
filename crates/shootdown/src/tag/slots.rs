//! What a CPU remembers of the spaces that it ran last: under which tag its TLB may hold their
//! translations, and up to which generation those are clean.
//!
//! Where tags are per CPU, as x86 has them, the slot *is* the tag: the kernel's root has tag 0,
//! slot *i* is tag *i* + 1, and who takes over the slot takes over the tag. Nothing here is shared:
//! only the CPU itself reads and writes its slots.

use core::cell::Cell;

use crate::machine::Tag;
use crate::machine::sealed::Sealed;
use crate::presence::SpaceId;

/// One space that the CPU remembers.
#[derive(Debug, Default)]
pub struct TagSlot {
    /// 0 for nobody.
    space: Cell<u64>,
    /// The TLB holds nothing of the space that a flush up to this generation covered.
    generation: Cell<u64>,
    /// In switches, the lower bits of their number: when these come round, the order is wrong for a
    /// while, which costs a few flushes.
    last_used: Cell<u32>,
    /// Under which tag, where the slot does not say.
    tag: Cell<u16>,
}

/// Room for what a CPU remembers. Implemented for `[TagSlot; N]`, and for nothing else.
pub trait TagSlots: Sealed {
    /// Slots that belong to nobody.
    fn vacant() -> Self;
    /// The slots.
    fn slots(&self) -> &[TagSlot];
}

impl<const N: usize> Sealed for [TagSlot; N] {}
impl<const N: usize> TagSlots for [TagSlot; N] {
    fn vacant() -> Self {
        const { assert!(N < 1 << 16, "tags are 16 bits wide") };
        core::array::from_fn(|_| TagSlot::default())
    }
    #[inline]
    fn slots(&self) -> &[TagSlot] {
        self
    }
}

/// Which slot a space has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotIndex(u16);

impl SlotIndex {
    /// None: there are no slots.
    pub(crate) const NONE: Self = Self(u16::MAX);

    /// The tag that belongs to the slot where tags are per CPU; the kernel's, if there is none.
    #[inline]
    pub(crate) fn tag(self) -> Tag {
        Tag(self.0.wrapping_add(1))
    }
}

/// What the CPU remembers of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) slot: SlotIndex,
    /// The generation up to which what the TLB holds of it is clean; `None` if that is unknown.
    pub(crate) generation: Option<u64>,
}

/// What is remembered of `space`; if nothing is, its slot is the one that was used least recently.
///
/// `now` counts this CPU's switches. Least recently used rather than round robin, so that six
/// spaces that alternate with a crowd of short-lived ones keep their translations.
#[inline]
pub(crate) fn remember(slots: &[TagSlot], space: SpaceId, now: u64) -> Memory {
    for (index, slot) in slots.iter().enumerate() {
        if slot.space.get() == space.number() {
            slot.last_used.set(now as u32);
            let generation = Some(slot.generation.get());
            return Memory { slot: SlotIndex(index as u16), generation };
        }
    }
    take_over(slots, space, now)
}

#[inline(never)]
fn take_over(slots: &[TagSlot], space: SpaceId, now: u64) -> Memory {
    let Some((mut slot, others)) = slots.split_first() else {
        return Memory { slot: SlotIndex::NONE, generation: None };
    };
    let mut index = 0;
    for (other_index, other) in (1..).zip(others) {
        if other.last_used.get() < slot.last_used.get() {
            (index, slot) = (other_index, other);
        }
    }
    slot.space.set(space.number());
    slot.last_used.set(now as u32);
    Memory { slot: SlotIndex(index), generation: None }
}

/// Notes up to which generation a space is clean.
#[inline]
pub(crate) fn note_clean(slots: &[TagSlot], slot: SlotIndex, generation: u64) {
    if let Some(slot) = slots.get(usize::from(slot.0)) {
        slot.generation.set(generation);
    }
}

/// Notes which tag a space has now, that was loaded at the switch `now`.
pub(crate) fn note_tag(slots: &[TagSlot], slot: SlotIndex, space: SpaceId, tag: Tag, now: u64) {
    if let Some(slot) = slots.get(usize::from(slot.0)) {
        slot.space.set(space.number());
        slot.last_used.set(now as u32);
        slot.tag.set(tag.0);
    }
}

/// The tag that was noted for a slot.
pub(crate) fn noted_tag(slots: &[TagSlot], slot: SlotIndex) -> Tag {
    slots.get(usize::from(slot.0)).map_or(Tag::KERNEL, |slot| Tag(slot.tag.get()))
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

    #[test]
    fn the_spaces_in_use_keep_their_tags() {
        let slots: [TagSlot; 3] = TagSlots::vacant();
        let mut now = 0;
        let mut choose = |space| {
            now += 1;
            remember(&slots, SpaceId(space), now)
        };
        let (a, b) = (choose(1), choose(2));
        for stranger in 10..20 {
            assert_eq!(choose(stranger).generation, None);
            assert_eq!(choose(1), Memory { generation: Some(0), ..a });
            assert_eq!(choose(2), Memory { generation: Some(0), ..b });
        }
    }

    #[test]
    fn the_slot_that_was_used_least_recently_is_taken() {
        let slots: [TagSlot; 3] = TagSlots::vacant();
        let tag = |space, now| remember(&slots, SpaceId(space), now).slot.tag().0;
        assert_eq!([tag(1, 1), tag(2, 2), tag(3, 3), tag(1, 4)], [1, 2, 3, 1]);
        assert_eq!([tag(4, 5), tag(5, 6), tag(6, 7)], [2, 3, 1]);
    }

    #[test]
    fn what_is_noted_of_a_space_is_forgotten_with_all_others() {
        let slots: [TagSlot; 2] = TagSlots::vacant();
        let slot = remember(&slots, SpaceId(1), 1).slot;
        note_tag(&slots, slot, SpaceId(1), Tag(77), 2);
        note_clean(&slots, slot, 5);
        assert_eq!(noted_tag(&slots, slot), Tag(77));
        assert_eq!(remember(&slots, SpaceId(1), 3).generation, Some(5));
        // As if it had been loaded now.
        note_tag(&slots, slot, SpaceId(2), Tag(78), 9);
        assert_eq!(remember(&slots, SpaceId(3), 10).generation, None);
        assert_eq!(remember(&slots, SpaceId(2), 11).slot, slot);
        vacate(&slots);
        assert_eq!(remember(&slots, SpaceId(2), 12).generation, None);
        assert_eq!(noted_tag(&slots, SlotIndex::NONE), Tag::KERNEL);
    }

    #[test]
    fn without_slots_there_is_one_tag_and_nothing_is_kept() {
        let slots: [TagSlot; 0] = TagSlots::vacant();
        for now in 1..3 {
            let memory = remember(&slots, SpaceId(1), now);
            assert_eq!((memory.slot.tag(), memory.generation), (Tag::KERNEL, None));
            note_clean(&slots, memory.slot, 7);
        }
    }

    proptest! {
        /// Two spaces never share a tag, and what a slot says of a space is what was noted last.
        #[test]
        fn a_tag_has_one_space(spaces in prop::collection::vec(1u64..9, 1..200)) {
            let slots: [TagSlot; 4] = TagSlots::vacant();
            let mut owner = [0; 5];
            let mut noted = [0; 9];
            for (now, &space) in (1u64..).zip(&spaces) {
                let memory = remember(&slots, SpaceId(space), now);
                let tag = usize::from(memory.slot.tag().0);
                if let Some(generation) = memory.generation {
                    prop_assert_eq!(owner[tag], space);
                    prop_assert_eq!(generation, noted[space as usize]);
                } else {
                    prop_assert_ne!(owner[tag], space);
                }
                owner[tag] = space;
                noted[space as usize] = now;
                note_clean(&slots, memory.slot, now);
            }
        }
    }
}
