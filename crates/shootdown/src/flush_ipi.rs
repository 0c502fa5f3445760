//! The flush interrupt's handler.

use crate::bell::Round;
use crate::cpu_set::CpuSet;
use crate::flush_log::{Ceiling, LOG_ENTRIES, Missed};
use crate::machine::Machine;
use crate::pinned_cpu::PinnedCpu;
use crate::presence::Presence;
use crate::rules::Rule;

/// How many rounds the handler does at a time.
///
/// CPUs that flush over and over ring again as soon as they have an answer, so that a handler that
/// goes on for as long as somebody rings may never end: no timer, no other interrupt would get in.
/// After so many rounds the CPU sends itself the interrupt and returns; other interrupts that are
/// pending come in between. A round takes at most some 4 µs (33 pages), a self-interrupt less than
/// one. One round more than a handler without a flood ever needs: the second serves those who rang
/// during the first.
const ROUNDS_MAX: u32 = 3;

impl<M: Machine> PinnedCpu<'_, M> {
    /// Answers this CPU's bell: the whole body of the flush interrupt's handler.
    ///
    /// Catches up with everything that this CPU has missed of what it has loaded, and satisfies
    /// all CPUs that wait for that. Takes no lock, allocates nothing, needs no argument; does
    /// nothing if the bell is quiet. It is bounded: if CPUs go on flushing, it sends this CPU
    /// itself the interrupt, by [`Machine::ring`], and returns.
    ///
    /// A kernel that spins on a lock with the interrupt masked should call it in the loop, because
    /// the lock's holder may be waiting for this CPU. That loop may be one of [`Machine::ring`],
    /// [`relax`](Machine::wait_hint) or [`reclaim`](Machine::reclaim): the engine calls these where
    /// nothing of this CPU's state is half changed.
    #[inline]
    pub fn handle_flush_ipi(&self) {
        if let Some(round) = self.cpu.bell.begin_round(self.machine()) {
            self.serve(round);
        }
    }

    /// Does rounds until nobody has rung meanwhile, or until others must have their turn.
    #[inline]
    pub(crate) fn serve(&self, round: Round) {
        self.do_round(round);
        if let Some(next) = self.cpu.bell.leave(self.machine()) {
            self.serve_next(next);
        }
    }

    #[cold]
    fn serve_next(&self, mut round: Round) {
        for _ in 2..ROUNDS_MAX {
            self.do_round(round);
            match self.cpu.bell.leave(self.machine()) {
                Some(next) => round = next,
                None => return,
            }
        }
        self.do_round(round);
        if self.cpu.bell.hang_up(self.machine()) {
            // No other CPU does: those that rang found the bell attended.
            let mut cpus = CpuSet::new();
            cpus.insert(self.id);
            self.counters().interrupts_sent.add_alone(1);
            self.machine().ring(&cpus);
        }
    }

    /// Publishes that this CPU polls its bell from now on, so that no CPU need send the interrupt.
    pub(crate) fn attend(&self) {
        self.cpu.bell.attend();
    }

    /// Such a poll: does a round, if somebody has rung.
    #[inline]
    pub(crate) fn answer_attended(&self) {
        if let Some(round) = self.cpu.bell.begin_round(self.machine()) {
            self.do_round(round);
        }
    }

    /// The last poll: from now on interrupts are sent again.
    pub(crate) fn cease_to_attend(&self) {
        if let Some(round) = self.cpu.bell.leave(self.machine()) {
            self.serve(round);
        }
    }

    /// Catches up, and notifies the CPUs that wait for it. The bell stays attended.
    #[inline]
    pub(crate) fn do_round(&self, round: Round) {
        self.counters().answers.add_alone(1);
        self.catch_up_with_kernel();
        self.catch_up_with_loaded();
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

    /// Takes no reference to the space that is loaded: once this CPU has let go of it, another one
    /// may free it before this returns.
    #[cold]
    fn catch_up_unless_active(&self) {
        match self.presence() {
            // Rung for freed tables, or for a flush from before it became lazy. If it may be the
            // former: leave, so that the next such flush, and the death of the space, need not
            // ring again. If it is the latter, there is time until it comes back.
            Presence::Lazy(_) => {
                if self.is_on_dead_space() || self.may_walk_freed_tables() {
                    self.leave_in_handler();
                }
            }
            Presence::Switching(_) => debug_assert!(false, "answered in the middle of a switch"),
            Presence::Active(_) | Presence::Out => {}
        }
    }

    /// Whether page tables of the loaded space were freed, as far as is known, since this CPU has
    /// last caught up with it.
    #[inline(never)]
    fn may_walk_freed_tables(&self) -> bool {
        let Some(space) = self.loaded() else { return false };
        let (machine, seen) = (self.machine(), self.seen_of_loaded(space));
        let generation = space.log.generation(machine);
        // By now, every CPU may have been notified of flushes that this one has yet to see counted.
        if seen >= generation {
            return false;
        }
        let missed = space.log.missed(machine, seen, generation, Ceiling::of_all(usize::MAX));
        !matches!(&missed, Missed::Ranges(ranges) if !ranges.free_tables())
    }

    /// Whether the space that this CPU is lazy on is dead: now that it is awake, it can as well let
    /// go of it. [`reap`](Self::reap) relies on that.
    fn is_on_dead_space(&self) -> bool {
        self.hazard().is_marked() && !self.machine().breaks(Rule::LeaveDeadSpace)
    }
}

// The handler keeps a copy of the log on its stack; interrupt stacks are small.
const _: () = assert!(LOG_ENTRIES * 8 <= 128);

#[cfg(all(test, feature = "soft"))]
mod tests {
    use crate::extent::Extent;
    use crate::ids::{CpuId, Root};
    use crate::soft::{Config, Host, Soft};

    #[test]
    fn who_attends_to_its_bell_is_not_interrupted() {
        let engine = Soft::<Host>::engine(Config::default());
        let space = engine.space(Root(0));
        let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
        zero.pin().online();
        one.pin().online();
        #[expect(unsafe_code, reason = "the space outlives its CPU's use of it")]
        // SAFETY: see the reason.
        unsafe {
            one.pin().switch(&space);
        }
        let flush = || zero.pin().flush(&space, Extent::page(0));
        let interrupts = || engine.cpu(CpuId(0)).stats().interrupts_sent;
        one.pin().attend();
        let mut pending = flush();
        assert!(!pending.poll());
        one.pin().answer_attended();
        assert!(pending.poll());
        // Somebody rings before the last look.
        let mut pending = flush();
        one.pin().cease_to_attend();
        assert!(pending.poll());
        assert_eq!((interrupts(), engine.cpu(CpuId(1)).stats().answers), (0, 2));
        let mut pending = flush();
        assert_eq!(interrupts(), 1, "from then on");
        one.interrupt_point();
        assert!(pending.poll());
    }
}
