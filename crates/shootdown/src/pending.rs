//! *Pending*: a flush that was sent and may not yet be done.
//!
//! Between sending and waiting the caller may drop its locks, send other flushes, and join them.
//! The CPUs that were rung invalidate meanwhile, as this one does.

use core::fmt;

use crate::bell::Ticket;
use crate::broadcaster::Broadcaster;
use crate::cpu_set::CpuSet;
use crate::engine::Shootdown;
use crate::ids::CpuId;
use crate::machine::Machine;
use crate::pinned_cpu::PinnedCpu;
use crate::quarantine::Horizon;
use crate::rules::Rule;

/// A flush that was sent and may not yet be done.
///
/// What the flush covered must not be reused before [`wait`](Self::wait) returns or
/// [`poll`](Self::poll) says so. Dropping it waits. It holds eight words and a bit per CPU: 80
/// bytes up to 64 CPUs, 576 at 4096. To wait does not move it.
#[must_use = "nothing that the flush covered may be reused before this is done"]
pub struct Pending<'e, M: Machine> {
    pub(crate) engine: &'e Shootdown<M>,
    /// The CPUs that were rung and have not been seen to answer.
    pub(crate) waiting: CpuSet<M::CpuBits>,
    /// What the first of them must have served; taken when its turn comes.
    ticket: Option<Ticket>,
    /// The CPU that has issued a broadcast which has yet to be completed.
    pub(crate) issuer: Option<CpuId>,
    pub(crate) horizon: Horizon,
}

impl<'e, M: Machine> Pending<'e, M> {
    /// A flush that has nobody to wait for: a start for [`join`](Self::join).
    #[inline]
    pub const fn done(engine: &'e Shootdown<M>) -> Self {
        Self {
            engine,
            waiting: CpuSet::new(),
            ticket: None,
            issuer: None,
            horizon: Horizon::UNKNOWN,
        }
    }

    /// Returns when every CPU that was rung has answered.
    ///
    /// May be called with the flush interrupt masked or not, on any CPU. Where it is masked, this
    /// CPU's own bell is answered meanwhile, so that two CPUs may wait for each other; and since it
    /// says so, nobody sends it the interrupt: where many flush at once, that is the better way to
    /// wait, if other interrupts can bear to. The caller
    /// must hold no lock that another CPU may spin on with the interrupt masked, unless that CPU
    /// calls [`PinnedCpu::handle_flush_ipi`](crate::PinnedCpu::handle_flush_ipi) as it spins.
    ///
    /// Where the machine [broadcasts](Machine::broadcaster), wait with the interrupt masked, on the
    /// CPU of the flush: that CPU has to complete its broadcast, and anywhere else (or unmasked,
    /// where the thread may be moved at any moment) it must be interrupted for that.
    ///
    /// Not to be called, nor a `Pending` dropped, from a handler that may have interrupted the
    /// holder of a [`PinnedCpu`](crate::PinnedCpu): see [`Shootdown::pin`].
    ///
    /// Waits as long as it takes: a virtual CPU may rightly be away for seconds, and to go on
    /// without its answer would be the bug that this crate exists to prevent.
    #[inline]
    pub fn wait(&mut self) {
        self.finish();
    }

    /// Which of the space's unhooked page tables CPUs may still walk when this flush is done: known
    /// for what [`flush_gathered`](crate::PinnedCpu::flush_gathered) and [`expel`](crate::PinnedCpu::flush_walkers)
    /// return, and of no other flush that is [joined](Self::join).
    #[must_use]
    pub const fn horizon(&self) -> Horizon {
        self.horizon
    }

    /// The same, for who is not done with it.
    #[inline]
    pub(crate) fn finish(&mut self) {
        if !self.waiting.is_empty() || self.issuer.is_some() {
            self.wait_here();
        }
    }

    /// Whether the flush is done, without waiting; but for a broadcast that this CPU has issued,
    /// which takes as long as the hardware does. Answers nobody.
    #[inline]
    pub fn poll(&mut self) -> bool {
        self.complete_broadcast();
        while let Some(cpu) = self.waiting.first() {
            if !self.has_answered(cpu) {
                return false;
            }
            self.waiting.remove(cpu);
            self.ticket = None;
        }
        true
    }

    /// Makes this one wait for the other, too.
    pub fn join(&mut self, mut other: Self) {
        if self.issuer.is_none() {
            self.issuer = other.issuer.take();
        } else if self.issuer != other.issuer {
            // There is room to remember one.
            other.complete_broadcast();
        }
        self.waiting.insert_all(&other.waiting);
        // The first CPU may now be another one; a later ticket is as good.
        self.ticket = None;
        other.waiting.clear();
        other.issuer = None;
    }

