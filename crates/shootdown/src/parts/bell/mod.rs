//! *Doorbell*: how a flush notifies a CPU, and how the CPU reports that it has caught up.
//!
//! A flush rings a CPU's bell by setting a flag. The CPU clears the flag and begins a *round*: it
//! catches up, and then publishes the number of the round. A ring sends no interrupt if the bell is
//! rung already, or if the owner of the bell is attending to it. One round satisfies every CPU that
//! rang before the round began.
//!
//! There is no call object, no queue and no lock. So the handler has nothing to dequeue, and a ring
//! allocates no memory: it is one locked operation, however many CPUs ring. The bell does not carry
//! what the CPU has to do: the CPU [catches up](crate::PinnedCpu::handle_flush_ipi) with the spaces
//! that it has loaded.

use core::num::NonZeroU64;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{self, Relaxed};

use crate::base::cache_padded::CachePadded;
use crate::base::memory::{Memory, Word, order};
use crate::base::rules::Rule;

/// One CPU's bell.
///
/// Rings write one cache line, and waiters read another one. So a ring does not disturb a waiter,
/// which fetches its line again only after the owner has written it. A round number has 60 bits,
/// which last for decades.
#[repr(C)]
pub(crate) struct Bell<M: Memory> {
    /// Number of rounds that have begun, times [`ROUND`], plus the flags below.
    rung: CachePadded<M::Word>,
    pub(crate) owned: CachePadded<Owned<M>>,
}

/// The words that only the bell's owner writes.
pub(crate) struct Owned<M: Memory> {
    /// Number of the last round that is done.
    answered: M::Word,
    /// Whether the owner is in user mode, where flushes of the kernel do not ring: see
    /// `path/user_mode`. It is here because this line has room.
    pub(crate) in_user: M::Word,
}

/// A CPU has rung, and no round has begun since.
const RUNG: u64 = 1;
/// The owner attends to the bell, and will read it again: no interrupt is needed.
const ATTENDED: u64 = 2;
/// The owner is offline: it handles no rings, and no flush waits for it.
const DISCONNECTED: u64 = 4;
/// A waiter sleeps until the owner has answered: the owner must wake it.
const AWAITED: u64 = 8;
const ROUND: u64 = 16;

/// Result of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rung {
    /// The bell was quiet: the caller must send the interrupt.
    First,
    /// An interrupt is on its way already, or none is needed.
    Coalesced,
    /// The CPU is offline.
    Disconnected,
}

/// State of a CPU's bell: how far the CPU has got with the answer to a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BellState {
    /// No flush waits for the CPU: it was not rung, or has answered.
    Quiet,
    /// The bell is rung, and the CPU has not entered its handler. It masks the interrupt, does not
    /// run, or the interrupt was lost: shared memory does not show which.
    Rung,
    /// The CPU waits for a flush of its own with the interrupt masked, and polls its bell between
    /// two calls of [`wait_hint`](crate::Machine::wait_hint), whether the bell is rung or not.
    Polling,
    /// The CPU is in its handler, or has stopped there.
    Answering,
    /// The CPU is offline.
    Disconnected,
}

impl BellState {
    /// `Some(true)` if the CPU masks the flush interrupt; `None` if the bell does not show it.
    #[must_use]
    pub const fn is_masked(self) -> Option<bool> {
        match self {
            Self::Polling | Self::Answering | Self::Disconnected => Some(true),
            Self::Quiet | Self::Rung => None,
        }
    }
}

/// A round that its owner has begun: it must catch up, and then end the round. Its number times
/// [`ROUND`], plus any flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Round(u64);

/// The owner's reaction if a CPU has rung by the time that the owner leaves its bell.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WhenRung {
    /// The owner begins another round.
    Begin,
    /// The owner leaves the bell rung.
    HangUp,
}

/// State of the bell after the owner has tried to leave it.
#[derive(PartialEq, Eq)]
enum Left {
    Quiet,
    /// Quiet, and a waiter sleeps.
    Awaited,
    Rung,
    Begun(Round),
}

/// 1 plus the number of a round to wait for, so that an optional ticket takes one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(pub(crate) NonZeroU64);

impl Ticket {
    #[inline]
    const fn of(round: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(round))
    }
}

impl<M: Memory<Word = AtomicU64>> Bell<M> {
    /// A disconnected bell, because CPUs start offline.
    pub(crate) const fn new() -> Self {
        Self {
            rung: CachePadded(AtomicU64::new(DISCONNECTED)),
            owned: CachePadded(Owned { answered: AtomicU64::new(0), in_user: AtomicU64::new(0) }),
        }
    }
}

impl<M: Memory> Default for Bell<M> {
    fn default() -> Self {
        Self {
            rung: CachePadded(M::Word::new(DISCONNECTED)),
            owned: CachePadded(Owned { answered: M::Word::new(0), in_user: M::Word::new(0) }),
        }
    }
}

