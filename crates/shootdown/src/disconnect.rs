//! *Disconnect*: a surviving CPU takes a CPU that has stopped in a crash out of the engine.
//!
//! A kernel that stops a CPU by NMI cannot let the CPU go [offline](PinnedCpu::offline) first: the
//! CPU may be in the middle of any method. Another CPU then does in its place what the words in
//! shared memory show to be left:
//!
//! - *Before it answered, or in its handler.* CPUs wait for its answer: its bell is disconnected,
//!   which counts as a round.
//! - *With a space loaded.* Its presence and its hazard pointer are cleared. If the space is dead,
//!   the CPU's reference is dropped.
//! - *With an ASID loaded.* The reservation ends.
//! - *After it rang a bell, before it sent the interrupt.* The interrupt is sent again.
//! - *While it held the lock of the ASID allocator.* The lock is released.
//!
//! What the engine cannot repair is only late or lost, never wrong:
//!
//! - A flush of the stopped CPU has been counted, or nothing was freed for it. Its [`Pending`] is
//!   lost, and with it the pages that its caller would have freed. The same holds for tables in a
//!   [`Gather`](crate::Gather) and for pages in a [`Batch`](crate::Batch). The batch's spaces stay
//!   marked: each [`flush_if_batched`](PinnedCpu::flush_if_batched) of them flushes.
//! - Tables in [`Quarantine`](crate::Quarantine) belong to the kernel, which has to free its own
//!   locks. The CPU does not hold back their [`Horizon`](crate::Horizon) any more.
//! - If the CPU stopped while it trimmed a cpumask, that mask is not trimmed any more.
//! - If the CPU stopped while it wrote a log entry, no other CPU can write that entry: a writer
//!   that is only late looks the same. One flush in 16 of that space is not logged any more, and a
//!   CPU that misses such a flush drops its tag. A log of the kernel's translations, likewise.
//! - A dead space is not reclaimed if the CPU stopped just after it dropped the space, before it
//!   reclaimed it, or while its handler dropped it.
//!
//! [`Pending`]: crate::Pending

#![expect(unsafe_code, reason = "only the kernel knows that a CPU has stopped")]

use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

use crate::bell::BellState;
use crate::cpu_set::CpuSet;
use crate::cpu_state::Activity;
use crate::hazard::Hazard;
use crate::ids::CpuId;
use crate::machine::Machine;
use crate::memory::Word;
use crate::pinned_cpu::PinnedCpu;
use crate::presence::Presence;

