use super::*;
use crate::soft::{Config, Host, Soft};

/// A waiter takes the interrupt while it attends to its bell, and the handler leaves the bell.
/// A later ring must then find the bell quiet.
#[test]
fn handler_on_attended_bell_leaves_it_quiet() {
    let engine = Soft::<Host>::engine(Config::default());
    let machine = engine.machine();
    let bell = Bell::<Soft<Host>>::default();
    bell.connect();
    bell.attend();
    assert_eq!(bell.ring(machine), Rung::Coalesced);
    let ticket = bell.ticket(machine).unwrap();
    let round = bell.begin_round(machine).unwrap();
    bell.end_round(machine, round);
    assert_eq!(bell.leave(machine, || ()), None);
    assert!(bell.has_answered(machine, ticket));
    assert_eq!(
        bell.leave(machine, || ()),
        None,
        "the waiter leaves the bell after its handler did"
    );
    assert_eq!(bell.ticket(machine), None);
    assert_eq!(bell.ring(machine), Rung::First);
}

#[test]
fn round_satisfies_rings_before_its_begin() {
    let engine = Soft::<Host>::engine(Config::default());
    let machine = engine.machine();
    let bell = Bell::<Soft<Host>>::default();
    assert_eq!(bell.ring(machine), Rung::Disconnected);
    bell.connect();
    for rounds in 0..3 {
        assert_eq!((bell.begin_round(machine), bell.leave(machine, || ())), (None, None));
        assert_eq!(bell.ticket(machine), None, "no CPU has rung");
        assert_eq!(bell.ring(machine), Rung::First);
        assert_eq!(bell.ring(machine), Rung::Coalesced);
        let early = bell.ticket(machine).unwrap();
        let first = bell.begin_round(machine).unwrap();
        assert_eq!(bell.ticket(machine), Some(early), "the current round is enough");
        assert_eq!(bell.begin_round(machine), None);
        assert_eq!(bell.ring(machine), Rung::Coalesced);
        let late = bell.ticket(machine).unwrap();
        assert!(!bell.has_answered(machine, early));
        bell.end_round(machine, first);
        assert!(bell.has_answered(machine, early) && !bell.has_answered(machine, late));
        let second = bell.leave(machine, || ()).expect("the bell was rung during the first round");
        bell.end_round(machine, second);
        assert!(bell.has_answered(machine, late));
        assert_eq!(bell.leave(machine, || ()), None);
        assert_eq!(late, Ticket::of(2 * rounds + 2));
    }
}

#[test]
fn bell_left_by_hang_up_stays_rung() {
    let engine = Soft::<Host>::engine(Config::default());
    let machine = engine.machine();
    let bell = Bell::<Soft<Host>>::default();
    bell.connect();
    assert_eq!(bell.ring(machine), Rung::First);
    bell.end_round(machine, bell.begin_round(machine).unwrap());
    assert!(!bell.hang_up(machine, || ()), "no CPU has rung");
    assert_eq!(bell.ring(machine), Rung::First);
    bell.end_round(machine, bell.begin_round(machine).unwrap());
    assert_eq!(bell.ring(machine), Rung::Coalesced);
    let ticket = bell.ticket(machine).unwrap();
    assert!(bell.hang_up(machine, || ()), "the owner must interrupt itself");
    assert_eq!(bell.ring(machine), Rung::Coalesced);
    assert!(!bell.has_answered(machine, ticket));
    bell.end_round(machine, bell.begin_round(machine).unwrap());
    assert!(bell.has_answered(machine, ticket));
    assert_eq!(bell.leave(machine, || ()), None);
    assert_eq!(bell.ring(machine), Rung::First);
}

