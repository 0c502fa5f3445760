//! *Doorbell*: how a CPU is told, and how it says that it has heard.
//!
//! To ring is to set a flag; the CPU that is rung clears it and begins a *round*: it catches up,
//! and then publishes the round's number. Whoever rings a bell that is rung already, or whose owner
//! is at it, sends no interrupt, and one round satisfies all who rang before it began. There is no
//! call object, no queue and no lock, so the handler has nothing to take apart, and ringing needs
//! no memory: it is one locked operation, whoever else rings. What to do when answering is not in
//! the bell: the CPU [catches up](crate::PinnedCpu::handle_flush_ipi) with whatever it has loaded.

use core::sync::atomic::Ordering::Relaxed;

use crate::cache_padded::CachePadded;
use crate::memory::{Memory, Word, order};
use crate::rules::Rule;

/// One CPU's bell.
///
/// A line for those who ring, and a line for those who wait: rings do not disturb a waiter, which
/// reads its line again only when it was written. Rounds are 61 bits: they last for decades.
#[repr(C)]
pub(crate) struct Bell<M: Memory> {
    /// How many rounds have begun, times [`ROUND`], with the flags below.
    rung: CachePadded<M::Word>,
    /// The last round that is done.
    answered: CachePadded<M::Word>,
}

/// Someone has rung, and no round has begun since.
const RUNG: u64 = 1;
/// The owner is at it, and will look again: no interrupt is needed.
const ATTENDED: u64 = 2;
/// The CPU is offline: rings are not heard, and need not be.
const DISCONNECTED: u64 = 4;
const ROUND: u64 = 8;

/// What became of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rung {
    /// The bell was quiet: send the interrupt.
    First,
    /// An interrupt is on its way already, or none is needed.
    Coalesced,
    /// The CPU is offline.
    Disconnected,
}

/// A round that its owner has begun: it must catch up, and then end the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Round(u64);

/// What the owner does if some CPU has rung by the time that it leaves its bell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WhenRung {
    /// It begins another round.
    Begin,
    /// It leaves all the same.
    HangUp,
}

/// How the owner has left its bell, if it has.
#[derive(PartialEq, Eq)]
enum Left {
    Quiet,
    Rung,
    Begun(Round),
}

