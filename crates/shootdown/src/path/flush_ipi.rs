//! The flush interrupt's handler.

use crate::base::rules::Rule;
use crate::parts::bell::Round;
use crate::parts::cpu_set::CpuSet;
use crate::parts::flush_log::{Ceiling, LOG_ENTRIES, Missed};
use crate::parts::presence::Presence;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;

/// Maximum number of rounds in one call of the handler.
///
/// CPUs that flush repeatedly ring again as soon as they have an answer. A handler that continued
/// while CPUs ring might never return, and no timer or other interrupt would be taken. So after
/// three rounds the CPU sends itself the interrupt and returns, and other pending interrupts are
/// taken in between.
///
/// A round takes at most about 4 µs (33 pages), a self-interrupt less than 1 µs. Without a flood of
/// rings, a handler needs at most two rounds: the second answers the CPUs that rang during the
/// first.
const ROUNDS_MAX: u32 = 3;

impl<M: Machine> PinnedCpu<'_, M> {
    /// Handles the flush interrupt: answers this CPU's bell. This call is the whole handler.
    ///
    /// The CPU catches up with every flush of the loaded space and of the kernel that it has
    /// missed, and satisfies all CPUs that wait for that. The call takes no lock, allocates
    /// nothing, and does nothing if the bell is quiet. It is bounded: if CPUs ring again and again,
    /// it sends the interrupt to this CPU with [`Machine::ring`], and returns.
    ///
    /// If your kernel spins for a lock with the interrupt masked, call this in the loop, because
    /// the lock's holder may be waiting for this CPU. The loop may be in [`Machine::ring`],
    /// [`wait_hint`](Machine::wait_hint) or [`reclaim`](Machine::reclaim): the engine calls these
    /// methods where this CPU's state is consistent.
    #[inline]
    pub fn handle_flush_ipi(&self) {
        self.refuse_in_user();
        // The bell has nearly always been rung, so that its word is written next. Without the hint,
        // the load fetches the line, and the write that begins the round fetches it again.
        self.cpu.bell.prefetch_for_ring(self.machine());
        if let Some(round) = self.cpu.bell.begin_round(self.machine()) {
            self.answer(round);
        }
    }

    /// Answers in rounds until no CPU has rung during the last one, or [`ROUNDS_MAX`] is reached.
    #[inline(always)]
    fn answer(&self, round: Round) {
        self.answer_once(round);
        if let Some(next) = self.leave_bell() {
            self.answer_again(next);
        }
    }

    /// Stops attending to the bell, or returns a new round if a CPU has rung.
    #[inline(always)]
    fn leave_bell(&self) -> Option<Round> {
        self.cpu.bell.leave(self.machine(), || self.wake_waiters())
    }

    #[cold]
    fn wake_waiters(&self) {
        self.machine().wake_waiters(self.id);
    }

    #[cold]
    fn answer_again(&self, mut round: Round) {
        for _ in 2..ROUNDS_MAX {
            self.answer_once(round);
            match self.leave_bell() {
                Some(next) => round = next,
                None => return,
            }
        }
        self.answer_once(round);
        if self.cpu.bell.hang_up(self.machine(), || self.wake_waiters()) {
            // The CPUs that rang found the bell attended, and sent no interrupt.
            let mut cpus = CpuSet::new();
            cpus.insert(self.id);
            self.counters().interrupts_sent.add_unshared(1);
            self.machine().ring(&cpus);
        }
    }

    /// Publishes that this CPU polls its bell from now on, so that rings send no interrupt.
    pub(crate) fn begin_polling(&self) {
        self.cpu.bell.attend();
    }

    /// Answers in one round if a CPU has rung. Call this between
    /// [`begin_polling`](Self::begin_polling) and [`end_polling`](Self::end_polling).
    #[inline]
    pub(crate) fn poll_bell(&self) {
        if let Some(round) = self.cpu.bell.begin_round(self.machine()) {
            self.answer_once(round);
        }
    }

    /// Publishes that this CPU does not poll its bell any more, so that rings send interrupts
    /// again. Answers the CPUs that have rung by then.
    pub(crate) fn end_polling(&self) {
        if let Some(round) = self.leave_bell() {
            self.answer(round);
        }
    }

    /// Catches up, and publishes that the round is over. The bell stays attended.
    #[inline(always)]
    fn answer_once(&self, round: Round) {
        self.counters().answers.add_unshared(1);
        // Always before the answer: the handler runs on the kernel's translations.
        self.catch_up_with_kernel();
        if self.machine().answers_early() && self.answer_early(round) {
            return;
        }
        self.catch_up_with_loaded();
        self.end_round(round);
    }

    /// Publishes that the round is over, and then catches up. Does neither, and returns `false`,
    /// unless this CPU uses the loaded space, and has missed one flush of few pages, which freed no
    /// tables. See [`Machine::answers_early`].
    ///
    /// Until the round begun by this call has ended, the bell is attended, which keeps [NMIs from
    /// user memory](crate::Shootdown::nmi_may_touch_user).
    fn answer_early(&self, round: Round) -> bool {
        let Some(space) = self.loaded() else { return false };
        if !self.presence_word().is_active() {
            return false;
        }
        let (machine, seen) = (self.machine(), self.seen_of_loaded(space));
        let generation = space.log.generation(machine);
        if generation != seen + 1 {
            return false;
        }
        let Some((extent, cause)) = space.log.read(machine, generation) else { return false };
        let frees_tables = extent.frees_tables() && !machine.breaks(Rule::AnswerTablesLate);
        if frees_tables || !extent.page_count_within(self.ceiling_at_work().of(cause)) {
            return false;
        }
        self.end_round(round);
        self.invalidate_one(extent, generation);
        true
    }

    /// Publishes that the round is over. The bell stays attended.
    #[inline(always)]
    fn end_round(&self, round: Round) {
        if !self.machine().breaks(Rule::CompleteForOthers) {
            self.complete_broadcasts();
        }
        self.cpu.bell.end_round(self.machine(), round);
    }

    #[inline]
    fn catch_up_with_loaded(&self) {
        let Some(space) = self.loaded() else { return };
        if self.presence_word().is_active() {
            self.catch_up(space);
        } else {
            self.catch_up_unless_active();
        }
    }

    /// Catches up, or leaves the space, where the loaded space is not active.
    ///
    /// This takes no reference to the loaded space, because another CPU may free the space after
    /// this CPU has left it and before this function returns.
    #[cold]
    fn catch_up_unless_active(&self) {
        match self.presence() {
            // The CPU was rung for freed tables, or for a flush from before it became lazy. For
            // freed tables, leave the space: then neither the next such flush nor the end of the
            // space rings this CPU again. For an earlier flush, catch up on return.
            Presence::Lazy(_) => {
                if self.is_on_dead_space() || self.may_walk_freed_tables() {
                    self.leave_space_in_handler();
                }
            }
            Presence::Switching(_) => debug_assert!(false, "answered in the middle of a switch"),
            Presence::Active(_) | Presence::Out => {}
        }
    }

    /// Returns `true` unless the log proves that no page table of the loaded space was freed since
    /// this CPU last caught up with it.
    #[inline(never)]
    fn may_walk_freed_tables(&self) -> bool {
        let Some(space) = self.loaded() else { return false };
        let (machine, seen) = (self.machine(), self.seen_of_loaded(space));
        let generation = space.log.generation(machine);
        // A broadcast may cover flushes on all CPUs whose count this CPU does not observe yet.
        if seen >= generation {
            return false;
        }
        let missed = space.log.missed(machine, seen, generation, Ceiling::of_all(usize::MAX));
        !matches!(&missed, Missed::Ranges(ranges) if !ranges.free_tables())
    }

    /// Returns `true` if the space that this CPU is lazy on is dead. The handler then leaves it,
    /// which [`reap`](Self::reap) relies on.
    fn is_on_dead_space(&self) -> bool {
        self.hazard().is_marked() && !self.machine().breaks(Rule::LeaveDeadSpace)
    }
}

