use super::*;
use proptest::prelude::*;

/// The slots of a CPU with tags of its own.
struct Own<const N: usize> {
    slots: [TagSlot; N],
    last: LastTaken,
    takeovers: u64,
    now: u64,
}

impl<const N: usize> Own<N> {
    fn new() -> Self {
        let own = Self { slots: TagSlots::VACANT, last: LastTaken::new(), takeovers: 0, now: 0 };
        own.last.reset(N);
        own
    }

    /// Loads a space. Returns its tag, and the recorded generation if the space had a slot.
    fn load(&mut self, space: u64) -> (u16, Option<u64>) {
        let space = SpaceId(space);
        self.now += 1;
        if let Some(slot) = find(&self.slots, space) {
            slot.set_last_used(self.now);
            return (slot.tag().0, Some(slot.generation()));
        }
        self.takeovers += 1;
        let index = self.last.take_over(&self.slots, self.takeovers, self.now).unwrap();
        let tag = Tag(index as u16 + 1);
        self.slots[index].give_to(space, tag);
        self.slots[index].set_last_used(self.now);
        (tag.0, None)
    }

    fn tags(&mut self, spaces: impl IntoIterator<Item = u64>) -> std::vec::Vec<u16> {
        spaces.into_iter().map(|space| self.load(space).0).collect()
    }
}

#[test]
fn spaces_in_use_keep_their_tags() {
    let mut own = Own::<3>::new();
    let (a, b) = (own.load(1).0, own.load(2).0);
    for other in 10..30 {
        assert_eq!(own.load(other).1, None);
        assert_eq!(own.load(1), (a, Some(0)));
        assert_eq!(own.load(2), (b, Some(0)));
    }
}

#[test]
fn seventh_space_takes_the_tag_that_was_taken_last() {
    let mut own = Own::<6>::new();
    assert_eq!(own.tags(1..=6), [1, 2, 3, 4, 5, 6]);
    assert_eq!(own.tags([7, 1, 2]), [6, 1, 2]);
    // The eighth takeover is in turn.
    assert_eq!(own.tags([8, 4, 5]), [3, 4, 5]);
    assert_eq!(own.tags([9, 9, 10]), [3, 3, 6], "9 was loaded twice, and 7 least recently");
}

/// A CPU that comes online again has no tags in use.
#[test]
fn vacant_slots_are_taken_first() {
    let mut own = Own::<6>::new();
    own.tags([1, 2, 3, 4, 5, 6, 7, 7, 8, 9]);
    vacate(&own.slots);
    own.last.reset(6);
    assert_eq!(own.tags(11..=16), [1, 2, 3, 4, 5, 6]);
    assert!((11..=16).all(|space| own.load(space).1.is_some()));
}

/// Where more spaces take turns than there are slots, most keep their tags.
#[test]
fn spaces_that_take_turns_keep_tags() {
    /// Enough for the first takeovers to weigh little.
    const TURNS: usize = if cfg!(miri) { 20 } else { 100 };
    let percent = |percent: usize| 5 * percent * TURNS / 100;
    let kept_mins = [(6, 6 * (TURNS - 1)), (7, percent(85)), (8, percent(80)), (24, percent(25))];
    for (spaces, kept_min) in kept_mins {
        let mut own = Own::<6>::new();
        let loads = (0..TURNS).flat_map(|_| 1..=spaces);
        let kept = loads.filter(|&space| own.load(space).1.is_some()).count();
        assert!(kept >= kept_min, "{spaces} spaces: {kept}");
    }
}

/// After at most eight takeovers, two spaces that alternate do not share a slot any more.
#[test]
fn dead_spaces_lose_their_tags() {
    let mut own = Own::<6>::new();
    (0..3).for_each(|_| _ = own.tags(1..=6));
    let alternating = (0..20).map(|load| own.load(7 + load % 2).1.is_some());
    let kept: std::vec::Vec<bool> = alternating.collect();
    assert!(kept[8..].iter().all(|&kept| kept), "{kept:?}");
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
    assert!(LastTaken::new().take_over(&slots, 9, 1).is_none());
    assert!(named_by(&slots, Tag(1)).is_none());
}

proptest! {
    /// Two spaces never share a tag, and a slot has the generation last recorded for its space.
    #[test]
    fn tag_has_one_space(spaces in prop::collection::vec(1u64..9, 1..200)) {
        let (mut own, mut owner, mut recorded) = (Own::<4>::new(), [0; 5], [0; 9]);
        for (now, &space) in (1u64..).zip(&spaces) {
            let (tag, generation) = own.load(space);
            let tag = usize::from(tag);
            if let Some(generation) = generation {
                prop_assert_eq!(owner[tag], space);
                prop_assert_eq!(generation, recorded[space as usize]);
            } else {
                prop_assert_ne!(owner[tag], space);
            }
            owner[tag] = space;
            recorded[space as usize] = now;
            find(&own.slots, SpaceId(space)).unwrap().set_generation(now);
        }
    }
}