/// A round to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl<M: Memory> Bell<M> {
    /// A disconnected bell: CPUs start offline.
    pub(crate) fn new() -> Self {
        Self {
            rung: CachePadded(M::Word::new(DISCONNECTED)),
            answered: CachePadded(M::Word::new(0)),
        }
    }

    /// Rings, after the full fence of the flush: see [`Rule::BellAcquire`]. A disconnected bell
    /// says so: see [`Rule::DisconnectAcquire`].
    ///
    /// Released, too, for thrift and not for safety: whoever sees this ring finds the flush's log
    /// entry written, and need not flush everything for want of it.
    #[inline]
    pub(crate) fn ring(&self, machine: &M) -> Rung {
        let found = self.rung.0.fetch_or(RUNG, order(machine, Rule::DisconnectAcquire));
        if found & DISCONNECTED != 0 {
            Rung::Disconnected
        } else if found & (RUNG | ATTENDED) != 0 {
            Rung::Coalesced
        } else {
            Rung::First
        }
    }

    /// The owner begins a round, if somebody has rung.
    #[inline]
    pub(crate) fn begin_round(&self, machine: &M) -> Option<Round> {
        // Relaxed: only a hint; the operation that begins the round is ordered by LookAcquire.
        let found = self.rung.0.load(Relaxed);
        (found & RUNG != 0).then(|| self.begin_round_of(machine, found))
    }

    /// The owner begins a round for those who rang by the time that the word was `found`, and all
    /// who have since. See [`Rule::BellAcquire`].
    #[inline]
    fn begin_round_of(&self, machine: &M, found: u64) -> Round {
        // Others only set the flag, which is set: an addition changes the rest as if alone.
        let attend = if found & ATTENDED == 0 { ATTENDED } else { 0 };
        let change = ROUND + attend - RUNG;
        let before = self.rung.0.fetch_add(change, order(machine, Rule::BellAcquire));
        Round(before + change)
    }

    /// The owner has caught up: tells all who rang before the round began. The bell stays attended.
    #[inline]
    pub(crate) fn end_round(&self, machine: &M, round: Round) {
        self.answered.0.store(round.0 / ROUND, order(machine, Rule::AnswerRelease));
    }

    /// The owner ceases to attend to its bell, unless some CPU has rung since the last round began.
    ///
    /// That CPU sent no interrupt, for the bell was attended: the owner must serve it as well, and
    /// gets the new round to do so. Without that the CPU waits for ever. See [`Rule::RecheckBell`].
    #[inline]
    pub(crate) fn leave(&self, machine: &M) -> Option<Round> {
        match self.leave_or(machine, WhenRung::Begin) {
            Left::Begun(round) => Some(round),
            Left::Quiet | Left::Rung => None,
        }
    }

    /// The owner ceases to attend to its bell in any case. Returns whether some CPU has rung since
    /// the last round began: then the owner must send itself the interrupt, for that CPU has not.
    pub(crate) fn hang_up(&self, machine: &M) -> bool {
        self.leave_or(machine, WhenRung::HangUp) == Left::Rung
    }

    #[inline]
    fn leave_or(&self, machine: &M, when_rung: WhenRung) -> Left {
        let release = order(machine, Rule::QuietRelease);
        if machine.breaks(Rule::RecheckBell) {
            self.rung.0.fetch_and(!(RUNG | ATTENDED), release);
            return Left::Quiet;
        }
        // Relaxed: an expected value; both ways on are read-modify-writes with rules.
        let mut found = self.rung.0.load(Relaxed);
        loop {
            if found & RUNG != 0 && when_rung == WhenRung::Begin {
                return Left::Begun(self.begin_round_of(machine, found));
            }
            let left = found & !ATTENDED;
            // Relaxed: where it fails, it is tried again.
            match self.rung.0.compare_exchange(found, left, release, Relaxed) {
                Ok(_) if found & RUNG != 0 => return Left::Rung,
                Ok(_) => return Left::Quiet,
                Err(newer) => found = newer,
            }
        }
    }

    /// The owner will look at its bell over and over until it [leaves](Self::leave_space) it: no
    /// interrupt need be sent. If its handler runs in between all the same, that leaves the bell,
    /// and interrupts are sent again: nothing is lost.
    #[inline]
    pub(crate) fn attend(&self) {
        // Relaxed: this publishes nothing, and rings meet it in the total order of one word.
        self.rung.0.fetch_or(ATTENDED, Relaxed);
    }

    /// Hints that a waiter will ask for the ticket, and for the answer.
    #[inline]
    pub(crate) fn prefetch(&self, machine: &M) {
        machine.prefetch(&self.rung.0);
        machine.prefetch(&self.answered.0);
    }

    /// The round that satisfies all who have rung so far, or `None` if they are satisfied.
    ///
    /// A waiter takes it when it starts to wait, not when it rings: a later round is as good, and
    /// one ticket per CPU would make a waiter on 4096 CPUs 32 KiB large. See
    /// [`Rule::QuietAcquire`]. A CPU that went offline has used its last translation.
    #[inline]
    pub(crate) fn ticket(&self, machine: &M) -> Option<Ticket> {
        let found = self.rung.0.load(order(machine, Rule::QuietAcquire));
        let is_satisfied = found & DISCONNECTED != 0 || found & (RUNG | ATTENDED) == 0;
        (!is_satisfied).then_some(Ticket(found / ROUND + (found & RUNG)))
    }

    /// Whether a ticket's round is done. See [`Rule::WaitAcquire`].
    #[inline]
    pub(crate) fn has_answered(&self, machine: &M, ticket: Ticket) -> bool {
        self.answered.0.load(order(machine, Rule::WaitAcquire)) >= ticket.0
    }

    /// The owner comes online. Who rang before did not wait.
    pub(crate) fn connect(&self) {
        // Relaxed: OnlineSync follows, before anything that a ring must find done.
        self.rung.0.fetch_and(!(DISCONNECTED | RUNG), Relaxed);
    }

    /// The owner goes offline, and has used its last translation: who waits for it need not any
    /// more. See [`Rule::DisconnectRelease`].
    ///
    /// That is a round, too, for those who have taken a ticket, and may look again only when the
    /// CPU is back.
    pub(crate) fn disconnect(&self, machine: &M) {
        let change = ROUND + DISCONNECTED;
        let before = self.rung.0.fetch_add(change, order(machine, Rule::DisconnectRelease));
        self.end_round(machine, Round(before + change));
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::soft::{Config, Host, Soft};

    /// A waiter lets the interrupt in while it attends to its bell, and the handler leaves the
    /// bell: who rings after that must find it as quiet as it is.
    #[test]
    fn a_handler_may_run_while_the_bell_is_attended() {
        let engine = Soft::<Host>::engine(Config::default());
        let machine = engine.machine();
        let bell = Bell::<Soft<Host>>::new();
        bell.connect();
        bell.attend();
        assert_eq!(bell.ring(machine), Rung::Coalesced);
        let ticket = bell.ticket(machine).unwrap();
        let round = bell.begin_round(machine).unwrap();
        bell.end_round(machine, round);
        assert_eq!(bell.leave(machine), None);
        assert!(bell.has_answered(machine, ticket));
        assert_eq!(bell.leave(machine), None, "the waiter's own");
        assert_eq!(bell.ticket(machine), None);
        assert_eq!(bell.ring(machine), Rung::First);
    }

    #[test]
    fn a_round_satisfies_those_who_rang_before_it_began() {
        let engine = Soft::<Host>::engine(Config::default());
        let machine = engine.machine();
        let bell = Bell::<Soft<Host>>::new();
        assert_eq!(bell.ring(machine), Rung::Disconnected);
        bell.connect();
        for rounds in 0..3 {
            assert_eq!((bell.begin_round(machine), bell.leave(machine)), (None, None));
            assert_eq!(bell.ticket(machine), None, "nobody has rung");
            assert_eq!(bell.ring(machine), Rung::First);
            assert_eq!(bell.ring(machine), Rung::Coalesced);
            let early = bell.ticket(machine).unwrap();
            let first = bell.begin_round(machine).unwrap();
            assert_eq!(bell.ticket(machine), Some(early), "it is on, and will do");
            assert_eq!(bell.begin_round(machine), None);
            assert_eq!(bell.ring(machine), Rung::Coalesced);
            let late = bell.ticket(machine).unwrap();
            assert!(!bell.has_answered(machine, early));
            bell.end_round(machine, first);
            assert!(bell.has_answered(machine, early) && !bell.has_answered(machine, late));
            let second = bell.leave(machine).expect("someone has rung meanwhile");
            bell.end_round(machine, second);
            assert!(bell.has_answered(machine, late));
            assert_eq!(bell.leave(machine), None);
            assert_eq!(late, Ticket(2 * rounds + 2));
        }
    }

    #[test]
    fn bell_that_is_hung_up_stays_rung() {
        let engine = Soft::<Host>::engine(Config::default());
        let machine = engine.machine();
        let bell = Bell::<Soft<Host>>::new();
        bell.connect();
        assert_eq!(bell.ring(machine), Rung::First);
        bell.end_round(machine, bell.begin_round(machine).unwrap());
        assert!(!bell.hang_up(machine), "nobody has rung");
        assert_eq!(bell.ring(machine), Rung::First);
        bell.end_round(machine, bell.begin_round(machine).unwrap());
        assert_eq!(bell.ring(machine), Rung::Coalesced);
        let ticket = bell.ticket(machine).unwrap();
        assert!(bell.hang_up(machine), "its owner interrupts itself");
        assert_eq!(bell.ring(machine), Rung::Coalesced);
        assert!(!bell.has_answered(machine, ticket));
        bell.end_round(machine, bell.begin_round(machine).unwrap());
        assert!(bell.has_answered(machine, ticket));
        assert_eq!(bell.leave(machine), None);
        assert_eq!(bell.ring(machine), Rung::First);
    }

    #[test]
    fn who_waits_for_a_cpu_that_goes_offline_and_comes_back_is_satisfied() {
        let engine = Soft::<Host>::engine(Config::default());
        let machine = engine.machine();
        let bell = Bell::<Soft<Host>>::new();
        bell.connect();
        for _ in 0..3 {
            assert_eq!(bell.ring(machine), Rung::First);
            bell.end_round(machine, bell.begin_round(machine).unwrap());
            assert_eq!(bell.leave(machine), None);
        }
        assert_eq!(bell.ring(machine), Rung::First);
        let ticket = bell.ticket(machine).unwrap();
        bell.disconnect(machine);
        assert_eq!(bell.ring(machine), Rung::Disconnected);
        assert_eq!(bell.ticket(machine), None);
        bell.connect();
        assert!(bell.has_answered(machine, ticket));
        assert_eq!(bell.ring(machine), Rung::First);
        let next = bell.ticket(machine).unwrap();
        assert!(!bell.has_answered(machine, next), "that was for those who waited then");
    }
}