impl<M: Machine> PinnedCpu<'_, M> {
    /// Disconnects a CPU that has stopped in a crash, wherever it was: it leaves its space, and no
    /// other CPU waits for it or interrupts it any more. Waits for its answer that have begun end.
    ///
    /// Call this on a surviving CPU, which may be inside [`Machine::wait_hint`]. The stopped CPU
    /// may come back [`online`](Self::online) after a reset. The [source][source] lists what is
    /// repaired, and what is lost.
    ///
    /// If this drops the last reference to a dead space, it calls [`Machine::reclaim`].
    ///
    /// [source]: https://docs.rs/shootdown/latest/src/shootdown/disconnect.rs.html
    ///
    /// # Panics
    ///
    /// If `cpu` is this CPU.
    ///
    /// # Safety
    ///
    /// - `cpu` has stopped: from before this call until it calls [`online`](Self::online), it is
    ///   off, or runs code that uses only memory that is never flushed, with the kernel's own root
    ///   loaded and interrupts masked. It never continues what it was doing. A CPU that does not
    ///   answer has *not* stopped by that alone.
    /// - Every access of `cpu` happens before this call. For instance, the handler of the NMI that
    ///   stops it loads the kernel's root and then stores a flag with release, and this CPU has
    ///   loaded the flag with acquire.
    /// - On a machine that [broadcasts](Machine::broadcaster), the handler has also called
    ///   [`Broadcaster::complete`](crate::Broadcaster::complete), because the broadcasts of a CPU
    ///   can be completed only there.
    /// - No other CPU disconnects `cpu` at the same time.
    pub unsafe fn disconnect(&self, cpu: CpuId) {
        let _operation = self.begin_nested();
        assert_ne!(cpu, self.id, "a CPU that runs goes offline");
        let state = self.machine().state(cpu);
        // The guard of the stopped CPU. The caller promises that the CPU executes nothing, so this
        // is the only thread of execution that accesses the CPU's own part.
        let stopped = PinnedCpu { engine: self.engine, cpu: state, id: cpu, not_send: PhantomData };
        stopped.leave_stopped();
        stopped.withdraw();
        self.repair_asids(cpu);
        self.release_asids(state);
        self.ring_again();
    }

    /// Clears the presence and the hazard pointer of this CPU, which has stopped.
    fn leave_stopped(&self) {
        let local = self.local();
        local.loaded.set(ptr::null());
        // It may have stopped in the middle of an operation, which never ends.
        local.activity.set(Activity::Idle);
        local.policy.outstanding.set(0);
        // Relaxed: no walk of the CPU goes on.
        self.cpu.walks.store(0, Relaxed);
        // In the middle of a round, the handler may have dropped its reference already, and not yet
        // changed the hazard pointer. To drop it twice would free a space that is in use.
        let may_have_dropped = self.cpu.bell.state() == BellState::Answering;
        let hazard = self.replace_hazard(Hazard::NOTHING, self.presence());
        self.set_presence(Presence::Out.into());
        if hazard.is_orphaned() || hazard.is_dead() && !may_have_dropped {
            self.release_hazard(hazard);
        }
    }

    /// Sends the flush interrupt again to every CPU whose bell is rung: the CPU that rang it may
    /// have stopped before it sent the interrupt. An interrupt too many finds the bell quiet.
    fn ring_again(&self) {
        let machine = self.machine();
        let mut online = CpuSet::new();
        self.engine.online().read_into(machine, &mut online);
        online.retain(|cpu| machine.state(cpu).bell.state() == BellState::Rung);
        let mut this = CpuSet::new();
        if online.contains(self.id) {
            online.remove(self.id);
            this.insert(self.id);
        }
        for cpus in [online, this].iter().filter(|cpus| !cpus.is_empty()) {
            self.counters().interrupts_sent.add_unshared(cpus.len() as u64);
            machine.ring(cpus);
        }
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::broadcaster::Broadcaster;
    use crate::costs::NotifyCosts;
    use crate::engine::Shootdown;
    use crate::extent::Extent;
    use crate::ids::Root;
    use crate::soft::{Config, Host, OnCpu, Soft, Touch};
    use crate::space::Space;
    use crate::stall::StallReport;
    use core::ptr::NonNull;
    use std::string::ToString;
    use std::vec::Vec;

    type Machine = Soft<Host>;

    fn engine(config: Config) -> Shootdown<Machine> {
        let engine = Soft::engine(Config { cpus: 3, ..config });
        (0..3).for_each(|cpu| engine.enter(CpuId(cpu)).pin().online());
        engine
    }

    fn switch(cpu: &OnCpu<'_, Host>, space: &Space<Machine>) {
        // SAFETY: the space outlives the CPUs' use of it, and does not move.
        unsafe { cpu.pin().switch(space) };
    }

    fn disconnect(survivor: &OnCpu<'_, Host>, cpu: u32) {
        // SAFETY: the tests do nothing on the CPU before it comes back online, and the accesses
        // before were on this thread.
        unsafe { survivor.pin().disconnect(CpuId(cpu)) };
    }

    fn retire(cpu: &OnCpu<'_, Host>, space: &Space<Machine>) {
        // SAFETY: no CPU uses the space, which outlives its engine's use.
        drop(unsafe { cpu.pin().retire(NonNull::from(space)) });
    }

    #[test]
    fn flush_goes_on_without_stopped_cpu() {
        let costs = NotifyCosts { broadcast_ns: 9, ..Config::DEFAULT.costs };
        let broadcasts = Config { costs, ..Config::default().with_broadcasts(9) };
        for config in [Config::default(), broadcasts] {
            let engine = engine(config);
            let space = engine.space(Root(0));
            engine.machine().map(&space, 3);
            let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
            switch(&one, &space);
            assert_eq!(one.touch(3), Touch::Ok);
            engine.machine().unmap(&space, 3);
            let mut pending = zero.pin().flush(&space, Extent::page(0x3000));
            assert!(!pending.poll());
            let report = StallReport::new(engine.machine(), pending.waiting());
            let [stalled] = *report.cpus().collect::<Vec<_>>() else { panic!("{report}") };
            assert_eq!((stalled.cpu, stalled.bell), (CpuId(1), BellState::Rung));
            assert_eq!(stalled.bell.is_masked(), None);
            assert_eq!(
                report.to_string(),
                "no answer to a flush:\nCPU 1: rung, handler not entered (interrupt masked or \
                 lost, or CPU not running), Active(1)"
            );
            one.halt();
            disconnect(&zero, 1);
            assert!(pending.poll(), "no CPU answers any more");
            engine.machine().free(&space, 3);
            // CPU 2 alone is rung from now on.
            assert!(zero.pin().flush(&space, Extent::page(0x3000)).poll());
            let mut pending = zero.pin().flush_kernel(Extent::page(0x3000));
            engine.enter(CpuId(2)).interrupt_point();
            let _ = zero.pin();
            assert!(pending.poll());
            // The CPU comes back after a reset.
            one.pin().online();
            switch(&one, &space);
            assert_eq!(one.touch(3), Touch::Fault);
            let mut pending = zero.pin().flush(&space, Extent::page(0x3000));
            assert!(!pending.poll(), "the CPU is waited for again");
            one.interrupt_point();
            let _ = zero.pin();
            assert!(pending.poll());
        }
    }

    /// In its handler, the CPU may have dropped its reference already. Then the space is leaked,
    /// because to drop the reference twice would free what CPU 2 walks.
    #[test]
    fn reference_of_stopped_cpu_is_dropped_at_most_once() {
        for stops_in_handler in [false, true] {
            let engine = engine(Config::default());
            let space = engine.space(Root(0));
            let cpus = [0, 1, 2].map(|cpu| engine.enter(CpuId(cpu)));
            for cpu in &cpus[1..] {
                switch(cpu, &space);
                cpu.pin().enter_lazy();
            }
            retire(&cpus[0], &space);
            if stops_in_handler {
                let bell = &cpus[1].pin().cpu.bell;
                bell.ring(engine.machine());
                assert!(bell.begin_round(engine.machine()).is_some());
            }
            cpus[1].halt();
            disconnect(&cpus[0], 1);
            disconnect(&cpus[0], 1);
            assert!(engine.machine().take_reclaimed().is_empty(), "CPU 2 walks its tables");
            cpus[2].pin().leave_space();
            let reclaimed = engine.machine().take_reclaimed().len();
            assert_eq!(reclaimed, usize::from(!stops_in_handler));
        }
    }

    /// CPU 1 stops while it logs its flush. CPU 2 comes back after each flush of CPU 0.
    #[test]
    fn unfinished_log_entry_costs_one_tag_in_sixteen_flushes() {
        let engine = engine(Config::default());
        let space = engine.space(Root(0));
        let cpus = [0, 1, 2].map(|cpu| engine.enter(CpuId(cpu)));
        switch(&cpus[2], &space);
        let stuck = space.log.bump(engine.machine(), 1);
        space.log.record_for_ever(stuck);
        cpus[1].halt();
        disconnect(&cpus[0], 1);
        cpus[2].pin().enter_lazy();
        let full = || engine.cpu(CpuId(2)).stats().flushes_full;
        for generation in stuck + 1..=stuck + 40 {
            switch(&cpus[2], &space);
            engine.machine().map(&space, 3);
            assert_eq!(cpus[2].touch(3), Touch::Ok);
            cpus[2].pin().enter_lazy();
            engine.machine().unmap(&space, 3);
            assert!(cpus[0].pin().flush(&space, Extent::page(0x3000)).poll());
            engine.machine().free(&space, 3);
            let before = full();
            switch(&cpus[2], &space);
            assert_eq!(cpus[2].touch(3), Touch::Fault);
            let is_unlogged = (generation - stuck).is_multiple_of(16);
            assert_eq!(full() - before, u64::from(is_unlogged), "flush {generation}");
        }
    }

    #[test]
    fn stopped_cpu_has_no_broadcast_to_complete() {
        let engine = engine(Config::default().with_broadcasts(9));
        let space = engine.space(Root(0));
        let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
        switch(&zero, &space);
        let outstanding = || one.pin().local().policy.outstanding.get();
        let mut pending = one.pin().flush(&space, Extent::page(0));
        assert_eq!(outstanding(), 1);
        // The handler of the NMI that stops the CPU.
        engine.machine().complete();
        one.halt();
        disconnect(&zero, 1);
        assert_eq!(outstanding(), 0);
        assert!(pending.poll());
    }

    #[test]
    fn interrupt_that_stopped_cpu_did_not_send_is_sent() {
        let engine = engine(Config::default());
        let cpus = [0, 1, 2].map(|cpu| engine.enter(CpuId(cpu)));
        // CPU 1 has rung both, and stops before it interrupts them.
        for cpu in [&cpus[0], &cpus[2]] {
            cpu.pin().cpu.bell.ring(engine.machine());
        }
        cpus[2].interrupt_point();
        assert_eq!(cpus[2].pin().cpu.stats().answers, 0);
        disconnect(&cpus[0], 1);
        for cpu in [&cpus[0], &cpus[2]] {
            cpu.interrupt_point();
            assert_eq!(cpu.pin().cpu.stats().answers, 1);
        }
    }

    /// The CPU stops while it pins an ASID, with the allocator's lock.
    #[test]
    fn lock_of_stopped_cpu_is_released() {
        let engine = engine(Config::default().with_broadcasts(9));
        let spaces = [0, 1].map(|root| engine.space(Root(root)));
        let cpus = [0, 1, 2].map(|cpu| engine.enter(CpuId(cpu)));
        switch(&cpus[0], &spaces[0]);
        switch(&cpus[1], &spaces[1]);
        engine.tags().lock_for_ever(CpuId(1));
        // No CPU needs the lock to switch.
        switch(&cpus[2], &spaces[1]);
        disconnect(&cpus[2], 1);
        switch(&cpus[0], &spaces[1]);
        assert!(cpus[0].pin().pin_tag(&spaces[0]).is_some());
    }
}
