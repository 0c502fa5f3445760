//! Uses of safe functions that once broke a promise of the engine, or could break one.

#![expect(unsafe_code, reason = "switches to spaces, and retires them")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use shootdown::soft::{Answers, Config, Host, Soft, Touch};
use shootdown::{
    CpuId, Extent, ExtentSet, PageSize, Presence, Quarantine, Reach, Root, Shootdown, Space,
    Tagging,
};

type Machine = Soft<Host>;

const PAGE: Extent = Extent::page(0);

fn online(config: Config) -> Shootdown<Machine> {
    let engine = Soft::engine(config);
    (0..config.cpus).for_each(|cpu| engine.enter(CpuId(cpu)).pin().online());
    engine
}

fn switch(engine: &Shootdown<Machine>, cpu: u32, space: &Space<Machine>) {
    // SAFETY: the spaces of each test outlive all operations of its CPUs, and do not move.
    unsafe { engine.enter(CpuId(cpu)).pin().switch(space) };
}

fn panics(f: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(f)).is_err()
}

/// Flushes several spaces on one CPU, which no other CPU uses; then switches among them without
/// flushes. Returns the number of full flushes during these switches.
fn full_flushes_while_switching(config: Config, spaces: u64) -> u64 {
    let engine = online(Config { cpus: 1, tables: spaces as usize, ..config });
    let spaces: Vec<_> = (0..spaces).map(|root| engine.space(Root(root))).collect();
    for space in &spaces {
        switch(&engine, 0, space);
        for _ in 0..20 {
            engine.enter(CpuId(0)).pin().flush(space, PAGE).wait();
        }
    }
    let before = engine.machine().total_stats().flushes_full;
    for _ in 0..20 {
        spaces.iter().for_each(|space| switch(&engine, 0, space));
    }
    let full_flushes = engine.machine().total_stats().flushes_full - before;
    engine.enter(CpuId(0)).pin().leave_space();
    full_flushes
}

#[test]
fn time_shared_spaces_keep_global_tags() {
    let config = Config { tags: 60, ..Config::default().with_broadcasts(60) };
    for spaces in [2, 6, 7, 20] {
        assert_eq!(full_flushes_while_switching(config, spaces), 0, "{spaces} spaces");
    }
    let targets = Config { broadcast: Some(Reach::Targets), ..config };
    assert_eq!(full_flushes_while_switching(targets, 6), 0);
}

/// CPU 1's slot belongs to another space, but CPU 1 has missed no flush.
#[test]
fn flush_alone_leaves_no_gap() {
    let engine = online(Config { cpus: 2, ..Config::default().with_broadcasts(15) });
    let space = engine.space(Root(0));
    switch(&engine, 0, &space);
    let mut extents = ExtentSet::new();
    [PAGE, Extent::page(0x9000)].into_iter().for_each(|extent| extents.add(extent));
    engine.enter(CpuId(0)).pin().flush_gathered(&space, &extents).wait();
    engine.enter(CpuId(0)).pin().flush(&space, PAGE).wait();
    engine.enter(CpuId(0)).pin().flush_gathered(&space, &extents).wait();
    let before = engine.cpu(CpuId(1)).stats().flushes_full;
    switch(&engine, 1, &space);
    assert_eq!(engine.cpu(CpuId(1)).stats().switches_flushed, 0);
    assert_eq!(engine.cpu(CpuId(1)).stats().flushes_full, before);
    // Two CPUs have run the space, so CPU 1 misses a flush while it is away.
    engine.enter(CpuId(1)).pin().leave_space();
    engine.enter(CpuId(0)).pin().flush(&space, Extent::pages(0, 40, PageSize::SIZE_4K)).wait();
    switch(&engine, 1, &space);
    assert_eq!(engine.cpu(CpuId(1)).stats().flushes_full, before + 1);
}

