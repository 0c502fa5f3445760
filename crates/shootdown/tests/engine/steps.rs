//! The order of the engine's steps on the machine. Tests that read through a TLB cannot show it on
//! an x86 host, which completes each step before the next.
//!
//! These tests show that the engine takes a step, and where. They cannot show that other CPUs
//! observe the order, or that no barrier is missing elsewhere: `tests/rules` does, under loom.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;

use shootdown::{BellState, CpuId, Extent, ExtentSet, NotifyCosts, PageSize, Pending, Presence};

use super::measured::{CONFIG, Config, Measured, PAGE, Step, System};

/// A machine on which a broadcast costs less than an interrupt.
fn with_broadcasts() -> System {
    let costs = NotifyCosts { interrupt_ns: 5000, broadcast_ns: 2000, ..NotifyCosts::default() };
    System::new(Config { costs: Some(costs), ..CONFIG })
}

/// The position of a step.
fn index_of(steps: &[Step], step: Step) -> usize {
    let index = steps.iter().position(|other| *other == step);
    index.unwrap_or_else(|| panic!("{step:?} is not among {steps:?}"))
}

/// Asserts that these steps are among others, in this order.
fn assert_order(steps: &[Step], wanted: &[Step]) {
    let indexes: Vec<usize> = wanted.iter().map(|step| index_of(steps, *step)).collect();
    assert!(indexes.is_sorted(), "{wanted:?} is not the order of {steps:?}");
}

#[test]
fn flush_publishes_page_tables_before_it_notifies_or_invalidates() {
    let system = System::new(CONFIG);
    // SAFETY: the space lives as long as the engine, and its box does not move it.
    unsafe { system.pin(0).switch(&system.space) };
    let steps = system.steps(|| system.flush());
    let [answered, own] =
        [BellState::Answering, BellState::Quiet].map(|bell| Step::Invalidate(PAGE, bell));
    for last in [answered, own] {
        assert_order(&steps, &[Step::Publish, Step::Fence, Step::Ring, last]);
    }
    let mut pending = None;
    let steps = system.steps(|| pending = Some(system.pin(0).flush_kernel(PAGE)));
    assert_order(&steps, &[Step::Publish, Step::Fence, Step::Ring]);
    system.pin(1).handle_flush_ipi();
    assert!(pending.unwrap().poll());
}

#[test]
fn broadcast_comes_after_page_tables_are_published_and_is_completed() {
    let system = with_broadcasts();
    let steps = system.steps(|| _ = system.pin(0).flush(&system.space, PAGE).poll());
    assert_order(&steps, &[Step::Publish, Step::Fence, Step::Broadcast(PAGE), Step::Complete]);
    let steps = system.steps(|| _ = system.pin(0).flush_kernel(PAGE).poll());
    assert_order(&steps, &[Step::Publish, Step::Broadcast(PAGE), Step::Complete]);
    let steps = system.steps(|| _ = system.pin(0).flush_walkers(&system.space).poll());
    assert_order(&steps, &[Step::Fence, Step::Broadcast(Extent::whole()), Step::Complete]);
}

/// CPU 1 uses the space. The second extent is refused.
#[test]
fn partly_refused_broadcast_rings_for_all_extents() {
    let other = Extent::page(0x9000);
    let extents = [PAGE, other].into_iter().fold(ExtentSet::new(), |mut extents, extent| {
        extents.add(extent);
        extents
    });
    let costs = NotifyCosts { interrupt_ns: 5000, ..NotifyCosts::default() };
    let refusing = Config { costs: Some(costs), refused: Some(other), ..CONFIG };
    let order = [Step::Broadcast(PAGE), Step::Broadcast(other), Step::Ring];
    for is_kernel in [false, true] {
        let system = System::new(refusing);
        let mut pending = None;
        let steps = system.steps(|| {
            let pin = system.pin(0);
            pending = Some(match is_kernel {
                false => pin.flush_gathered(&system.space, &extents),
                true => pin.flush_kernel_gathered(&extents),
            });
        });
        assert_order(&steps, &order);
        let mut pending = pending.unwrap();
        assert!(!pending.poll(), "CPU 1 has not answered");
        let steps = system.steps(|| system.pin(1).handle_flush_ipi());
        let answering = BellState::Answering;
        for extent in [PAGE, other] {
            index_of(
                &steps,
                match is_kernel {
                    false => Step::Invalidate(extent, answering),
                    true => Step::InvalidateKernel(extent),
                },
            );
        }
        assert!(pending.poll());
        assert_eq!(system.stats().broadcasts_sent, u64::from(is_kernel));
        // The part that was issued is completed with the next broadcast.
        let steps = system.steps(|| _ = system.pin(0).flush_kernel(PAGE).poll());
        assert_order(&steps, &[Step::Broadcast(PAGE), Step::Complete]);
    }
}

