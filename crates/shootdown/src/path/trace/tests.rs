use super::*;
use crate::base::ids::{CpuId, Root};
use crate::end::reclaim::{Batch, StaleWrites};
use crate::parts::extent_set::ExtentSet;
use crate::soft::{Config, Host, Platform, Soft};
use crate::state::engine::Shootdown;
use crate::state::machine::Lifetime;
use crate::state::space::Space;
use core::sync::atomic::AtomicU64;
use std::thread;
use std::vec;
use std::vec::Vec;

/// The host's threads, with traces.
struct Traced<const SHOOT: bool>;

impl<const SHOOT: bool> Platform for Traced<SHOOT> {
    type Word = AtomicU64;
    type Frame = AtomicU64;
    const LIFETIME: Lifetime = if SHOOT { Lifetime::Shoot } else { Lifetime::Handoff };
    fn fence() {
        Host::fence();
    }
    fn spin_hint() {
        Host::spin_hint();
    }
    fn cpu() -> CpuId {
        Host::cpu()
    }
    fn set_cpu(cpu: CpuId) {
        Host::set_cpu(cpu);
    }
    const TRACES: bool = true;
}

type Machine<const SHOOT: bool = false> = Soft<Traced<SHOOT>>;

/// An engine on which CPU 1 uses the space.
fn engine<const SHOOT: bool>() -> (Shootdown<Machine<SHOOT>>, Space<Machine<SHOOT>>) {
    let engine = Soft::engine(Config::default());
    (0..2).for_each(|cpu| engine.enter(CpuId(cpu)).pin().online());
    let space = engine.space(Root(0));
    (engine, space)
}

#[expect(unsafe_code, reason = "the space outlives its CPU's use of it")]
fn use_on_one<const SHOOT: bool>(
    engine: &Shootdown<Machine<SHOOT>>,
    space: &Space<Machine<SHOOT>>,
) {
    // SAFETY: the space outlives the CPUs' use of it, and does not move.
    unsafe { engine.enter(CpuId(1)).pin().switch(space) };
}

#[test]
fn each_flush_is_traced_once_with_its_cause() {
    let (engine, space) = engine::<false>();
    let (page, other) = (Extent::page(0x1000), Extent::page(0x3000));
    let zero = engine.enter(CpuId(0));
    let pin = zero.pin();
    let mut both = ExtentSet::new();
    both.add(page);
    both.add(other);
    assert!(pin.flush(&space, page).poll());
    assert!(pin.because(FlushCause::Unmap).flush_gathered(&space, &both).poll());
    assert!(pin.flush_gathered(&space, &ExtentSet::new()).poll());
    assert!(pin.because(FlushCause::Fork).flush(&space, Extent::whole()).poll());
    use_on_one(&engine, &space);
    let kernel = pin.flush_kernel(page);
    engine.enter(CpuId(1)).interrupt_point();
    let resize = pin.because(FlushCause::Split).flush_for_resize(&space, page);
    engine.enter(CpuId(1)).interrupt_point();
    let mut batch: Batch<&Space<_>, Vec<()>> = Batch::new();
    let entry = batch.space(engine.machine(), &&space).unwrap();
    assert!(entry.unmapped(&pin, page, StaleWrites::Impossible).poll());
    let sent = batch.send(&pin);
    engine.enter(CpuId(1)).interrupt_point();
    drop((kernel, resize, sent));
    drop(pin.reap());
    let (flushes, waits) = engine.machine().take_traces();
    let traced = flushes.iter().map(|trace| (trace.cause, trace.pages, trace.targets));
    let expected = vec![
        (FlushCause::Unnamed, Some(1), 0),
        (FlushCause::Unmap, Some(2), 0),
        (FlushCause::Fork, None, 0),
        (FlushCause::Kernel, Some(1), 1),
        (FlushCause::Split, Some(1), 1),
        (FlushCause::Reclaim, Some(1), 1),
        (FlushCause::Exit, Some(0), 0),
    ];
    assert_eq!(traced.collect::<Vec<_>>(), expected);
    let of_space = TraceScope::Space(space.id());
    let scopes: Vec<_> = flushes.iter().map(|trace| trace.scope).collect();
    assert_eq!(
        scopes[2..],
        [of_space, TraceScope::Kernel, of_space, TraceScope::Spaces, TraceScope::Spaces]
    );
    assert_eq!(waits.len(), 3, "{waits:?}");
    assert!(flushes.iter().all(|trace| trace.ns == 1), "{flushes:?}");
}

#[test]
fn end_of_space_is_traced_where_it_interrupts() {
    let (engine, space) = engine::<true>();
    use_on_one(&engine, &space);
    engine.enter(CpuId(1)).pin().enter_lazy();
    #[expect(unsafe_code, reason = "ends a space that no CPU uses")]
    // SAFETY: no CPU uses the space any more, and it stays in place.
    let retiring = unsafe { engine.enter(CpuId(0)).pin().retire(core::ptr::NonNull::from(&space)) };
    engine.enter(CpuId(1)).interrupt_point();
    drop(retiring);
    let (flushes, _) = engine.machine().take_traces();
    let traced = flushes.iter().map(|trace| (trace.cause, trace.scope, trace.targets));
    assert_eq!(traced.collect::<Vec<_>>(), [(FlushCause::Exit, TraceScope::Spaces, 1)]);
}

#[test]
fn wait_is_traced_with_the_cause_of_its_flush() {
    let (engine, space) = engine::<false>();
    use_on_one(&engine, &space);
    let zero = engine.enter(CpuId(0));
    let pin = zero.pin();
    let mut pending = pin.because(FlushCause::Protect).flush(&space, Extent::page(0));
    pending.join(pin.because(FlushCause::Move).flush(&space, Extent::page(0)));
    thread::scope(|scope| {
        scope.spawn(|| engine.enter(CpuId(1)).interrupt_point());
        pending.wait();
    });
    let counters = CauseCounters::default();
    let (flushes, waits) = engine.machine().take_traces();
    for trace in &flushes {
        counters.record_flush(trace);
    }
    assert_eq!(waits, [WaitTrace { cause: FlushCause::Protect, targets: 1, ns: 1 }]);
    counters.record_wait(&WaitTrace { ns: 7, ..waits[0] });
    let expected =
        CauseStats { flushes: 1, pages: 1, targets: 1, flush_ns: 1, ..CauseStats::default() };
    assert_eq!(counters.stats(FlushCause::Move), expected);
    assert_eq!(counters.stats(FlushCause::Protect), CauseStats { wait_ns: 7, ..expected });
    counters.record_flush(&FlushTrace { is_broadcast: true, pages: None, ..flushes[0] });
    let expected =
        CauseStats { flushes: 2, whole: 1, targets: 2, broadcasts: 1, flush_ns: 2, ..expected };
    assert_eq!(counters.stats(flushes[0].cause), CauseStats { wait_ns: 7, ..expected });
    let total: u64 = FlushCause::ALL.map(|cause| counters.stats(cause).flushes).iter().sum();
    assert_eq!(total, 3);
}

#[test]
fn machine_without_traces_gets_no_event() {
    let engine = Soft::<Host>::engine(Config::default());
    let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
    zero.pin().online();
    one.pin().online();
    let mut pending = zero.pin().flush_kernel(Extent::page(0));
    one.interrupt_point();
    pending.wait();
    assert_eq!(engine.machine().take_traces(), (Vec::new(), Vec::new()));
}

#[test]
fn causes_are_indices() {
    assert!(FlushCause::ALL.iter().enumerate().all(|(index, &cause)| cause as usize == index));
}