#[test]
fn gathered_flush_is_caught_up_by_a_lazy_cpu() {
    let engine = online(Config { tagging: Tagging::Global, tags: 15, ..Config::default() });
    let space = engine.space(Root(0));
    switch(&engine, 0, &space);
    let one = engine.enter(CpuId(1));
    switch_on(&one, &space);
    let mut extents = ExtentSet::new();
    for page in [0, 2] {
        engine.machine().map(&space, page);
        assert_eq!(one.touch(page), Touch::Ok);
        engine.machine().unmap(&space, page);
        extents.add(Extent::page((page as u64) << 12));
    }
    one.pin().enter_lazy();
    engine.enter(CpuId(0)).pin().flush_gathered(&space, &extents).wait();
    switch_on(&one, &space);
    assert!([0, 2].iter().all(|page| one.touch(*page) == Touch::Fault));
    one.pin().leave_space();
    engine.enter(CpuId(0)).pin().leave_space();
}

/// The lazy CPU missed several flushes, and has dropped everything since.
#[test]
fn broadcast_for_walkers_leaves_a_lazy_cpu_nothing_to_catch_up() {
    let engine = online(Config::default().with_broadcasts(15));
    let space = engine.space(Root(0));
    switch(&engine, 0, &space);
    switch(&engine, 1, &space);
    engine.enter(CpuId(1)).pin().enter_lazy();
    (0..3).for_each(|_| engine.enter(CpuId(0)).pin().flush(&space, PAGE).wait());
    engine.enter(CpuId(0)).pin().flush_walkers(&space).wait();
    let before = engine.cpu(CpuId(1)).stats();
    switch(&engine, 1, &space);
    let after = engine.cpu(CpuId(1)).stats();
    assert_eq!(
        after.flushes_full + after.flushes_ranged,
        before.flushes_full + before.flushes_ranged
    );
    [0, 1].into_iter().for_each(|cpu| engine.enter(CpuId(cpu)).pin().leave_space());
}

/// A broadcast that is complete at issue leaves no wait anything to do.
#[test]
fn only_unmasked_wait_for_later_completion_interrupts_issuer() {
    let cases = [false, true].into_iter().flat_map(|first| [(first, false), (first, true)]);
    for ((completes_at_issue, is_masked), is_online) in
        cases.flat_map(|case| [(case, false), (case, true)])
    {
        for reach in [Reach::Everyone, Reach::Targets] {
            let config = Config::default().with_broadcasts(15);
            let config = Config { completes_at_issue, broadcast: Some(reach), ..config };
            let engine = online(config);
            let space = engine.space(Root(0));
            switch(&engine, 1, &space);
            let zero = engine.enter(CpuId(0));
            if !is_online {
                zero.pin().offline();
            }
            let mut pending = zero.pin().flush(&space, PAGE);
            if !is_masked {
                engine.machine().unmask();
            }
            let interrupts = is_online && !is_masked && !completes_at_issue;
            assert_eq!(pending.poll(), !interrupts, "{config:?}");
            engine.machine().mask();
            zero.interrupt_point();
            assert_eq!(engine.cpu(CpuId(0)).stats().answers, u64::from(interrupts));
            assert!(pending.poll());
            drop(zero);
            engine.enter(CpuId(1)).pin().leave_space();
        }
    }
}

/// The hypervisor has stopped CPU 1.
#[test]
fn flush_waits_for_the_cpus_that_run() {
    let engine = online(Config { cpus: 3, is_guest: true, ..Config::default() });
    let space = engine.space(Root(0));
    switch(&engine, 1, &space);
    switch(&engine, 2, &space);
    engine.enter(CpuId(1)).stop();
    let mut pending = engine.enter(CpuId(0)).pin().flush(&space, PAGE);
    assert!(pending.waiting().iter().eq([CpuId(2)]));
    engine.enter(CpuId(2)).interrupt_point();
    assert!(pending.poll());
    engine.enter(CpuId(1)).resume();
    [1, 2].into_iter().for_each(|cpu| engine.enter(CpuId(cpu)).pin().leave_space());
}

#[test]
fn cpu_that_went_offline_is_not_in_the_online_set() {
    let engine = online(Config { cpus: 3, ..Config::default() });
    engine.enter(CpuId(1)).pin().offline();
    assert_eq!(format!("{engine:?}"), "Shootdown { online: [5], .. }");
}