/// Refused for the walkers of unhooked tables.
#[test]
fn refused_broadcast_of_whole_space_rings_walkers() {
    let costs = NotifyCosts { interrupt_ns: 5000, ..NotifyCosts::default() };
    let system =
        System::new(Config { costs: Some(costs), refused: Some(Extent::whole()), ..CONFIG });
    let mut unhooked = ExtentSet::new();
    unhooked.add(PAGE.freeing_tables());
    let _ = system.pin(0).flush_gathered(&system.space, &unhooked).poll();
    let mut pending = None;
    let steps = system.steps(|| pending = Some(system.pin(0).flush_walkers(&system.space)));
    assert_order(&steps, &[Step::Broadcast(Extent::whole()), Step::Ring]);
    system.pin(1).handle_flush_ipi();
    assert!(pending.unwrap().poll());
}

#[test]
fn joined_broadcast_is_completed() {
    let system = with_broadcasts();
    let mut all = Pending::done(&system.engine);
    all.join(system.pin(0).flush(&system.space, PAGE));
    assert_eq!(system.steps(|| assert!(all.poll())), [Step::Complete]);
}

#[test]
fn cpu_that_comes_online_synchronizes_before_it_invalidates() {
    let system = System::new(CONFIG);
    system.pin(1).offline();
    let steps = system.steps(|| system.pin(1).online());
    assert_eq!(steps, [Step::Synchronize, Step::InvalidateAll]);
}

/// Each of these words is written before others are read.
#[test]
fn switch_trim_and_attached_device_are_followed_by_a_barrier() {
    let system = System::new(CONFIG);
    // SAFETY: the space lives as long as the engine, and its box does not move it.
    let switch = || unsafe { system.pin(0).switch(&system.space) };
    assert_order(&system.steps(switch), &[Step::Fence, Step::Load]);
    system.pin(0).enter_lazy();
    index_of(&system.steps(switch), Step::Fence);
    system.pin(0).leave_space();
    index_of(&system.steps(|| _ = system.pin(0).trim_cpumask(&system.space)), Step::Fence);
    let attach = || system.engine.attach_device(&system.space).unwrap();
    assert_eq!(system.steps(attach), [Step::Fence]);
    // SAFETY: there is no device.
    unsafe { system.engine.detach_device(&system.space) };
}

/// Flushes on CPU 0, and returns the steps of CPU 1, which answers the flushes together.
fn steps_of_answer(answers_early: bool, flushes: &[Extent]) -> Vec<Step> {
    let system = System::new(Config { answers_early, ..CONFIG });
    let flush = |extent: &Extent| system.pin(0).flush(&system.space, *extent);
    let mut pending: Vec<_> = flushes.iter().map(flush).collect();
    let steps = system.steps(|| system.pin(1).handle_flush_ipi());
    assert!(pending.iter_mut().all(|pending| pending.poll()));
    steps
}

/// In the state `Answering`, the CPU has not answered yet; in `Polling`, it has answered, and has
/// not left the handler.
#[test]
fn early_answer_is_given_before_the_invalidation_of_one_flush() {
    for pages in [1, 3] {
        let extent = Extent::pages(0x1000, pages, PageSize::SIZE_4K);
        for (answers_early, bell) in [(false, BellState::Answering), (true, BellState::Polling)] {
            let steps = steps_of_answer(answers_early, &[extent]);
            assert_eq!(steps, [Step::Invalidate(extent, bell)]);
        }
    }
}

#[test]
fn answer_is_late_unless_one_flush_of_few_pages_was_missed() {
    let many = Extent::pages(0x1000, 1 << 12, PageSize::SIZE_4K);
    let late = BellState::Answering;
    let cases: [(&[Extent], Step); 4] = [
        (&[PAGE, PAGE], Step::Invalidate(PAGE, late)),
        (&[PAGE.freeing_tables()], Step::Invalidate(PAGE.freeing_tables(), late)),
        (&[many], Step::InvalidateTag(late)),
        (&[many.freeing_tables()], Step::InvalidateTag(late)),
    ];
    for (flushes, step) in cases {
        let steps = steps_of_answer(true, flushes);
        assert!(!steps.is_empty() && steps.iter().all(|other| *other == step), "{steps:?}");
    }
}