impl<M: Memory> Bell<M> {
    /// Rings the bell. Call this after the full fence of the flush: see [`Rule::BellAcquire`]. For
    /// a disconnected bell, see [`Rule::DisconnectAcquire`].
    ///
    /// The operation is also a release. This saves work and is not needed for safety: a CPU that
    /// observes the ring finds the flush's log entry written, and does not have to flush everything
    /// because the entry is absent.
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

    /// Begins a round on the owner, if a CPU has rung.
    #[inline]
    pub(crate) fn begin_round(&self, machine: &M) -> Option<Round> {
        // Relaxed: only a hint. BellAcquire orders the operation that begins the round.
        let found = self.rung.0.load(Relaxed);
        (found & RUNG != 0).then(|| self.begin_round_of(machine, found))
    }

    /// Begins a round on the owner, for every CPU that has rung so far. The word was `found`, with
    /// [`RUNG`] set. See [`Rule::BellAcquire`].
    #[inline]
    fn begin_round_of(&self, machine: &M, found: u64) -> Round {
        // Other CPUs only set RUNG, which is set already. So one addition changes all fields, as if
        // no other CPU wrote the word.
        let attend = if found & ATTENDED == 0 { ATTENDED } else { 0 };
        let change = ROUND + attend - RUNG;
        let before = self.rung.0.fetch_add(change, order(machine, Rule::BellAcquire));
        // The flags do not matter for the number.
        Round(before + ROUND)
    }

    /// Ends a round of the owner, which has caught up: notifies every CPU that rang before the
    /// round began. The bell stays attended.
    #[inline]
    pub(crate) fn end_round(&self, machine: &M, round: Round) {
        self.owned.0.answered.store(round.0 / ROUND, order(machine, Rule::AnswerRelease));
    }

    /// Stops attending to the bell, unless a CPU has rung since the last round began. Then this
    /// begins and returns a new round. Calls `wake` if the bell is quiet now and waiters sleep.
    ///
    /// The ringing CPU sent no interrupt, because the bell was attended. So the owner must do the
    /// new round. Without it, the ringing CPU waits forever. See [`Rule::RecheckBell`].
    #[inline]
    pub(crate) fn leave(&self, machine: &M, wake: impl FnOnce()) -> Option<Round> {
        match self.leave_or(machine, WhenRung::Begin) {
            Left::Begun(round) => return Some(round),
            Left::Awaited => wake(),
            Left::Quiet | Left::Rung => {}
        }
        None
    }

    /// Stops attending to the bell in any case. Returns `true` if a CPU has rung since the last
    /// round began. The owner must then send itself the interrupt, because that CPU has not sent
    /// one. Calls `wake` as [`leave`](Self::leave) does.
    pub(crate) fn hang_up(&self, machine: &M, wake: impl FnOnce()) -> bool {
        let left = self.leave_or(machine, WhenRung::HangUp);
        if left == Left::Awaited {
            wake();
        }
        left == Left::Rung
    }

    #[inline]
    fn leave_or(&self, machine: &M, when_rung: WhenRung) -> Left {
        let release = order(machine, Rule::QuietRelease);
        if machine.breaks(Rule::RecheckBell) {
            self.rung.0.fetch_and(!(RUNG | ATTENDED), release);
            return Left::Quiet;
        }
        // Relaxed: an expected value. Both read-modify-writes have a rule.
        let found = self.rung.0.load(Relaxed);
        // Relaxed: a failed exchange is repeated.
        let exchange = || self.rung.0.compare_exchange(found, found & !ATTENDED, release, Relaxed);
        if found & (RUNG | AWAITED) == 0 && exchange().is_ok() {
            return Left::Quiet;
        }
        self.leave_slow(machine, when_rung, release)
    }

    /// Leaves a bell that is rung, or for whose answer a waiter sleeps.
    #[cold]
    #[inline(never)]
    fn leave_slow(&self, machine: &M, when_rung: WhenRung, release: Ordering) -> Left {
        // Relaxed: as above.
        let mut found = self.rung.0.load(Relaxed);
        loop {
            if found & RUNG != 0 && when_rung == WhenRung::Begin {
                return Left::Begun(self.begin_round_of(machine, found));
            }
            // If the bell is rung, waiters are woken when the next round is over. Otherwise, the
            // exchange also acquires, so that the owner finds what a waiter did before it set the
            // flag: see WakeRelease.
            let awaited = if found & RUNG == 0 { found & AWAITED } else { 0 };
            let left = found & !(ATTENDED | awaited);
            // Relaxed: a failed exchange is repeated.
            match self.rung.0.compare_exchange(found, left, release, Relaxed) {
                Ok(_) if found & RUNG != 0 => return Left::Rung,
                Ok(_) => return if awaited == 0 { Left::Quiet } else { Left::Awaited },
                Err(newer) => found = newer,
            }
        }
    }