/// No CPU has the space loaded, or the CPU that has left it was trimmed from the mask.
#[test]
fn flush_alone_is_caught_up_by_a_cpu_that_left() {
    for is_trimmed in [false, true] {
        let engine = online(Config::default().with_broadcasts(15));
        let space = engine.space(Root(0));
        engine.machine().map(&space, 0);
        switch(&engine, 0, &space);
        assert_eq!(engine.enter(CpuId(0)).touch(0), Touch::Ok);
        engine.enter(CpuId(0)).pin().leave_space();
        let flushing = if is_trimmed {
            switch(&engine, 1, &space);
            assert!(engine.enter(CpuId(1)).pin().trim_cpumask(&space));
            CpuId(1)
        } else {
            CpuId(0)
        };
        engine.machine().unmap(&space, 0);
        engine.enter(flushing).pin().flush(&space, PAGE).wait();
        engine.machine().free(&space, 0);
        switch(&engine, 0, &space);
        assert_eq!(engine.enter(CpuId(0)).touch(0), Touch::Fault);
    }
}

#[test]
fn offline_cpu_completes_its_broadcasts_itself() {
    let engine = Machine::engine(Config { cpus: 3, ..Config::default() }.with_broadcasts(15));
    let space = engine.space(Root(0));
    engine.machine().map(&space, 0);
    let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
    one.pin().online();
    switch_on(&one, &space);
    assert_eq!(one.touch(0), Touch::Ok);
    engine.machine().unmap(&space, 0);
    // CPU 0 is not online, so no CPU can ring it.
    let mut pending = zero.pin().flush(&space, PAGE);
    let _ = one.pin();
    assert!(pending.poll());
    engine.machine().free(&space, 0);
    assert_eq!(one.touch(0), Touch::Fault);
}

fn switch_on(cpu: &shootdown::soft::OnCpu<'_, Host>, space: &Space<Machine>) {
    // SAFETY: the spaces of each test outlive all operations of its CPUs, and do not move.
    unsafe { cpu.pin().switch(space) };
}

/// With interrupts unmasked, the thread may migrate at any moment, and would then complete another
/// CPU's broadcasts.
#[test]
fn unmasked_wait_rings_the_issuer_of_a_broadcast() {
    let engine = online(Config { cpus: 3, ..Config::default() }.with_broadcasts(15));
    let space = engine.space(Root(0));
    engine.machine().map(&space, 0);
    let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
    switch_on(&one, &space);
    assert_eq!(one.touch(0), Touch::Ok);
    engine.machine().unmap(&space, 0);
    let mut pending = zero.pin().flush(&space, PAGE);
    engine.machine().unmask();
    assert!(!pending.poll(), "no CPU has completed the broadcast");
    assert_eq!(one.touch(0), Touch::Ok);
    engine.machine().mask();
    zero.interrupt_point();
    assert!(pending.poll());
    engine.machine().free(&space, 0);
    assert_eq!(one.touch(0), Touch::Fault);
    one.pin().leave_space();
}

#[test]
fn online_twice_keeps_a_ring() {
    let engine = online(Config::default());
    let space = engine.space(Root(0));
    switch(&engine, 1, &space);
    let mut pending = engine.enter(CpuId(0)).pin().flush(&space, PAGE);
    assert!(!pending.poll());
    let one = engine.enter(CpuId(1));
    one.pin().online();
    one.interrupt_point();
    assert!(pending.poll());
}

#[test]
fn retired_space_is_not_resumed() {
    let engine = online(Config::default());
    let space = engine.space(Root(0));
    engine.machine().map(&space, 0);
    let one = engine.enter(CpuId(1));
    switch_on(&one, &space);
    one.pin().enter_lazy();
    // SAFETY: the only CPU that used the space is lazy on it, and the space stays in place.
    drop(unsafe { engine.enter(CpuId(0)).pin().retire(NonNull::from(&space)) });
    assert!(!one.pin().resume(space.id()));
    assert_eq!(engine.cpu(CpuId(1)).presence(engine.machine()), Presence::Lazy(space.id()));
    one.pin().leave_space();
}

#[test]
fn horizon_of_another_space_panics() {
    let engine = online(Config::default());
    let [a, b] = [0, 1].map(|root| engine.space(Root(root)));
    let horizon = |space| {
        let mut extents = ExtentSet::new();
        extents.add(PAGE.freeing_tables());
        engine.enter(CpuId(0)).pin().flush_gathered(space, &extents).horizon()
    };
    let mut quarantine: Quarantine<Vec<u8>> = Quarantine::new(9);
    quarantine.defer(horizon(&a), 1, vec![1]).unwrap();
    assert!(panics(|| _ = quarantine.take_cleared(horizon(&b))));
    assert_eq!(quarantine.take_cleared(horizon(&a)), Some((1, vec![1])));
}

