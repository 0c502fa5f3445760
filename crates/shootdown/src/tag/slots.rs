//! Tags as x86 has them: each CPU gives its few tags (PCIDs) to the spaces it last ran.
//!
//! The kernel's root has tag 0; slot *i* is tag *i* + 1. A slot remembers whose translations the
//! hardware may hold under its tag, and up to which generation they are clean. Nothing here is
//! shared: only the CPU itself reads and writes its slots.

use core::cell::Cell;

use crate::machine::Tag;
use crate::machine::sealed::Sealed;
use crate::presence::SpaceId;

/// One tag: whose translations the TLB may hold under it, and how old they may be.
#[derive(Debug, Default)]
pub struct TagSlot {
    /// 0 for nobody's.
    space: Cell<u64>,
    /// The TLB holds nothing under this tag that a flush up to this generation covered.
    generation: Cell<u64>,
    last_used: Cell<u64>,
}

/// Room for a CPU's tags. Implemented for `[TagSlot; N]`, and for nothing else.
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

/// The tag that a space gets on this CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) tag: Tag,
    /// The generation up to which what the TLB holds under the tag is clean; `None` if it is
    /// another space's, or unknown.
    pub(crate) generation: Option<u64>,
}

/// The tag for `space`: the one that it has, or the one that was used least recently.
///
/// `now` counts this CPU's switches. Least recently used rather than round robin, so that six
/// spaces that alternate with a crowd of short-lived ones keep their translations.
#[inline]
pub(crate) fn choose(slots: &[TagSlot], space: SpaceId, now: u64) -> Choice {
    for (index, slot) in slots.iter().enumerate() {
        if slot.space.get() == space.number() {
            slot.last_used.set(now);
            return Choice { tag: tag_of(index), generation: Some(slot.generation.get()) };
        }
    }
    take_over(slots, space, now)
}

#[inline(never)]
fn take_over(slots: &[TagSlot], space: SpaceId, now: u64) -> Choice {
    let Some((mut slot, others)) = slots.split_first() else {
        return Choice { tag: Tag::KERNEL, generation: None };
    };
    let mut index = 0;
    for (other_index, other) in (1..).zip(others) {
        if other.last_used.get() < slot.last_used.get() {
            (index, slot) = (other_index, other);
        }
    }
    slot.space.set(space.number());
    slot.last_used.set(now);
    Choice { tag: tag_of(index), generation: None }
}

/// Notes up to which generation a tag is clean.
#[inline]
pub(crate) fn note_clean(slots: &[TagSlot], tag: Tag, generation: u64) {
    if let Some(slot) = usize::from(tag.0).checked_sub(1).and_then(|index| slots.get(index)) {
        slot.generation.set(generation);
    }
}

/// Forgets every space, for the TLB has been emptied.
pub(crate) fn vacate(slots: &[TagSlot]) {
    for slot in slots {
        slot.space.set(0);
    }
}

#[inline]
fn tag_of(index: usize) -> Tag {
    Tag(index as u16 + 1)
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
            choose(&slots, SpaceId(space), now)
        };
        let (a, b) = (choose(1).tag, choose(2).tag);
        for stranger in 10..20 {
            assert_eq!(choose(stranger).generation, None);
            assert_eq!(choose(1), Choice { tag: a, generation: Some(0) });
            assert_eq!(choose(2), Choice { tag: b, generation: Some(0) });
        }
    }

    #[test]
    fn without_slots_there_is_one_tag_and_nothing_is_kept() {
        let slots: [TagSlot; 0] = TagSlots::vacant();
        for now in 1..3 {
            let choice = choose(&slots, SpaceId(1), now);
            assert_eq!(choice, Choice { tag: Tag::KERNEL, generation: None });
            note_clean(&slots, choice.tag, 7);
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
                let choice = choose(&slots, SpaceId(space), now);
                let tag = usize::from(choice.tag.0);
                if let Some(generation) = choice.generation {
                    prop_assert_eq!(owner[tag], space);
                    prop_assert_eq!(generation, noted[space as usize]);
                } else {
                    prop_assert_ne!(owner[tag], space);
                }
                owner[tag] = space;
                noted[space as usize] = now;
                note_clean(&slots, choice.tag, now);
            }
        }
    }
}
