use super::*;
use crate::base::ids::{CpuId, Root};
use crate::soft::{Config, Host, Soft};
use crate::state::engine::Shootdown;
use core::time::Duration;
use std::thread;

type Machine = Soft<Host>;

/// Two CPUs online, of which some use the space.
fn run(engine: &Shootdown<Machine>, space: &Space<Machine>, users: &[u32]) {
    (0..2).for_each(|cpu| engine.enter(CpuId(cpu)).pin().online());
    for &cpu in users {
        #[expect(unsafe_code, reason = "the space outlives its CPUs' use of it")]
        // SAFETY: the space outlives the CPUs' use of it, and does not move.
        unsafe {
            engine.enter(CpuId(cpu)).pin().switch(space);
        }
    }
}

fn engine() -> Shootdown<Machine> {
    Soft::engine(Config { cpus: 2, ..Config::default() })
}

#[test]
fn flush_and_wait_counts_as_flush() {
    for users in [&[][..], &[0]] {
        let stats = [true, false].map(|is_one_call| {
            let engine = engine();
            let space = engine.space(Root(0));
            run(&engine, &space, users);
            let zero = engine.enter(CpuId(0));
            for extent in [Extent::page(0), Extent::whole(), Extent::empty()] {
                if is_one_call {
                    zero.pin().flush_and_wait(&space, extent);
                } else {
                    zero.pin().flush(&space, extent).wait();
                }
            }
            let space = (space.log.generation(engine.machine()), space.stats(engine.machine()));
            (engine.cpu(CpuId(0)).stats(), space)
        });
        assert_eq!(stats[0], stats[1]);
        assert_eq!(stats[0].0.flushes_local, 2);
    }
}

/// A flush of pages that is broadcast to every CPU is not counted, by either call.
#[test]
fn flush_and_wait_broadcasts_as_flush() {
    let costs = Config::default().costs.broadcasts_only();
    for is_one_call in [true, false] {
        let engine =
            Soft::engine(Config { cpus: 2, costs, ..Config::default().with_broadcasts(6) });
        let space = engine.space(Root(0));
        run(&engine, &space, &[0, 1]);
        let zero = engine.enter(CpuId(0));
        let before = space.log.generation(engine.machine());
        if is_one_call {
            zero.pin().flush_and_wait(&space, Extent::page(0));
        } else {
            zero.pin().flush(&space, Extent::page(0)).wait();
        }
        let counted = space.log.generation(engine.machine()) - before;
        let stats = engine.cpu(CpuId(0)).stats();
        assert_eq!((counted, stats.broadcasts_sent, stats.interrupts_sent), (0, 1, 0));
    }
}

/// The flush ends only when the other CPU has answered.
#[test]
fn flush_and_wait_returns_after_the_answer() {
    let engine = engine();
    let space = engine.space(Root(0));
    run(&engine, &space, &[0, 1]);
    let answers = || engine.cpu(CpuId(1)).stats().answers;
    thread::scope(|scope| {
        let flush = scope.spawn(|| {
            engine.enter(CpuId(0)).pin().flush_and_wait(&space, Extent::page(0));
            assert_eq!(answers(), 1);
        });
        let one = engine.enter(CpuId(1));
        while engine.cpu(CpuId(0)).stats().interrupts_sent == 0 {
            thread::yield_now();
        }
        // Enough time to return too early.
        thread::sleep(Duration::from_millis(20));
        // The interrupt is counted before it is sent.
        while !flush.is_finished() {
            one.interrupt_point();
            thread::yield_now();
        }
    });
}

#[test]
fn gathered_tables_wait_for_lazy_cpu() {
    let engine = engine();
    let space = engine.space(Root(0));
    run(&engine, &space, &[0, 1]);
    engine.enter(CpuId(1)).pin().enter_lazy();
    let zero = engine.enter(CpuId(0));
    let mut extents = ExtentSet::new();
    let horizon = zero.pin().flush_gathered_and_wait(&space, &extents);
    assert_eq!((horizon.flush(), horizon.cleared()), (0, 0), "there is nothing to flush");
    for (flush, page) in [(1, 0), (3, 9)] {
        extents.add(Extent::page(page << 12).freeing_tables());
        let horizon = zero.pin().flush_gathered_and_wait(&space, &extents);
        assert_eq!((horizon.flush(), horizon.cleared()), (flush, 0));
    }
    engine.enter(CpuId(1)).pin().leave_space();
    let horizon = zero.pin().flush_gathered_and_wait(&space, &extents);
    assert!(horizon.is_clear());
}