    /// Makes this one wait for an answer of `cpu`, which was rung.
    pub(crate) fn wait_for(&mut self, cpu: CpuId) {
        self.waiting.insert(cpu);
        self.ticket = None;
    }

    /// The token for the CPU that we wait on. Only to be asked for where the flush interrupt is
    /// masked.
    ///
    /// As it is masked, this thread stays on its CPU. No holder of a token here can be in the
    /// middle of something: it would have called us, which nothing in this crate does, or have
    /// been interrupted by us, which it promised to prevent. Whoever interrupts us, in `relax` or
    /// because its interrupt is not masked, finds no token in use: each of ours is gone when its
    /// method returns, and its promise is that of `pin`.
    pub(crate) fn pin(&self) -> PinnedCpu<'e, M> {
        #[expect(unsafe_code, reason = "the token for the CPU that we wait on")]
        // SAFETY: as argued above.
        unsafe {
            self.engine.pin()
        }
    }

    /// The CPUs that have not yet been seen to answer.
    pub const fn waiting(&self) -> &CpuSet<M::CpuBits> {
        &self.waiting
    }

    #[inline(never)]
    fn wait_here(&mut self) {
        WaitOnce(self).0.wait_until_done();
    }

    #[inline]
    fn wait_until_done(&mut self) {
        self.complete_broadcast();
        let machine = &self.engine.machine;
        if M::PREFETCHES {
            self.waiting.iter().for_each(|cpu| machine.state(cpu).bell.prefetch(machine));
        }
        let broadcaster = self.engine.broadcaster();
        let began_ns = broadcaster.map_or(0, Broadcaster::clock_ns);
        let interrupted = self.waiting.len() as u64;
        let attends = machine.interrupts_masked() && !machine.breaks(Rule::AnswerWhileWaiting);
        if attends {
            self.pin().attend();
        }
        while !self.poll() {
            if attends {
                self.pin().answer_attended();
            }
            machine.wait_hint(&self.waiting);
        }
        if attends {
            let pin = self.pin();
            pin.cease_to_attend();
            if let Some(broadcaster) = broadcaster.filter(|_| began_ns != 0) {
                let took_ns = broadcaster.clock_ns().saturating_sub(began_ns);
                pin.learn_answered(interrupted, took_ns);
            }
        }
    }

    /// Whether `cpu`, the first that we wait for, has answered.
    ///
    /// The ticket is taken once. To take a new one at each look might never end: others may keep
    /// on ringing.
    fn has_answered(&mut self, cpu: CpuId) -> bool {
        let machine = &self.engine.machine;
        let bell = &machine.state(cpu).bell;
        if self.ticket.is_none() {
            self.ticket = bell.ticket(machine);
        }
        self.ticket.is_none_or(|ticket| bell.has_answered(machine, ticket))
    }
}

/// If the machine's `relax` unwinds, which it must not, the wait is not begun again on the way out.
struct WaitOnce<'p, 'e, M: Machine>(&'p mut Pending<'e, M>);

impl<M: Machine> Drop for WaitOnce<'_, '_, M> {
    fn drop(&mut self) {
        self.0.waiting.clear();
        self.0.issuer = None;
    }
}

impl<M: Machine> Drop for Pending<'_, M> {
    #[inline]
    fn drop(&mut self) {
        self.finish();
    }
}