#[test]
fn space_of_another_engine_panics() {
    let (engine, other) = (online(Config::default()), online(Config::default()));
    let space = other.space(Root(0));
    let zero = engine.enter(CpuId(0));
    assert!(panics(|| zero.pin().flush(&space, PAGE).wait()));
    assert!(panics(|| _ = zero.pin().flush_walkers(&space)));
}

#[test]
fn empty_range_flushes_nothing() {
    let engine = online(Config::default());
    let space = engine.space(Root(0));
    switch(&engine, 1, &space);
    let zero = engine.enter(CpuId(0));
    let empty = Extent::range(0x3000..0x3000, PageSize::SIZE_4K);
    let mut extents = ExtentSet::new();
    extents.add(empty);
    assert!(extents.is_empty());
    for mut pending in [
        zero.pin().flush(&space, empty),
        zero.pin().flush_for_resize(&space, empty),
        zero.pin().flush_gathered(&space, &extents),
        zero.pin().flush_kernel(empty),
    ] {
        assert!(pending.poll());
    }
    assert_eq!(engine.machine().total_stats().interrupts_sent, 0);
    assert_eq!(space.stats(engine.machine()).flushes_ranged, 0);
    engine.enter(CpuId(1)).pin().leave_space();
}

/// While a CPU switches to a space, comes back to it or leaves it, an NMI must not touch user
/// memory.
#[test]
fn nmi_may_touch_user_only_while_active() {
    let engine = online(Config::default());
    let [a, b] = [0, 1].map(|root| engine.space(Root(root)));
    let one = engine.enter(CpuId(1));
    let may_touch = |space: &Space<Machine>| {
        let _ = one.pin();
        engine.nmi_may_touch_user(space.id())
    };
    assert!(!may_touch(&a));
    switch_on(&one, &a);
    assert!(may_touch(&a) && !may_touch(&b));
    one.pin().enter_lazy();
    assert!(!may_touch(&a));
    switch_on(&one, &a);
    assert!(may_touch(&a));
    switch_on(&one, &b);
    assert!(!may_touch(&a) && may_touch(&b));
    one.pin().leave_space();
    assert!(!may_touch(&b));
}

/// A CPU that answers early has perhaps answered, and not invalidated yet, while its bell is not
/// quiet.
#[test]
fn nmi_may_not_touch_user_before_an_early_answer_ends() {
    for answers in [Answers::Late, Answers::Early] {
        let engine = online(Config { answers, ..Config::default() });
        let space = engine.space(Root(0));
        let one = engine.enter(CpuId(1));
        switch_on(&one, &space);
        let may_touch = || {
            let _ = one.pin();
            engine.nmi_may_touch_user(space.id())
        };
        assert!(may_touch());
        let mut pending = engine.enter(CpuId(0)).pin().flush(&space, PAGE);
        assert_eq!(may_touch(), answers == Answers::Late);
        one.interrupt_point();
        assert!(may_touch() && pending.poll());
        one.pin().leave_space();
    }
}

/// There are more tags than slots, so two spaces may use a slot in turn.
#[test]
fn spaces_that_share_a_slot_stay_correct() {
    let engine = online(Config { cpus: 2, tables: 8, ..Config::default().with_broadcasts(20) });
    let spaces: Vec<_> = (0..8).map(|root| engine.space(Root(root))).collect();
    let one = engine.enter(CpuId(1));
    for space in &spaces {
        engine.machine().map(space, 0);
        switch_on(&one, space);
        assert_eq!(one.touch(0), Touch::Ok);
    }
    one.pin().leave_space();
    for space in &spaces {
        engine.machine().unmap(space, 0);
        engine.enter(CpuId(0)).pin().flush(space, PAGE).wait();
        engine.machine().free(space, 0);
    }
    for space in spaces.iter().rev().chain(&spaces) {
        switch_on(&one, space);
        assert_eq!(one.touch(0), Touch::Fault);
    }
    one.pin().leave_space();
}
