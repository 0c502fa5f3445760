use super::*;
use crate::state::machine::tests::Plain;
use std::format;

#[test]
fn presence_survives_conversion_to_word() {
    let spaces = [1, 2, 3, 1 << 40].map(SpaceId);
    let states: [fn(SpaceId) -> Presence; 3] =
        [Presence::Lazy, Presence::Switching, Presence::Active];
    let on = spaces.into_iter().flat_map(|space| states.map(|state| (space, state(space))));
    for (space, presence) in on {
        assert_eq!(Presence::from_word(presence.to_word()), presence);
        let word = PresenceWord(presence.to_word());
        assert!(word.is_on(space) && !word.is_on(SpaceId(space.0 + 1)));
        if !matches!(presence, Presence::Switching(_)) {
            assert_eq!(word.is_active(), presence == Presence::Active(space));
            assert_eq!(word.is_lazy(), presence == Presence::Lazy(space));
        }
        assert_eq!(word.is_active_on(space), presence == Presence::Active(space));
        assert_eq!(word.is_lazy_on(space), presence == Presence::Lazy(space));
        assert_eq!(word.is_switching_to(space), presence == Presence::Switching(space));
    }
    let [lazy, switching, active] = states.map(|state| PresenceWord::from(state(spaces[2])));
    assert_eq!((lazy.lazy_to_switching(), lazy.lazy_to_active()), (switching, active));
    assert_eq!(active.active_to_lazy(), lazy);
    assert_eq!(Presence::from_word(Presence::Out.to_word()), Presence::Out);
    assert!(!PresenceWord(Presence::Out.to_word()).is_on(SpaceId(1)));
    // At any rate of new spaces, ids must not repeat within decades.
    let last = SpaceId((1 << 62) - 1);
    assert_eq!(Presence::from_word(Presence::Active(last).to_word()), Presence::Active(last));
}

#[test]
fn switching_cpu_uses_space_and_lazy_cpu_does_not() {
    let machine = Plain::<0>::with_tags(0);
    let (space, other) = (SpaceId(1), SpaceId(2));
    let uses = |presence: Presence| PresenceWord(presence.to_word()).uses(&machine, space);
    for state in [Presence::Switching, Presence::Active] {
        assert!(uses(state(space)));
        assert!(!uses(state(other)));
    }
    assert!(!uses(Presence::Lazy(space)));
    assert!(!uses(Presence::Out));
}

#[test]
fn debug_output_names_the_space() {
    let space = SpaceId(7);
    assert_eq!(space.number(), 7);
    let shown =
        [Presence::Out, Presence::Lazy(space), Presence::Switching(space), Presence::Active(space)]
            .map(|presence| format!("{presence:?}"));
    assert_eq!(shown, ["Out", "Lazy(7)", "Switching(7)", "Active(7)"]);
}