#[test]
fn offline_and_online_again_satisfies_earlier_ticket() {
    let engine = Soft::<Host>::engine(Config::default());
    let machine = engine.machine();
    let bell = Bell::<Soft<Host>>::default();
    bell.connect();
    for _ in 0..3 {
        assert_eq!(bell.ring(machine), Rung::First);
        bell.end_round(machine, bell.begin_round(machine).unwrap());
        assert_eq!(bell.leave(machine, || ()), None);
    }
    assert_eq!(bell.ring(machine), Rung::First);
    let ticket = bell.ticket(machine).unwrap();
    bell.disconnect(machine, || ());
    assert_eq!(bell.ring(machine), Rung::Disconnected);
    assert_eq!(bell.ticket(machine), None);
    bell.connect();
    assert!(bell.has_answered(machine, ticket));
    assert_eq!(bell.ring(machine), Rung::First);
    let next = bell.ticket(machine).unwrap();
    assert!(!bell.has_answered(machine, next), "the disconnection satisfies old tickets only");
}

/// The owner may have stopped while it polled, or in the middle of a round.
#[test]
fn disconnection_ends_what_a_stopped_owner_began() {
    type Begin = fn(&Bell<Soft<Host>>, &Soft<Host>);
    let engine = Soft::<Host>::engine(Config::default());
    let machine = engine.machine();
    let begin: [Begin; 3] = [
        |_, _| (),
        |bell, _| bell.attend(),
        |bell, machine| _ = bell.begin_round(machine).unwrap(),
    ];
    let states = [
        (BellState::Rung, None),
        (BellState::Polling, Some(true)),
        (BellState::Answering, Some(true)),
    ];
    for (begin, (state, is_masked)) in begin.into_iter().zip(states) {
        let bell = Bell::<Soft<Host>>::default();
        bell.connect();
        assert_eq!(bell.state(), BellState::Quiet);
        assert_eq!((bell.is_quiet(), bell.state().is_masked()), (true, None));
        assert_eq!(bell.ring(machine), Rung::First);
        begin(&bell, machine);
        assert_eq!(bell.state(), state);
        assert_eq!((bell.is_quiet(), state.is_masked()), (false, is_masked));
        let ticket = bell.ticket(machine).unwrap();
        for _ in 0..2 {
            bell.disconnect(machine, || ());
            assert_eq!(bell.state(), BellState::Disconnected);
            assert_eq!(bell.state().is_masked(), Some(true));
            assert!(bell.has_answered(machine, ticket) && bell.ticket(machine).is_none());
        }
        assert_eq!(bell.ring(machine), Rung::Disconnected);
        bell.connect();
        assert_eq!((bell.state(), bell.ring(machine)), (BellState::Quiet, Rung::First));
    }
}

/// The owner wakes waiters when its bell becomes quiet, or disconnected, and not while it is rung.
#[test]
fn awaited_owner_wakes_once_it_has_answered() {
    let engine = Soft::<Host>::engine(Config::default());
    let machine = engine.machine();
    let bell = Bell::<Soft<Host>>::default();
    assert!(!bell.request_wake(machine), "the bell is disconnected");
    bell.connect();
    assert!(!bell.request_wake(machine), "the bell is quiet");
    let woken = core::cell::Cell::new(0);
    let wake = || woken.set(woken.get() + 1);
    bell.leave(machine, wake);
    assert_eq!(woken.take(), 1, "a request that was refused may wake");
    for hangs_up in [false, true] {
        bell.ring(machine);
        assert!(bell.request_wake(machine));
        let round = bell.begin_round(machine).unwrap();
        assert!(bell.request_wake(machine), "a round has begun");
        bell.end_round(machine, round);
        bell.ring(machine);
        let rung = if hangs_up {
            assert!(bell.hang_up(machine, wake));
            bell.begin_round(machine)
        } else {
            bell.leave(machine, wake)
        };
        assert_eq!(woken.get(), 0, "the bell is rung");
        bell.end_round(machine, rung.unwrap());
        let is_rung = if hangs_up {
            bell.hang_up(machine, wake)
        } else {
            bell.leave(machine, wake).is_some()
        };
        assert_eq!((is_rung, woken.take()), (false, 1));
        assert_eq!((bell.leave(machine, wake), woken.get()), (None, 0), "once for each request");
    }
    bell.ring(machine);
    assert!(bell.request_wake(machine));
    bell.disconnect(machine, wake);
    assert_eq!(woken.take(), 1);
}