impl<M: Machine> fmt::Debug for Pending<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pending").field(&self.waiting).finish()
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::extent::Extent;
    use crate::ids::Root;
    use crate::machine::tests::Plain;
    use crate::soft::{Config, Host, Soft, Touch};
    use crate::space::Space;
    use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use core::time::Duration;
    use std::sync::Barrier;
    use std::thread;
    use std::vec::Vec;

    type Machine = Soft<Host>;

    fn waiting(pending: &Pending<'_, Machine>) -> Vec<u32> {
        pending.waiting().iter().map(|cpu| cpu.0).collect()
    }

    /// Three CPUs online, and the last of them uses the space.
    fn run(engine: &Shootdown<Machine>, space: &Space<Machine>) {
        (0..3).for_each(|cpu| engine.enter(CpuId(cpu)).pin().online());
        #[expect(unsafe_code, reason = "the space outlives its CPU's use of it")]
        // SAFETY: see the reason.
        unsafe {
            engine.enter(CpuId(2)).pin().switch(space);
        }
    }

    #[test]
    fn who_joins_waits_for_all() {
        let engine = Soft::engine(Config { cpus: 3, ..Config::default() });
        let space = engine.space(Root(0));
        run(&engine, &space);
        let flush = |cpu| engine.enter(CpuId(cpu)).pin().flush(&space, Extent::page(0));
        let mut pending = Pending::done(&engine);
        assert!(pending.poll());
        pending.join(flush(0));
        assert_eq!(waiting(&pending), [2]);
        assert!(!pending.poll());
        pending.join(flush(1));
        pending.join(Pending::done(&engine));
        assert_eq!(waiting(&pending), [2]);
        engine.enter(CpuId(2)).interrupt_point();
        assert!(pending.poll());
        assert_eq!(waiting(&pending), []);
    }

    /// Also if it is only dropped.
    #[test]
    fn who_waits_goes_on_when_all_have_answered() {
        let engine = Soft::engine(Config { cpus: 3, ..Config::default() });
        let space = engine.space(Root(0));
        run(&engine, &space);
        let waits: [fn(Pending<'_, Machine>); 2] =
            [|mut pending| pending.wait(), |pending| drop(pending)];
        for wait in waits {
            let zero = engine.enter(CpuId(0));
            let pending = zero.pin().flush(&space, Extent::page(0));
            let has_answered = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    // Time enough to go on too early.
                    thread::sleep(Duration::from_millis(20));
                    has_answered.store(true, Relaxed);
                    engine.enter(CpuId(2)).interrupt_point();
                });
                wait(pending);
                assert!(has_answered.load(Relaxed));
            });
        }
    }

    /// What is not masked is not for the waiter to answer: it may not even stay on its CPU.
    #[test]
    fn who_can_be_interrupted_does_not_look_at_its_bell() {
        let mut machine = Plain::<0>::with_tags(0);
        machine.interrupts_masked = false;
        let engine = Shootdown::new(machine);
        let bell = &engine.cpu(CpuId(0)).bell;
        bell.connect();
        bell.ring(engine.machine());
        let mut pending = Pending::done(&engine);
        pending.wait_for(CpuId(0));
        // Or it would make a token, and fail.
        pending.wait();
        assert_eq!(engine.cpu(CpuId(0)).stats().answers, 0);
    }

    /// With their interrupts masked.
    #[test]
    fn two_may_wait_for_each_other() {
        let engine = Soft::<Host>::engine(Config { cpus: 3, ..Config::default() });
        let space = engine.space(Root(0));
        run(&engine, &space);
        let meet = Barrier::new(2);
        let flush = |cpu| {
            let cpu = engine.enter(CpuId(cpu));
            #[expect(unsafe_code, reason = "the space outlives its CPUs' use of it")]
            // SAFETY: see the reason.
            unsafe {
                cpu.pin().switch(&space);
            }
            meet.wait();
            let mut pending = cpu.pin().flush(&space, Extent::page(0));
            meet.wait();
            pending.wait();
            meet.wait();
            cpu.pin().leave_space();
        };
        engine.enter(CpuId(2)).pin().leave_space();
        thread::scope(|scope| {
            scope.spawn(|| flush(0));
            scope.spawn(|| flush(1));
        });
        assert_eq!(engine.machine().total_stats().interrupts_sent, 2);
    }

    /// Rounds are counted by each CPU for itself: a ticket of one says nothing of another.
    #[test]
    fn joined_flush_takes_a_new_ticket() {
        let engine = Soft::engine(Config { cpus: 3, ..Config::default() });
        let spaces = [0, 1].map(|root| engine.space(Root(root)));
        run(&engine, &spaces[1]);
        #[expect(unsafe_code, reason = "the space outlives its CPU's use of it")]
        // SAFETY: see the reason.
        unsafe {
            engine.enter(CpuId(1)).pin().switch(&spaces[0]);
        }
        let flush = |space| engine.enter(CpuId(0)).pin().flush(space, Extent::page(0));
        for _ in 0..5 {
            let mut pending = flush(&spaces[0]);
            engine.enter(CpuId(1)).interrupt_point();
            assert!(pending.poll());
        }
        let mut pending = flush(&spaces[1]);
        assert!(!pending.poll(), "it has the ticket of CPU 2's first round now");
        pending.join(flush(&spaces[0]));
        assert_eq!(waiting(&pending), [1, 2]);
        engine.enter(CpuId(2)).interrupt_point();
        assert!(!pending.poll(), "CPU 1 has done five rounds, and not the sixth");
        engine.enter(CpuId(1)).interrupt_point();
        assert!(pending.poll());
    }

    /// The same for a CPU that is waited for because it has issued a broadcast.
    #[test]
    fn issuer_is_waited_for_with_its_own_ticket() {
        let config = Config { cpus: 3, ..Config::default() }.with_broadcasts(15);
        let engine = Soft::engine(config);
        let space = engine.space(Root(0));
        run(&engine, &space);
        let one = &engine.cpu(CpuId(1)).bell;
        for _ in 0..5 {
            one.ring(engine.machine());
            engine.enter(CpuId(1)).pin().handle_flush_ipi();
        }
        engine.cpu(CpuId(2)).bell.ring(engine.machine());
        // A failure must not wait.
        let mut pending = core::mem::ManuallyDrop::new(Pending::done(&engine));
        pending.wait_for(CpuId(2));
        assert!(!pending.poll(), "it has the ticket of CPU 2's first round now");
        pending.issuer = Some(CpuId(1));
        let _ = engine.enter(CpuId(0)).pin();
        assert!(!pending.poll(), "CPU 1 is rung, and its sixth round waited for");
        assert_eq!(waiting(&pending), [1, 2]);
        engine.enter(CpuId(2)).pin().handle_flush_ipi();
        engine.enter(CpuId(1)).interrupt_point();
        assert!(pending.poll());
    }

    #[test]
    fn who_joins_a_broadcast_of_another_cpu_has_that_one_complete_it() {
        let config = Config { cpus: 3, ..Config::default() }.with_broadcasts(15);
        let engine = Soft::engine(config);
        let space = engine.space(Root(0));
        run(&engine, &space);
        engine.machine().map(&space, 0);
        assert_eq!(engine.enter(CpuId(2)).touch(0), Touch::Ok);
        engine.machine().unmap(&space, 0);
        let flush =
            |cpu, page: u64| engine.enter(CpuId(cpu)).pin().flush(&space, Extent::page(page << 12));
        let other = flush(1, 0);
        let mut pending = flush(0, 1);
        pending.join(flush(0, 2));
        let zero = engine.enter(CpuId(0));
        assert_eq!((pending.issuer, waiting(&pending)), (Some(CpuId(0)), Vec::new()));
        pending.join(other);
        assert_eq!((pending.issuer, waiting(&pending)), (Some(CpuId(0)), Vec::from([1])));
        assert!(!pending.poll(), "CPU 1 has yet to complete its own");
        drop(zero);
        engine.enter(CpuId(1)).interrupt_point();
        let zero = engine.enter(CpuId(0));
        assert!(pending.poll());
        drop(zero);
        engine.machine().free(&space, 0);
        assert_eq!(engine.enter(CpuId(2)).touch(0), Touch::Fault);
    }

    /// Its bell says that it answers soon, and not that it has.
    #[test]
    fn issuer_rung_before_is_still_waited_for() {
        let config = Config { cpus: 3, ..Config::default() }.with_broadcasts(15);
        let engine = Soft::engine(config);
        let space = engine.space(Root(0));
        run(&engine, &space);
        engine.machine().map(&space, 0);
        assert_eq!(engine.enter(CpuId(2)).touch(0), Touch::Ok);
        engine.machine().unmap(&space, 0);
        let mut pending = engine.enter(CpuId(1)).pin().flush(&space, Extent::page(0));
        engine.cpu(CpuId(1)).bell.ring(engine.machine());
        let _ = engine.enter(CpuId(0)).pin();
        assert!(!pending.poll(), "CPU 1 has yet to complete its broadcast");
        assert_eq!(waiting(&pending), [1]);
        engine.enter(CpuId(1)).pin().handle_flush_ipi();
        assert!(pending.poll());
        engine.machine().free(&space, 0);
        assert_eq!(engine.enter(CpuId(2)).touch(0), Touch::Fault);
    }

    #[test]
    fn offline_cpu_has_completed_its_broadcasts() {
        let config = Config { cpus: 3, ..Config::default() }.with_broadcasts(15);
        let engine = Soft::engine(config);
        let space = engine.space(Root(0));
        run(&engine, &space);
        engine.machine().map(&space, 0);
        assert_eq!(engine.enter(CpuId(2)).touch(0), Touch::Ok);
        engine.machine().unmap(&space, 0);
        let one = engine.enter(CpuId(1));
        let mut pending = one.pin().flush(&space, Extent::page(0));
        one.pin().offline();
        let _ = engine.enter(CpuId(0)).pin();
        assert!(pending.poll(), "there is nobody to wait for");
        engine.machine().free(&space, 0);
        assert_eq!(engine.enter(CpuId(2)).touch(0), Touch::Fault);
    }
}
