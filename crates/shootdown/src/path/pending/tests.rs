use super::*;
use crate::base::ids::Root;
use crate::parts::extent::Extent;
use crate::soft::{Config, Host, Soft, Touch};
use crate::state::machine::tests::Plain;
use crate::state::space::Space;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use core::time::Duration;
use std::sync::Barrier;
use std::thread;
use std::vec::Vec;

type Machine = Soft<Host>;

fn waiting(pending: &Pending<'_, Machine>) -> Vec<u32> {
    pending.waiting().iter().map(|cpu| cpu.0).collect()
}

/// Brings three CPUs online. The last of them uses the space.
fn run(engine: &Shootdown<Machine>, space: &Space<Machine>) {
    (0..3).for_each(|cpu| engine.enter(CpuId(cpu)).pin().online());
    #[expect(unsafe_code, reason = "the space outlives its CPU's use of it")]
    // SAFETY: the space outlives the CPUs' use of it, and does not move.
    unsafe {
        engine.enter(CpuId(2)).pin().switch(space);
    }
}

#[test]
fn joined_flush_waits_for_both() {
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

/// A wait, and a drop without a wait.
#[test]
fn waiter_returns_after_every_answer() {
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
                // Enough time for the waiter to return too early.
                thread::sleep(Duration::from_millis(20));
                has_answered.store(true, Relaxed);
                engine.enter(CpuId(2)).interrupt_point();
            });
            wait(pending);
            assert!(has_answered.load(Relaxed));
        });
    }
}

/// A waiter whose interrupt is not masked may be moved to another CPU.
#[test]
fn unmasked_waiter_does_not_poll_its_bell() {
    let mut machine = Plain::<0>::with_tags(0);
    machine.interrupts_masked = false;
    let engine = Shootdown::new(machine);
    let bell = &engine.cpu(CpuId(0)).bell;
    bell.connect();
    bell.ring(engine.machine());
    let mut pending = Pending::done(&engine);
    pending.wait_for(CpuId(0));
    // A waiter that polled would call `pin`, which asserts that the interrupt is masked.
    pending.wait();
    assert_eq!(engine.cpu(CpuId(0)).stats().answers, 0);
}

/// Both CPUs have the interrupt masked.
#[test]
fn two_cpus_wait_for_each_other() {
    let engine = Soft::<Host>::engine(Config { cpus: 3, ..Config::default() });
    let space = engine.space(Root(0));
    run(&engine, &space);
    let meet = Barrier::new(2);
    let flush = |cpu| {
        let cpu = engine.enter(CpuId(cpu));
        #[expect(unsafe_code, reason = "the space outlives its CPUs' use of it")]
        // SAFETY: the space outlives the CPUs' use of it, and does not move.
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

/// Each CPU counts its own rounds, so a ticket of one CPU is meaningless for another.
#[test]
fn joined_flush_takes_a_new_ticket() {
    let engine = Soft::engine(Config { cpus: 3, ..Config::default() });
    let spaces = [0, 1].map(|root| engine.space(Root(root)));
    run(&engine, &spaces[1]);
    #[expect(unsafe_code, reason = "the space outlives its CPU's use of it")]
    // SAFETY: the space outlives the CPUs' use of it, and does not move.
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
    assert!(!pending.poll(), "the poll takes the ticket of CPU 2's first round");
    pending.join(flush(&spaces[0]));
    assert_eq!(waiting(&pending), [1, 2]);
    engine.enter(CpuId(2)).interrupt_point();
    assert!(!pending.poll(), "CPU 1 has ended five rounds, and not the sixth");
    engine.enter(CpuId(1)).interrupt_point();
    assert!(pending.poll());
}

/// A ticket of the CPU that was waited for before is meaningless for the issuer of a broadcast.
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
    // A failed assertion must not wait in `drop`.
    let mut pending = core::mem::ManuallyDrop::new(Pending::done(&engine));
    pending.wait_for(CpuId(2));
    assert!(!pending.poll(), "the poll takes the ticket of CPU 2's first round");
    pending.set_issuer(CpuId(1));
    let _ = engine.enter(CpuId(0)).pin();
    assert!(!pending.poll(), "CPU 1 is rung, and has not ended its sixth round");
    assert_eq!(waiting(&pending), [1, 2]);
    engine.enter(CpuId(2)).pin().handle_flush_ipi();
    engine.enter(CpuId(1)).interrupt_point();
    assert!(pending.poll());
}

#[test]
fn joined_broadcast_is_completed_by_its_issuer() {
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
    let outstanding = zero.pin().local().policy.outstanding.get();
    assert_eq!(outstanding, 2, "the flush that was joined completes nothing when dropped");
    assert_eq!((pending.issuer(), waiting(&pending)), (Some(CpuId(0)), Vec::new()));
    pending.join(other);
    assert_eq!((pending.issuer(), waiting(&pending)), (Some(CpuId(0)), Vec::from([1])));
    assert!(!pending.poll(), "CPU 1 has not completed its own broadcast");
    drop(zero);
    engine.enter(CpuId(1)).interrupt_point();
    let zero = engine.enter(CpuId(0));
    assert!(pending.poll());
    drop(zero);
    engine.machine().free(&space, 0);
    assert_eq!(engine.enter(CpuId(2)).touch(0), Touch::Fault);
}

/// A bell that was rung before shows that the issuer will answer, not that it has.
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
    assert!(!pending.poll(), "CPU 1 has not completed its broadcast");
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
    assert!(pending.poll(), "there is no CPU to wait for");
    engine.machine().free(&space, 0);
    assert_eq!(engine.enter(CpuId(2)).touch(0), Touch::Fault);
}
