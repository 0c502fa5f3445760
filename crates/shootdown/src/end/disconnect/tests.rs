use super::*;
use crate::base::costs::NotifyCosts;
use crate::base::ids::Root;
use crate::parts::extent::Extent;
use crate::soft::{Config, Host, OnCpu, Soft, Touch};
use crate::state::broadcaster::Broadcaster;
use crate::state::engine::Shootdown;
use crate::state::space::Space;
use crate::state::stall::StallReport;
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