/// A CPU that became lazy after the ring catches up when it returns to the space.
#[test]
fn lazy_cpu_answers_without_an_invalidation() {
    let system = System::new(Config { answers_early: true, ..CONFIG });
    let mut pending = system.pin(0).flush(&system.space, PAGE);
    let steps = system.steps(|| {
        system.pin(1).enter_lazy();
        system.pin(1).handle_flush_ipi();
    });
    assert_eq!(steps, []);
    assert!(pending.poll());
}

#[test]
fn page_of_the_kernel_is_invalidated_once() {
    let system = System::new(CONFIG);
    let answer = |mut pending: Pending<'_, Measured>| {
        let steps = system.steps(|| system.pin(1).handle_flush_ipi());
        assert!(pending.poll());
        steps
    };
    let steps = answer(system.pin(0).flush_kernel(PAGE));
    assert_eq!(steps, [Step::InvalidateKernel(PAGE)]);
    let steps = answer(system.pin(0).flush(&system.space, PAGE));
    assert_eq!(steps, [Step::Invalidate(PAGE, BellState::Answering)]);
}

#[test]
fn cpu_that_comes_online_has_no_page_of_the_kernel_to_invalidate() {
    let system = System::new(CONFIG);
    system.pin(1).offline();
    system.pin(0).flush_kernel(PAGE).wait();
    system.pin(1).online();
    // SAFETY: the space lives as long as the engine, and its box does not move it.
    unsafe { system.pin(1).switch(&system.space) };
    let mut pending = system.pin(0).flush(&system.space, PAGE);
    let steps = system.steps(|| system.pin(1).handle_flush_ipi());
    assert_eq!(steps, [Step::Invalidate(PAGE, BellState::Answering)]);
    assert!(pending.poll());
}

/// The device may walk the tables as soon as it has the tag.
#[test]
fn pin_of_a_tag_is_followed_by_a_barrier() {
    let system = with_broadcasts();
    let pin = || assert!(system.pin(0).pin_tag(&system.space).is_some());
    pin();
    assert_eq!(system.steps(pin), [Step::Fence]);
    // SAFETY: there is no device.
    (0..2).for_each(|_| unsafe { system.pin(0).unpin_tag(&system.space) });
}

/// The machine's `wait_hint` panics, because there is no thread that could answer.
#[test]
fn wait_that_panics_is_not_repeated_when_it_is_dropped() {
    let system = System::new(CONFIG);
    let mut pending = system.pin(0).flush(&system.space, PAGE);
    assert!(catch_unwind(AssertUnwindSafe(|| pending.wait())).is_err());
    drop(pending);
}

/// A CPU that waits with interrupts masked polls its bell, so it answers without an interrupt.
#[test]
fn cpu_that_waits_is_not_interrupted() {
    let owned = Box::into_raw(Box::new(System::new(CONFIG)));
    // SAFETY: the system is freed at the end of this function.
    let system: &'static System = unsafe { &*owned };
    // SAFETY: as above, and the space's box does not move it.
    unsafe { system.pin(0).switch(&system.space) };
    let mut pending = system.pin(0).flush(&system.space, PAGE);
    let (sender, receiver) = channel();
    system.during_wait(move || {
        let mut second = None;
        let steps = system.steps(|| second = Some(system.pin(1).flush(&system.space, PAGE)));
        sender.send(steps).unwrap();
        // CPU 0 answers after this turn, and this CPU does not wait for it.
        std::mem::forget(second);
        system.pin(1).handle_flush_ipi();
    });
    pending.wait();
    drop(pending);
    assert!(!receiver.recv().unwrap().contains(&Step::Ring));
    // SAFETY: nothing refers to the system any more: the other flush was forgotten.
    drop(unsafe { Box::from_raw(owned) });
}