    /// Begins to attend to the bell: the owner polls it until it [leaves](Self::leave) it, so no
    /// CPU sends it an interrupt. If the owner's handler runs in between, the handler leaves the
    /// bell, and interrupts are sent again: no ring is lost.
    #[inline]
    pub(crate) fn attend(&self) {
        // Relaxed: this publishes nothing, and the modifications of one word are totally ordered.
        self.rung.0.fetch_or(ATTENDED, Relaxed);
    }

    /// Hints that the caller will soon [ring](Self::ring) the bell, or begin a round.
    #[inline]
    pub(crate) fn prefetch_for_ring(&self, machine: &M) {
        machine.prefetch_for_write(&self.rung.0);
    }

    /// Hints that the caller will soon take a [ticket](Self::ticket).
    #[inline]
    pub(crate) fn prefetch_for_ticket(&self, machine: &M) {
        machine.prefetch(&self.rung.0);
    }

    /// Hints that the caller will soon [look for an answer](Self::has_answered).
    #[inline]
    pub(crate) fn prefetch_answer(&self, machine: &M) {
        machine.prefetch(&self.owned.0.answered);
    }

    /// The round that satisfies every CPU that has rung so far; `None` if they are satisfied
    /// already.
    ///
    /// A waiter takes its ticket when it starts to wait for the owner, not when it rings. The round
    /// may then be a later one, which is as good; and one ticket per CPU would make a waiter on
    /// 4096 CPUs 32 KiB large. See [`Rule::QuietAcquire`]. A disconnected bell satisfies every CPU:
    /// its owner has used its last translation.
    #[inline]
    pub(crate) fn ticket(&self, machine: &M) -> Option<Ticket> {
        let found = self.rung.0.load(order(machine, Rule::QuietAcquire));
        let is_satisfied = found & DISCONNECTED != 0 || found & (RUNG | ATTENDED) == 0;
        (!is_satisfied).then_some(Ticket::of(found / ROUND + (found & RUNG)))
    }

    /// Returns `true` if the ticket's round is done. See [`Rule::WaitAcquire`].
    #[inline]
    pub(crate) fn has_answered(&self, machine: &M, ticket: Ticket) -> bool {
        self.owned.0.answered.load(order(machine, Rule::WaitAcquire)) >= ticket.0.get() - 1
    }

    /// Requests that the owner wakes waiters when it next leaves the bell. Returns `false` if the
    /// owner may have left it already, and wakes nobody. See [`Rule::RecheckAnswer`].
    pub(crate) fn request_wake(&self, machine: &M) -> bool {
        let found = self.rung.0.fetch_or(AWAITED, order(machine, Rule::WakeRelease));
        let has_left = found & DISCONNECTED != 0 || found & (RUNG | ATTENDED) == 0;
        !has_left || machine.breaks(Rule::RecheckAnswer)
    }

    /// Connects the bell of an owner that comes online. No CPU that rang before waits for it.
    pub(crate) fn connect(&self) {
        // Relaxed: the owner does whatever a ring relies on after OnlineSync, which follows.
        self.rung.0.fetch_and(!(DISCONNECTED | RUNG | AWAITED), Relaxed);
    }

    /// Disconnects the bell of an owner that goes offline, and has used its last translation: no
    /// CPU waits for it from now on. See [`Rule::DisconnectRelease`].
    ///
    /// This also counts as a round, for waiters that have a ticket and may poll again only after
    /// the owner is back online. If the owner has stopped at any place of its code, another CPU
    /// calls this instead. Calls `wake` if waiters sleep.
    pub(crate) fn disconnect(&self, machine: &M, wake: impl FnOnce()) {
        // Relaxed: the flags read here are the owner's, which is the caller or has stopped.
        let found = self.rung.0.load(Relaxed);
        if found & DISCONNECTED != 0 {
            return;
        }
        let change = ROUND + DISCONNECTED - (found & ATTENDED);
        let before = self.rung.0.fetch_add(change, order(machine, Rule::DisconnectRelease));
        self.end_round(machine, Round(before + change));
        if before & AWAITED != 0 {
            wake();
        }
    }

    /// Returns `true` if the owner attends to no ring. For the owner's own NMI, which observes the
    /// owner's accesses in the order of its program: while the owner catches up, the bell is
    /// attended.
    pub(crate) fn is_quiet(&self) -> bool {
        // Relaxed: as explained above.
        self.rung.0.load(Relaxed) & (RUNG | ATTENDED) == 0
    }

    /// The state of the bell, for a report. It may be outdated by the time that it is returned.
    pub(crate) fn state(&self) -> BellState {
        // Relaxed: for reports, and for a CPU that has acquired the last accesses of the owner.
        let (found, answered) = (self.rung.0.load(Relaxed), self.owned.0.answered.load(Relaxed));
        match found {
            _ if found & DISCONNECTED != 0 => BellState::Disconnected,
            _ if found / ROUND != answered => BellState::Answering,
            _ if found & ATTENDED != 0 => BellState::Polling,
            _ if found & RUNG != 0 => BellState::Rung,
            _ => BellState::Quiet,
        }
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests;
