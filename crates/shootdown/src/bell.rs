//! *Doorbell*: how a CPU is told, and how it says that it has heard.
//!
//! Ringing takes a ticket; answering publishes the last ticket served. Whoever rings a bell that
//! is ringing already sends no interrupt, and one answer satisfies all who rang before it. There
//! is no call object, no queue and no lock, so the handler has nothing to take apart, and ringing
//! needs no memory. What to do when answering is not in the bell: the CPU
//! [catches up](crate::Here::answer) with whatever it has loaded.

use core::sync::atomic::Ordering::{Relaxed, Release};

use crate::machine::{Machine, Word};
use crate::rules::{Rule, order};

/// One CPU's bell.
///
/// Tickets are 62 bits: at a billion rings a second they last for a century.
pub(crate) struct Bell<M: Machine> {
    /// The last ticket taken, times [`TICKET`], with the flags below.
    rung: M::Word,
    /// The last ticket served.
    answered: M::Word,
}

/// Someone has rung, and the CPU has not said that it is done: an interrupt is on its way.
const ARMED: u64 = 1;
/// The CPU is offline: rings are not heard, and need not be.
const DISCONNECTED: u64 = 2;
const TICKET: u64 = 4;

/// What became of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rung {
    /// The bell was quiet: send the interrupt.
    First,
    /// An interrupt is on its way already.
    Coalesced,
    /// The CPU is offline.
    Disconnected,
}

/// What the bell's owner saw of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look(u64);

/// A ticket to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl<M: Machine> Bell<M> {
    /// A disconnected bell: CPUs start offline.
    pub(crate) fn new() -> Self {
        Self { rung: M::Word::new(DISCONNECTED), answered: M::Word::new(0) }
    }

    /// Rings, after the full fence of the flush: see [`Rule::LookAcquire`]. A disconnected bell
    /// says so: see [`Rule::DisconnectAcquire`].
    #[inline]
    pub(crate) fn ring(&self, machine: &M) -> Rung {
        let acquire = order(machine, Rule::DisconnectAcquire);
        let mut found = self.rung.load(acquire);
        loop {
            if found & DISCONNECTED != 0 {
                return Rung::Disconnected;
            }
            let rung = (found + TICKET) | ARMED;
            // Released for thrift, not for safety: whoever sees this ring finds the flush's log
            // entry written, and need not flush everything for want of it.
            match self.rung.compare_exchange(found, rung, Release, acquire) {
                Ok(_) if found & ARMED != 0 => return Rung::Coalesced,
                Ok(_) => return Rung::First,
                Err(newer) => found = newer,
            }
        }
    }

    /// The owner's look at its bell: `None` if it is quiet. See [`Rule::LookAcquire`].
    #[inline]
    pub(crate) fn look(&self, machine: &M) -> Option<Look> {
        let rung = self.rung.load(order(machine, Rule::LookAcquire));
        (rung & ARMED != 0).then_some(Look(rung))
    }

    /// The owner's answer to all who had rung when it looked.
    ///
    /// If more have rung since, they sent no interrupt, for the bell was armed: the owner must
    /// serve them as well, and gets the new look to do so. Without that they wait for ever. See
    /// [`Rule::LookAgain`].
    #[inline]
    pub(crate) fn answer(&self, machine: &M, look: Look) -> Option<Look> {
        self.answered.store(look.0 / TICKET, order(machine, Rule::AnswerRelease));
        if machine.breaks(Rule::LookAgain) {
            self.rung.fetch_and(!ARMED, order(machine, Rule::QuietRelease));
            return None;
        }
        let quiet = look.0 & !ARMED;
        self.rung
            .compare_exchange(
                look.0,
                quiet,
                order(machine, Rule::QuietRelease),
                order(machine, Rule::LookAcquire),
            )
            .err()
            .map(Look)
    }

    /// The ticket that satisfies all who have rung so far, or `None` if they are satisfied.
    ///
    /// A waiter takes it when it starts to wait, not when it rings: a later ticket is as good,
    /// and one ticket per CPU would make a waiter on 4096 CPUs 32 KiB large. See
    /// [`Rule::QuietAcquire`].
    #[inline]
    pub(crate) fn ticket(&self, machine: &M) -> Option<Ticket> {
        let rung = self.rung.load(order(machine, Rule::QuietAcquire));
        (rung & ARMED != 0).then_some(Ticket(rung / TICKET))
    }

    /// Whether a ticket has been served. See [`Rule::WaitAcquire`].
    #[inline]
    pub(crate) fn has_answered(&self, machine: &M, ticket: Ticket) -> bool {
        self.answered.load(order(machine, Rule::WaitAcquire)) >= ticket.0
    }

    /// The owner comes online.
    pub(crate) fn connect(&self) {
        self.rung.fetch_and(!DISCONNECTED, Relaxed);
    }

    /// The owner goes offline, if nobody is waiting for it; else the look that it must answer
    /// first. See [`Rule::DisconnectRelease`], [`Rule::AnswerBeforeOffline`].
    pub(crate) fn disconnect(&self, machine: &M) -> Result<(), Look> {
        let release = order(machine, Rule::DisconnectRelease);
        let acquire = order(machine, Rule::LookAcquire);
        let mut found = self.rung.load(acquire);
        loop {
            if found & ARMED != 0 && !machine.breaks(Rule::AnswerBeforeOffline) {
                return Err(Look(found));
            }
            let off = found | DISCONNECTED;
            match self.rung.compare_exchange(found, off, release, acquire) {
                Ok(_) => return Ok(()),
                Err(newer) => found = newer,
            }
        }
    }
}