/// CPU 1 catches up, and CPU 0 flushes another page after the first invalidation. CPU 1 may have
/// cached that page again by then.
#[test]
fn flush_while_catching_up_is_caught_up_with() {
    const OTHER: Extent = Extent::page(0x9000);
    type Operation = fn(&System);
    // SAFETY: the space lives as long as the engine, and its box does not move it.
    let switch = |system: &System| unsafe { system.pin(1).switch(&system.space) };
    let handle: Operation = |system| system.pin(1).handle_flush_ipi();
    let flush: Operation = |system| std::mem::forget(system.pin(1).flush(&system.space, PAGE));
    // What CPU 1 does, the number of flushes of CPU 0, and what CPU 1 does then.
    let cases: [(Operation, u32, Operation); 8] = [
        (|system| system.pin(1).enter_lazy(), 1, switch),
        (|system| system.pin(1).enter_lazy(), 2, switch),
        (|system| system.pin(1).leave_space(), 1, switch),
        (|system| system.pin(1).leave_space(), 2, switch),
        (|_| {}, 1, handle),
        (|_| {}, 2, handle),
        (|_| {}, 0, flush),
        (|_| {}, 2, flush),
    ];
    for (number, (before, flushes, catch_up)) in cases.into_iter().enumerate() {
        let owned = Box::into_raw(Box::new(System::new(CONFIG)));
        // SAFETY: the box is freed at the end.
        let system: &'static System = unsafe { &*owned };
        before(system);
        (0..flushes).for_each(|_| std::mem::forget(system.pin(0).flush(&system.space, PAGE)));
        system.after_invalidation(|| std::mem::forget(system.pin(0).flush(&system.space, OTHER)));
        let steps = system.steps(|| {
            catch_up(system);
            system.pin(1).handle_flush_ipi();
        });
        let is_other = |step: &Step| matches!(step, Step::Invalidate(OTHER, _));
        assert!(steps.iter().any(is_other), "case {number}: {steps:?}");
        // SAFETY: nothing refers to the system any more: the flushes were forgotten.
        drop(unsafe { Box::from_raw(owned) });
    }
}

/// As [`flush_while_catching_up_is_caught_up_with`], for the kernel's pages.
#[test]
fn kernel_flush_while_catching_up_is_caught_up_with() {
    for comes_online in [true, false] {
        let owned = Box::into_raw(Box::new(System::new(CONFIG)));
        // SAFETY: the box is freed at the end.
        let system: &'static System = unsafe { &*owned };
        let flush = |extent| std::mem::forget(system.pin(0).flush_kernel(extent));
        if comes_online {
            system.pin(1).offline();
        } else {
            flush(Extent::page(0x9000));
        }
        system.after_invalidation(move || flush(PAGE));
        let steps = system.steps(|| {
            system.pin(1).online();
            system.pin(1).handle_flush_ipi();
        });
        let count = steps.iter().filter(|step| **step == Step::InvalidateKernel(PAGE)).count();
        assert_eq!(count, 2, "on both CPUs: {steps:?}");
        // SAFETY: nothing refers to the system any more: the flushes were forgotten.
        drop(unsafe { Box::from_raw(owned) });
    }
}

/// The switch publishes the generation up to which the CPU's translations are clean.
#[test]
fn cpu_that_switched_after_last_flush_is_not_interrupted() {
    let system = System::new(CONFIG);
    system.pin(1).leave_space();
    (0..3).for_each(|_| drop(system.pin(0).flush(&system.space, PAGE)));
    // SAFETY: the space lives as long as the engine, and its box does not move it.
    unsafe { system.pin(1).switch(&system.space) };
    assert!(system.pin(0).flush_walkers(&system.space).waiting().is_empty());
}

/// An NMI that comes before the kernel's root is loaded must not conclude that the CPU uses the
/// space.
#[test]
fn cpu_that_leaves_is_not_active_when_it_loads_the_kernel() {
    let system = System::new(CONFIG);
    let steps = system.steps(|| system.pin(1).leave_space());
    index_of(&steps, Step::LoadKernel(Presence::Switching(system.space.id())));
}

/// The interrupt of CPU 1 may have been lost with CPU 2, which stopped while it sent it.
#[test]
fn cpus_that_are_rung_are_interrupted_again_after_a_crash() {
    let system = System::new(Config { cpus: 3, ..CONFIG });
    let mut pending = system.pin(0).flush(&system.space, PAGE);
    // SAFETY: CPU 2 does nothing any more, and its accesses were on this thread.
    let disconnect = || unsafe { system.pin(0).disconnect(CpuId(2)) };
    assert_eq!(system.steps(disconnect).last(), Some(&Step::Ring));
    assert_eq!(system.stats().interrupts_sent, 3);
    system.pin(1).handle_flush_ipi();
    assert!(pending.poll());
}
