//! The flush interrupt's handler.

use crate::bell::Round;
use crate::cpu::Here;
use crate::journal::{Ceiling, LOG_ENTRIES, Missed};
use crate::machine::Machine;
use crate::presence::Presence;
use crate::rules::Rule;
use crate::space::Space;

impl<M: Machine> Here<'_, M> {
    /// Answers this CPU's bell: the whole body of the flush interrupt's handler.
    ///
    /// Catches up with everything that this CPU has missed of what it has loaded, and satisfies
    /// all who are waiting for that. Takes no lock, allocates nothing, sends nothing, needs no
    /// argument; does nothing if the bell is quiet. A kernel that spins on a lock with the
    /// interrupt masked should call it in the loop, lest the lock's holder wait for this CPU.
    #[inline]
    pub fn answer(&self) {
        if let Some(round) = self.cpu.bell.begin_round(self.machine()) {
            self.serve(round);
        }
    }

    /// Does rounds until nobody has rung meanwhile.
    pub(crate) fn serve(&self, round: Round) {
        let mut next = Some(round);
        while let Some(round) = next {
            self.do_round(round);
            next = self.cpu.bell.leave(self.machine());
        }
    }

    /// Says that this CPU looks at its bell over and over from now on, so that nobody need send the
    /// interrupt.
    pub(crate) fn attend(&self) {
        self.cpu.bell.attend();
    }

    /// Such a look: does a round, if somebody has rung.
    #[inline]
    pub(crate) fn answer_attended(&self) {
        if let Some(round) = self.cpu.bell.begin_round(self.machine()) {
            self.do_round(round);
        }
    }

    /// The last look: from now on interrupts are sent again.
    pub(crate) fn cease_to_attend(&self) {
        if let Some(round) = self.cpu.bell.leave(self.machine()) {
            self.serve(round);
        }
    }

    /// Catches up, and tells those who wait for it. The bell stays attended.
    pub(crate) fn do_round(&self, round: Round) {
        self.counters().answers.add_alone(1);
        self.catch_up_with_kernel();
        self.catch_up_with_space();
        if !self.machine().breaks(Rule::CompleteForOthers) {
            self.complete_broadcasts();
        }
        self.cpu.bell.end_round(self.machine(), round);
    }

    fn catch_up_with_space(&self) {
        let loaded = self.local().loaded.get();
        let Some(space) = loaded.space() else { return };
        match self.presence() {
            Presence::Active(_) => {
                self.catch_up(space, self.ceiling_at_work());
            }
            // Rung for freed tables, or for a flush from before it became lazy. If it may be the
            // former: leave, so that the next such flush, and the death of the space, need not
            // ring again. If it is the latter, there is time until it comes back.
            Presence::Lazy(_) => {
                let leaves = self.is_on_dead_space()
                    || self.may_walk_freed_tables(space, self.seen_of_loaded(space));
                // No reference to the space is left by now: another CPU may free it as soon as we
                // have let go of it.
                if leaves {
                    self.leave_in_handler();
                }
            }
            Presence::Switching(_) => debug_assert!(false, "answered in the middle of a switch"),
            Presence::Out => {}
        }
    }

    /// Whether page tables were freed, as far as is known, since this CPU has `seen` a generation.
    #[inline(never)]
    fn may_walk_freed_tables(&self, space: &Space<M>, seen: u64) -> bool {
        let machine = self.machine();
        let generation = space.journal.generation(machine);
        // By now, everyone may have been told of flushes that this CPU has yet to see counted.
        if seen >= generation {
            return false;
        }
        let missed = space.journal.missed(machine, seen, generation, Ceiling::of_all(usize::MAX));
        !matches!(&missed, Missed::Ranges(ranges) if !ranges.free_tables())
    }

    /// Whether the space that this CPU is lazy on is dead: now that it is awake, it can as well let
    /// go of it. Who [reaps](Self::reap) relies on that.
    fn is_on_dead_space(&self) -> bool {
        self.held().is_owing() && !self.machine().breaks(Rule::LeaveDeadSpace)
    }

    #[inline]
    pub(crate) fn catch_up_with_kernel(&self) {
        let generation = self.engine.kernel().generation(self.machine());
        if generation != self.local().kernel_generation.get() {
            self.catch_up_with_kernel_to(generation);
        }
    }

    #[inline(never)]
    fn catch_up_with_kernel_to(&self, generation: u64) {
        let (machine, local, kernel) = (self.machine(), self.local(), self.engine.kernel());
        let seen = local.kernel_generation.get();
        let missed = kernel.missed(machine, seen, generation, self.ceiling_at_work());
        self.invalidate_kernel(&missed);
        local.kernel_generation.set(generation);
    }

    fn invalidate_kernel(&self, missed: &Missed) {
        let (machine, counters) = (self.machine(), self.counters());
        let Missed::Ranges(ranges) = missed else {
            machine.invalidate_all();
            counters.flushes_full.add_alone(1);
            return;
        };
        for extent in ranges.iter() {
            machine.invalidate_kernel(extent);
            counters.flushes_ranged.add_alone(1);
            counters.pages_invalidated.add_alone(extent.page_count() as u64);
        }
    }
}

// The handler keeps a copy of the log on its stack; interrupt stacks are small.
const _: () = assert!(LOG_ENTRIES * 8 <= 128);

#[cfg(all(test, feature = "soft"))]
mod tests {
    use crate::extent::Extent;
    use crate::machine::{CpuId, Root};
    use crate::soft::{Config, Host, Soft};

    #[test]
    fn who_attends_to_its_bell_is_not_interrupted() {
        let engine = Soft::<Host>::engine(Config::default());
        let space = engine.space(Root(0));
        let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
        zero.here().online();
        one.here().online();
        #[expect(unsafe_code, reason = "the space outlives its CPU's use of it")]
        // SAFETY: see the reason.
        unsafe {
            one.here().switch(&space);
        }
        let flush = || zero.here().flush(&space, Extent::page(0));
        let interrupts = || engine.cpu(CpuId(0)).stats().interrupts_sent;
        one.here().attend();
        let mut pending = flush();
        assert!(!pending.poll());
        one.here().answer_attended();
        assert!(pending.poll());
        // Somebody rings before the last look.
        let mut pending = flush();
        one.here().cease_to_attend();
        assert!(pending.poll());
        assert_eq!((interrupts(), engine.cpu(CpuId(1)).stats().answers), (0, 2));
        let mut pending = flush();
        assert_eq!(interrupts(), 1, "from then on");
        one.interrupt_point();
        assert!(pending.poll());
    }
}