// The handler has a copy of the log's extents on its stack, and interrupt stacks are small.
const _: () = assert!(LOG_ENTRIES * 8 <= 128);

#[cfg(all(test, feature = "soft"))]
mod tests {
    use crate::base::ids::{CpuId, Root};
    use crate::parts::extent::Extent;
    use crate::soft::{Config, Host, Soft};

    #[test]
    fn polling_cpu_is_not_interrupted() {
        let engine = Soft::<Host>::engine(Config::default());
        let space = engine.space(Root(0));
        let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
        zero.pin().online();
        one.pin().online();
        #[expect(unsafe_code, reason = "the space outlives its CPU's use of it")]
        // SAFETY: the space outlives the CPUs' use of it, and does not move.
        unsafe {
            one.pin().switch(&space);
        }
        let flush = || zero.pin().flush(&space, Extent::page(0));
        let interrupts = || engine.cpu(CpuId(0)).stats().interrupts_sent;
        one.pin().begin_polling();
        let mut pending = flush();
        assert!(!pending.poll());
        one.pin().poll_bell();
        assert!(pending.poll());
        // A ring before the last poll.
        let mut pending = flush();
        one.pin().end_polling();
        assert!(pending.poll());
        assert_eq!((interrupts(), engine.cpu(CpuId(1)).stats().answers), (0, 2));
        let mut pending = flush();
        assert_eq!(interrupts(), 1, "from the end of polling on");
        one.interrupt_point();
        assert!(pending.poll());
    }
}
