use super::*;
use proptest::prelude::*;

/// Chooses a slot for a space as a machine with tags per CPU does. Returns the tag, and the
/// recorded generation if the space had a slot.
fn choose(slots: &[TagSlot], space: u64, now: u64) -> (Tag, Option<u64>) {
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
        self::choose(&slots, space, now)
    };
    let (a, b) = (choose(1).0, choose(2).0);
    for other in 10..20 {
        assert_eq!(choose(other).1, None);
        assert_eq!(choose(1), (a, Some(0)));
        assert_eq!(choose(2), (b, Some(0)));
    }
}

#[test]
fn least_recently_used_slot_is_taken() {
    let slots: [TagSlot; 3] = TagSlots::VACANT;
    let tag = |space, now| choose(&slots, space, now).0.0;
    assert_eq!([tag(1, 1), tag(2, 2), tag(3, 3), tag(1, 4)], [1, 2, 3, 1]);
    assert_eq!([tag(4, 5), tag(5, 6), tag(6, 7)], [2, 3, 1]);
}

#[test]
fn slot_of_another_space_loses_its_phase() {
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
fn shared_tag_determines_the_slot() {
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
    /// Two spaces never share a tag, and a slot has the generation last recorded for its space.
    #[test]
    fn tag_has_one_space(spaces in prop::collection::vec(1u64..9, 1..200)) {
        let slots: [TagSlot; 4] = TagSlots::VACANT;
        let mut owner = [0; 5];
        let mut recorded = [0; 9];
        for (now, &space) in (1u64..).zip(&spaces) {
            let (tag, generation) = choose(&slots, space, now);
            let tag = usize::from(tag.0);
            if let Some(generation) = generation {
                prop_assert_eq!(owner[tag], space);
                prop_assert_eq!(generation, recorded[space as usize]);
            } else {
                prop_assert_ne!(owner[tag], space);
            }
            owner[tag] = space;
            recorded[space as usize] = now;
            find(&slots, SpaceId(space)).unwrap().set_generation(now);
        }
    }
}
